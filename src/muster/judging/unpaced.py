"""Jobs that are slow at times, on any hosts. Pure.

Without moments no job can be compared with those that ran at the same time. The effect of the fleet's pace on
a job is then noise, which all jobs of a moment share: however many jobs a host has, it may have met the slow
moments. With known moments, such jobs are those whose paths through the network or clocks are drawn anew for
each. Where that is more frequent than hiccups are, no host is accused of what it can have caused
(`Readings.spread`), and a note says so.

Jobs of known moments that are slow so often, and not by more than they all differ, show only that the
baseline is of the fastest: then this is their noise, and another job of a host has another one. The same
holds for jobs of hosts that ran once.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from muster.core.robust import deviation as robust_deviation
from muster.judging.baseline import FLOOR, JobClass
from muster.judging.detrend import Detrended
from muster.judging.readings import DOUBTFUL, FAR, STANDS_OUT, Readings
from muster.judging.stalls import of_the_fleet

SHARE = 0.1  # of the jobs of a work are slow, more than hiccups, and no few hosts explain it
UNDATED = 0.15  # of those of which nobody knows the moment, which may have been a slow one for all hosts
FEWEST = 8  # jobs, from where on drift is looked for
MOST = 0.02  # of time: jobs of hosts that ran twice differ by more where the pace changes
GAP = 0.9  # deviations of all: where such a gap parts them, some are slow
FEW = 0.05  # of the jobs, and one, may stand out from what the others differ by


@dataclass(frozen=True)
class Unpaced:
    """`deviation`: by work, of the jobs' pace (share of the time); `noise`: the same of classes whose jobs
    have no other noise than that of each; `usual`: of the works' classes, by how much (log) a usual moment is
    slower than the baseline, which is a fast one's."""

    deviation: Mapping[str, float] = field(default_factory=dict)
    noise: Mapping[JobClass, float] = field(default_factory=dict)
    usual: Mapping[JobClass, float] = field(default_factory=dict)


def unpaced(readings: Readings, moments: Sequence[str], slowed: Collection[int]) -> Unpaced:
    """Return works of which many jobs are slow though their hosts are good in others. `moments`: of each
    observation; `slowed`: those that a switch explains, by their index."""
    rows: dict[JobClass, list[int]] = {}
    for row, source in enumerate(readings.source):
        if not (source in slowed or readings.failed(row) or readings.hint[row] or row in readings.half):
            rows.setdefault(readings.kind[row], []).append(row)

    def slow(row: int) -> bool:
        return readings.value[row] > 0 and readings.loss(row, 0.0) > DOUBTFUL

    def stands_out(row: int) -> bool:
        return readings.deviations(row) > STANDS_OUT

    deviation: dict[str, float] = {}
    noise: dict[JobClass, float] = {}
    usual: dict[JobClass, float] = {}
    for kind, own in rows.items():
        undated = [row for row in own if not moments[readings.source[row]]]
        met = [host for row in own for host in readings.hosts[row]]
        once = len(set(met)) == len(met)
        drifting = [] if once else _whoever(readings, undated, stands_out, UNDATED)
        whoever = drifting or (own if once else _whoever(readings, own, slow, SHARE))
        above = [readings.hosts[row] for row in whoever if slow(row)]
        if len(own) < FEWEST or len(above) < SHARE * len(own):
            continue
        if not (once or drifting or of_the_fleet(above, len(set(met)))):
            continue
        values = [readings.value[row] for row in whoever]
        middle, own_sigma = statistics.median(values), statistics.median([readings.sigma[row] for row in own])
        reach = FAR * max(robust_deviation(values, middle), FLOOR)
        alike = [value for value in values if value <= middle + reach]
        scatter = statistics.pstdev(alike)
        gap = max([b - a for a, b in pairwise(sorted(alike))], default=0.0)
        plain = len(values) - len(alike) <= max(1.0, FEW * len(values)) and gap < GAP * scatter
        if once:  # the faster half shows it, which has neither faults nor what passes
            faster = [value - middle for value in values if value <= middle]
            scatter = math.sqrt(statistics.fmean(value * value for value in faster))
        if plain and not drifting and (once or scatter <= MOST):
            noise[kind], usual[kind] = math.sqrt(max(0.0, scatter**2 - own_sigma**2)), middle
        elif not once:
            deviation[kind.work] = max(statistics.pstdev(values), deviation.get(kind.work, 0.0))
            usual[kind] = middle
    return Unpaced(deviation, noise, usual)


def _whoever(readings: Readings, own: Sequence[int], slow: Callable[[int], bool], share: float) -> list[int]:
    """Return the jobs of hosts of which none is slow in all; empty, where fewer than a share of all are slow.
    """
    is_slow = {row: slow(row) for row in own}
    of_host: dict[int, list[bool]] = {}
    for row in own:
        for host in readings.hosts[row]:
            of_host.setdefault(host, []).append(is_slow[row])
    varying = {host for host, its in of_host.items() if len(its) > 1 and not all(its)}
    whoever = [row for row in own if varying.issuperset(readings.hosts[row])]
    enough = len(own) >= FEWEST and sum(is_slow[row] for row in whoever) >= share * len(own)
    return whoever if enough else []


def with_doubt(detrended: Detrended, drift: Unpaced) -> Detrended:
    """Return the jobs with the doubt of their unknown moments, or of their noise."""
    doubts = [
        max(
            doubt,
            drift.deviation.get(each.work, 0.0) ** 2,
            drift.noise.get(JobClass(each.work, len(each.hosts)), 0.0) ** 2,
        )
        for each, doubt in zip(detrended.observations, detrended.doubts, strict=True)
    ]
    return replace(detrended, doubts=tuple(doubts), usual=drift.usual)
