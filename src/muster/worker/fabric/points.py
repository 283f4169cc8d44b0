"""Point to point: every pair of a ring, or every pair there is, in rounds of disjoint pairs.

Each direction is measured apart. A message counts as arrived when the receiver's answer is back.
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from muster.core.fabric.asked import MIB, rounds
from muster.core.fabric.busbw import POINT_TO_POINT
from muster.worker.fabric.collectives import pattern
from muster.worker.fabric.place import Voice
from muster.worker.fabric.rendezvous import Team
from muster.worker.fabric.values import ValueTrial, wrong_elements

_FIRST_BYTES = 256 * 1024  # the first message: compared element by element, and a guess at the speed
_PASSES = 2  # over all rounds: what disturbed a pair for a moment is over when its turn comes again
_REPEATS = 5
_PINGS = 50
_WARM_PINGS = 3
_LATENCY_SHARE = 0.15  # of a pair's time


def check_points(team: Team, say: Voice, budget: float) -> None:
    """Measure the pairs that this rank is part of. Every rank keeps the rounds together."""
    asked = team.place.asked
    plan = rounds(team.place.speakers, asked.pairs)
    seconds = min(3.0, budget / max(1, len(plan))) / _PASSES
    size = asked.point_bytes or (64 * MIB if team.on_gpu else 4 * MIB)
    sizes: dict[int, int] = {}
    for pairs in plan * _PASSES:
        team.barrier()
        for first, second in pairs:
            if team.rank in (first, second):
                other = second if team.rank == first else first
                half = _Pair(team, say, first, second)
                sizes[other] = half.measure(sizes.get(other, size), seconds, fixed=other in sizes)


class _Pair:
    """One rank's half of a conversation. Both halves run the same steps in the same order."""

    def __init__(self, team: Team, say: Voice, first: int, second: int) -> None:
        self.team = team
        self.say = say
        self.first, self.second = first, second
        self.other = second if team.rank == first else first
        self.word = torch.zeros(1, dtype=torch.int64, device=team.device)

    def measure(self, size: int, seconds: float, *, fixed: bool) -> int:
        """Latency, then each direction. -> the bytes that this rank's messages had.

        `fixed`: they have `size`, and not less where the time is short.
        """
        latencies = self._latency(seconds * _LATENCY_SHARE)
        for source, target in ((self.first, self.second), (self.second, self.first)):
            if self.team.rank == source:
                size, times = self._send(size, seconds * (1 - _LATENCY_SHARE) / 2, fixed=fixed)
                told = {"source": source, "target": target, "bytes": size, "seconds": times}
                self.say("pair", **told, latencies=latencies)
            else:
                self._receive()
        return size

    def _tell(self, number: int) -> None:
        self.word.fill_(number)
        dist.send(self.word, self.other)

    def _hear(self) -> int:
        dist.recv(self.word, self.other)
        return int(self.word.item())  # waits for the device

    def _latency(self, seconds: float) -> list[float]:
        """Half round trips, as many as there is time for, on the side that began them; none on the other."""
        if self.team.rank != self.first:
            for _ in range(_WARM_PINGS):
                self._tell(self._hear())
            for _ in range(self._hear()):
                self._tell(self._hear())
            return []
        for _ in range(_WARM_PINGS):
            one = self._ping()
        count = max(5, min(_PINGS, int(seconds / max(2 * one, 1e-7))))
        self._tell(count)
        return [self._ping() for _ in range(count)]

    def _ping(self) -> float:
        began = time.perf_counter()
        self._tell(1)
        self._hear()
        return (time.perf_counter() - began) / 2

    def _send(self, size: int, seconds: float, *, fixed: bool) -> tuple[int, list[float]]:
        """-> (bytes of a timed message, seconds of each). Before each message its size goes ahead; 0 ends."""
        began = time.perf_counter()
        guess = self._send_one(min(size, _FIRST_BYTES))
        if not fixed:
            size = min(size, max(_FIRST_BYTES, int(_FIRST_BYTES / guess * seconds / 3) // 4 * 4))
        times: list[float] = []
        while not times or (len(times) < _REPEATS and time.perf_counter() - began + times[-1] < seconds):
            times.append(self._send_one(size))
        self._tell(0)
        return size, times

    def _send_one(self, size: int) -> float:
        payload = pattern(self.team.rank, 0, size // 4, torch.float32, self.team.device)
        self._tell(payload.numel())
        self._hear()  # the receiver is ready
        self.team.sync()
        began = time.perf_counter()
        dist.send(payload, self.other)
        self._hear()  # it has arrived
        return time.perf_counter() - began

    def _receive(self) -> None:
        compared = False
        while True:
            elements = self._hear()
            if elements == 0:
                return
            payload = torch.empty(elements, dtype=torch.float32, device=self.team.device)
            self._tell(1)
            dist.recv(payload, self.other)
            self.team.sync()
            self._tell(1)
            if not compared:
                compared = True
                self._compare(payload)

    def _compare(self, payload: torch.Tensor) -> None:
        count = payload.numel()
        right = pattern(self.other, 0, count, torch.float32, self.team.device)
        trial = ValueTrial(payload, right, "native", source=self.other)
        wrong, shown = wrong_elements(trial, torch.float32)
        self.say(
            "values", operation=POINT_TO_POINT, method="native", elements=count, wrong=wrong, shown=shown
        )
