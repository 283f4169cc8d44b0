"""Which windows of optimizer steps a run's figures rest on. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from muster.store import events

Windows = Sequence[Sequence[events.Window]]  # of the same steps, one of each rank that told


def measured(windows: Windows, warmup: int, world_size: int) -> list[Sequence[events.Window]]:
    """The windows that figures rest on: those after the warm-up.

    The warm-up is at most a third of the steps, and never the last window. A window counts only where every
    rank told of it, and no profiler ran.
    """
    whole = [each for each in windows if len(each) == world_size]
    plain = [each for each in whole if not each[0].profiled]
    skip = min(warmup, sum(each[0].steps for each in plain) // 3)
    chosen, passed = [], 0
    for each in whole:
        if not each[0].profiled and (passed >= skip or each is plain[-1]):
            chosen.append(each)
        passed += each[0].steps
    return chosen


def warm_up(windows: Windows, warmup: int, world_size: int) -> tuple[int, int] | None:
    """The steps before the first measured one, (from, to); None where there are none."""
    chosen = measured(windows, warmup, world_size)
    if not chosen:
        return None
    first, begin = windows[0][0], chosen[0][0]
    steps = (first.step - first.steps, begin.step - begin.steps)
    return steps if steps[0] < steps[1] else None
