"""Which host, link or switch it is: all that is known after some waves. Pure and deterministic."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from muster.judging.alike import KINDS, Alike, apart, hosts_alike
from muster.judging.baseline import Baseline, Class
from muster.judging.detrend import moments_of, side_by_side
from muster.judging.explain import Component, explain, outstanding, rests_on_one_job, switch_faults
from muster.judging.faults import OF_HOSTS, FaultCase
from muster.judging.observation import Observation, Settings, Topology
from muster.judging.readings import read
from muster.judging.unpaced import unpaced, with_doubt

MANY = 2.0  # hosts that seem to be bad, from where on faults are more common than was assumed


@dataclass(frozen=True)
class Posterior:
    """All that is known after some waves. `suspects`: host -> the probability that it is bad, by itself or
    with all that are behind its switch; absent: nothing points at it. `once`: the suspects of which a single
    job says so, and others do not: as suspicious as that makes them, none is convicted. `alike`: hosts
    slower than others by the same, judged beside each other; `drifts`: by work, the deviation of a pace that
    drifts, of which the moments are not known."""

    observations: tuple[Observation, ...]
    case: FaultCase
    parts: tuple[Component, ...]
    baselines: Mapping[Class, Baseline]
    suspects: Mapping[int, float]
    part_of: Mapping[int, Component] = field(repr=False)
    once: frozenset[int] = frozenset()
    alike: tuple[Alike, ...] = ()
    drifts: Mapping[str, float] = field(default_factory=dict)

    @property
    def topology(self) -> Topology:
        return self.case.topology

    @property
    def settings(self) -> Settings:
        return self.case.settings

    def suspicion(self, host: int) -> float:
        """The probability that something is wrong with the host, rather than with what it is connected by."""
        return self.suspects.get(host, 0.0)


def localise(
    observations: Sequence[Observation],
    topology: Topology,
    settings: Settings | None = None,
    stored: Mapping[Class, Baseline] | None = None,
) -> Posterior:
    """What the observations say, in whatever order and groups they were made.

    `stored`: baselines from elsewhere, used where the fleet is too small to make its own.
    """
    settings = settings or Settings()
    moments = moments_of(observations)
    alike: list[Alike] = []
    for left in reversed(range(KINDS + 1)):
        slowed = _slowed_by_switches(observations, moments, topology, settings, stored)
        detrended = side_by_side(observations, moments, slowed)
        readings, baselines = read(detrended, topology, stored)
        drift = unpaced(readings, moments)
        if drift.deviation:
            readings, baselines = read(with_doubt(detrended, drift), topology, stored)
            readings.spread |= drift.deviation
        groups = hosts_alike(observations, readings, topology, settings) if left else []
        if not groups:
            break
        alike += groups
        observations = apart(observations, groups)
    case = FaultCase(readings, topology, settings)
    parts = explain(case)
    suspects = _suspects(parts)
    common = _how_common(suspects, len(topology.hosts))
    if common:
        case = replace(case, common=common)
        parts = explain(case)
        suspects = _suspects(parts)
    part_of = {host: part for part in parts for row in part.rows for host in readings.hosts[row]}
    once = frozenset(
        host
        for host in suspects
        if (fit := part_of[host].likeliest(host)) is not None and rests_on_one_job(case, host, fit)
    )
    suspects |= {host: min(suspects[host], settings.named) for host in once}
    for part in parts:
        for fault in part.faults():
            if fault.kind == "rack":
                for host, switch in enumerate(topology.behind):
                    if switch == fault.where[0]:
                        suspects[host] = max(suspects.get(host, 0.0), part.of_host(host, switch))
                        part_of[host] = part
    return Posterior(
        detrended.observations, case, parts, baselines, suspects, part_of, once, tuple(alike), drift.deviation
    )


def _slowed_by_switches(
    observations: Sequence[Observation],
    moments: Sequence[str],
    topology: Topology,
    settings: Settings,
    stored: Mapping[Class, Baseline] | None,
) -> set[int]:
    """The jobs, by their index, that a switch slows as far as can be seen without moments. The jobs of a
    moment are on different hosts, but a switch may slow most of them: these say nothing of their moment."""
    if not topology.switches or len(set(moments) - {""}) < 2:
        return set()
    case = FaultCase(read(side_by_side(observations, []), topology, stored)[0], topology, settings)
    rows: set[int] = set()
    needed = 0
    for _, more in sorted(switch_faults(case, outstanding(case)), key=lambda each: -len(each[1])):
        if len(more - rows) > 1:  # not explained by another already
            rows |= more
            needed += 1
    if needed > max(1, len(topology.switches) // 4):  # many that look slow: it is the moments that are
        return set()
    return {case.readings.source[row] for row in rows}


def _suspects(parts: Sequence[Component]) -> dict[int, float]:
    """Each host that something points at, and the probability that it is bad by itself."""
    return {
        host: part.of_host(host)
        for part in parts
        for host in sorted({fault.where[0] for fault in part.faults() if fault.kind in OF_HOSTS})
    }


def _how_common(suspects: Mapping[int, float], count: int) -> float:
    """How much more common faults of hosts are in this fleet than is assumed (1 in 200), in nats: from as
    many as there seem to be, nothing where these are few."""
    bad = sum(suspects.values())
    return max(0.0, math.log(bad * 200.0 / (200.0 + count))) if bad > MANY else 0.0
