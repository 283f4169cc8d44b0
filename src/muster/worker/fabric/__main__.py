"""A rank of the group checks. One that fails does not end the others: they find out who is missing."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from muster.worker.__main__ import die_with_parent


def main() -> int:
    """Exit code 0 where this rank came to its end: what it met with stands in its events."""
    die_with_parent()
    spec = json.loads(Path(os.environ["MUSTER_SPEC"]).read_text(encoding="utf-8"))
    from muster.worker.fabric.place import read_place
    from muster.worker.fabric.rank import run

    return run(read_place(spec, int(os.environ["LOCAL_RANK"])))


if __name__ == "__main__":
    sys.exit(main())
