"""One call of the kit: what is left is run until time is up."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

from benchmarks.gpu import kit
from benchmarks.gpu.kit import MEASURED, Piece, Results, every_result
from benchmarks.gpu.schedule import Room, in_order, proven, startable, wanted
from benchmarks.gpu.sources import source

LEAST = 10.0  # seconds that have to be left for a piece to be begun
SLOWER = 3.0  # times a piece's limit, for CPUs
TOGETHER = 7 / 16  # pieces that share the GPU, for each core
SHARE = 0.92  # of the device's memory that they may take


def room_of(machine: Mapping[str, Any], tiny: bool) -> Room:
    """What pieces may use together."""
    if tiny:
        return Room(min(4, machine["cores"]), math.inf, timed=False)
    return Room(max(1, round(machine["cores"] * TOGETHER)), SHARE * machine.get("memory", 0) / 1e9)


def usual_seconds(pieces: Sequence[Piece], places: Sequence[Results]) -> dict[str, float]:
    """What each piece takes, by its key: the time it took where it last passed (the first place that has it
    counts), else what it says of itself."""
    seconds = {piece.key: piece.usual or piece.limit / 2 for piece in pieces}
    for place in reversed(places):
        entries = place.entries(pieces)
        passed = {key: entry for key, entry in entries.items() if entry["status"] == "passed"}
        seconds |= {key: float(entry["seconds"]) for key, entry in passed.items()}
    return seconds


def waiting_of(pieces: Sequence[Piece], results: Results, changed: bool) -> list[Piece]:
    """Those that are to be run, the most valuable first."""
    entries = results.entries(pieces)
    sources = {piece.key: source(piece) for piece in pieces}
    ordered = in_order(pieces, proven(pieces, entries, sources))
    return [piece for piece in ordered if wanted(entries.get(piece.key), sources[piece.key], changed)]


def run_all(
    pieces: Sequence[Piece], results: Results, minutes: float, tiny: bool, changed: bool = False
) -> dict[str, int]:
    """Run what is left; -> how many came to what. `changed`: as schedule.wanted has it."""
    machine = kit.described(tiny)
    results.check(machine, list(dict.fromkeys(piece.group for piece in pieces)))
    call = Call(results, machine, tiny, time.monotonic() + 60 * minutes)
    waiting = waiting_of(pieces, results, changed)
    counts = Counter({"done before": len(pieces) - len(waiting)})
    usual = usual_seconds(pieces, [results] if tiny else [results, *every_result(MEASURED)])
    with ThreadPoolExecutor(call.room.lanes) as pool:
        while True:
            left = call.end - time.monotonic()
            able = waiting if left >= LEAST else []
            begun = startable(able, call.running.values(), left, call.room, lambda each: usual[each.key])
            for piece in begun:
                waiting.remove(piece)
                call.begin(piece, pool)
            if not call.running:
                break
            counts.update(call.ended())
    counts["no time"] = len(waiting)
    return {what: count for what, count in counts.items() if count}


class Call:
    """The pieces that run now, until `end` on the monotonic clock."""

    def __init__(self, results: Results, machine: dict[str, Any], tiny: bool, end: float) -> None:
        self.results = results
        self.machine = machine
        self.tiny = tiny
        self.end = end
        self.room = room_of(machine, tiny)
        self.commit = kit.commit()
        self.running: dict[Future[dict[str, Any]], Piece] = {}
        self.most: dict[str, int] = {}  # pieces that ran at a time while this one did

    def begin(self, piece: Piece, pool: ThreadPoolExecutor) -> None:
        """Start its process."""
        limit, left = piece.limit * (SLOWER if self.tiny else 1), self.end - time.monotonic()
        self.results.folder.mkdir(parents=True, exist_ok=True)
        future = pool.submit(
            kit.run_piece, piece, self.results, min(limit, left), self.tiny, cut=left < limit
        )
        self.running[future] = piece
        for each in self.running.values():
            self.most[each.key] = max(self.most.get(each.key, 1), len(self.running))

    def ended(self) -> list[str]:
        """Wait for one to end, or several; keep and print what they came to. -> their statuses."""
        futures, _ = wait(self.running, return_when=FIRST_COMPLETED)
        statuses = []
        for future in futures:
            piece, entry = self.running.pop(future), future.result()
            entry |= {"source": source(piece), "commit": self.commit, "at_a_time": self.most[piece.key]}
            self.results.add(piece, self.machine, entry)
            why = entry.get("error", "").strip().rpartition("\n")[2][:300]
            print(f"{entry['seconds']:6.1f} s  {piece.key:<34} {entry['status']}  {why}", flush=True)
            statuses.append(entry["status"])
        return statuses
