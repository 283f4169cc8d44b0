"""Hosts that are slower than the others by the same factor: other hardware, rather than as many faults. Pure.

Two generations of machines in one fleet differ by a constant factor in everything that they run. Compared
with the faster ones, each of the slower ones would be accused. Faults are rare and seldom of one size: where
a sixth of the hosts is slower by the same factor, alone too, they are taken for other hardware, and compared
with each other. Whether it is other hardware, somebody who knows the machines has to say. Hosts behind one
switch may share a fault instead (`rack`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from muster.core.units import format_slower
from muster.judging.baseline import FEWEST
from muster.judging.observation import Observation, Settings, Topology
from muster.judging.readings import Readings

SHARE = 1 / 6  # of the hosts, and more, are slower by the same; of eight in 64, each is accused
REACH = 4.0  # deviations of a reading that hosts alike are apart, at most
CLEARLY = 5.0  # deviations that they are slower, at least
STRAY = 0.125  # as many hosts as this share of them may be nearly as slow
MANY = 4  # groups of a host
KINDS = 3  # of hardware, beside that of the others, that a work is split into


@dataclass(frozen=True)
class SlowerGroup:
    """Hosts that are slower than the others of a work by the same share of a step's time."""

    work: str
    hosts: tuple[str, ...]
    slower: float

    @property
    def name(self) -> str:
        """"16 hosts alike, 8.0% slower than the others". Two groups of a work have two names, also where they
        have the same size."""
        return f"{len(self.hosts)} hosts alike, {format_slower(self.slower, 'the others', digits=1)}"

    @property
    def words(self) -> str:
        """The same as a question to people."""
        return f"{self.name}: other hardware?"


def hosts_alike(
    observations: Sequence[Observation],
    readings: Readings,
    topology: Topology,
    settings: Settings,
    good: Mapping[str, Collection[str]],
    strays: float = STRAY,
) -> list[SlowerGroup]:
    """Return one group of each work in which there is one, the largest. `observations`: with the times that
    jobs had, whatever their moments; `good`: by work, hosts that are surely not slow; `strays`: as many hosts
    as this share of a group may be nearly as slow."""
    rows: dict[str, dict[int, list[int]]] = {}
    for host, own in readings.of_host.items():
        for row in own:
            if not (readings.failed(row) or readings.hint[row]):
                rows.setdefault(readings.kind[row].work, {}).setdefault(host, []).append(row)
    groups = []
    for work, of_host in rows.items():
        levels = {
            host: level for host, own in of_host.items() if (level := _level(readings, own)) is not None
        }
        levels |= {host: 0.0 for host in levels if topology.hosts[host] in good.get(work, ())}
        members = [row for host in levels for row in of_host[host]]
        sigma = statistics.median([readings.sigma[row] for row in members] or [0.0])
        mine = _together(levels, sigma, settings, strays)
        behind = {topology.behind[host] for host in mine}
        if not mine or (len(behind) == 1 and -1 not in behind):
            continue
        level = statistics.median([levels[host] for host in mine])
        others = {topology.hosts[host] for host, its in levels.items() if its < level / 2}
        if not _good_alone(observations, work, {topology.hosts[host] for host in mine}, others, level):
            slower = math.expm1(level)
            groups.append(SlowerGroup(work, tuple([topology.hosts[host] for host in sorted(mine)]), slower))
    return groups


def _level(readings: Readings, rows: Sequence[int]) -> float | None:
    """Return by how much (log) a host is slower for good: its best group, since others may be slower (of many
    the second best: one may be of a moment that was estimated wrongly); where it was in fewer than two of
    them, its usual time alone. (Alone, suspects run at other moments than their peers.) None: it may be
    another host."""
    groups = [row for row in rows if not readings.alone[row]]
    if len({readings.hosts[row] for row in groups}) > 1:
        return sorted([readings.value[row] for row in groups])[len(groups) >= MANY]
    alone = [readings.value[row] for row in rows if readings.alone[row]]
    return statistics.median(alone) if alone else None


def _good_alone(
    observations: Sequence[Observation], work: str, mine: set[str], others: set[str], level: float
) -> bool:
    """Return whether hosts that are slow in groups are as fast alone as `others`, which are not slow: that is
    no slower hardware."""
    alone = [
        (each.hosts[0], math.log(each.seconds))
        for each in observations
        if each.work == work and len(each.hosts) == 1 and each.seconds and each.outcome.good
    ]
    slow, fast = ([time for host, time in alone if host in side] for side in (mine, others))
    if min(len(slow), len(fast)) < FEWEST:
        return False
    return statistics.median(slow) - statistics.median(fast) < level / 2


def _together(levels: dict[int, float], sigma: float, settings: Settings, strays: float) -> set[int]:
    """Return the hosts of the largest group that is clearly slower and close together; none, where it is too
    small, or not separate."""
    low = max(math.log1p(settings.slow), CLEARLY * sigma)
    slow = sorted((level, host) for host, level in levels.items() if level > low)
    best: list[tuple[float, int]] = []
    for at, (level, _) in enumerate(slow):
        here = [each for each in slow[at:] if each[0] <= level + REACH * sigma]
        best = max(best, here, key=len)
    if not best:
        return set()
    middle = statistics.median([level for level, _ in best])
    mine = {host for level, host in slow if abs(level - middle) <= REACH * sigma}
    near = sum(abs(level - middle) <= 3 * REACH * sigma for level, _ in slow) - len(mine)
    few = len(mine) < max(FEWEST, math.floor(SHARE * len(levels)) + 1)
    return set() if few or near > strays * len(mine) else mine


def apart(observations: Sequence[Observation], groups: Sequence[SlowerGroup]) -> list[Observation]:
    """Return the jobs, with those of each group, of which a work has one at most, as a separate work: a job
    runs at the pace of its slowest host."""
    of_work = {group.work: (frozenset(group.hosts), f"with the {group.name}") for group in groups}

    def of(job: Observation) -> Observation:
        mine, name = of_work.get(job.work, (frozenset[str](), ""))
        if mine.isdisjoint(job.hosts):
            return job
        return replace(job, work=f"{job.work}, {name}" if job.work else name)

    return [of(each) for each in observations]
