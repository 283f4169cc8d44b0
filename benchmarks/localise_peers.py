"""Others' ways to find a bad host, each by its idea in code of our own, on the same simulated fleets.

Every one gets the threshold that fits best, half of the slowdown planted, as if one knew it: S1's own is what
the user gives, DLRover's is twice the median, which finds no host that is 5 % slow.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from muster.judging import Group
from muster.judging.simulate import Fleet


@dataclass(frozen=True)
class Outcome:
    """Who was accused (hosts, or the two of a link), after how many waves."""

    accused: frozenset[tuple[str, ...]]
    waves: int


Way = Callable[[Fleet, float], Outcome]


def _seconds(fleet: Fleet, groups: list[Group]) -> list[float]:
    return [float(each.seconds or 0) for each in fleet.run(groups)]


def threshold_on_groups(fleet: Fleet, by: float) -> Outcome:
    """Batches of two neighbours; every host of a batch whose throughput is too far below the mean is bad."""
    hosts = fleet.topology.hosts
    groups = [tuple(hosts[i : i + 2]) for i in range(0, len(hosts), 2)]
    speeds = [1 / seconds for seconds in _seconds(fleet, groups)]
    least = statistics.fmean(speeds) * (1 - by)
    bad = {(host,) for group, speed in zip(groups, speeds, strict=True) if speed < least for host in group}
    return Outcome(frozenset(bad), 1)


def pairwise_sweep(fleet: Fleet, by: float) -> Outcome:
    """All pairs in N - 1 rounds (circle method, N even); a host is bad whose median pair is slow, a link is
    bad that is slow between two good hosts."""
    hosts = fleet.topology.hosts
    circle = list(hosts)
    times: dict[str, list[float]] = {host: [] for host in hosts}
    pairs: list[tuple[Group, float]] = []
    for _ in range(len(hosts) - 1):
        groups = [(circle[i], circle[-1 - i]) for i in range(len(circle) // 2)]
        for group, seconds in zip(groups, _seconds(fleet, groups), strict=True):
            pairs.append((group, seconds))
            for host in group:
                times[host].append(seconds)
        circle = [circle[0], circle[-1], *circle[1:-1]]
    middle = {host: statistics.median(values) for host, values in times.items()}
    most = statistics.median(middle.values()) * (1 + by)
    bad = {host for host, value in middle.items() if value > most}
    links = {tuple(sorted(group)) for group, seconds in pairs if seconds > most and not bad & set(group)}
    return Outcome(frozenset({(host,) for host in bad} | links), len(hosts) - 1)


def fastest_with_slowest(fleet: Fleet, by: float) -> Outcome:
    """Two rounds: neighbours, then the fastest with the slowest. A host's time is the better of its two; it
    is bad if that is too far above the median. (dlrover, master/elastic_training/rdzv_manager.py)"""
    hosts = fleet.topology.hosts
    best: dict[str, float] = {}
    groups: list[Group] = [tuple(hosts[i : i + 2]) for i in range(0, len(hosts), 2)]
    for round_ in range(2):
        for group, seconds in zip(groups, _seconds(fleet, groups), strict=True):
            for host in group:
                best[host] = min(seconds, best.get(host, seconds))
        if not round_:
            order = sorted(hosts, key=lambda host: best[host])
            groups = [(order[i], order[-1 - i]) for i in range(len(order) // 2)]
    most = statistics.median(best.values()) * (1 + by)
    return Outcome(frozenset((host,) for host in hosts if best[host] > most), 2)


PEERS: dict[str, Way] = {
    "threshold on groups (S1)": threshold_on_groups,
    "all pairs in N - 1 rounds (SuperBench)": pairwise_sweep,
    "two rounds, fastest with slowest (DLRover)": fastest_with_slowest,
}
