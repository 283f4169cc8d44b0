"""Group jobs in two clusters: whether a few hosts tell the fast one from the slow one. Pure.

Where a few bad hosts are in most group jobs, the slow jobs pass for normal: of eights with two bad hosts of
16, 77 % are slow. But nothing makes jobs faster. So where no fast job has one of a few hosts, and every slow
job has, the fast jobs are the healthy ones, unless so few hosts would tell as many jobs apart by chance (a
permutation test: Fisher, The Design of Experiments, 1935). Where chance may do it, hosts that are in no fast
job are not known to be good.
"""

from __future__ import annotations

import math
import random
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from muster.judging.baseline import KEPT, TYPICAL, Baseline, settle
from muster.judging.observation import Topology

FEW = 2  # jobs of a cluster, at least
MOST = 3  # one host in so many may be bad, no more
TRIES = 600  # permutations
CHANCE = 0.005  # of them that tell jobs apart as well: then chance may have done it
_Hosts = frozenset[str]


class Clusters(NamedTuple):
    """Jobs of a class in two clusters. `faster`: by how much (log) one is faster; `fast`, `slow`: the jobs,
    by index; `good`: the hosts of the fastest; `sure`: hosts tell them apart by more than chance."""

    faster: float
    fast: tuple[int, ...]
    slow: tuple[int, ...]
    good: _Hosts
    sure: bool

    def baseline(self, seconds: Sequence[float], base: Baseline) -> Baseline:
        """Return the baseline of the fast jobs. `base`: that of the slow ones, whose noise counts too."""
        times = [math.log(seconds[index]) for index in self.fast]
        sigma = settle(statistics.stdev(times), len(times), [(0.0, base.sigma, base.count)])
        return Baseline(math.exp(statistics.median(times)), sigma, len(times))


def by_baseline(
    seconds: Sequence[float], hosts: Sequence[_Hosts], base: Baseline, topology: Topology
) -> Clusters | None:
    """Return the clusters of a class's jobs where some are faster than its baseline. Jobs slower than that
    count for neither."""
    offs = [math.log(each / base.seconds) for each in seconds]
    reach = KEPT * base.sigma
    kept = [index for index, off in enumerate(offs) if off <= reach]
    return _clusters(offs, kept, hosts, topology, reach, at_most=0.0)


def by_moments(
    seconds: Sequence[float], hosts: Sequence[_Hosts], moments: Sequence[str], topology: Topology
) -> Clusters | None:
    """Return the clusters of a class's jobs, each compared with the fastest of its moment. Those of which
    the moment is not known, or has no other, count for neither."""
    of_moment: dict[str, list[int]] = {}
    for index, moment in enumerate(moments):
        of_moment.setdefault(moment, []).append(index)
    offs, kept = [0.0] * len(seconds), []
    for moment, own in of_moment.items():
        if moment and len(own) > 1:
            fastest = min(seconds[index] for index in own)
            kept += own
            for index in own:
                offs[index] = math.log(seconds[index] / fastest)
    return _clusters(offs, kept, hosts, topology, KEPT * TYPICAL)


def _clusters(
    offs: Sequence[float],
    kept: Sequence[int],
    hosts: Sequence[_Hosts],
    topology: Topology,
    reach: float,
    at_most: float = math.inf,
) -> Clusters | None:
    """Return the clusters on both sides of the widest gap that begins below `at_most`; None where it is
    narrower than `reach`, or where few hosts do not tell one cluster from the other."""
    ordered = sorted([offs[index] for index in kept])[FEW - 1 : 1 - FEW]  # so many are on both sides
    gap, cut = max(((b - a, b) for a, b in pairwise(ordered) if a < at_most), default=(0.0, 0.0))
    if gap <= reach:
        return None
    fast = tuple([index for index in kept if offs[index] < cut])
    slow = tuple([index for index in kept if offs[index] >= cut])
    jobs = [hosts[index] for index in kept]
    counts = Counter(host for job in jobs for host in job)
    needed = _needed([hosts[index] for index in slow], counts, len(counts) // MOST, topology)
    if needed is None:
        return None
    draw, chance = random.Random(0), 0
    for _ in range(TRIES):
        chance += _needed(draw.sample(jobs, len(slow)), counts, needed, topology) is not None
        if chance > CHANCE * TRIES:
            break
    middles = [statistics.median([offs[index] for index in side]) for side in (fast, slow)]
    # Of fast jobs that are in clusters again, as of two kinds of hardware, the fastest are good.
    paces = [off for off in ordered if off < cut]
    wide = next((a for a, b in pairwise(paces) if b - a > reach), cut)
    good: _Hosts = frozenset().union(*[hosts[index] for index in fast if offs[index] <= wide])
    return Clusters(middles[1] - middles[0], fast, slow, good, chance <= CHANCE * TRIES)


def _needed(slow: Sequence[_Hosts], counts: Mapping[str, int], most: int, topology: Topology) -> int | None:
    """Return how many hosts, or switches with all hosts behind them, are in every slow job, and in no other:
    the fewest that a greedy search finds. `counts`: of each host, all its jobs. None where more than `most`
    are needed."""
    mine = Counter(host for job in slow for host in job)
    bad = {host for host, count in mine.items() if count == counts[host]}
    left = [job & bad for job in slow]
    if not all(left):
        return None
    whole = [frozenset(members) for _, members in topology.switches if bad.issuperset(members)]
    needed = 0
    while left:
        if needed == most:
            return None
        covers = Counter(host for job in left for host in job)
        best = frozenset((max(sorted(covers), key=covers.__getitem__),))
        best = max((best, *whole), key=lambda members: sum(not job.isdisjoint(members) for job in left))
        left = [job for job in left if job.isdisjoint(best)]
        needed += 1
    return needed
