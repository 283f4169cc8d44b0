"""Which host, link or switch it is: all that is known after some waves. Pure and deterministic."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from muster.judging.baseline import Baseline, Class
from muster.judging.explain import Part, explain, outstanding, switch_faults
from muster.judging.faults import OF_HOSTS, Case
from muster.judging.moments import moments_of, side_by_side
from muster.judging.observation import Observation, Settings, Topology
from muster.judging.readings import read

MANY = 2.0  # hosts that seem to be bad, from where on faults are more common than was assumed


@dataclass(frozen=True)
class State:
    """All that is known after some waves. `suspects`: host -> the probability that it is bad, by itself or
    with all that are behind its switch; absent: nothing points at it."""

    observations: tuple[Observation, ...]
    case: Case
    parts: tuple[Part, ...]
    baselines: Mapping[Class, Baseline]
    suspects: Mapping[int, float]
    part_of: Mapping[int, Part] = field(repr=False)

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
) -> State:
    """What the observations say, in whatever order and groups they were made.

    `stored`: baselines from elsewhere, used where the fleet is too small to make its own.
    """
    settings = settings or Settings()
    moments = moments_of(observations)
    slowed: set[int] = set()
    if topology.switches and len({moment for moment in moments if moment}) > 1:
        # The jobs of a moment are on different hosts, but a switch may slow most of them: these say nothing
        # of their moment.
        first = Case(read(side_by_side(observations, []), topology, stored)[0], topology, settings)
        rows = set[int]()
        needed = 0
        for _, more in sorted(switch_faults(first, outstanding(first)), key=lambda each: -len(each[1])):
            if len(more - rows) > 1:  # not explained by another already
                rows |= more
                needed += 1
        if needed <= max(1, len(topology.switches) // 4):  # many that look slow: it is the moments that are
            slowed = {first.readings.source[row] for row in rows}
    detrended = side_by_side(observations, moments, slowed)
    readings, baselines = read(detrended, topology, stored)
    case = Case(readings, topology, settings)
    parts = explain(case)
    common = _how_common(parts, len(topology.hosts))
    if common:
        case = replace(case, common=common)
        parts = explain(case)
    suspects: dict[int, float] = {}
    part_of: dict[int, Part] = {}
    for part in parts:
        for row in part.rows:
            for host in readings.hosts[row]:
                part_of[host] = part
        faults = part.faults()
        for host in sorted({fault.where[0] for fault in faults if fault.kind in OF_HOSTS}):
            suspects[host] = part.of_host(host)
        for fault in faults:
            if fault.kind == "rack":
                chance = part.probability(fault)
                for host, switch in enumerate(topology.behind):
                    if switch == fault.where[0]:
                        suspects[host] = min(1.0, suspects.get(host, 0.0) + chance)
                        part_of[host] = part
    return State(detrended.observations, case, parts, baselines, suspects, part_of)


def _how_common(parts: Sequence[Part], count: int) -> float:
    """How much more common faults of hosts are in this fleet than is assumed (1 in 200), in nats: from as
    many as there seem to be, nothing where these are few."""
    hosts = [(part, f.where[0]) for part in parts for f in part.faults() if f.kind in OF_HOSTS]
    bad = sum([part.of_host(host) for part, host in dict.fromkeys(hosts)])
    return max(0.0, math.log(bad * 200.0 / (200.0 + count))) if bad > MANY else 0.0
