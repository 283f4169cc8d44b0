"""Install this checkout into .venv, with the versions of constraints.txt: python3 dev/install.py EXTRA...

uv does it, from the indexes that pip is configured with; pip itself where uv cannot be had. Without a GPU the
CPU build of torch is enough, and some GB smaller: it is taken where an index offers it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))  # it needs the standard library alone, and is not installed yet
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"

def attempts(version: str, *, gpu: bool, uv: bool, indexes: Sequence[str] = ()) -> list[list[str]]:
    """List the ways to ask for torch, the best first: each fails where its index is out of reach. `indexes`:
    those that uv has already, in whose place the option would be."""
    plain, cpu = f"torch=={version}", f"torch=={version}+cpu"
    if gpu:
        return [[plain, "--torch-backend=auto"], [plain]] if uv else [[plain]]
    option = "--index" if uv else "--extra-index-url"
    more = [word for each in (*indexes, CPU_INDEX) for word in (option, each)]
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
    gpu = has_gpu()
    ways: list[tuple[list[str], dict[str, str] | None]] = []
    if uv := find_uv():
        from muster.agent.provision import install_environment, without_index

        environment = install_environment(None, offline=False)
        indexes = environment.get("UV_INDEX", "").split()
        command = [uv, "pip", "install", "--quiet", "--python", str(PYTHON), *wanted]
        command += ["--no-index"] if without_index() else []
        tries = attempts(version, gpu=gpu, uv=True, indexes=indexes)
        ways += [([*command, *torch], environment) for torch in tries]
    command = [str(PYTHON), "-m", "pip", "install", "--quiet", *wanted]
    ways += [([*command, *torch], None) for torch in attempts(version, gpu=gpu, uv=False)]
    for number, (argv, environment) in enumerate(ways, start=1):
        if run(argv, quiet=number < len(ways), environment=environment):
            return 0
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
