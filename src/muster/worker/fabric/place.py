"""A rank's place in the group, and its voice."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from muster.core.fabric.asked import FabricRequest, read_asked


@dataclass(frozen=True)
class Place:
    """Who this rank is. `hosts`: (label, first rank, slots) of every host, in order."""

    rank: int
    local_rank: int
    host: int
    hosts: tuple[tuple[str, int, int], ...]
    device: str  # cpu or cuda
    address: str
    port: int
    base: Path  # this host's scratch folder
    folder: Path  # where this rank's event file is
    asked: FabricRequest

    @property
    def world_size(self) -> int:
        """Ranks on all hosts."""
        return sum(slots for _, _, slots in self.hosts)

    @property
    def speakers(self) -> list[int]:
        """Who talks in the point-to-point round: one rank per host; on one host, all ranks."""
        if len(self.hosts) == 1:
            return list(range(self.world_size))
        return [first for _, first, _ in self.hosts]

    def host_of(self, rank: int) -> str:
        """The label of a rank's host."""
        return next(label for label, first, slots in self.hosts if first <= rank < first + slots)


def read_place(spec: dict[str, Any], local_rank: int) -> Place:
    """From spec.json, as the agent wrote it."""
    hosts = tuple((str(label), int(first), int(slots)) for label, first, slots in spec["hosts"])
    return Place(
        rank=hosts[spec["host"]][1] + local_rank,
        local_rank=local_rank,
        host=spec["host"],
        hosts=hosts,
        device=spec["device"],
        address=spec["address"],
        port=int(spec["port"]),
        base=Path(spec["base"]),
        folder=Path(spec["place"]),
        asked=read_asked(spec["asked"]),
    )


Voice = Callable[..., None]  # kind, and what belongs to it by name


class FileVoice:
    """Writes a rank's events to its own file, one JSON line each, flushed: the agent forwards them."""

    def __init__(self, place: Place) -> None:
        self.rank = place.rank
        self._file = (place.folder / f"rank{place.rank}.events.jsonl").open("a", encoding="utf-8")

    def __call__(self, kind: str, **content: Any) -> None:
        """Say one thing."""
        line = json.dumps({"kind": kind, "rank": self.rank, "time": time.time(), **content})
        self._file.write(line + "\n")
        self._file.flush()
