"""How much of what ranks exchange they wait for: a pass played through, computation beside communication.
Pure.

One call at a time goes over the links, in the order in which they are asked for: NCCL and gloo share a link
no better, and engines put their calls on one stream per direction. What an engine does not put beside the
computation, the computation waits for. What is beside it slows it, and is slowed (Pace).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from muster.planner.collective import Call
from muster.planner.exchange import Segment

Cost = Callable[[Call], float]


@dataclass(frozen=True)
class Pace:
    """Of computation and exchange while both go on, as shares of their speed alone; and the seconds that it
    takes ranks to meet where they have computed apart."""

    computing: float = 1.0
    exchanging: float = 1.0
    meeting: float = 0.0


ALONE = Pace()


def waited(
    segments: Sequence[Segment],
    computing: float,
    cost: Cost,
    *,
    gathers_hide: bool,
    reduces_hide: bool,
    pace: Pace = ALONE,
) -> float:
    """Seconds that a pass takes beyond its own `computing` seconds.

    A segment's gathers are asked for when the segment before it begins (the first one's at once), its reduces
    when it is done; without hiding, when the computation has come there, which then waits.
    """
    if not segments:
        return 0.0
    clock = _Clock(pace)
    whole = sum(segment.share for segment in segments) or 1.0
    ready = [0] * len(segments)  # how many calls must have ended before a segment begins
    if gathers_hide:
        ready[0] = clock.ask(_costs(segments[0].gathers, cost))
    for index, segment in enumerate(segments):
        if not gathers_hide:
            ready[index] = clock.ask(_costs(segment.gathers, cost))
        clock.wait(ready[index])
        if gathers_hide and index + 1 < len(segments):
            ready[index + 1] = clock.ask(_costs(segments[index + 1].gathers, cost))
        clock.compute(computing * segment.share / whole)
        asked = clock.ask(_costs(segment.reduces, cost))
        if asked and not reduces_hide:
            clock.wait(asked)
    clock.wait(clock.asked)
    return max(0.0, clock.now - computing)


def _costs(calls: Sequence[Call], cost: Cost) -> list[float]:
    return [cost(call) for call in calls]


class _Clock:
    """Computation and one queue of calls, each at its pace. Ranks meet where they wait for a call after they
    have computed."""

    def __init__(self, pace: Pace) -> None:
        self.pace = pace
        self.now = 0.0
        self.asked = 0
        self._left: list[float] = []  # of the calls that have not ended, in order, at full speed
        self._apart = False

    def ask(self, costs: Sequence[float]) -> int:
        """-> how many calls must have ended for all of these to have; 0: there are none."""
        self._left += costs
        self.asked += len(costs)
        return self.asked if costs else 0

    def wait(self, ended: int) -> None:
        """Until so many calls have ended; nothing is computed meanwhile."""
        pending = len(self._left) - (self.asked - ended)
        if pending <= 0:
            return
        self.now += sum(self._left[:pending])
        if self._apart:
            self.now += self.pace.meeting
            self._apart = False
        del self._left[:pending]

    def compute(self, seconds: float) -> None:
        """Compute for so many seconds at full speed, beside the calls that are under way."""
        if seconds <= 0:
            return
        self._apart = True
        while self._left and seconds > 0:
            # Until the first call or the computation ends, whichever is first.
            call = self._left[0] / self.pace.exchanging if self.pace.exchanging > 0 else math.inf
            own = seconds / self.pace.computing if self.pace.computing > 0 else math.inf
            step = min(call, own)
            if math.isinf(step):  # neither gets on beside the other: one after the other
                break
            self.now += step
            seconds = 0.0 if own <= call else seconds - step * self.pace.computing
            if call <= own:
                del self._left[0]
            else:
                self._left[0] -= step * self.pace.exchanging
        self.now += max(0.0, seconds)
