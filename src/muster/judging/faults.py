"""The faults that can be, which jobs each of them slows, and how well it explains what was read. Pure.

| fault | slows |
| --- | --- |
| host | every job of the host; not known whether alone too |
| compute | the host alone, and its groups by no more than that (communication dilutes it) |
| card | its groups only |
| intermittent | some of its jobs |
| link | jobs whose ring has the two hosts as neighbours |
| switch | jobs whose ring has a link to or from a host behind it |
| uplink | jobs whose ring has a link that leaves it |
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from muster.judging.observation import Settings, Topology
from muster.judging.readings import FAILED, STANDS_OUT, SURE, Readings, smallest

Kind = Literal["host", "compute", "card", "intermittent", "link", "switch", "uplink"]
OF_HOSTS = frozenset(("host", "compute", "card", "intermittent"))

# What a fault costs before any reading, in nats: -log of how common it is (a host in 200 by its processor,
# one in 200 by its card; a link in 1,000; a host in 2,000 now and then; a switch in 200), and 3 =
# log(0.2 / 0.01) for a slowdown that is fitted to the readings, as a hiccup's is.
_FITTED = 3.0
COST: dict[Kind, float] = {
    "host": math.log(100) + _FITTED,
    "compute": math.log(200) + _FITTED,
    "card": math.log(200) + _FITTED,
    "intermittent": math.log(2000) + _FITTED,
    "link": math.log(1000) + _FITTED,
    "switch": math.log(200) + _FITTED,
    "uplink": math.log(200) + _FITTED,
}
DILUTED = 0.75  # alone, a host with slow compute is at least this much of its slowdown in groups


class Fault(NamedTuple):
    """What is wrong with what: a host, the two of a link, or a switch, by index."""

    kind: Kind
    where: tuple[int, ...]


@dataclass(frozen=True)
class Fit:
    """How a fault fits, given the faults there are already.

    `gain`: nats, before its cost; `by`: the slowdown (log) of jobs in groups, or of the host alone where it
    shows there only; `expects`: the slowdown now expected of each reading it changes; `chance`: of showing in
    a job; `hidden`: its jobs in groups were good, so that only one of the host alone would show it again.
    """

    gain: float
    by: float
    expects: tuple[tuple[int, float], ...]
    chance: float = 1.0
    hidden: bool = False


@dataclass(frozen=True)
class Case:
    """What the faults are held against."""

    readings: Readings
    topology: Topology
    settings: Settings
    _slowed: dict[Fault, list[int]] = field(default_factory=dict, repr=False, compare=False)

    def slowed(self, fault: Fault) -> list[int]:
        """The readings of groups that the fault slows."""
        if fault not in self._slowed:
            self._slowed[fault] = self._find_slowed(fault)
        return self._slowed[fault]

    def _find_slowed(self, fault: Fault) -> list[int]:
        rows = self.readings
        if fault.kind in OF_HOSTS:
            return [row for row in rows.of_host.get(fault.where[0], ()) if not rows.alone[row]]
        if fault.kind == "link":
            mine = rows.of_host.get(fault.where[0], ())
            return [
                row for row in mine if fault.where[1] in rows.hosts[row] and fault.where in rows.links(row)
            ]
        _, members = self.topology.switches[fault.where[0]]
        touched = {row for host in members for row in rows.of_host.get(self.topology.index[host], ())}
        return sorted(row for row in touched if self.passes(fault, rows.hosts[row]))

    def passes(self, fault: Fault, hosts: tuple[int, ...]) -> bool:
        """Whether a job on these hosts would be slowed by a switch or its uplink."""
        behind, switch = self.topology.behind, fault.where[0]
        if len(hosts) < 2:
            return False
        inside = [behind[host] == switch for host in hosts]
        return any(inside) and (fault.kind == "switch" or not all(inside))

    def fit(self, fault: Fault, expected: dict[int, float]) -> Fit | None:
        """The best slowdown for the fault beside what is expected already; None where it explains nothing."""
        if fault.kind == "intermittent":
            return self._intermittent(fault, expected)
        together = self.slowed(fault)
        low = smallest(self.readings, together, self.settings)
        gain, by, expects = self._best(together, expected, low)
        if fault.kind != "compute":
            return Fit(gain, by, expects) if expects else None
        alone = [row for row in self.readings.of_host.get(fault.where[0], ()) if self.readings.alone[row]]
        if gain <= 0:
            gain, by, expects = 0.0, 0.0, ()
        low = max(smallest(self.readings, alone, self.settings), DILUTED * by)
        more, own, besides = self._best(alone, expected, low)
        hidden = not by and bool(together)
        return Fit(gain + more, by or own, expects + besides, hidden=hidden) if besides else None

    def _best(
        self, rows: Sequence[int], expected: dict[int, float], low: float
    ) -> tuple[float, float, tuple[tuple[int, float], ...]]:
        """Gain, slowdown and what it changes, for the slowdown of at least `low` that fits best. Nothing,
        where less would fit better still, by more than chance: who is slower by less than what counts is not
        slow."""
        readings = self.readings
        base = [(row, expected.get(row, 0.0)) for row in rows]
        if not base:
            return 0.0, 0.0, ()
        before = [readings.loss(row, at) for row, at in base]
        best, chosen = -math.inf, low
        for by in _slowdowns([readings.value[row] for row in rows], low):
            gain = 0.0
            for (row, at), was in zip(base, before, strict=True):
                if at < by:
                    gain += was - readings.loss(row, by)
            if gain > best:
                best, chosen = gain, by
        changed = [row for row, at in base if at < chosen]
        if chosen == low and changed:
            lacking = sum([low - readings.value[row] for row in changed])
            if lacking > math.sqrt(len(changed)) * max([readings.sigma[row] for row in changed]):
                return 0.0, 0.0, ()
        return best, chosen, tuple([(row, chosen) for row in changed])

    def _intermittent(self, fault: Fault, expected: dict[int, float]) -> Fit | None:
        """Slow in k of n jobs, every share equally likely beforehand: k! (n - k)! / (n + 1)!."""
        readings = self.readings
        low = smallest(readings, self.slowed(fault), self.settings)
        tried, shown = 0, []
        for row in readings.of_host.get(fault.where[0], ()):
            off = readings.value[row] - expected.get(row, 0.0)
            if off > max(low, STANDS_OUT * readings.sigma[row]):
                shown.append(row)
                tried += 1
            elif not readings.alone[row]:
                tried += 1
        # What failed and what was a little slow have no mean: failures may be all that it is.
        failed = [row for row in shown if readings.value[row] >= FAILED - SURE]
        fits = [self._now_and_then(rows, tried, expected) for rows in (shown, failed) if rows]
        return max(fits, key=lambda fit: fit.gain) if fits else None

    def _now_and_then(self, shown: Sequence[int], tried: int, expected: dict[int, float]) -> Fit:
        """Had it shown in these of so many jobs."""
        readings = self.readings
        by = sum([readings.value[row] for row in shown]) / len(shown)
        gain = sum([readings.loss(row, expected.get(row, 0.0)) - readings.loss(row, by) for row in shown])
        gain -= math.log((tried + 1) * math.comb(tried, len(shown)))
        share = (len(shown) + 1) / (tried + 2)
        return Fit(gain, by, tuple([(row, by) for row in shown]), share)


def _slowdowns(values: Sequence[float], low: float) -> list[float]:
    """Slowdowns worth trying: each reading's, and the mean of all, of the upper half, and of those that agree
    with a failure, or with none."""
    above = sorted([value for value in values if value > low])
    if not above:
        return [low]
    tries = above if len(above) <= 5 else [above[i * (len(above) - 1) // 4] for i in range(5)]
    tries = [*tries, max(low, sum(values) / len(values))]
    if len(above) > 1:
        tries.append(sum(above) / len(above))
        slow = [value for value in above if value < FAILED - SURE]
        if slow and len(slow) < len(above):
            tries.append(sum(slow) / len(slow))
    return tries
