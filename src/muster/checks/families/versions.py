"""The versions of the interpreter that the ranks will use, and whether the hosts have the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from muster.agent.probe import run, text
from muster.checks.base import Answers, Check, Context, Finding, Level
from muster.checks.families._judging import (
    NO_MAJORITY,
    About,
    Differ,
    differing,
    each,
    engine,
    majority,
    version_key,
)
from muster.core.hostlist import fold_hosts
from muster.engines.base import packages

# ----------------------------------------------------------------------------------------------------
# Judging what DeepSpeed compiles its operators with at first use. Pure.

TOOLCHAIN = (
    Check(
        "versions.compiler",
        "A C++ compiler and ninja, where DeepSpeed compiles operators (engine.offload, engine.config).",
        "Without them the first step fails while it builds CPU Adam, with a long traceback.",
    ),
    Check(
        "versions.nvcc",
        "The CUDA compiler there, of the major version that torch was built for.",
        "DeepSpeed refuses to build operators with a CUDA of another major version.",
    ),
)


def judge_toolchain(answers: Answers, context: Context) -> list[Finding]:
    """Both questions; not applicable to recipes that compile nothing."""
    builds = engine(context).compiles(context.recipe.get("engine") or {})
    return [
        *each("versions.compiler", answers, lambda at, a: _compiler(at, a, builds)),
        *each("versions.nvcc", answers, lambda at, a: _nvcc(at, a, builds)),
    ]


def _compiler(about: About, answer: Mapping[str, Any], builds: bool) -> Finding:
    tools = answer.get("tools") or {}
    missing = [name for name, key in (("a C++ compiler", "c++"), ("ninja", "ninja")) if not tools.get(key)]
    if not builds:
        return about.not_applicable("this recipe compiles nothing")
    if missing:
        return about.warn(
            "DeepSpeed cannot compile its operators",
            f"no {' and no '.join(missing)}",
            "sudo apt-get install g++ ninja-build, or engine.offload=none",
        )
    return about.passed(f"{tools['c++']}, {tools['ninja']}")


def _nvcc(about: About, answer: Mapping[str, Any], builds: bool) -> Finding:
    cuda = answer.get("cuda")
    if not builds or not cuda or cuda == "none":
        return about.not_applicable("this recipe compiles nothing for CUDA")
    tools = answer.get("tools") or {}
    if not tools.get("nvcc"):
        return about.warn(
            "there is no CUDA compiler (nvcc)",
            f"torch is built for CUDA {cuda}",
            "install the CUDA toolkit of that version and set env.CUDA_HOME=/usr/local/cuda",
        )
    version = tools.get("nvcc_version")
    if not version:
        return about.unknown("nvcc's version could not be read")
    evidence = f"nvcc {version} at {tools['nvcc']}, torch for CUDA {cuda}"
    if version_key(version)[:1] == version_key(cuda)[:1]:
        return about.passed(evidence)  # a minor difference is accepted
    return about.fail(
        "nvcc and torch have different major CUDA versions",
        evidence,
        "env.CUDA_HOME=/usr/local/cuda-VERSION of torch's major version",
    )


# ----------------------------------------------------------------------------------------------------
# The versions of the ranks' interpreter and packages.

# What ranks' messages, checkpoints and numbers depend on: a difference breaks a job, or spoils it.
_ALL = ("torch", "transformers", "accelerate")
_MUST = (_ALL[0], *packages(), *_ALL[1:])
# What hosts are asked for.
PACKAGES = (
    *_MUST,
    "numpy",
    "datasets",
    "tokenizers",
    "peft",
    "safetensors",
    "sentencepiece",
    "pydantic",
    "triton",
    "trl",
)
# The oldest Linux driver for a CUDA major version (CUDA Compatibility, minor version compatibility).
_DRIVERS = {11: (450, 80, 2), 12: (525, 60, 13), 13: (580,)}
_SAME = "muster prepare HOSTS RECIPE  # the same environment everywhere"

CHECKS = (
    Check(
        "versions.python",
        "The ranks' Python exists, and its major.minor version is the same on every host.",
        "Pickles, wheels and compiled operators do not work across minor versions.",
        {"at_least": "3.8"},
    ),
    *(
        Check(
            f"versions.{name}",
            f"{name}'s version, the same on every host.",
            "Ranks with different versions hang, or fail with errors about shapes, keys or pickles.",
        )
        for name in _MUST
    ),
    Check(
        "versions.cuda",
        "The CUDA version that torch was built for, the same on every host.",
        "Kernels and collectives of different builds do not work together.",
    ),
    Check(
        "versions.nccl",
        "NCCL's version, the same on every host.",
        "Different versions of NCCL refuse to work together, or hang.",
    ),
    Check(
        "versions.packages",
        "numpy, datasets, tokenizers, peft, safetensors, triton and what else a job uses, the same on "
        "every host.",
        "Data and numbers may differ between ranks.",
    ),
    Check(
        "versions.driver",
        "The NVIDIA driver's version against what torch's CUDA needs, and against the other hosts.",
        "torch finds no GPU where the driver is too old for its CUDA; one such host stops the job.",
    ),
    *TOOLCHAIN,
)


def probe(ask: Mapping[str, Any]) -> dict[str, Any]:
    """What is installed for the ranks' interpreter, read from file names: nothing is imported, and a process
    is started only where that interpreter's folders cannot be told from pyvenv.cfg."""
    import json
    import os
    import re
    import sys

    def which(name: str, path: str) -> str | None:
        """shutil.which, whose module takes longer to load than all this."""
        places = [os.path.join(folder, name) for folder in path.split(os.pathsep) if folder]
        return next((file for file in places if os.path.isfile(file) and os.access(file, os.X_OK)), None)

    near = os.environ.get("PATH", "")
    asked = ask.get("python")
    own = ask.get("controller_python") or ""
    python = None
    if asked:  # a path, or a name to look for
        python = which(os.path.expanduser(asked), "/" if os.sep in asked else near)
    if asked and not python:
        return {"missing": asked}
    python = python or (own if own and os.access(own, os.X_OK) else sys.executable) or ""
    answer: dict[str, Any] = {
        "interpreter": python,
        "python": None,
        "packages": {},
        "cuda": None,
        "nccl": None,
    }
    home = os.path.dirname(os.path.dirname(python))
    pairs = [line.partition("=") for line in (text(home + "/pyvenv.cfg") or "").splitlines()]
    config = {key.strip(): value.strip() for key, _, value in pairs}
    version = re.match(r"\d+\.\d+\.\d+", config.get("version") or config.get("version_info") or "")
    extra = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    if version and config.get("include-system-site-packages", "false").lower() == "false":
        answer["python"] = version.group()
        minor = ".".join(version.group().split(".")[:2])
        folders = [*extra, home + "/lib/python%s/site-packages" % minor]
    elif not config and os.path.abspath(python) == os.path.abspath(sys.executable or ""):
        import site  # the probe runs without it (-S): its own folders are not on sys.path

        answer["python"] = "%d.%d.%d" % sys.version_info[:3]
        folders = [*extra, site.getusersitepackages(), *site.getsitepackages()]
    else:
        code = "import sys, json; print(json.dumps(['%d.%d.%d' % sys.version_info[:3], sys.path]))"
        status, said, _ = run([python, "-c", code], 20)
        answer["python"], folders = json.loads(said.splitlines()[-1]) if status == 0 else (None, [])
    for folder in folders:
        if not os.path.isdir(folder):
            continue
        for name in os.listdir(folder):
            found = re.match(r"(.+?)-([^-]+)(?:-py[\d.]+)?\.(?:dist|egg)-info$", name)
            if found:
                key = re.sub(r"[-_.]+", "-", found.group(1)).lower()
                answer["packages"].setdefault(key, found.group(2))  # the first of a path is what is imported
        if answer["cuda"] is None and os.path.isfile(folder + "/torch/version.py"):
            wanted = re.search(r"^cuda\b[^=\n]*= *'([\d.]+)'", text(folder + "/torch/version.py") or "", re.M)
            answer["cuda"] = wanted.group(1) if wanted else "none"
    for key, value in answer["packages"].items():
        if key.startswith("nvidia-nccl-cu"):
            answer["nccl"] = value
    near = os.path.dirname(python) + os.pathsep + near
    tools: dict[str, Any] = {name: which(name, near) for name in ("c++", "ninja", "nvcc")}
    compiler = os.environ.get("CXX")
    tools["c++"] = which(compiler, "/" if os.sep in compiler else near) if compiler else tools["c++"]
    tools["c++"] = tools["c++"] or which("g++", near)
    for root in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"):
        if root and os.access(root + "/bin/nvcc", os.X_OK):
            tools["nvcc"] = root + "/bin/nvcc"
            break
    if tools["nvcc"] and answer["cuda"] not in (None, "none"):
        note = text(os.path.dirname(os.path.dirname(os.path.realpath(tools["nvcc"]))) + "/version.json")
        note = note or run([tools["nvcc"], "--version"], 5)[1]
        stated = re.search(r'"cuda"\s*:\s*\{[^}]*"version"\s*:\s*"([\d.]+)"|release ([\d.]+)', note)
        tools["nvcc_version"] = (stated.group(1) or stated.group(2)) if stated else None
    answer["tools"] = tools
    answer["driver"] = text("/sys/module/nvidia/version") or None
    if answer["driver"] is None:
        told = re.search(r"Module(?: for \S+)? +(\d+\.[\d.]+)", text("/proc/driver/nvidia/version") or "")
        answer["driver"] = told.group(1) if told else None
    keep = set(ask.get("packages") or [])
    answer["packages"] = {key: value for key, value in answer["packages"].items() if key in keep}
    return answer


def judge(answers: Answers, peers: Answers, context: Context) -> list[Finding]:
    """One Finding per host and check: what is missing, and which hosts differ from most."""
    findings = _python(answers, context)
    able = {host: answer for host, answer in answers.items() if answer.get("python")}
    for name in _MUST:
        values = {host: answer["packages"].get(name) for host, answer in able.items()}
        findings += _package(f"versions.{name}", name, values, context)
    for check, key, words in (
        ("versions.cuda", "cuda", "torch built for another CUDA"),
        ("versions.nccl", "nccl", "another version of NCCL"),
    ):
        values = {host: answer.get(key) for host, answer in able.items()}
        if any(value not in (None, "none") for value in values.values()):
            findings += differing(check, values, Differ(f"{words} than most hosts", Level.FAIL, _SAME))
        else:
            findings += [About(check, host).not_applicable("torch is not built for CUDA") for host in values]
    findings += _rest(able)
    for check in ("packages", "cuda", "nccl", *_MUST):
        findings += [
            About(f"versions.{check}", host).unknown("the ranks' Python does not respond")
            for host in answers
            if host not in able
        ]
    return [*findings, *_driver(answers), *judge_toolchain(answers, context)]


def _python(answers: Answers, context: Context) -> list[Finding]:
    least = str(context.expect("versions.python", "at_least"))
    findings = []
    fine: dict[str, Any] = {}
    for host, answer in answers.items():
        about = About("versions.python", host)
        hint = "muster prepare HOSTS RECIPE, or launch.python=PATH"
        if answer.get("missing"):
            findings.append(about.fail("the ranks' Python is missing", str(answer["missing"]), hint))
        elif not answer.get("python"):
            evidence = str(answer.get("interpreter"))
            findings.append(about.fail("the ranks' Python does not run", evidence, hint))
        elif version_key(answer["python"])[:2] < version_key(least)[:2]:
            evidence = f"{answer['python']} at {answer.get('interpreter')}, and {least} is needed"
            findings.append(about.fail("the ranks' Python is too old", evidence, hint))
        else:
            fine[host] = ".".join(answer["python"].split(".")[:2])
    differ = Differ("the version of Python differs from most hosts", Level.FAIL, _SAME)
    return findings + differing("versions.python", fine, differ)


def _package(check: str, name: str, values: Mapping[str, str | None], context: Context) -> list[Finding]:
    """A package that all must have in one version. Missing everywhere is no difference."""
    differ = Differ(f"the version of {name} differs from most hosts", Level.FAIL, _SAME)
    have = {host: value for host, value in values.items() if value is not None}
    if have and name in _needed(context):
        return differing(check, values, differ)
    if have:
        evidence = f"{fold_hosts(have)} {'has' if len(have) == 1 else 'have'} it"
        return differing(check, have, differ) + [
            About(check, host).warn(f"{name} is installed on other hosts only", evidence, _SAME)
            for host in values
            if host not in have
        ]
    if context.recipe and name in _needed(context):
        evidence = f"no {name} for the ranks' Python"
        return [
            About(check, host).warn("what the recipe needs is not installed", evidence, _SAME)
            for host in values
        ]
    return [About(check, host).not_applicable("installed on no host") for host in values]


def _needed(context: Context) -> tuple[str, ...]:
    """What a recipe's ranks import; without a recipe, what those of any do."""
    return (*_ALL, *engine(context).packages)


def _rest(able: Answers) -> list[Finding]:
    """Packages that may differ: one Finding per host that names those that do."""
    most = {}
    for name in sorted({name for answer in able.values() for name in answer["packages"]} - set(_MUST)):
        values = [answer["packages"].get(name) for answer in able.values()]
        if len(set(values)) > 1:
            most[name] = majority(values)
    findings = []
    for host, answer in able.items():
        about = About("versions.packages", host)
        odd = []
        tie = False
        for name, usual in most.items():
            mine = answer["packages"].get(name)
            split = usual is None and _tied([a["packages"].get(name) for a in able.values()])
            if mine != usual or split:
                tie = tie or split
                odd.append(f"{name} {mine or 'not installed'}" + ("" if split else f" (most: {usual})"))
        if odd:
            problem = "versions of packages differ from most hosts" + (NO_MAJORITY if tie else "")
            findings.append(about.warn(problem, ", ".join(odd), _SAME))
        else:
            findings.append(about.passed())
    return findings


def _tied(values: list[Any]) -> bool:
    counts = sorted((values.count(value) for value in set(values)), reverse=True)
    return len(counts) > 1 and counts[0] == counts[1]


def _driver(answers: Answers) -> list[Finding]:
    have = {host: answer["driver"] for host, answer in answers.items() if answer.get("driver")}
    usual = majority(have.values())

    def one(about: About, answer: Mapping[str, Any]) -> Finding:
        driver, cuda = answer.get("driver"), answer.get("cuda")
        if not driver:
            return about.not_applicable("no NVIDIA driver")
        need = _DRIVERS.get((version_key(cuda) or (0,))[0]) if cuda else None
        if need and version_key(driver) < need:
            words = ".".join(str(part) for part in need)
            return about.fail(
                "the driver is too old for torch's CUDA",
                f"driver {driver}, and CUDA {cuda} needs {words}",
                "install a newer driver, or torch for an older CUDA: pip install torch --index-url "
                "https://download.pytorch.org/whl/cu126",
            )
        if driver != usual:
            others = f"most hosts have {usual}" if usual else "no value has a majority"
            return about.warn(
                "the driver differs from most hosts",
                f"{driver}; {others}",
                "install the same driver everywhere: sudo apt-get install nvidia-driver-VERSION",
            )
        return about.passed(f"{driver}" + (f" for CUDA {cuda}" if need else ""))

    return each("versions.driver", answers, one)
