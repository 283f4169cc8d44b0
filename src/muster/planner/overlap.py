"""How much of what ranks exchange they wait for: a pass played through, computation beside communication.
Pure.

One call at a time goes over the links, in the order in which they are asked for: NCCL and gloo share a link
no better, and engines put their calls on one stream per direction. What an engine does not put beside the
computation, the computation waits for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from muster.planner.collective import Call
from muster.planner.exchange import Segment

Cost = Callable[[Call], float]


def waited(
    segments: Sequence[Segment], computing: float, cost: Cost, *, gathers_hide: bool, reduces_hide: bool
) -> float:
    """Seconds that a pass takes beyond its own `computing` seconds.

    A segment's gathers are asked for when the segment before it begins (the first one's at once), its reduces
    when it is done; without hiding, when the computation has come there, which then waits.
    """
    if not segments:
        return 0.0
    now = free = 0.0  # until when the computation and the links are busy
    ready = [0.0] * len(segments)
    whole = sum(segment.share for segment in segments) or 1.0
    if gathers_hide:
        free = ready[0] = _sum(segments[0].gathers, cost)
    for index, segment in enumerate(segments):
        if segment.gathers and not gathers_hide:
            now = free = max(now, free) + _sum(segment.gathers, cost)
        now = max(now, ready[index])
        if gathers_hide and index + 1 < len(segments):
            following = _sum(segments[index + 1].gathers, cost)
            if following:
                free = ready[index + 1] = max(free, now) + following
        now += computing * segment.share / whole
        reducing = _sum(segment.reduces, cost)
        if reducing:
            free = max(free, now) + reducing
            now = now if reduces_hide else free
    return max(0.0, max(now, free) - computing)


def _sum(calls: Sequence[Call], cost: Cost) -> float:
    return sum(cost(call) for call in calls)
