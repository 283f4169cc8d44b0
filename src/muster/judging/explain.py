"""What may be wrong, with probabilities: every small set of faults that explains the readings, weighed. Pure.

Readings that stand out are split into parts that share no possible fault. In each part, from the reading that
stands out most to the least, every explanation so far is kept as it is (the job met a hiccup) or extended by
each fault that could have slowed that job; the best are kept. An explanation costs what its faults cost
beforehand and what the readings still lack, in nats; its probability is exp(-cost), over all of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from muster.judging.faults import COST, OF_HOSTS, Fault, FaultCase, Fit, Kind
from muster.judging.observation import Settings
from muster.judging.readings import DOUBTFUL, FAILED, TOGETHER

HOPELESS = 16.0  # nats above the best: dropped


@dataclass(frozen=True)
class FaultExplanation:
    """Faults that together explain a part's readings, how well each fits, and how likely the set is."""

    faults: tuple[Fault, ...]
    fits: tuple[Fit, ...]
    probability: float

    def slows(self, case: FaultCase, hosts: tuple[int, ...]) -> float:
        """Return the probability that a job on these hosts would be slow under this explanation."""
        passes = 1.0
        for fault, fit in zip(self.faults, self.fits, strict=True):
            if fit.hidden and len(hosts) > 1:
                continue
            if would_slow(case, fault, hosts):
                passes *= 1.0 - fit.chance
            elif fault.kind == "host" and hosts == fault.where:
                passes *= 0.5  # compute or card: not known
        return 1.0 - passes


@dataclass(frozen=True)
class Component:
    """Readings that stand out and may have a common cause, and their explanations."""

    rows: tuple[int, ...]
    explanations: tuple[FaultExplanation, ...]  # the likeliest first

    def probability(self, fault: Fault) -> float:
        """Return the probability that this very fault is there."""
        return sum([each.probability for each in self.explanations if fault in each.faults])

    def of_host(self, host: int, rack: int | None = None) -> float:
        """Return the probability that something is wrong with the host itself, of any kind; or with what it
        shares with those behind the switch `rack`."""
        return sum(
            [
                each.probability
                for each in self.explanations
                if any(
                    f.where[0] == host if f.kind in OF_HOSTS else f.kind == "rack" and f.where[0] == rack
                    for f in each.faults
                )
            ]
        )

    def likeliest(self, host: int) -> Fit | None:
        """Return how the fault of the host fits in the likeliest explanation that has one; None: none has."""
        return next(
            (
                fit
                for each in self.explanations
                for fault, fit in zip(each.faults, each.fits, strict=True)
                if fault.kind in OF_HOSTS and fault.where[0] == host
            ),
            None,
        )

    def fit_of(self, fault: Fault) -> Fit:
        """Return how a considered fault fits in the likeliest explanation that has it."""
        return next(
            fit
            for each in self.explanations
            for one, fit in zip(each.faults, each.fits, strict=True)
            if one == fault
        )

    def faults(self) -> list[Fault]:
        """Return all faults that are considered, in a fixed order."""
        return sorted({fault for each in self.explanations for fault in each.faults})


def would_slow(case: FaultCase, fault: Fault, hosts: tuple[int, ...]) -> bool:
    """Return whether the fault can slow a job on these hosts (an intermittent fault, and one that may be in
    the card or the processor, is not searched for alone)."""
    if fault.kind in OF_HOSTS:
        return fault.where[0] in hosts and (len(hosts) > 1 or fault.kind == "compute")
    if fault.kind == "link":
        a, b = fault.where
        if a not in hosts or b not in hosts:
            return False
        apart = abs(hosts.index(a) - hosts.index(b))
        return apart in (1, len(hosts) - 1)
    return case.passes(fault, hosts)


def rests_on_one_job(case: FaultCase, host: int, fit: Fit) -> bool:
    """Return whether one job alone is evidence of the host's fault, however slow it was, and others of the
    same work, or half of its own steps, are evidence against it. One that names a hardware error is enough.
    """
    readings = case.readings
    shown = shown_by(case, fit)
    if len({readings.source[row] for row in shown}) != 1 or any(map(readings.broken, shown)):
        return False
    works = {readings.kind[row].work for row in shown}
    least = fit.by / 2 if fit.by < FAILED else FAILED
    return any(row in readings.half for row in shown) or any(
        readings.value[row] < least and readings.kind[row].work in works and not readings.hint[row]
        for row in readings.of_host[host]
    )


def shown_by(case: FaultCase, fit: Fit) -> list[int]:
    """Return the readings that are as slow as the fault makes them, or half as much, or failed."""
    values = case.readings.value
    return [row for row, by in fit.expects if by > 0 and values[row] >= min(by, FAILED) / 2]


def outstanding(case: FaultCase) -> list[int]:
    """Return the readings that need an explanation: slower than noise and by what counts, or of a host whose
    jobs are together slow."""
    readings = case.readings
    low = 0.8 * math.log1p(case.settings.slow)
    rows = {row for row, value in enumerate(readings.value) if value > low and stands_out(case, row, 0.0)}
    for own in readings.of_host.values():
        times = [row for row in own if not readings.failed(row)]
        if len(times) < 2:
            continue
        values = [readings.value[row] for row in times]
        mean = sum(values) / len(values)
        if mean > low and mean * math.sqrt(len(times)) > TOGETHER * max([readings.sigma[r] for r in times]):
            rows.update([row for row in times if readings.deviations(row) > 1])
    return sorted(rows)


def stands_out(case: FaultCase, row: int, expected: float) -> bool:
    """Return whether the reading is slower than expected by more than noise."""
    readings = case.readings
    return readings.value[row] > expected and readings.loss(row, expected) > DOUBTFUL


def explain(case: FaultCase) -> tuple[Component, ...]:
    """Return every part of what stands out, explained. Deterministic."""
    rows = outstanding(case)
    if not rows:
        return ()
    shared = switch_faults(case, rows)
    return tuple(
        Component(tuple(part), _explanations(case, part, [f for f, touched in shared if touched & set(part)]))
        for part in _parts(case, rows, shared)
    )


def blamed(parts: Sequence[Component], settings: Settings) -> set[int]:
    """Return the readings that the likeliest explanations give to likely faults, of any host."""
    rows: set[int] = set()
    for part in parts:
        best = part.explanations[0]
        for fault, fit in zip(best.faults, best.fits, strict=True):
            if part.probability(fault) > 0.5 or (
                fault.kind in OF_HOSTS and part.of_host(fault.where[0]) >= settings.convict
            ):
                rows.update(row for row, by in fit.expects if by > 0)
    return rows


def switch_faults(case: FaultCase, rows: Sequence[int]) -> list[tuple[Fault, frozenset[int]]]:
    """Return switches, uplinks and racks that by themselves explain two or more of the rows, and which rows.
    """
    faults: list[tuple[Fault, frozenset[int]]] = []
    behind, readings = case.topology.behind, case.readings
    touched: dict[int, set[int]] = {}
    for row in rows:
        for host in readings.hosts[row]:
            if behind[host] >= 0:
                touched.setdefault(behind[host], set()).add(row)
    for switch in sorted(touched):
        if len(touched[switch]) < 2:
            continue
        kinds: tuple[Kind, ...] = ("switch", "uplink", "rack")
        for kind in kinds:
            fault = Fault(kind, (switch,))
            fit = case.fit(fault, {})
            if fit is not None and fit.gain > COST[kind]:
                mine = frozenset(row for row, _ in fit.expects) & touched[switch]
                hosts = {host for row in mine for host in readings.hosts[row] if behind[host] == switch}
                if len(mine) > 1 and len(hosts) > 1:
                    faults.append((fault, mine))
    return faults


def _parts(
    case: FaultCase, rows: Sequence[int], shared: Iterable[tuple[Fault, frozenset[int]]]
) -> list[list[int]]:
    """Join rows that share a host or a switch that explains them."""
    leader = {row: row for row in rows}

    def find(row: int) -> int:
        while leader[row] != row:
            leader[row] = leader[leader[row]]
            row = leader[row]
        return row

    first: dict[int, int] = {}
    for row in rows:
        for host in case.readings.hosts[row]:
            leader[find(row)] = find(first.setdefault(host, row))
    for _, touched in shared:
        together = sorted(touched)
        for row in together[1:]:
            leader[find(row)] = find(together[0])
    parts: dict[int, list[int]] = {}
    for row in rows:
        parts.setdefault(find(row), []).append(row)
    return sorted(parts.values())


@dataclass(frozen=True)
class _Sketch:
    """An explanation in the making."""

    cost: float
    found: tuple[tuple[Fault, Fit], ...]
    expected: dict[int, float]

    def cost_with(self, case: FaultCase, fault: Fault, fit: Fit) -> float:
        return self.cost + case.cost(fault) - fit.gain

    def at_best(self, case: FaultCase, left: Sequence[int]) -> float:
        """Return the cost if one more fault explains all readings that are `left`."""
        lacking = [case.readings.loss(row, self.expected.get(row, 0.0)) for row in left]
        off = sum([each for each in lacking if each > DOUBTFUL])
        return self.cost - off + COST["host"] if off > COST["host"] else self.cost

    def extended(self, case: FaultCase, fault: Fault, fit: Fit) -> _Sketch:
        expected = dict(self.expected)
        expected.update(fit.expects)
        if fault.kind == "intermittent":  # it never lowers what is expected
            for row, by in fit.expects:
                expected[row] = max(by, self.expected.get(row, 0.0))
        return _Sketch(self.cost_with(case, fault, fit), (*self.found, (fault, fit)), expected)


def _explanations(
    case: FaultCase, rows: Sequence[int], switches: Sequence[Fault]
) -> tuple[FaultExplanation, ...]:
    """Return the likeliest explanations of one part's rows."""
    alone: dict[Fault, Fit | None] = {}  # fits beside nothing else, which most are
    kept = _searched(case, rows, switches, [_Sketch(0.0, (), {})], alone)
    # The best may have a fault that later ones make needless, and others may do without one of its faults.
    first = kept[0].found
    if len(first) > 1:
        for dropped, _ in first:
            kept.append(_sketch(case, [fault for fault, _ in first if fault != dropped], alone))
        kept = _searched(case, rows, switches, kept, alone)
    best = kept[0].cost
    weights = [math.exp(best - each.cost) for each in kept]
    total = sum(weights)
    return tuple(
        FaultExplanation(
            tuple([fault for fault, _ in each.found]), tuple([fit for _, fit in each.found]), weight / total
        )
        for each, weight in zip(kept, weights, strict=True)
    )


def _sketch(case: FaultCase, faults: Sequence[Fault], alone: dict[Fault, Fit | None]) -> _Sketch:
    """Return the explanation by these faults, without those that explain nothing beside the others."""
    sketch = _Sketch(0.0, (), {})
    for fault in faults:
        fit = _cached(case, fault, sketch, alone)
        sketch = sketch.extended(case, fault, fit) if fit is not None else sketch
    return sketch


def _searched(
    case: FaultCase,
    rows: Sequence[int],
    switches: Sequence[Fault],
    kept: list[_Sketch],
    alone: dict[Fault, Fit | None],
) -> list[_Sketch]:
    """Return the likeliest explanations of one part's rows that extend those `kept`, the best first."""
    readings = case.readings
    width = 48 if len(rows) <= 12 else 12 if len(rows) <= 60 else 3
    order = sorted(rows, key=lambda row: (-readings.deviations(row), row))
    for place, row in enumerate(order):
        options = _options(case, row, switches)
        new: dict[frozenset[Fault], _Sketch] = {}
        least = min(each.cost for each in kept)
        # One that is here for the sake of its host's others asks for an explanation from one deviation on.
        single, off = stands_out(case, row, 0.0), readings.sigma[row]
        for sketch in kept:
            _keep(new, sketch)
            expected = sketch.expected.get(row, 0.0)
            if not (stands_out(case, row, expected) if single else readings.value[row] - expected > off):
                continue
            taken = _taken(sketch)
            for fault in options:
                if fault.where in taken.get(fault.kind in OF_HOSTS, ()):
                    continue
                fit = _cached(case, fault, sketch, alone)
                if fit is not None and (cost := sketch.cost_with(case, fault, fit)) < least + HOPELESS:
                    least = min(least, cost)
                    _keep(new, sketch.extended(case, fault, fit))
        best = min(each.cost for each in new.values())
        ranked = sorted(new.values(), key=lambda each: (each.cost, [fault for fault, _ in each.found]))
        kept = [each for each in ranked[:width] if each.cost < best + HOPELESS]
        if width > 3:
            # Others may lack a fault that explains readings whose turn comes yet.
            at_best = [(each.at_best(case, order[place + 1 :]), each) for each in ranked]
            at_best.sort(key=lambda each: each[0])
            kept += [each for cost, each in at_best[:width] if cost < best + HOPELESS and each not in kept]
    return kept


def _cached(case: FaultCase, fault: Fault, sketch: _Sketch, alone: dict[Fault, Fit | None]) -> Fit | None:
    """Return the fit given the sketch's faults: a cached one where they touch none of its readings."""
    if fault not in alone:
        alone[fault] = case.fit(fault, {})
    if not sketch.expected:
        return alone[fault]
    if fault.kind in OF_HOSTS:
        mine: Iterable[int] = case.readings.of_host.get(fault.where[0], ())
    else:
        mine = case.slowed(fault)
    return case.fit(fault, sketch.expected) if any(r in sketch.expected for r in mine) else alone[fault]


def _taken(sketch: _Sketch) -> dict[bool, set[tuple[int, ...]]]:
    """Return which hosts (True), and which links and switches, have a fault already: none gets two."""
    taken: dict[bool, set[tuple[int, ...]]] = {}
    for fault, _ in sketch.found:
        taken.setdefault(fault.kind in OF_HOSTS, set()).add(fault.where)
    return taken


def _keep(sketches: dict[frozenset[Fault], _Sketch], sketch: _Sketch) -> None:
    """Keep the cheapest sketch of each set of faults."""
    name = frozenset(fault for fault, _ in sketch.found)
    if name not in sketches or sketch.cost < sketches[name].cost:
        sketches[name] = sketch


def _options(case: FaultCase, row: int, switches: Sequence[Fault]) -> list[Fault]:
    """Return the faults that could have slowed this reading's job."""
    readings, hosts = case.readings, case.readings.hosts[row]
    options: list[Fault] = []
    for host in hosts:
        tried = any(readings.alone[each] for each in readings.of_host[host])
        if readings.alone[row]:
            options.append(Fault("compute", (host,)))
        elif tried:
            options += [Fault("compute", (host,)), Fault("card", (host,))]
        else:
            options.append(Fault("host", (host,)))
        options.append(Fault("intermittent", (host,)))
    options += [Fault("link", link) for link in readings.links(row)]
    options += [fault for fault in switches if case.passes(fault, hosts)]
    return options
