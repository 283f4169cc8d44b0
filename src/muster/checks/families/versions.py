"""The versions of the interpreter that the ranks will use, and whether the hosts have the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from muster.agent.probe import run, text
from muster.checks.base import Answers, Check, Context, Finding, Level
from muster.checks.kinds import (
    NO_MAJORITY,
    Case,
    Differ,
    Judge,
    alike,
    compared,
    differing,
    engine,
    group_check,
    host_check,
    same_check,
    version_key,
)
from muster.core.hostlist import fold_hosts
from muster.engines.base import packages

# What ranks' messages, checkpoints and numbers depend on: a difference breaks a job, or spoils it.
_ALL = ("torch", "transformers", "accelerate")
_MUST = (_ALL[0], *packages(), *_ALL[1:])
# What hosts are asked for.
PACKAGES = (
    *_MUST,
    *("numpy", "datasets", "tokenizers", "peft", "safetensors", "sentencepiece", "pydantic", "triton", "trl"),
)
# The oldest Linux driver for a CUDA major version (CUDA Compatibility, minor version compatibility).
_DRIVERS = {11: (450, 80, 2), 12: (525, 60, 13), 13: (580,)}
_SAME = "muster prepare HOSTS RECIPE  # the same environment everywhere"
_SILENT = "the ranks' Python does not respond"


def probe(ask: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is installed for the ranks' interpreter, read from file names: nothing is imported, and a
    process is started only where that interpreter's folders do not follow from pyvenv.cfg."""
    import json
    import os
    import re
    import sys

    def which(name: str, path: str) -> str | None:
        """Find a program as shutil.which does, whose module takes longer to load than all this."""
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
        status, output, _ = run([python, "-c", code], 20)
        answer["python"], folders = json.loads(output.splitlines()[-1]) if status == 0 else (None, [])
    for folder in folders:
        if not os.path.isdir(folder):
            continue
        for name in os.listdir(folder):
            match = re.match(r"(.+?)-([^-]+)(?:-py[\d.]+)?\.(?:dist|egg)-info$", name)
            if match:
                key = re.sub(r"[-_.]+", "-", match.group(1)).lower()
                answer["packages"].setdefault(key, match.group(2))  # the first of a path is what is imported
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
        module = re.search(r"Module(?: for \S+)? +(\d+\.[\d.]+)", text("/proc/driver/nvidia/version") or "")
        answer["driver"] = module.group(1) if module else None
    keep = set(ask.get("packages") or [])
    answer["packages"] = {key: value for key, value in answer["packages"].items() if key in keep}
    return answer


# ----------------------------------------------------------------------------------------------------
# The interpreter and its packages.


@same_check(
    "versions.python",
    Differ("the version of Python differs from most hosts", Level.FAIL, _SAME),
    at_least="3.8",
)
def python(case: Case) -> Finding | str:
    """The ranks' Python exists, and its major.minor version is the same on every host.

    Pickles, wheels and compiled operators do not work across minor versions.
    """
    answer, least = case.answer, case.expect("at_least")
    hint = "muster prepare HOSTS RECIPE, or launch.python=PATH"
    if answer.get("missing"):
        return case.fail("the ranks' Python is missing", str(answer["missing"]), hint)
    version, interpreter = answer.get("python"), answer.get("interpreter")
    if not version:
        return case.fail("the ranks' Python does not run", str(interpreter), hint)
    if version_key(version)[:2] < version_key(least)[:2]:
        evidence = f"{version} at {interpreter}, and {least} is needed"
        return case.fail("the ranks' Python is too old", evidence, hint)
    return ".".join(version.split(".")[:2])


def _package(package: str) -> Check:
    """Declare the check of a package that all must have in one version. Missing everywhere is no difference.
    """
    name = f"versions.{package}"

    def compare(answers: Answers, peers: Answers, context: Context) -> Judge:
        values = {
            host: answer["packages"].get(package) for host, answer in answers.items() if answer.get("python")
        }
        have = {host: version for host, version in values.items() if version is not None}
        # What a recipe's ranks import; without a recipe, what those of any do.
        needed = package in (*_ALL, *engine(context).packages)
        differ = Differ(f"the version of {package} differs from most hosts", Level.FAIL, _SAME)
        judged = differing(name, values if have and needed else have, differ)

        def judge(case: Case) -> Finding:
            if case.host not in values:
                return case.unknown(_SILENT)
            if case.host in judged:
                return judged[case.host]
            if have:
                evidence = f"{fold_hosts(have)} {'has' if len(have) == 1 else 'have'} it"
                return case.warn(f"{package} is installed on other hosts only", evidence, _SAME)
            if context.recipe and needed:
                evidence = f"no {package} for the ranks' Python"
                return case.warn("what the recipe needs is not installed", evidence, _SAME)
            return case.not_applicable("installed on no host")

        return judge

    asks = f"{package}'s version, the same on every host."
    why = "Ranks with different versions hang, or fail with errors about shapes, keys or pickles."
    return compared(name, asks, why, compare)


def _built_for(key: str, asks: str, why: str, problem: str) -> Check:
    """Declare a check that the answer's value for this key is alike, where torch is built for CUDA on any
    host."""

    def value(case: Case) -> Any:
        built = None if case.answer.get(key) == "none" else case.answer.get(key)
        return built if case.answer.get("python") else case.unknown(_SILENT)

    differ = Differ(problem, Level.FAIL, _SAME, nowhere="torch is not built for CUDA")
    return alike(f"versions.{key}", f"{asks}, the same on every host.", why, differ, value)


@group_check("versions.packages")
def others(answers: Answers, peers: Answers, context: Context) -> Judge:
    """numpy, datasets, tokenizers, peft, safetensors, triton and what else a job uses, the same on every
    host.

    Data and numbers may differ between ranks.
    """
    able = [answer["packages"] for answer in answers.values() if answer.get("python")]
    usual: dict[str, Any] = {}
    tied = set()
    for name in sorted({name for installed in able for name in installed} - set(_MUST)):
        counts = Counter(installed.get(name) for installed in able).most_common(2)
        if len(counts) > 1:
            usual[name] = counts[0][0]
            if counts[0][1] == counts[1][1]:
                tied.add(name)

    def judge(case: Case) -> Finding:
        if not case.answer.get("python"):
            return case.unknown(_SILENT)
        mine = {name: case.answer["packages"].get(name) for name in usual}
        odd = [name for name in usual if name in tied or mine[name] != usual[name]]
        words = ", ".join(
            f"{name} {mine[name] or 'not installed'}" + ("" if name in tied else f" (most: {usual[name]})")
            for name in odd
        )
        problem = "versions of packages differ from most hosts" + (NO_MAJORITY if tied else "")
        return case.warn(problem, words, _SAME) if odd else case.passed()

    return judge


@same_check(
    "versions.driver",
    Differ(
        "the driver differs from most hosts",
        remedy="install the same driver everywhere: sudo apt-get install nvidia-driver-VERSION",
    ),
)
def driver(case: Case) -> Finding | str:
    """The NVIDIA driver's version against what torch's CUDA needs, and against the other hosts.

    torch finds no GPU where the driver is too old for its CUDA; one such host stops the job.
    """
    driver, cuda = case.answer.get("driver"), case.answer.get("cuda")
    if not driver:
        return case.not_applicable("no NVIDIA driver")
    need = _DRIVERS.get((version_key(cuda) or (0,))[0])
    if need and version_key(driver) < need:
        return case.fail(
            "the driver is too old for torch's CUDA",
            f"driver {driver}, and CUDA {cuda} needs {'.'.join(map(str, need))}",
            "install a newer driver, or torch for an older CUDA: pip install torch --index-url "
            "https://download.pytorch.org/whl/cu126",
        )
    return str(driver)


# ----------------------------------------------------------------------------------------------------
# What DeepSpeed compiles its operators with at first use.


def _builds(case: Case) -> bool:
    return engine(case.context).compiles(case.context.recipe.get("engine") or {})


@host_check("versions.compiler")
def compiler(case: Case) -> Finding:
    """A C++ compiler and ninja, where DeepSpeed compiles operators (engine.offload, engine.config).

    Without them the first step fails while it builds CPU Adam, with a long traceback.
    """
    if not _builds(case):
        return case.not_applicable("this recipe compiles nothing")
    tools = case.answer.get("tools") or {}
    missing = [name for name, key in (("a C++ compiler", "c++"), ("ninja", "ninja")) if not tools.get(key)]
    if missing:
        remedy = "sudo apt-get install g++ ninja-build, or engine.offload=none"
        return case.warn("DeepSpeed cannot compile its operators", f"no {' and no '.join(missing)}", remedy)
    return case.passed(f"{tools['c++']}, {tools['ninja']}")


_LAST_MIXED = 12  # CUDA's last major version of which DeepSpeed lets minor versions differ


@host_check("versions.nvcc")
def nvcc(case: Case) -> Finding:
    """The CUDA compiler there, of the version that torch was built for; up to CUDA 12 of its major version.

    DeepSpeed refuses to build operators with another one.
    """
    # DeepSpeed lists the minor versions that go together for CUDA 10 to 12, and none later (0.19.8's
    # op_builder/builder.py).
    cuda, tools = case.answer.get("cuda"), case.answer.get("tools") or {}
    if not _builds(case) or cuda in (None, "", "none"):
        return case.not_applicable("this recipe compiles nothing for CUDA")
    if not tools.get("nvcc"):
        remedy = "install the CUDA toolkit of that version and set env.CUDA_HOME=/usr/local/cuda"
        return case.warn("there is no CUDA compiler (nvcc)", f"torch is built for CUDA {cuda}", remedy)
    version = tools.get("nvcc_version")
    if not version:
        return case.unknown("nvcc's version could not be read")
    evidence = f"nvcc {version} at {tools['nvcc']}, torch for CUDA {cuda}"
    mine, wanted = version_key(version)[:2], version_key(cuda)[:2]
    if mine == wanted or (mine[0] == wanted[0] and mine[0] <= _LAST_MIXED):
        return case.passed(evidence)
    remedy = "env.CUDA_HOME=/usr/local/cuda-VERSION of torch's version; or env.DS_SKIP_CUDA_CHECK=1"
    return case.fail("nvcc and torch have different CUDA versions", evidence, remedy)


CHECKS = (
    python,
    *(_package(name) for name in _MUST),
    _built_for(
        "cuda",
        "The CUDA version that torch was built for",
        "Kernels and collectives of different builds do not work together.",
        "torch built for another CUDA than most hosts",
    ),
    _built_for(
        "nccl",
        "NCCL's version",
        "Different versions of NCCL refuse to work together, or hang.",
        "another version of NCCL than most hosts",
    ),
    others,
    driver,
    compiler,
    nvcc,
)
