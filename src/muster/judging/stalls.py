"""Steps that stall on any hosts: jobs are then compared by their usual steps. Pure.

A file system or a shared service can hold a step up for many times its time. Where that happens to jobs of
many hosts, the mean of a job shows how many stalls it met, and not how its hosts are: two of a hundred steps
that take ten times as long make it 18 % slower, give or take 13. The medians of its halves hold.

Where few hosts explain all jobs that stalled, the stalls are theirs, and the mean counts.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush
from typing import Any

from muster.judging.alike import SHARE
from muster.judging.baseline import FEWEST, JobClass
from muster.judging.observation import Group, Observation

LOST = 0.02  # of a job's time are lost in steps that stall, more than in other jobs
CLEAN = 8  # one in so many jobs stalls least


def usual_paces(observations: Sequence[Observation]) -> list[Observation]:
    """Return the observations with the pace of their usual steps, in works in which jobs stall on any hosts:
    as long as of the jobs that stall least. Observations that have it already stay as they are."""
    jobs: dict[JobClass, list[int]] = {}
    for index, each in enumerate(observations):
        if each.seconds is not None and each.outcome.good:
            jobs.setdefault(JobClass(each.work, len(each.hosts)), []).append(index)
    made = list(observations)
    for own in jobs.values():
        halves = [its for index in own if (its := observations[index].halves) is not None]
        if len(halves) < max(len(own), FEWEST):
            continue
        groups = [observations[index].hosts for index in own]
        # Relative to the jobs' means: their halves may be in another unit, such as seconds of a sample.
        lost = [
            math.log((observations[index].seconds or 0.0) / statistics.fmean(its))
            for index, its in zip(own, halves, strict=True)
        ]
        if not _of_the_fleet(groups, lost):
            continue
        coarse = _of_the_fleet(groups, [math.log(max(its) / min(its)) for its in halves])
        least = math.exp(_least(lost))
        for index, its in zip(own, halves, strict=True):
            job = made[index]
            if coarse:  # windows of so many steps that halves stall
                made[index] = replace(job, seconds=least * min(its), halves=None, spread=None)
            else:
                made[index] = replace(job, seconds=least * statistics.fmean(its), spread=None)
    return made


def _least(shares: Sequence[float]) -> float:
    """Return the share of the jobs that lose least."""
    return sorted(shares)[len(shares) // CLEAN]


def _of_the_fleet(groups: Sequence[Group], shares: Sequence[float]) -> bool:
    """Return whether the jobs, of these hosts each, that are above the least by LOST were on more hosts than
    can be faulty at once."""
    least = _least(shares)
    above = [group for group, share in zip(groups, shares, strict=True) if share > least + LOST]
    return of_the_fleet(above, len({host for group in groups for host in group}))


def of_the_fleet(groups: Collection[tuple[Any, ...]], hosts: int) -> bool:
    """Return whether it takes more of so many hosts than can be faulty at once for one to be in each group:
    the host of most first (a greedy cover)."""
    of_host: dict[Any, set[int]] = {}
    for number, group in enumerate(groups):
        for host in group:
            of_host.setdefault(host, set()).add(number)
    left, count, most = set(range(len(groups))), 0, max(FEWEST - 1, SHARE * hosts)
    heap = [(-len(own), host) for host, own in of_host.items()]
    heapify(heap)
    while left and count <= most:
        size, host = heappop(heap)
        mine = of_host[host] & left
        if len(mine) == -size:
            left -= mine
            count += 1
        elif mine:  # some of its groups have another host by now
            heappush(heap, (-len(mine), host))
    return count > most
