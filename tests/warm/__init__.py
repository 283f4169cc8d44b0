"""Warm: Python for tests, whose ranks come as forks of a process that has imported torch, Transformers'
trainer, accelerate and DeepSpeed already.

Imports are most of what a short job costs. `Interpreter.path` is a program that is Python to everybody who
starts it, but for a few modules (SERVED): of those it asks the server (server.py) for a fork, hands over its
files, environment, folder and namespaces, and stays as that fork's shadow: it ends as the fork ends, and the
fork ends with it. Tests of the endings of jobs, and one of each launcher, start their ranks anew (marker
`real_start`).
"""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

SERVED = (
    "muster.worker", "muster.workloads.fabric", "muster.worker.tracing", "muster.worker.ask", "tests.real.*",
    "tests.warm.rank", "benchmarks.gpu", "benchmarks.gpu.*",
)  # fmt: skip
# Room in the server's own arguments and environment, into which its forks write theirs: /proc then shows
# them as it would show a process that was started so. Agents find the processes of a job by that.
ARGUMENTS, ENVIRONMENT = 8 * 1024, 48 * 1024
HERE = Path(__file__).resolve().parent
REAL = sys.executable

WRAPPER = """#!/bin/bash
# Python for tests (tests/warm): some modules are run by forks of a process that has imported already.
if [ "$1" = -m ]; then
  case "$2" in
    {served}) exec {real} -IS {client} {socket} "$0" "$@" ;;
  esac
fi
exec -a "$0" {real} "$@"
"""


class Interpreter:
    """A virtual environment like that of the tests, whose python3 (`path`) is the program, and its server."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="muster-tests-warm-"))
        self.path = self.folder / "bin" / "python3"
        self.socket = self.folder / "socket"
        self._owner = os.getpid()
        prefix = Path(sys.prefix)
        self.path.parent.mkdir()
        for program in (prefix / "bin").iterdir():
            if not program.name.startswith("python"):
                (self.path.parent / program.name).symlink_to(program)
        for name in ("lib", "lib64", "include"):
            if (prefix / name).exists():
                (self.folder / name).symlink_to(prefix / name)
        shutil.copy(prefix / "pyvenv.cfg", self.folder)
        words = {"real": REAL, "client": HERE / "client.py", "socket": self.socket}
        quoted = {name: shlex.quote(str(value)) for name, value in words.items()}
        self.path.write_text(WRAPPER.format(served=" | ".join(SERVED), **quoted))
        self.path.chmod(0o755)
        self._start()

    @staticmethod
    def possible() -> bool:
        """Whether there can be one: the tests run in a virtual environment, on Linux, with bash."""
        made = sys.prefix != sys.base_prefix and (Path(sys.prefix) / "pyvenv.cfg").is_file()
        return made and sys.platform == "linux" and Path("/bin/bash").exists()

    def _start(self) -> None:
        """Start the server, which is of use as soon as it has imported: who asks earlier waits for it."""
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        env |= {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        env |= {"DS_ACCELERATOR": "cpu", "TOKENIZERS_PARALLELISM": "false", "ROOM": "x" * ENVIRONMENT}
        with (self.folder / "server.log").open("wb") as log, socket.socket(socket.AF_UNIX) as door:
            door.bind(str(self.socket))
            door.listen(64)
            self.server = subprocess.Popen(
                [REAL, str(HERE / "server.py"), str(door.fileno()), "x" * ARGUMENTS],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, cwd="/", pass_fds=[door.fileno()],
                start_new_session=True, preexec_fn=_die_with_parent,
            )  # fmt: skip

    def said(self) -> list[str]:
        """The server's log: a line for each request, "forked: ..." or "refused: ..."."""
        return (self.folder / "server.log").read_text().splitlines()

    def close(self) -> None:
        """End the server and every fork that is still there. Harmless in a forked child."""
        if os.getpid() != self._owner:
            return
        self.server.kill()
        self.server.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


_made: list[Interpreter] = []


def use() -> Interpreter | None:
    """Make `sys.executable` the program, where there can be one. The first time starts its server."""
    if not _made and Interpreter.possible():
        _made.append(Interpreter())
    if not _made:
        return None
    sys.executable = str(_made[0].path)
    return _made[0]


def leave() -> None:
    """From now on `sys.executable` is the real one."""
    sys.executable = REAL


def end() -> None:
    """Leave, and end the server with every fork that is still there."""
    leave()
    while _made:
        _made.pop().close()


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
