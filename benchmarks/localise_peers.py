"""Others' ways to find a bad host, each by its idea in code of our own, on the same simulated fleets.

Every one is made as strong as its idea allows. Times are held against the median of their wave, so that what
slows all of a wave does no harm. Each is asked with several thresholds, and the best counts, as if one knew
the slowdown: S1's own is what the user gives, DLRover's is twice the median, which finds no host that is 5 %
slow.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from simulate import SimulatedFleet

from muster.judging import Group

Accused = set[tuple[str, ...]]


@dataclass(frozen=True)
class Outcome:
    """Who is accused (hosts, or the two of a link) with a threshold, after how many waves."""

    accused: Callable[[float], Accused]
    waves: int


Way = Callable[[SimulatedFleet, int], Outcome]  # a fleet, and the waves that a way may take which could go on


def _slower(fleet: SimulatedFleet, groups: Sequence[Group]) -> list[float]:
    """By what share each job of a wave was slower than the wave's median."""
    seconds = [float(each.seconds or 0) for each in fleet.run(groups)]
    middle = statistics.median(seconds)
    return [each / middle - 1 for each in seconds]


def _pairs(hosts: Sequence[str], first: int = 0) -> list[Group]:
    """Neighbours on the ring, from this host on."""
    turned = [*hosts[first:], *hosts[:first]]
    return [(turned[i], turned[i + 1]) for i in range(0, len(turned) - 1, 2)]


def threshold_on_groups(fleet: SimulatedFleet, waves: int) -> Outcome:
    """Batches of two neighbours; every host of a batch that is too slow is bad."""
    groups = _pairs(fleet.topology.hosts)
    slower = dict(zip(groups, _slower(fleet, groups), strict=True))
    return Outcome(lambda most: {(host,) for group in groups if slower[group] > most for host in group}, 1)


def pairwise_sweep(fleet: SimulatedFleet, waves: int) -> Outcome:
    """All pairs in N - 1 rounds (circle method, N even); a host is bad whose median pair is slow, a link is
    bad that is slow between two good hosts."""
    circle = list(fleet.topology.hosts)
    times: dict[str, list[float]] = {host: [] for host in circle}
    pairs: dict[Group, float] = {}
    for _ in range(len(circle) - 1):
        groups = [(circle[i], circle[-1 - i]) for i in range(len(circle) // 2)]
        for group, slower in zip(groups, _slower(fleet, groups), strict=True):
            pairs[group] = slower
            for host in group:
                times[host].append(slower)
        circle = [circle[0], circle[-1], *circle[1:-1]]
    middle = {host: statistics.median(values) for host, values in times.items()}

    def accused(most: float) -> Accused:
        bad = {host for host, value in middle.items() if value > most}
        links = {tuple(sorted(pair)) for pair, value in pairs.items() if value > most and not bad & set(pair)}
        return {(host,) for host in bad} | links

    return Outcome(accused, len(circle) - 1)


def fastest_with_slowest(fleet: SimulatedFleet, waves: int) -> Outcome:
    """Two rounds: neighbours, then the fastest with the slowest. A host's time is the better of its two; it
    is bad if that is too far above the median. (dlrover, master/elastic_training/rdzv_manager.py)"""
    hosts = fleet.topology.hosts
    best: dict[str, float] = {}
    groups = _pairs(hosts)
    for round_ in range(2):
        for group, slower in zip(groups, _slower(fleet, groups), strict=True):
            for host in group:
                best[host] = min(slower, best.get(host, slower))
        if not round_:
            order = sorted(hosts, key=lambda host: best[host])
            groups = [(order[i], order[-1 - i]) for i in range(len(order) // 2)]
    return Outcome(lambda most: {(host,) for host in hosts if best[host] > most}, 2)


def bisection(fleet: SimulatedFleet, waves: int) -> Outcome:
    """Halve the set of suspects until two are left; then each of them with a good host. All other hosts run
    too, in groups as large, to compare with. Assumes one fault, that jobs on any number of hosts (a power of
    two) can be compared, and that a slow host slows a job on 32 as much as one on two."""
    hosts = fleet.topology.hosts
    suspects: Group = hosts
    used, slower = 0, dict[Group, float]()
    while len(suspects) > 2:
        half = len(suspects) // 2
        groups = [hosts[i : i + half] for i in range(0, len(hosts), half)]
        slower = dict(zip(groups, _slower(fleet, groups), strict=True))
        suspects = max(suspects[:half], suspects[half:], key=lambda each: slower[each])
        used += 1
    groups = _pairs(hosts, 1)
    last = {host: by for pair, by in zip(groups, _slower(fleet, groups), strict=True) for host in pair}
    worst = max(suspects, key=lambda host: last[host])

    def accused(most: float) -> Accused:
        if last[worst] > most:
            return {(worst,)}
        return {tuple(sorted(suspects))} if slower[suspects] > most else set()

    return Outcome(accused, used + 1)


def even_odd_alone(fleet: SimulatedFleet, waves: int, *, twice: bool) -> Outcome:
    """Even pairs of the ring, odd pairs, every host alone; then the same again. A host is bad where it is
    slow with both of its neighbours (a card, where it is not slow alone); a link where a pair is slow and its
    hosts are not. A pair is as slow as its median job; `twice`: as its best, and a link is bad that was slow
    twice."""
    hosts = fleet.topology.hosts
    plans: list[list[Group]] = [_pairs(hosts), _pairs(hosts, 1), [(host,) for host in hosts]]
    seen: dict[Group, list[float]] = {}
    for wave in range(waves):
        groups = plans[wave % 3]
        for group, slower in zip(groups, _slower(fleet, groups), strict=True):
            seen.setdefault(group, []).append(slower)
    several = min if twice else statistics.median
    pairs = {group: several(values) for group, values in seen.items() if len(group) == 2}
    of_host = {host: min(value for pair, value in pairs.items() if host in pair) for host in hosts}

    def accused(most: float) -> Accused:
        bad = {host for host in hosts if of_host[host] > most}
        slow = [pair for pair, value in pairs.items() if value > most and not bad & set(pair)]
        links = {tuple(sorted(pair)) for pair in slow if len(seen[pair]) > twice}
        return {(host,) for host in bad} | links

    return Outcome(accused, waves)


PEERS: dict[str, Way] = {
    "threshold on groups (S1)": threshold_on_groups,
    "all pairs in N - 1 rounds (SuperBench)": pairwise_sweep,
    "two rounds, fastest with slowest (DLRover)": fastest_with_slowest,
    "bisection": bisection,
    "even, odd, alone; median of a pair": partial(even_odd_alone, twice=False),
    "even, odd, alone; slow each time": partial(even_odd_alone, twice=True),
}
