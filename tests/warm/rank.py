"""A rank for the tests of the forks themselves: says what it sees of itself, then does what it was told.

`python -m tests.warm.rank FOLDER exit CODE | wait`, with RANK and WORLD_SIZE set.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path


def seen() -> dict[str, object]:
    """This process by its own means and by /proc."""
    here = Path("/proc/self")
    return {
        "argv": sys.argv[1:],
        "cwd": os.getcwd(),
        "environ": dict(os.environ),
        "shown": [word for word in (here / "environ").read_text().split("\0") if word],
        "command": [word for word in (here / "cmdline").read_text().split("\0") if word],
        "pid": os.getpid(),
        "forked": "transformers.trainer" in sys.modules,
    }


def main() -> None:
    folder, what = Path(sys.argv[1]), sys.argv[2:]
    part = folder / f"rank{os.environ['RANK']}.part"
    part.write_text(json.dumps(seen()))
    part.rename(part.with_suffix(".json"))
    os.write(1, f"rank {os.environ['RANK']} is here\n".encode())  # at once: ranks share the terminal
    while len(list(folder.glob("rank*.json"))) < int(os.environ["WORLD_SIZE"]):
        time.sleep(0.02)
    if what == ["wait"]:
        time.sleep(600)
    sys.exit(int(what[1]))


if __name__ == "__main__":
    main()
