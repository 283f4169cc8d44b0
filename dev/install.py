"""Install this checkout into .venv, with the versions of constraints.txt: python3 dev/install.py EXTRA...

uv does it, from the indexes that pip is configured with; pip itself where uv cannot be had. Without a GPU the
CPU build of torch is enough, and some GB smaller: it is taken where an index offers it.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"

# pip's settings, and uv's options for each of their values.
OPTIONS = {
    "index-url": "--default-index", "extra-index-url": "--index", "find-links": "--find-links",
    "constraint": "--constraints", "trusted-host": "--allow-insecure-host",
}  # fmt: skip


def settings(listing: str) -> dict[str, str]:
    """Parse the output of `pip config list`: the environment's values win over `install`'s, these over
    `global`'s."""
    merged: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}
    for line in listing.splitlines():
        name, equals, value = line.partition("=")
        section, _, key = name.partition(".")
        if equals and section in merged:
            merged[section][key] = str(ast.literal_eval(value))
    return {**merged["global"], **merged["install"], **merged[":env:"]}


def uv_options(pip: dict[str, str]) -> list[str]:
    """Translate pip's settings. Versions are compared over all indexes, as pip does."""
    options = ["--index-strategy", "unsafe-best-match"]
    for key, option in OPTIONS.items():
        for value in pip.get(key, "").split():
            options += [option, value]
    if pip.get("no-index", "").lower() in ("1", "true", "yes", "on"):
        options.append("--no-index")
    return options


def uv_environment(pip: dict[str, str]) -> dict[str, str]:
    """The environment for uv, with pip's certificate and proxy where it has none of its own."""
    environment = dict(os.environ)
    if "cert" in pip:
        environment.setdefault("SSL_CERT_FILE", pip["cert"])
    if "proxy" in pip:
        environment.setdefault("ALL_PROXY", pip["proxy"])
    return environment


def attempts(version: str, *, gpu: bool, uv: bool) -> list[list[str]]:
    """List the ways to ask for torch, the best first: each fails where its index is out of reach."""
    plain, cpu = f"torch=={version}", f"torch=={version}+cpu"
    if gpu:
        return [[plain, "--torch-backend=auto"], [plain]] if uv else [[plain]]
    more = ["--index" if uv else "--extra-index-url", CPU_INDEX]
    return [[cpu], [cpu, *more], [plain]]


def run(
    argv: Sequence[str | Path], *, quiet: bool = False, environment: dict[str, str] | None = None
) -> bool:
    """Run a command. Return whether it succeeded."""
    output = subprocess.DEVNULL if quiet else None
    return subprocess.run(argv, cwd=ROOT, env=environment, stdout=output, stderr=output).returncode == 0


def find_uv() -> str | None:
    """The path of uv, which pip installs where there is none; None where it cannot be had."""
    own = VENV / "bin" / "uv"
    if not own.exists() and shutil.which("uv") is None:
        run([PYTHON, "-m", "pip", "install", "--quiet", "--constraint", "constraints.txt", "uv"], quiet=True)
    return str(own) if own.exists() else shutil.which("uv")


def has_gpu() -> bool:
    """Whether the NVIDIA driver lists a GPU."""
    return shutil.which("nvidia-smi") is not None and run(["nvidia-smi", "-L"], quiet=True)


def main(extras: list[str]) -> int:
    """Install. Return the exit code."""
    if sys.version_info < (3, 10):  # noqa: UP036  (it is run by whatever `python3` is)
        sys.stderr.write("Muster needs Python 3.10 or later.\n")
        return 1
    if not PYTHON.exists() and not run([sys.executable, "-m", "venv", VENV]):
        return 1
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    version = next(line.removeprefix("torch==") for line in pins if line.startswith("torch=="))
    wanted = ["--constraint", "constraints.txt", "--editable", f".[{','.join(extras)}]"]
    listing = subprocess.run([PYTHON, "-m", "pip", "config", "list"], capture_output=True, text=True).stdout
    pip, gpu = settings(listing), has_gpu()
    ways: list[tuple[list[str], dict[str, str] | None]] = []
    if uv := find_uv():
        command = [uv, "pip", "install", "--quiet", "--python", str(PYTHON), *uv_options(pip), *wanted]
        ways += [([*command, *torch], uv_environment(pip)) for torch in attempts(version, gpu=gpu, uv=True)]
    command = [str(PYTHON), "-m", "pip", "install", "--quiet", *wanted]
    ways += [([*command, *torch], None) for torch in attempts(version, gpu=gpu, uv=False)]
    for number, (argv, environment) in enumerate(ways, start=1):
        if run(argv, quiet=number < len(ways), environment=environment):
            return 0
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
