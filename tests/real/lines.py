"""Some lines of Python in a folder: `python -m tests.real.lines FOLDER LINES`, which can be a fork."""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    os.chdir(sys.argv[1])
    exec(compile(sys.argv[2], "lines", "exec"), {"__name__": "__main__"})
