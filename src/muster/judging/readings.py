"""From observations to readings: by how much a step was slower than a healthy one, in columns. Pure.

A job gives a reading of its step. Where it tells what each host computed by itself, it gives one more per
host: the host that others wait for waits least inside collectives, and does most outside. Such a reading is
as if the host had run alone, and costs no run; but a hiccup of the run is in both, so it counts for less.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from muster.judging.baseline import Baseline, Class, fleet_baselines
from muster.judging.observation import Link, Observation, Settings, Topology, ring_links

# What one surprising reading may weigh, in nats, however far off it is: a job can be slowed by something that
# does not last (1 in 500, by anything up to 20 %: log 500 + log(0.2 / (0.004 sqrt(2 pi))) = 9.2), or die by
# chance (1 in 10,000), and what a host does by itself can mislead.
HICCUP, CRASH, HINT = 9.2, 9.2, 4.0
# A job that runs faster than a fault allows is stronger evidence: nothing makes jobs faster. Except where it
# was measured side by side with others, and held against what they took: while all of them are slowed by the
# same (a machine that has too little processor time for its virtual ones), the fault of one hardly shows.
# There a reading that is too fast weighs what a hiccup does.
FASTER = 30.0
# A job that names a hardware error of its host did not die by chance: one is enough.
HARDWARE = 30.0
VARIES = 0.1  # a fault's slowdown differs that much, relative to itself, from job to job (partners, load)
FAILED = 1.0  # the reading of a failed job: as if it took 2.7 times as long
SURE = 0.05  # and its deviation
STANDS_OUT = 2.5  # deviations: a reading above it asks for an explanation


@dataclass
class Readings:
    """One row per reading, in columns. `value`: log(time / healthy time); `weight`: 1 / (2 sigma^2);
    `most`, `least`: what a reading above, or below what was expected can weigh at most; `alone`: of one
    host, without the network; `source`: which observation."""

    value: list[float] = field(default_factory=list)
    sigma: list[float] = field(default_factory=list)
    weight: list[float] = field(default_factory=list)
    most: list[float] = field(default_factory=list)
    least: list[float] = field(default_factory=list)
    alone: list[bool] = field(default_factory=list)
    hosts: list[tuple[int, ...]] = field(default_factory=list)
    source: list[int] = field(default_factory=list)
    of_host: dict[int, list[int]] = field(default_factory=dict)

    def add(
        self,
        hosts: tuple[int, ...],
        value: float,
        sigma: float,
        source: int,
        most: float,
        least: float = FASTER,
    ) -> None:
        """One reading; `alone` follows from the number of hosts."""
        row = len(self.value)
        self.value.append(value)
        self.sigma.append(sigma)
        self.weight.append(0.5 / (sigma * sigma))
        self.most.append(most)
        self.least.append(least)
        self.alone.append(len(hosts) == 1)
        self.hosts.append(hosts)
        self.source.append(source)
        for host in hosts:
            rows = self.of_host.get(host)
            if rows is None:
                self.of_host[host] = [row]
            else:
                rows.append(row)

    def links(self, row: int) -> tuple[Link, ...]:
        """Which links the job's ring went over."""
        return ring_links(self.hosts[row])

    def deviations(self, row: int) -> float:
        """How far from healthy."""
        return self.value[row] / self.sigma[row]

    def loss(self, row: int, expected: float) -> float:
        """Minus the log likelihood, up to a constant, where a slowdown is expected."""
        off = self.value[row] - expected
        cost = off * off * self.weight[row]
        if expected:
            wider = 1.0 + 2.0 * self.weight[row] * (VARIES * expected) ** 2
            cost = cost / wider + 0.5 * math.log(wider)
        return min(cost, self.most[row] if off > 0 else self.least[row])


def _times(observations: Sequence[Observation]) -> tuple[dict[Class, list[float]], dict[Class, int]]:
    """Seconds by class, of steps and of what hosts did outside collectives; and from how many hosts."""
    times: dict[Class, list[float]] = {}
    hosts: dict[Class, set[str]] = {}
    for each in observations:
        if each.seconds is None or each.outcome != "succeeded":
            continue
        size = len(each.hosts)
        key = Class(each.work, size)
        times.setdefault(key, []).append(each.seconds)
        hosts.setdefault(key, set()).update(each.hosts)
        if each.computing and size > 1:
            key = Class(each.work, size, "busy")
            times.setdefault(key, []).extend(busy for busy in each.computing if busy > 0)
            hosts.setdefault(key, set()).update(each.hosts)
    return times, {key: len(names) for key, names in hosts.items()}


def read(
    observations: Sequence[Observation],
    topology: Topology,
    stored: Mapping[Class, Baseline] | None = None,
) -> tuple[Readings, dict[Class, Baseline]]:
    """Readings of all observations that can be compared with something, and the baselines used. Jobs with a
    host that is not in the topology help to make the baselines, no more."""
    times, counts = _times(observations)
    baselines = fleet_baselines(times, stored, counts)
    index = topology.index
    rows = Readings()
    for number, each in enumerate(observations):
        if any(host not in index for host in each.hosts):
            continue
        hosts = tuple([index[host] for host in each.hosts])
        if each.outcome != "succeeded" or each.seconds is None:
            culprits = [index[host] for host in each.culprits if host in index]
            for host in culprits:
                rows.add((host,), FAILED, SURE, number, HARDWARE if each.hardware else CRASH)
            if not culprits:
                rows.add(hosts, FAILED, SURE, number, CRASH)
            continue
        base = baselines.get(Class(each.work, len(hosts)))
        if base is not None:
            least = HICCUP if each.moment else FASTER
            rows.add(hosts, math.log(each.seconds / base.seconds), base.sigma, number, HICCUP, least)
        if each.computing and len(hosts) > 1:
            base = baselines.get(Class(each.work, len(hosts), "busy"))
            for host, busy in zip(hosts, each.computing, strict=True):
                if base is not None and busy > 0:
                    rows.add((host,), math.log(busy / base.seconds), base.sigma, number, HINT, HINT)
    return rows, baselines


def smallest(readings: Readings, rows: Sequence[int], settings: Settings) -> float:
    """The smallest slowdown (log) that these readings may be called slow for."""
    noise = min([readings.sigma[row] for row in rows], default=0.0)
    return max(math.log1p(settings.slow), STANDS_OUT * noise)
