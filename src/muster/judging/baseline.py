"""Estimate what is normal: a healthy job's time, and the scatter of such times, in a fleet with bad hosts in
it.

Never a mean, nor a standard deviation of everything: one host at half speed in a fleet of 64 moves the mean
by 1.6 % and makes the deviation 12 %, so that another host that is 5 % slow is hidden. A plain median and MAD
hold until half of the jobs are slow, and in pairs 30 % of bad hosts are enough for that. Here:

1. Start from the fastest narrow window that holds a third of the values. Faults only ever make jobs slower,
   so of two clusters the faster one is the healthy one. Of 32 jobs, 20 may be 5 % slow at a noise of 0.4 %;
   with 2 %, the clusters run into each other from about half of the jobs on.
2. Median and MAD of what lies within 3 deviations of the window (and 0.75 %, less than what counts as slow);
   repeat until nothing changes. Nothing makes jobs faster, so what is faster than that is healthy, and shows
   that the deviation was taken too small: then up to twice as far.
3. The scale is the standard deviation of what was kept (2.7 times the efficiency of a MAD: with 32 jobs it
   is right to 12 %, a MAD to 21 %), drawn towards the scale of the other classes where few were kept.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from muster.core.robust import MAD

FEWEST = 4  # times, and hosts; from fewer, no baseline is made
KEPT = 3.0  # deviations; with 3.5 two clusters five deviations apart are joined two to four times as often
TYPICAL = 0.005  # relative deviation assumed where nothing is known (64 healthy 8-GPU hosts: 0.0018)
FLOOR = 0.001  # no scale is believed to be smaller: clocks and steps are not that exact
ONE_FASTER = 64  # of so many values (and of fewer), one may be faster than all that are kept
ALONE = 4  # how many values the assumed deviation counts for


class JobClass(NamedTuple):
    """What is compared with each other: the same work on the same number of hosts."""

    work: str
    size: int
    part: Literal["step", "busy"] = "step"  # the whole step, or what a host did outside collectives


@dataclass(frozen=True)
class Baseline:
    """Seconds of a healthy step; its relative standard deviation; the number of values behind it."""

    seconds: float
    sigma: float
    count: int
    stored: bool = False


def _start(values: Sequence[float]) -> tuple[int, int]:
    """Return the fastest of the narrow windows with a third of the sorted values. Narrow: at most 4 times as
    wide as the narrowest, or 3.2 x TYPICAL, since among few values the narrowest is so by chance. No more
    than one in ONE_FASTER is before it, however narrow a later one is, since slow jobs may be alike as well;
    unless most values are as narrow together: then the others are of a minority that is faster."""
    size = max(2, -(-len(values) // 3))
    widths = [values[i + size - 1] - values[i] for i in range(len(values) - size + 1)]
    most = 4.0 * max(min(widths), 0.8 * TYPICAL)
    first = next(i for i, width in enumerate(widths) if width <= most)
    early = widths[: 1 + max(1, len(values) // ONE_FASTER)]
    if first >= len(early) and 2 * (bisect_right(values, values[first] + most) - first) <= len(values):
        first = early.index(min(early))
    return first, first + size


def _median(ordered: Sequence[float]) -> float:
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def robust(logs: Sequence[float]) -> tuple[float, float, int]:
    """Return location, scale and number of values kept, of logarithms of times (at least two).

    The scale is of the kept values only: `settle` makes it safe where they are few.
    """
    values = sorted(logs)
    low, high = _start(values)
    for _ in range(50):
        kept = values[low:high]
        middle = _median(kept)
        mad = _median(sorted([abs(value - middle) for value in kept]))
        reach = KEPT * max(MAD * mad, TYPICAL / 2)
        reach = max(reach, min(2 * reach, middle - values[max(1, len(values) // ONE_FASTER)]))
        bounds = bisect_left(values, middle - reach), bisect_right(values, middle + reach)
        if bounds == (low, high):
            break
        low, high = bounds
    kept = values[low:high]
    mean = sum(kept) / len(kept)
    squares = sum([(value - mean) ** 2 for value in kept])
    return _median(kept), math.sqrt(squares / max(1, len(kept) - 1)), len(kept)


def fleet_baselines(
    times: Mapping[JobClass, Sequence[float]],
    stored: Mapping[JobClass, Baseline] | None = None,
    hosts: Mapping[JobClass, int] | None = None,
) -> dict[JobClass, Baseline]:
    """Return a baseline per class, from `times` (seconds) of as many different `hosts` (default: as many as
    times).

    Of a class with fewer than FEWEST of either, the stored one if there is one, else none: two hosts cannot
    outvote each other, and one is always like itself, however often it runs.
    """
    scales = {
        key: robust([math.log(value) for value in values])
        for key, values in times.items()
        if min(len(values), hosts[key] if hosts else FEWEST) >= FEWEST
    }
    result: dict[JobClass, Baseline] = {}
    for key in times:
        if key in scales:
            middle, scale, count = scales[key]
            others = [each for other, each in scales.items() if other[2] == key[2] and other != key]
            result[key] = Baseline(math.exp(middle), settle(scale, count, others), count)
        elif stored and key in stored:
            before = stored[key]
            result[key] = Baseline(before.seconds, max(before.sigma, FLOOR), before.count, stored=True)
    return result


def settle(scale: float, count: int, others: Sequence[tuple[float, float, int]]) -> float:
    """Return a scale from `count` values, drawn towards that of other classes, or the typical one: their
    weight is that of ALONE values (twice that, where others are known)."""
    prior, weight = TYPICAL, ALONE
    total = sum(each[2] for each in others)
    if total >= 8:
        prior = math.sqrt(sum(each[2] * each[1] ** 2 for each in others) / total)
        weight = 2 * ALONE
    return max(FLOOR, math.sqrt((count * scale**2 + weight * prior**2) / (count + weight)))
