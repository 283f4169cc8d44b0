"""A rank of the group checks, on a host that needs torch alone: no recipe, and plain JSON lines as events."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from muster.worker.__main__ import die_with_parent


class EventFile:
    """Writes a rank's events to its own file, one JSON line each, flushed: the agent forwards them."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.rank = rank
        self._file = (folder / f"rank{rank}.events.jsonl").open("a", encoding="utf-8")

    def __call__(self, kind: str, **content: Any) -> None:
        """Write one event."""
        line = json.dumps({"kind": kind, "rank": self.rank, "time": time.time(), **content})
        self._file.write(line + "\n")
        self._file.flush()


def main() -> int:
    """Run a rank. Return 0 where it came to its end: its findings are in its events. One that fails does not
    end the others: they find out which is missing."""
    die_with_parent()
    spec = json.loads(Path(os.environ["MUSTER_SPEC"]).read_text(encoding="utf-8"))
    local_rank, folder = int(os.environ["LOCAL_RANK"]), Path(spec["place"])
    rank = spec["hosts"][spec["host"]][1] + local_rank
    report = EventFile(folder, rank)
    from muster.workloads.fabric.group import RankGroup, device_of
    from muster.workloads.fabric.rank import Round
    from muster.workloads.fabric.request import FabricRequest

    group = RankGroup(
        rank=rank,
        local_rank=local_rank,
        hosts=tuple((label, first, slots) for label, first, slots in spec["hosts"]),
        device=device_of(spec["device"], local_rank),
        address=spec["address"],
        port=int(spec["port"]),
        base=Path(spec["base"]),
        folder=folder,
        asked=FabricRequest(**spec["asked"]),
    )
    Round(group, report).run()
    report("done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
