"""The possible faults, which jobs each of them slows, and how well it explains the readings. Pure.

| fault | slows |
| --- | --- |
| host | every job of the host; not known whether alone too |
| compute | the host alone, and its groups by no more than that (communication dilutes it) |
| card | its groups only |
| intermittent | some of its jobs |
| rack | every job of every host behind a switch, alone too: what they share, such as power or cooling |
| link | jobs whose ring has the two hosts as neighbours |
| switch | jobs whose ring has a link to or from a host behind it |
| uplink | jobs whose ring has a link that leaves it |

A fault need not show in every work: a throttled processor slows a heavy one, and not one that mostly waits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from muster.judging.observation import Settings, Topology
from muster.judging.readings import FAILED, STANDS_OUT, Readings, own_share, smallest

Kind = Literal["host", "compute", "card", "intermittent", "rack", "link", "switch", "uplink"]
OF_HOSTS = frozenset(("host", "compute", "card", "intermittent"))
OF_SWITCHES = frozenset(("rack", "switch", "uplink"))

# What a fault costs before any reading, in nats: -log of how common it is (a host in 200 by its processor,
# one in 200 by its card; a link in 300; a host in 700 now and then; a switch in 200, and as often what its
# hosts share), and 3 for a slowdown that is fitted to the readings.
_FITTED = 3.0
COST: dict[Kind, float] = {
    "host": math.log(100) + _FITTED,
    "compute": math.log(200) + _FITTED,
    "card": math.log(200) + _FITTED,
    "intermittent": math.log(700) + _FITTED,
    "rack": math.log(200) + _FITTED,
    "link": math.log(300) + _FITTED,
    "switch": math.log(200) + _FITTED,
    "uplink": math.log(200) + _FITTED,
}
ELSEWHERE = math.log(30)  # nats: a link that the real job's ring does not take (there are 30 times as many)
NOT_SHOWN = 2.0  # nats: that a fault does not show in another work
HIDDEN = 3.0  # nats: that slow compute does not show in groups that do the same work
DILUTED = 0.75  # alone, a host with slow compute is at least this much of its slowdown in groups
Expects = tuple[tuple[int, float], ...]


class Fault(NamedTuple):
    """A kind of fault and its subject: a host, the two of a link, or a switch, by index."""

    kind: Kind
    where: tuple[int, ...]


class Fit(NamedTuple):
    """How a fault fits, given the other faults.

    `gain`: nats, before its cost; `by`: the slowdown (log) of jobs in groups, or of the host alone where it
    shows there only (FAILED: its jobs fail); `expects`: the slowdown now expected of each reading it changes;
    `chance`: of showing in a job; `hidden`: its jobs in groups were good, so that only one of the host alone
    would show it again.
    """

    gain: float
    by: float
    expects: Expects
    chance: float = 1.0
    hidden: bool = False


_NOTHING = Fit(0.0, 0.0, ())


@dataclass(frozen=True)
class FaultCase:
    """The readings that faults are compared with."""

    readings: Readings
    topology: Topology
    settings: Settings
    common: float = 0.0  # nats: how much less rare faults of hosts are in this fleet than is assumed
    _slowed: dict[Fault, list[int]] = field(default_factory=dict, repr=False, compare=False)

    def cost(self, fault: Fault) -> float:
        """Return the fault's cost before any reading, in nats."""
        if fault.kind in ("host", "compute", "card"):
            return COST[fault.kind] - self.common
        if fault.kind != "link":
            return COST[fault.kind]
        apart, count = fault.where[1] - fault.where[0], len(self.topology.hosts)
        return COST["link"] + (0.0 if apart in (1, count - 1) else ELSEWHERE)

    def slowed(self, fault: Fault) -> list[int]:
        """Return the readings that the fault slows, except those of one host alone with slow compute. What
        breaks hosts' hardware is no link and no switch."""
        if fault not in self._slowed:
            self._slowed[fault] = self._find_slowed(fault)
        return self._slowed[fault]

    def alone(self, fault: Fault) -> list[int]:
        """Return the readings of the fault's host alone."""
        rows = self.readings
        return [row for row in rows.of_host.get(fault.where[0], ()) if rows.alone[row]]

    def _find_slowed(self, fault: Fault) -> list[int]:
        rows = self.readings
        if fault.kind in OF_HOSTS:
            return [row for row in rows.of_host.get(fault.where[0], ()) if not rows.alone[row]]
        if fault.kind == "link":
            mine = rows.of_host.get(fault.where[0], ())
            return [
                row
                for row in mine
                if fault.where[1] in rows.hosts[row]
                and fault.where in rows.links(row)
                and not rows.broken(row)
            ]
        _, members = self.topology.switches[fault.where[0]]
        touched = {row for host in members for row in rows.of_host.get(self.topology.index[host], ())}
        return sorted(
            row for row in touched if self.passes(fault, rows.hosts[row]) and not rows.broken(row)
        )

    def passes(self, fault: Fault, hosts: tuple[int, ...]) -> bool:
        """Return whether a switch, its uplink, or what its hosts share would slow a job on these hosts."""
        behind, switch = self.topology.behind, fault.where[0]
        inside = [behind[host] == switch for host in hosts]
        if fault.kind == "rack":
            return any(inside)
        return len(hosts) > 1 and any(inside) and (fault.kind == "switch" or not all(inside))

    def fit(self, fault: Fault, expected: dict[int, float]) -> Fit | None:
        """Return the best slowdown for the fault, given what is expected already; None where it explains
        nothing."""
        if fault.kind == "intermittent":
            return self._intermittent(fault, expected)
        groups = self._over_works(self.slowed(fault), expected, everywhere=fault.kind == "rack")
        if fault.kind != "compute":
            return groups if groups.expects else None
        alone = self._over_works(self.alone(fault), expected, least=DILUTED * groups.by)
        if not alone.expects or (groups.by < FAILED <= alone.by and groups.expects):
            return None  # what slows jobs in groups ends none alone
        hidden = not groups.by and bool(self.slowed(fault))
        gain = groups.gain + alone.gain
        if hidden:
            works = {self.readings.kind[row].work for row, _ in alone.expects}
            if any(self.readings.kind[row].work in works for row in self.slowed(fault)):
                gain -= HIDDEN
        return Fit(gain, groups.by or alone.by, groups.expects + alone.expects, 1.0, hidden)

    def _over_works(
        self, rows: Sequence[int], expected: dict[int, float], least: float = 0.0, everywhere: bool = False
    ) -> Fit:
        """Return the best fit over all works that it may show in: the likeliest first, another only where it
        gains. `everywhere`: it shows in every work."""
        works: dict[str, list[int]] = {}
        for row in rows:
            works.setdefault(self.readings.kind[row].work, []).append(row)
        fits = [(self._best(own, expected, least), own) for own in works.values()]
        fits.sort(key=lambda each: (-each[0].gain, each[1]))
        if not fits or not fits[0][0].expects:
            return _NOTHING
        gain, by, expects, *_ = fits[0][0]
        for other, own in fits[1:]:
            same = self._gain(own, expected, by) if by < FAILED else -math.inf
            if max(same, other.gain - _FITTED) <= -NOT_SHOWN and not everywhere:
                gain -= NOT_SHOWN
            elif same >= other.gain - _FITTED:
                gain += same
                expects += tuple([(row, by) for row in own if expected.get(row, 0.0) < by])
            else:
                gain += other.gain - _FITTED
                expects += other.expects
        return Fit(gain, by, expects)

    def _gain(self, rows: Sequence[int], expected: dict[int, float], by: float) -> float:
        """Return the nats gained by a slowdown, over what is expected already."""
        loss = self.readings.loss
        gain = 0.0
        for row in rows:
            at = expected.get(row, 0.0)
            if at < by:
                gain += loss(row, at) - loss(row, by)
        if by < FAILED and self.readings.spread:
            gain = min(gain, self._differing(rows, by))
        return gain

    def _differing(self, rows: Sequence[int], by: float) -> float:
        """Return the cost of a healthy host that differs so much from its peers: the slowdown explains its
        jobs, however many, no better than that."""
        least = math.inf
        for row in rows:
            spread, offset = own_share(self.readings, row)
            if spread:
                square = ((by + offset) / spread) ** 2
                freedom = self.readings.freedom.get(self.readings.kind[row].work)
                cost = 0.5 * square
                if freedom is not None:  # Student's
                    cost = 0.5 * (freedom + 1) * math.log1p(square / freedom)
                least = min(least, cost)
        return least

    def _best(self, rows: Sequence[int], expected: dict[int, float], least: float = 0.0) -> Fit:
        """Return the slowdown, of at least `least` and of what counts, that fits best. None, where less would
        fit better still (than `least`: by more than chance): slower by less than what counts is not slow."""
        readings = self.readings
        counts = smallest(readings, rows, self.settings)
        low = max(counts, least)
        base = [(row, expected.get(row, 0.0)) for row in rows]
        best, chosen = -math.inf, low
        for by in _slowdowns([readings.value[row] for row in rows], low):
            gain = self._gain(rows, expected, by)
            if gain > best:
                best, chosen = gain, by
        changed = [row for row, at in base if at < chosen]
        total, many = sum([readings.value[row] for row in changed]), len(changed)
        if best <= 0 or total < counts * many:
            return _NOTHING
        if chosen == low and low * many - total > math.sqrt(many) * max([readings.sigma[r] for r in changed]):
            return _NOTHING
        return Fit(best, chosen, tuple([(row, chosen) for row in changed]))

    def _intermittent(self, fault: Fault, expected: dict[int, float]) -> Fit | None:
        """Fit an intermittent fault: slow in k of n jobs in groups, or, where there are none, alone; every
        share equally likely beforehand: k! (n - k)! / (n + 1)!. A job alone that names broken hardware counts
        in any case."""
        readings = self.readings
        alone = [row for row in self.alone(fault) if not readings.hint[row]]
        broken = [row for row in alone if readings.broken(row)]
        rows = [*self.slowed(fault), *broken] if self.slowed(fault) else alone
        low = smallest(readings, rows, self.settings)
        tried, shown = len(rows), []
        for row in rows:
            off = readings.value[row] - expected.get(row, 0.0)
            if off > max(low, STANDS_OUT * readings.sigma[row]):
                shown.append(row)
        # What failed and what was a little slow may have different causes: failures may be all that it is.
        failed = [row for row in shown if readings.failed(row)]
        fits = [self._now_and_then(rows, tried, expected) for rows in (shown, failed) if rows]
        return max(fits, key=lambda fit: fit.gain) if fits else None

    def _now_and_then(self, shown: Sequence[int], tried: int, expected: dict[int, float]) -> Fit:
        """Return the fit where it has shown in these of so many jobs."""
        readings = self.readings
        slow = [readings.value[row] for row in shown if not readings.failed(row)]
        by = sum(slow) / len(slow) if slow else FAILED
        expects = tuple([(row, FAILED if readings.failed(row) else by) for row in shown])
        gain = sum(
            [readings.loss(row, expected.get(row, 0.0)) - readings.loss(row, at) for row, at in expects]
        )
        gain -= math.log((tried + 1) * math.comb(tried, len(shown)))
        share = (len(shown) + 1) / (tried + 2)
        return Fit(gain, by, expects, share)


def _slowdowns(values: Sequence[float], low: float) -> list[float]:
    """Return slowdowns worth trying: each reading's, the mean of all, and of those above; and that jobs fail.
    """
    times = [value for value in values if value < FAILED]
    above = sorted([value for value in times if value > low])
    tries = above if len(above) <= 5 else [above[i * (len(above) - 1) // 4] for i in range(5)]
    if above:
        tries = [*tries, max(low, sum(times) / len(times)), sum(above) / len(above)]
    if len(times) < len(values):
        tries = [*tries, FAILED]
    return tries or [low]
