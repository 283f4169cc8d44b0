"""Choose the windows of optimizer steps on which a run's figures rest. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from muster.store import events

Windows = Sequence[Sequence[events.Window]]  # of the same steps, one of each rank that told


def measured(windows: Windows, warmup: int, world_size: int) -> list[Sequence[events.Window]]:
    """Return the windows that figures rest on: those after the warm-up of their attempt, since every attempt
    starts its devices and compiles anew.

    A warm-up is at most a third of an attempt's steps. Where no window would be left, the last one stays. A
    window counts only where every rank reported it, and no profiler ran.
    """
    whole = [each for each in windows if len(each) == world_size]
    plain = [each for each in whole if not each[0].profiled]
    steps: dict[int, int] = defaultdict(int)
    for each in plain:
        steps[each[0].attempt] += each[0].steps
    chosen, passed = [], defaultdict[int, int](int)
    for each in whole:
        attempt = each[0].attempt
        if not each[0].profiled and passed[attempt] >= min(warmup, steps[attempt] // 3):
            chosen.append(each)
        passed[attempt] += each[0].steps
    return chosen or plain[-1:]


def seconds_of(ranks: Iterable[events.Window]) -> float:
    """Return the seconds of one window of steps: those of its slowest rank."""
    return max(each.seconds for each in ranks)


def warm_ups(windows: Windows, warmup: int, world_size: int) -> list[tuple[int, int]]:
    """Return the steps before each attempt's first measured one, (from, to); none where nothing is measured.
    """
    begins: dict[int, int] = {}
    for each in measured(windows, warmup, world_size):
        begins.setdefault(each[0].attempt, each[0].step - each[0].steps)
    if not begins:
        return []
    spans = []
    for attempt in sorted({each[0].attempt for each in windows}):
        mine = [each[0] for each in windows if each[0].attempt == attempt]
        first = mine[0].step - mine[0].steps
        begin = begins.get(attempt, mine[-1].step)  # an attempt may have been nothing else
        if first < begin:
            spans.append((first, begin))
    return spans
