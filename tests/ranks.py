"""So many ranks of a module, as agents start them: `python -m tests.ranks COUNT MODULE ARGUMENTS...`

The exit code: 0 where all ended well, else that of the first that did not; it ends the others.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time

from tests.ports import free_port


def die_with_parent() -> None:
    """PR_SET_PDEATHSIG."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def main(count: int, command: list[str]) -> int:
    shared = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "NODE_RANK": "0"}
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    program = [sys.orig_argv[0], "-m", *command]  # the program that was asked for: see tests/warm
    ranks = [
        subprocess.Popen(
            program,
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            preexec_fn=die_with_parent,
        )
        for rank in range(count)
    ]
    while True:
        codes = [rank.poll() for rank in ranks]
        bad = [code for code in codes if code]
        if bad or all(code == 0 for code in codes):
            break
        time.sleep(0.02)
    for rank in ranks:
        rank.kill()
        rank.wait()
    return abs(bad[0]) if bad else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
