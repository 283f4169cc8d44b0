"""Find which host, link or switch it is: all that is known after some waves. Pure and deterministic."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from muster.judging.alike import KINDS, REACH, SlowerGroup, apart, hosts_alike
from muster.judging.baseline import Baseline, JobClass
from muster.judging.chance import by_chance
from muster.judging.clusters import by_moments
from muster.judging.detrend import moments_of, side_by_side
from muster.judging.explain import Component, explain, outstanding, rests_on_one_job, shown_by, switch_faults
from muster.judging.faults import OF_HOSTS, Fault, FaultCase, Fit
from muster.judging.observation import Observation, Settings, Topology
from muster.judging.readings import Readings, read
from muster.judging.spells import SlowSpell, spells
from muster.judging.stalls import usual_paces
from muster.judging.unpaced import unpaced, with_doubt

MANY = 2.0  # hosts that seem to be bad, from where on faults are more common than was assumed


@dataclass(frozen=True)
class Posterior:
    """All that is known after some waves. `suspects`: host -> the probability that it is bad, by itself or
    with all that are behind its switch; absent: nothing points at it. `once`: the suspects against which a
    single job is evidence, and others are not: as suspicious as that makes them, none is convicted. `alike`:
    hosts slower than others by the same factor, compared with each other; `drifts`: by work, the deviation of
    jobs that are slow at times on any hosts; `akin`: suspects that are as slow as hosts alike, and not
    convicted; `spells`: of switches, when all behind one was slow; `chance`: faults that may be chance."""

    observations: tuple[Observation, ...]
    case: FaultCase
    parts: tuple[Component, ...]
    baselines: Mapping[JobClass, Baseline]
    suspects: Mapping[int, float]
    part_of: Mapping[int, Component] = field(repr=False)
    once: frozenset[int] = frozenset()
    alike: tuple[SlowerGroup, ...] = ()
    drifts: Mapping[str, float] = field(default_factory=dict)
    akin: frozenset[int] = frozenset()
    spells: tuple[SlowSpell, ...] = ()
    chance: frozenset[Fault] = frozenset()

    @property
    def topology(self) -> Topology:
        return self.case.topology

    @property
    def settings(self) -> Settings:
        return self.case.settings

    def suspicion(self, host: int) -> float:
        """Return the probability that something is wrong with the host, rather than with what connects it."""
        return self.suspects.get(host, 0.0)


def localise(
    observations: Sequence[Observation],
    topology: Topology,
    settings: Settings | None = None,
    stored: Mapping[JobClass, Baseline] | None = None,
) -> Posterior:
    """Return what the observations show, in whatever order and groups they were made.

    `stored`: baselines from elsewhere, used where the fleet is too small to make its own.
    """
    settings = settings or Settings()
    observations = usual_paces(observations)
    moments = moments_of(observations)
    alike: list[SlowerGroup] = []
    for left in reversed(range(KINDS + 1)):
        slowed, good = _slowed(observations, moments, topology, settings, stored)
        detrended = side_by_side(observations, moments, slowed)
        readings, baselines = read(detrended, topology, stored)
        drift = unpaced(readings, moments, slowed)
        if drift.usual:
            readings, baselines = read(with_doubt(detrended, drift), topology, stored)
            readings.spread |= drift.deviation
            for work in drift.deviation:
                readings.freedom.pop(work, None)
        for spell in (events := spells(readings, moments, topology)):
            for row in spell.rows:
                readings.sigma[row] = max(readings.sigma[row], readings.value[row])
        for kind, clusters in readings.clusters.items():
            if clusters.sure:
                good[kind.work] = good.get(kind.work, frozenset()) | clusters.good
        groups = hosts_alike(observations, readings, topology, settings, good) if left else []
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
    fits = {host: fit for host in suspects if (fit := part_of[host].likeliest(host)) is not None}
    once = frozenset(host for host, fit in fits.items() if rests_on_one_job(case, host, fit))
    # Also like those of a group that is not judged apart, since more hosts are nearly as slow.
    groups = [*alike, *hosts_alike(observations, readings, topology, settings, good, math.inf)]
    akin = frozenset(host for host, fit in fits.items() if _akin(fit, readings, groups))
    chance = by_chance(case, parts)
    noisy = {fault.where[0] for fault in chance if fault.kind in OF_HOSTS}
    suspects |= {host: min(suspects[host], settings.named) for host in once | akin | noisy}
    for host, part, likely in _of_racks(case, parts, groups):
        suspects[host] = max(suspects.get(host, 0.0), likely)
        part_of[host] = part
    return Posterior(
        detrended.observations,
        case,
        parts,
        baselines,
        suspects,
        part_of,
        once,
        tuple(alike),
        drift.deviation,
        akin,
        tuple(events),
        frozenset(chance),
    )


def _of_racks(
    case: FaultCase, parts: Sequence[Component], groups: Sequence[SlowerGroup]
) -> Iterator[tuple[int, Component, float]]:
    """Yield hosts that a fault shared behind their switch makes suspects, and the probability. One of which
    most readings are good is none."""
    readings, topology = case.readings, case.topology
    for part in parts:
        for fault in part.faults():
            if fault.kind != "rack" or _akin(part.fit_of(fault), readings, groups):
                continue
            shown = set(shown_by(case, part.fit_of(fault)))
            for host, switch in enumerate(topology.behind):
                own = readings.of_host.get(host, [])
                if switch == fault.where[0] and 2 * len(shown.intersection(own)) >= len(own):
                    yield host, part, part.of_host(host, switch)


def _akin(fit: Fit, readings: Readings, groups: Sequence[SlowerGroup]) -> bool:
    """Return whether it is slower by as much as a group of hosts alike: it may have their hardware."""
    near = REACH * max([readings.sigma[row] for row, _ in fit.expects], default=0.0)
    return any(abs(fit.by - math.log1p(group.slower)) <= near for group in groups)


def _slowed(
    observations: Sequence[Observation],
    moments: Sequence[str],
    topology: Topology,
    settings: Settings,
    stored: Mapping[JobClass, Baseline] | None,
) -> tuple[dict[int, float], dict[str, frozenset[str]]]:
    """Return the jobs, by index, that a switch slows, or a few hosts, as far as can be seen without moments,
    and by how much (log; infinite: not known); and by work, the hosts of jobs that these do not slow. The
    jobs of a moment are on different hosts, but most of them may be slow: such jobs do not count for it."""
    slowed: dict[int, float] = {}
    good: dict[str, frozenset[str]] = {}
    if len(set(moments) - {""}) < 2:
        return slowed, good
    if topology.switches:
        slowed = dict.fromkeys(_slowed_by_switches(observations, topology, settings, stored), math.inf)
    classes: dict[tuple[str, int], list[int]] = {}
    for index, each in enumerate(observations):
        if each.seconds is not None and each.outcome.good and len(each.hosts) > 1:
            classes.setdefault((each.work, len(each.hosts)), []).append(index)
    for (work, _), own in classes.items():
        jobs = [observations[index] for index in own]
        clusters = by_moments(
            [each.seconds or 0.0 for each in jobs],
            [frozenset(each.hosts) for each in jobs],
            [moments[index] for index in own],
            topology,
        )
        if clusters is not None and clusters.sure:
            slowed |= {own[place]: clusters.faster for place in clusters.slow}
            good[work] = good.get(work, frozenset()) | clusters.good
    return slowed, good


def _slowed_by_switches(
    observations: Sequence[Observation],
    topology: Topology,
    settings: Settings,
    stored: Mapping[JobClass, Baseline] | None,
) -> set[int]:
    """Return the jobs, by index, that a switch slows as far as can be seen without moments."""
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
    """Return each host that something points at, and the probability that it is bad by itself."""
    return {
        host: part.of_host(host)
        for part in parts
        for host in sorted({fault.where[0] for fault in part.faults() if fault.kind in OF_HOSTS})
    }


def _how_common(suspects: Mapping[int, float], count: int) -> float:
    """Return how much more common faults of hosts are in this fleet than is assumed (1 in 200), in nats: from
    as many as there seem to be, 0 where these are few."""
    bad = sum(suspects.values())
    return max(0.0, math.log(bad * 200.0 / (200.0 + count))) if bad > MANY else 0.0
