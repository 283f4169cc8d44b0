"""What hosts share because they were measured at the same time is the moment's, not theirs. Pure.

Whatever slows everything for a while, such as a room that is warm, a file system, or neighbours of virtual
machines, differs from wave to wave and would pass for a difference between hosts, or hide one. So a job is
compared with those that ran when it did. How much a moment was slower than the usual one is the median of its
jobs, drawn towards nothing by as much as so few jobs can be wrong; what stays unknown of it is added to the
doubt of its readings. A moment with too few jobs of a kind takes the pace of its other kinds.

Moments come from the jobs' own words (`moment`), or from when they began and ended: a job belongs to a moment
where at least half of it ran during the moment's first job: of one whose steps take longer, half of what as
many steps of that job take. Else slow hosts would have moments of their own. Where neither is known, drift
still shows: jobs are slow whoever runs them. Then it is noise, that all jobs of a moment share
(judging/unpaced.py).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from muster.core.robust import deviation
from muster.judging.baseline import FEWEST, FLOOR, TYPICAL, JobClass, robust
from muster.judging.observation import Observation

_Kind = tuple[str, int]  # work, and number of hosts
DRIFT = 0.002  # by how much moments differ where nothing is known (standard deviation, share of the time)
LEFT = 0.25  # of a moment's jobs: where fewer are good, it is not a fault that slows the others
WITNESSES = 2  # moments with good jobs in which the fault shows as well: then it is the fault
FEW = 8  # jobs of a moment, from where on bad ones among them are looked for


@dataclass(frozen=True)
class Detrended:
    """`observations` with times as if every moment had been alike; `doubts`: for each, the variance that is
    left in its pace, as a share of the time squared; `usual`: by how much (log) a usual moment is slower than
    the fastest, where moments are not known."""

    observations: tuple[Observation, ...]
    doubts: tuple[float, ...]
    usual: Mapping[JobClass, float] = field(default_factory=dict)


def moments_of(observations: Sequence[Observation]) -> list[str]:
    """Return the moment of each observation; empty where it is not known."""
    moments = [each.moment for each in observations]
    timed = sorted(
        (each.began, each.ended, index)
        for index, each in enumerate(observations)
        if not each.moment and each.began is not None and each.ended is not None and each.ended > each.began
    )
    for place, (began, ended, first) in enumerate(timed):
        if moments[first]:
            continue
        for at in range(place, len(timed)):
            start, end, index = timed[at]
            if start >= ended:
                break
            length = (end - start) * _share(observations[first], observations[index])
            if not moments[index] and min(end, ended) - start >= 0.5 * length:
                moments[index] = f"{began:.6f} {first}"  # several may begin at once
    return moments


def _share(first: Observation, job: Observation) -> float:
    """Return the share of a job's time that it would have taken at the pace of a faster one of its kind."""
    alike = first.work == job.work and len(first.hosts) == len(job.hosts)
    return min(1.0, first.seconds / job.seconds) if alike and first.seconds and job.seconds else 1.0


def side_by_side(
    observations: Sequence[Observation], moments: Sequence[str], slowed: Mapping[int, float] | None = None
) -> Detrended:
    """Return the observations without what their moments share. `moments`: of each; empty where none is
    known. `slowed`: those that a fault explains, by their index, and by how much (log; infinite: not known).
    """
    moments = moments or [""] * len(observations)
    times: dict[tuple[_Kind, str], list[float]] = {}
    good: dict[tuple[_Kind, str], list[float]] = {}
    for index, (each, moment) in enumerate(zip(observations, moments, strict=True)):
        if moment and each.seconds is not None and each.outcome.good:
            key = ((each.work, len(each.hosts)), moment)
            times.setdefault(key, []).append(math.log(each.seconds))
            by = slowed.get(index, 0.0) if slowed else 0.0
            if by < math.inf:
                good.setdefault(key, []).append(math.log(each.seconds) - by)
    kept = {key: good.get(key, []) for key in times}
    few = [key for key, own in kept.items() if len(own) < LEFT * len(times[key])]
    seen = sum(len(own) < len(times[key]) for key, own in kept.items()) - len(few)
    if seen < WITNESSES:  # where next to all jobs of a moment are slow, it is the moment that is
        kept |= {key: times[key] for key in few}
    paces, drift = _paces(kept)
    made, doubts = [], []
    for each, moment in zip(observations, moments, strict=True):
        pace, doubt = paces.get(((each.work, len(each.hosts)), moment), (0.0, drift))
        if each.seconds is not None and each.outcome.good:
            each = _at_pace(each, each.seconds, math.exp(-pace)) if pace else each
        if len(each.computing) >= FEWEST:
            each = replace(each, computing=_beside_each_other(each.computing))
        elif each.computing and pace:
            each = replace(each, computing=tuple(own * math.exp(-pace) for own in each.computing))
        made.append(each)
        doubts.append(doubt if moment else 0.0)
    return Detrended(tuple(made), tuple(doubts))


def _at_pace(job: Observation, seconds: float, factor: float) -> Observation:
    """Return the job with times so many times as long."""
    halves = (job.halves[0] * factor, job.halves[1] * factor) if job.halves else None
    return replace(job, seconds=seconds * factor, halves=halves)


def _beside_each_other(seconds: tuple[float, ...]) -> tuple[float, ...]:
    """Return what the hosts of one job computed, as shares of their median: they ran at the same time."""
    middle = statistics.median(seconds)
    return tuple(each / middle for each in seconds) if middle > 0 else seconds


def _paces(
    times: Mapping[tuple[_Kind, str], Sequence[float]],
) -> tuple[dict[tuple[_Kind, str], tuple[float, float]], float]:
    """Return by how much (log) each moment was slower than the usual one of its kind, and the doubt that is
    left (variance); and the variance of an unknown moment: 0, where there is one moment."""
    middles: dict[_Kind, dict[str, tuple[float, float]]] = {}  # with the variance of the middle
    for (kind, moment), values in times.items():
        if len(values) >= FEWEST:
            middles.setdefault(kind, {})[moment] = _middle(values)
    usual = {kind: statistics.median([at for at, _ in each.values()]) for kind, each in middles.items()}
    squares, count = DRIFT**2, 1
    for kind, each in middles.items():
        squares += sum([max(0.0, (at - usual[kind]) ** 2 - doubt) for at, doubt in each.values()])
        count += len(each) - 1
    drift = squares / count
    pooled: dict[str, list[float]] = {}
    paces: dict[tuple[_Kind, str], tuple[float, float]] = {}
    for kind, each in middles.items():
        if len(each) < 2:
            continue
        for moment, (at, doubt) in each.items():
            share = drift / (drift + doubt)
            paces[kind, moment] = (share * (at - usual[kind]), share * doubt)
            pooled.setdefault(moment, []).append(share * (at - usual[kind]))
    moments: dict[_Kind, int] = {}
    for kind, _ in times:
        moments[kind] = moments.get(kind, 0) + 1
    for kind, moment in times:
        if (kind, moment) not in paces:
            if moments[kind] < 2:
                paces[kind, moment] = (0.0, 0.0)  # nothing to differ from
            elif moment in pooled:
                paces[kind, moment] = (statistics.fmean(pooled[moment]), drift / 4)
            else:
                paces[kind, moment] = (0.0, drift)
    return paces, drift


def _middle(values: Sequence[float]) -> tuple[float, float]:
    """Return the middle of a moment's jobs, and its variance. Of many, slow ones are left out."""
    ordered = sorted(values)
    if len(ordered) >= FEW:
        middle, scale, count = robust(ordered)
    else:
        middle, count = statistics.median(ordered), len(ordered)
        scale = max(TYPICAL, deviation(ordered, middle))
    return middle, 1.6 * max(scale, FLOOR) ** 2 / count
