"""Which piece is run when: pure functions of the pieces, of what they came to before, and of the time left.

Proof comes first until each of its pieces has come to an end with this code, and last from then on. Of the
rows of the table of speeds the first is timed, profiled and has its levers tried, then the second, and so
on. Pieces that share the GPU run several at a time, the others alone. What would not end in the time that is
left waits for the next call.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.gpu.kit import GROUPS, Piece

BY_ROW = ("speed", "profile", "levers")  # groups whose pieces are rows of one table
Entry = Mapping[str, Any]
Seconds = Callable[[Piece], float]


@dataclass(frozen=True)
class Room:
    """What pieces that share a machine may use together."""

    lanes: int  # pieces at a time
    gigabytes: float  # of the device's memory
    timed: bool = True  # False: nobody reads the times, so all pieces share

    def alone(self, piece: Piece) -> bool:
        """Whether nothing may run beside it."""
        return self.timed and not piece.shared


def wanted(entry: Entry | None, source: str, changed: bool) -> bool:
    """Whether a piece is to be run: it never came to an end, or failed with other code than this. `changed`:
    also whatever failed, and whatever other code than this came to."""
    if entry is None or entry["status"] == "cut short":
        return True
    failed = entry["status"] in ("failed", "timed out")
    return (failed or changed) and (entry["source"] != source or (changed and failed))


def proven(pieces: Sequence[Piece], entries: Mapping[str, Entry], sources: Mapping[str, str]) -> bool:
    """Whether each piece of proof came to an end with this code: passed, or failed as it would again."""
    mine = [piece.key for piece in pieces if piece.group == "proof"]
    ended = {key: entry["source"] for key, entry in entries.items() if entry["status"] != "cut short"}
    return all(ended.get(key) == sources[key] for key in mine)


def in_order(pieces: Sequence[Piece], proof_last: bool) -> list[Piece]:
    """The most valuable first: proof, or what is next where that is last; then the groups of rows in turn, so
    that a call that has time for three of them measures one row in three ways; then the rest by group."""
    place: Counter[str] = Counter()

    def value(piece: Piece) -> tuple[int, int, int]:
        group = GROUPS.index(piece.group)
        if piece.group == "proof":
            return (3 if proof_last else 0), group, 0
        place[piece.group] += 1
        return (1, place[piece.group], group) if piece.group in BY_ROW else (2, group, 0)

    return sorted(pieces, key=value)


def startable(
    waiting: Sequence[Piece], running: Collection[Piece], left: float, room: Room, usual: Seconds
) -> list[Piece]:
    """The pieces to begin now. `left`: seconds."""
    fitting = [piece for piece in waiting if not room.timed or usual(piece) <= left]
    if any(room.alone(piece) for piece in running):
        return []
    busy = list(running)
    for piece in fitting:
        if room.alone(piece):  # what comes later does not keep it waiting
            return busy[len(running) :] or ([] if running else [piece])
        if len(busy) >= room.lanes:
            break
        first = f"{piece.group}/{piece.after}"
        if any(each.key == first for each in (*fitting, *running)):
            continue
        if busy and sum(each.gigabytes for each in (*busy, piece)) > room.gigabytes:
            continue
        busy.append(piece)
    return busy[len(running) :]


def rehearsed(
    pieces: Sequence[Piece], seconds: float, room: Room, usual: Seconds
) -> tuple[list[tuple[float, Piece]], list[Piece]]:
    """A call in which each piece takes its usual time: when each begins, and those that are left over."""
    now, waiting = 0.0, list(pieces)
    running: list[tuple[float, int, Piece]] = []
    begun: list[tuple[float, Piece]] = []
    while True:
        for piece in startable(waiting, [each for *_, each in running], seconds - now, room, usual):
            waiting.remove(piece)
            begun.append((now, piece))
            heapq.heappush(running, (now + usual(piece), len(begun), piece))
        if not running:
            return begun, waiting
        now, *_ = heapq.heappop(running)
