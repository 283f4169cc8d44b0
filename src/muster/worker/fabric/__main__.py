"""A host's process: starts its ranks, waits for them, and notes how they ended. Ranks are the same command.

No torchrun here, on purpose: its own rendezvous would have to succeed before any rank could say what is wrong
with the network, and it ends all ranks of a host with the first that fails.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from muster.worker.__main__ import die_with_parent, own_log

_LOCAL_RANK = "MUSTER_FABRIC_LOCAL_RANK"


def main() -> int:
    """Exit code 0 unless the host's process itself fails: what ranks met with stands in their events."""
    die_with_parent()
    spec = json.loads(Path(os.environ["MUSTER_SPEC"]).read_text(encoding="utf-8"))
    local_rank = os.environ.get(_LOCAL_RANK)
    if local_rank is None:
        return _host(spec)
    from muster.worker.fabric.place import read_place

    place = read_place(spec, int(local_rank))
    own_log(Path(spec["place"]), place.rank)
    from muster.worker.fabric.rank import run

    return run(place)


def _host(spec: dict[str, Any]) -> int:
    """One child per rank. The module is the one that this process was started with."""
    running = sys.modules["__main__"].__spec__
    assert running is not None
    _, first_rank, slots = spec["hosts"][spec["host"]]
    ranks = {
        first_rank + local: subprocess.Popen(
            [sys.executable, "-m", running.name],
            env={**os.environ, _LOCAL_RANK: str(local)},
            stdin=subprocess.DEVNULL,
        )
        for local in range(slots)
    }
    for rank, process in ranks.items():
        code = process.wait()
        if code != 0:
            _note_end(Path(spec["place"]) / f"rank{rank}.events.jsonl", rank, code)
    return 0


def _note_end(path: Path, rank: int, code: int) -> None:
    """Say it in the rank's own file, after the line that it may not have finished."""
    line = json.dumps({"kind": "ended", "rank": rank, "time": time.time(), "code": code})
    with path.open("a", encoding="utf-8") as file:
        file.write(f"\n{line}\n")


if __name__ == "__main__":
    sys.exit(main())
