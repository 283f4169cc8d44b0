"""Whether chance may have put slow jobs on those that are accused of them. Pure.

Noise is taken to be rare beyond a few deviations. Where it is not (jobs that are slow at times, on any
hosts), one of a few hosts has only slow jobs sooner or later, and is accused. A randomization test needs no
model of noise (Fisher, The Design of Experiments, 1935): the slow jobs are drawn anew among all jobs of their
class; where as few hosts explain as many of them in more than one draw of a hundred, nobody is accused.

A single fault that is always there and explains all but one of the slow jobs stands: that faults are rarer
than noise is known beforehand. So does one that shows on the host alone: no other host can be the cause.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from muster.judging.baseline import JobClass
from muster.judging.explain import Component, shown_by, would_slow
from muster.judging.faults import OF_HOSTS, OF_SWITCHES, Fault, FaultCase, Fit
from muster.judging.readings import STANDS_OUT

DRAWS = 400
CHANCE = 0.01  # of draws
OF_PARTS = 0.2  # where one of several is bad, none is accused, and no slow job is left
FEWEST = 8  # jobs, of which a part's slow ones are drawn: of fewer, any draw is like the other
LEFT = 2  # slow jobs without an explanation, from where on a single fault is doubted
FAST = 0.5  # of half of a fault's slowdown: what is slower is not a fast job
_Unit = tuple[int, ...]  # a host, or a link


def by_chance(case: FaultCase, parts: Sequence[Component]) -> set[Fault]:
    """Return the faults of hosts and links, among those that may be accused, that chance may explain."""
    readings, settings = case.readings, case.settings
    accused: dict[JobClass, list[tuple[Fault, Fit]]] = {}
    sure: set[Fault] = set()
    explained: set[int] = set()  # readings of which the cause is sure
    for part in parts:
        for fault in part.faults():
            fit = part.fit_of(fault)
            if fault.kind in OF_HOSTS:
                chance = part.of_host(fault.where[0])
                if fit is not part.likeliest(fault.where[0]):
                    continue
            else:
                chance = part.probability(fault)
            if chance < settings.named:
                continue
            shown = shown_by(case, fit)
            if fault.kind in OF_SWITCHES or any(readings.alone[row] for row in shown):
                sure.add(fault)
                explained.update(row for row, _ in fit.expects)
                continue
            for kind in {readings.kind[row] for row in shown if not readings.failed(row)}:
                accused.setdefault(kind, []).append((fault, fit))
    for kind, faults in accused.items():
        rows = [
            row
            for row, its in enumerate(readings.kind)
            if its == kind and row not in explained and not readings.alone[row] and not readings.failed(row)
        ]
        by = min(fit.by for _, fit in faults)
        slow = {row: weight for row in rows if (weight := 2 * readings.value[row] / by) > FAST}
        clear = [row for row in slow if slow[row] >= 1 and readings.deviations(row) > STANDS_OUT]
        left = _left(case, clear, [fault for fault, _ in faults])
        links = any(fault.kind == "link" for fault, _ in faults)
        units: dict[int, list[_Unit]] = {
            row: [(host,) for host in readings.hosts[row]] + (list(readings.links(row)) if links else [])
            for row in rows
        }
        clusters = readings.clusters.get(kind)
        at_times = any(fault.kind == "intermittent" for fault, _ in faults)
        stands = len(faults) == 1 and len(left) < LEFT and not at_times
        stands = stands or (clusters is not None and clusters.sure)
        if stands or not _chance(units, slow, len(faults), at_times=at_times):
            sure.update(fault for fault, _ in faults)
    return {fault for faults in accused.values() for fault, _ in faults} - sure


def part_by_chance(case: FaultCase, part: Component) -> bool:
    """Return whether chance may have put the slow jobs of a part on the hosts or links that it suspects."""
    readings, best = case.readings, part.explanations[0]
    if any(readings.alone[row] or readings.failed(row) for row in part.rows):
        return False
    kinds = {readings.kind[row] for row in part.rows}
    by = min([readings.value[row] for row in part.rows])
    units = {
        row: [(host,) for host in readings.hosts[row]] + list(readings.links(row))
        for row, kind in enumerate(readings.kind)
        if kind in kinds and not readings.alone[row] and not readings.failed(row)
    }
    slow = {row: 2 * readings.value[row] / by for row in part.rows}
    limit = OF_PARTS if len(_left(case, part.rows, best.faults)) < LEFT else CHANCE
    return len(units) >= FEWEST and _chance(units, slow, max(1, len(best.faults)), limit=limit)


def _left(case: FaultCase, rows: Iterable[int], faults: Sequence[Fault]) -> list[int]:
    """Return the readings that none of the faults can slow."""
    hosts = case.readings.hosts
    return [row for row in rows if not any(would_slow(case, fault, hosts[row]) for fault in faults)]


def _chance(
    units: Mapping[int, Sequence[_Unit]],
    slow: Mapping[int, float],
    most: int,
    *,
    limit: float = CHANCE,
    at_times: bool = False,
) -> bool:
    """Return whether as few units explain slow readings as well where these are drawn anew, in more than this
    share of draws. `at_times`: fast ones are no evidence against a unit."""
    counts = Counter[_Unit]() if at_times else Counter(unit for own in units.values() for unit in own)
    explained = _explained(units, slow, counts, most)
    draw, rows, chance = random.Random(0), list(units), 0
    for _ in range(DRAWS):
        drawn = dict(zip(draw.sample(rows, len(slow)), slow.values(), strict=True))
        chance += _explained(units, drawn, counts, most) >= explained
        if chance > limit * DRAWS:
            return True
    return False


def _explained(
    units: Mapping[int, Sequence[_Unit]], slow: Mapping[int, float], counts: Mapping[_Unit, int], most: int
) -> float:
    """Return how well so many units explain the readings, at best, by a greedy search: one that is as slow as
    the fault makes it counts 1, one at half of that 0, a fast one -1. `counts`: of each unit, all its
    readings."""
    left, total = dict(slow), 0.0
    for _ in range(most):
        covers: dict[_Unit, float] = {}
        for row, weight in left.items():
            for unit in units[row]:
                covers[unit] = covers.get(unit, 0.0) + min(weight, 2.0)
        best = max(covers, key=lambda unit: covers[unit] - counts[unit], default=None)
        if best is None or covers[best] <= counts[best]:
            break
        total += covers[best] - counts[best]
        left = {row: weight for row, weight in left.items() if best not in units[row]}
    return total
