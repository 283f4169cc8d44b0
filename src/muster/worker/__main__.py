"""A rank's first lines, before anything heavy: die with the parent, write to the rank's own log."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from pathlib import Path


def die_with_parent() -> None:
    """Linux ends this rank when torchrun is gone, even by SIGKILL."""
    parent = os.getppid()
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    except (OSError, AttributeError):
        return
    if os.getppid() != parent:
        raise SystemExit(1)


def own_log(place: Path, rank: int) -> None:
    """Everything that this process prints, C libraries included, goes to the rank's log."""
    descriptor = os.open(place / f"rank{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def main() -> int:
    """Prepare the process, then train."""
    die_with_parent()
    spec = json.loads(Path(os.environ["MUSTER_SPEC"]).read_text(encoding="utf-8"))
    own_log(Path(spec["place"]), int(os.environ["RANK"]))
    from muster.worker.main import run

    code = run(spec)
    if code == 0:  # all is said and on disk; threads of a library that end in the wrong order undo none of it
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
    return code


if __name__ == "__main__":
    sys.exit(main())
