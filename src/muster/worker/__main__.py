"""A rank's first lines, before anything heavy: die with the agent."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import sys
from pathlib import Path


def die_with_parent() -> None:
    """Let Linux end this rank when its agent is gone, even by SIGKILL."""
    parent = os.getppid()
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    except (OSError, AttributeError):
        return
    if os.getppid() != parent:
        raise SystemExit(1)


def main() -> int:
    """Prepare the process, then train."""
    die_with_parent()
    spec = json.loads(Path(os.environ["MUSTER_SPEC"]).read_text(encoding="utf-8"))
    gc.disable()  # or all that is imported is searched for garbage again and again: a fifth of the time
    from muster.worker.main import run

    gc.enable()
    code = run(spec)
    if code == 0:  # all events are on disk; threads of a library that end in the wrong order undo none of it
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
    return code


if __name__ == "__main__":
    sys.exit(main())
