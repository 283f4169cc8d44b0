"""A job's own course: whether one half of it was slower than the other, by more than alike jobs differ. Pure.

A card that grows hot, or a program that starts during the job, slows a job from some step on. Its mean time
hides half of that, and its windows differ so much that the mean is hardly known. So such a job is as slow as
its slower half, and its noise is that of jobs whose halves are alike.

What all jobs of a work have in common is no course of one of them: batches that grow longer, a warm-up.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from muster.core.robust import deviation
from muster.judging.baseline import FEWEST, FLOOR, Baseline, JobClass
from muster.judging.observation import Observation

STEEP = 5.0  # deviations that the halves of a job are apart, at least
LEAST = 0.02  # and this share of its time


class SlowHalf(NamedTuple):
    """By how much (log) the slower half of a job was slower than a healthy job, and its deviation."""

    value: float
    sigma: float


def slow_halves(
    observations: Sequence[Observation], baselines: Mapping[JobClass, Baseline]
) -> dict[int, SlowHalf]:
    """Return, by index, the jobs of which one half was slower than the other."""
    by_class: dict[JobClass, list[tuple[int, float, float]]] = {}
    for index, each in enumerate(observations):
        if each.halves is not None and each.seconds is not None and each.outcome.good:
            first, second = (math.log(half / each.seconds) for half in each.halves)
            by_class.setdefault(JobClass(each.work, len(each.hosts)), []).append((index, first, second))
    slow: dict[int, SlowHalf] = {}
    for kind, jobs in by_class.items():
        base = baselines.get(kind)
        if base is None or len(jobs) < FEWEST:
            continue
        apart = [second - first for _, first, second in jobs]
        middle = statistics.median(apart)
        scale = max(deviation(apart, middle), FLOOR)
        usual = tuple(statistics.median(side) for side in list(zip(*jobs, strict=True))[1:])
        for (index, *halves), by in zip(jobs, apart, strict=True):
            if abs(by - middle) > max(STEEP * scale, LEAST):
                whole = math.log((observations[index].seconds or 0.0) / base.seconds)
                slower = max(half - its for half, its in zip(halves, usual, strict=True))
                slow[index] = SlowHalf(whole + slower, math.hypot(base.sigma, scale))
    return slow
