"""Choose which jobs to run next. Pure and deterministic.

A wave is disjoint groups, run at once. It takes first the jobs whose outcome is least certain under the
explanations of what was slow (each answers nearly a whole question), with partners that are known to be good;
then, on all other hosts, pairs of ring neighbours that were not tried yet. Nothing to run means that every
host is cleared or convicted, as far as jobs can tell.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from muster.judging.baseline import FEWEST
from muster.judging.explain import Component, FaultExplanation
from muster.judging.faults import OF_HOSTS, Fault
from muster.judging.localise import Posterior
from muster.judging.observation import Group, Link, ring_links

WORTH = 0.06  # bits that a job must be expected to tell
# A job that was slower than noise can make it, and that nothing explains: chance, or what comes and goes. Its
# hosts are asked for less, until they have had so many jobs more than the sweep gives them.
CLEAR, AGAIN, LITTLE = 5.0, 4, 0.005
ASKED_ALONE = 2  # hosts of a switch, to tell it from them
SURE = 0.05  # of the doubt that a conviction leaves: what is found later hardly takes it back
FIRST = 2  # sweeps, before hosts run alone
Hosts = tuple[int, ...]


def _bits(chance: float) -> float:
    """Return the entropy of a job that is slow with this probability."""
    if not 0.0 < chance < 1.0:
        return 0.0
    return -(chance * math.log2(chance) + (1 - chance) * math.log2(1 - chance))


def _tells(part: Component, slows: Callable[[FaultExplanation], float]) -> float:
    """Return the bits that a job is expected to give: how uncertain its outcome is, less what would be
    uncertain even if the right explanation were known. `slows`: returns the chance that the job is slow under
    an explanation."""
    chances = [(each.probability, slows(each)) for each in part.explanations]
    mean = sum([weight * chance for weight, chance in chances])
    return _bits(mean) - sum([weight * _bits(chance) for weight, chance in chances])


def _told_by(posterior: Posterior, part: Component, hosts: Hosts) -> float:
    """Return the bits of a job on these hosts, as far as this part is concerned."""
    return _tells(part, lambda each: each.slows(posterior.case, hosts))


@dataclass(frozen=True)
class _Question:
    """A job worth running: `bits` that its outcome gives, per host under suspicion. `hosts`: one that needs a
    partner, two, or one alone."""

    bits: float
    hosts: Hosts
    partner: bool = False
    across: int | None = None  # the switch that the partner must not be behind (or, inside, must be)
    inside: bool = False
    least: float = WORTH  # bits, from where on it is asked


def _questions(posterior: Posterior) -> list[_Question]:
    """Return all possible questions, the one with most bits first."""
    asked: list[_Question] = []
    for part in posterior.parts:
        faults = part.faults()
        for host in sorted({fault.where[0] for fault in faults if fault.kind in OF_HOSTS}):
            asked += _of_host(posterior, part, host)
        for fault in faults:
            if fault.kind in OF_HOSTS:
                continue
            if fault.kind == "link":
                bits = _told_by(posterior, part, fault.where) / 2
                asked.append(_Question(bits, fault.where))
            else:
                asked += _of_switch(posterior, part, fault)
    worth = {each for each in asked if each.bits > each.least}
    return sorted(worth, key=lambda each: (-round(each.bits, 9), each.hosts, each.partner))


def _puzzling(posterior: Posterior, host: int) -> bool:
    """Return whether a job of the host was slow for no reason."""
    readings = posterior.case.readings
    mine = [row for row in readings.of_host[host] if not readings.alone[row]]
    return any(readings.deviations(row) > CLEAR for row in mine)


def _of_host(posterior: Posterior, part: Component, host: int) -> list[_Question]:
    """Return the questions about a host: with a good partner, and alone; none where it is convicted and its
    kind of fault is known, as far as jobs can tell."""
    kinds: dict[str, float] = {}
    for each in part.explanations:
        for fault in each.faults:
            if fault.kind in OF_HOSTS and fault.where[0] == host:
                kinds[fault.kind] = kinds.get(fault.kind, 0.0) + each.probability
    certain = max([chance for kind, chance in kinds.items() if kind != "host"], default=0.0)
    total = sum(kinds.values())
    named = certain >= posterior.settings.named * total or not posterior.settings.alone
    once = host in posterior.once
    sure = not once and 1.0 - total <= SURE * (1.0 - posterior.settings.convict)
    few = sum(not posterior.case.readings.alone[row] for row in posterior.case.readings.of_host[host]) < (
        posterior.settings.sweeps + AGAIN
    )
    convicted = not once and total >= posterior.settings.convict
    if convicted and named and (sure or not few):
        return []
    least = LITTLE if few and (convicted or once or _puzzling(posterior, host)) else WORTH
    with_partner = _tells(part, lambda each: _own_chance(each, host))
    asked = [_Question(with_partner, (host,), partner=True, least=least)]
    if posterior.settings.alone:
        # Once it is sure that it is bad, what is left to know is whether it is the processor or the card.
        alone = _told_by(posterior, part, (host,))
        if sure or (convicted and not few):
            alone = _bits(sum([e.probability * e.slows(posterior.case, (host,)) for e in part.explanations]))
        asked.append(_Question(alone, (host,)))
    return asked


def _own_chance(explanation: FaultExplanation, host: int) -> float:
    """Return the chance that the host slows a job of a group, by itself."""
    for fault, fit in zip(explanation.faults, explanation.fits, strict=True):
        if fault.kind in OF_HOSTS and fault.where[0] == host:
            return 0.0 if fit.hidden else fit.chance
    return 0.0


def _of_switch(posterior: Posterior, part: Component, fault: Fault) -> list[_Question]:
    """Return the questions about a switch: a good host behind it with a good one elsewhere, or with another
    behind it; where these hosts may be slow, and not what connects them, some of them alone."""
    bits = _bits(part.probability(fault))
    _, members = posterior.topology.switches[fault.where[0]]
    good = [posterior.topology.index[host] for host in members]
    good = [host for host in good if part.of_host(host) <= posterior.settings.clear]
    if fault.kind == "rack":
        return [_Question(bits, (host,)) for host in good[:ASKED_ALONE] if posterior.settings.alone]
    return [
        _Question(
            bits,
            (host,),
            partner=True,
            across=fault.where[0],
            inside=number % 2 == 1 and fault.kind == "switch",
        )
        for number, host in enumerate(good[:4])
    ]


class _Wave:
    """A wave in the making: disjoint groups, and the hosts that are left."""

    def __init__(self, posterior: Posterior) -> None:
        self.posterior = posterior
        self.used: set[int] = set()
        self.groups: list[Hosts] = []
        self.met: set[Link] = set()  # pairs that were neighbours in a job
        self.jobs: dict[int, int] = {}  # group jobs per host
        self.alone: set[int] = set()  # hosts that ran alone
        self.doubted = [  # switches under suspicion: no job is to cross them that asks something else
            fault
            for part in posterior.parts
            for fault in part.faults()
            if fault.kind in ("switch", "uplink") and part.probability(fault) > 0.1
        ]
        index = posterior.topology.index
        for each in posterior.observations:
            hosts = tuple([index.get(host, -1) for host in each.hosts])
            if len(hosts) == 1:
                self.alone.update(hosts)
                continue
            self.met.update(ring_links(hosts))
            for host in hosts:
                self.jobs[host] = self.jobs.get(host, 0) + 1

    def take(self, hosts: Hosts) -> None:
        self.groups.append(hosts)
        self.used.update(hosts)

    def free(self, host: int) -> bool:
        return host not in self.used

    def due(self) -> int:
        """Return how many hosts have had too few jobs in groups to be worth running alone."""
        hosts = range(len(self.posterior.topology.hosts))
        return sum(self.jobs.get(host, 0) < min(FIRST, self.posterior.settings.sweeps) for host in hosts)

    def good(self, host: int) -> bool:
        """Return whether nothing points at the host."""
        return self.posterior.suspicion(host) <= self.posterior.settings.clear

    def partner(self, question: _Question) -> int | None:
        """Return a good host for the one in question: the nearest on the ring that it has not met, else the
        nearest; where there is none, the least suspicious, if that job would give any bits."""
        (host,) = question.hosts
        fallback: tuple[float, int] | None = None
        met: int | None = None
        for other in _outward(host, len(self.posterior.topology.hosts)):
            if not self.free(other) or not self._fits(question, other):
                continue
            if not self.good(other):
                if fallback is None or self.posterior.suspicion(other) < fallback[0]:
                    fallback = (self.posterior.suspicion(other), other)
            elif (min(host, other), max(host, other)) not in self.met:
                return other
            elif met is None:
                met = other
        if met is not None or question.across is not None or fallback is None:
            return met
        part = self.posterior.part_of[host]
        telling = _told_by(self.posterior, part, (host, fallback[1])) > WORTH
        return fallback[1] if telling else None

    def _fits(self, question: _Question, other: int) -> bool:
        if question.across is not None:
            return (self.posterior.topology.behind[other] == question.across) == question.inside
        pair = (question.hosts[0], other)
        return not any(self.posterior.case.passes(fault, pair) for fault in self.doubted)


def _outward(host: int, count: int) -> Iterator[int]:
    """Yield ring neighbours, then their neighbours, and so on."""
    for step in range(1, count // 2 + 1):
        yield (host + step) % count
        if 2 * step != count:
            yield (host - step) % count


def next_wave(posterior: Posterior) -> tuple[Group, ...]:
    """Return disjoint groups to run at once; none where there is nothing left to find out."""
    return _next_wave(posterior, early=True) or _next_wave(posterior, early=False)


def _next_wave(posterior: Posterior, *, early: bool) -> tuple[Group, ...]:
    """Return a wave. `early`: no job alone while the sweep needs the hosts to compare it with."""
    wave = _Wave(posterior)
    count = len(posterior.topology.hosts)
    early = early and count >= FEWEST > len(wave.alone) and wave.due() > count // 2
    for question in _questions(posterior):
        if early and len(question.hosts) == 1 and not question.partner:
            continue
        if not all(wave.free(host) for host in question.hosts):
            continue
        if question.partner:
            other = wave.partner(question)
            if other is not None:
                wave.take((question.hosts[0], other))
        else:
            wave.take(question.hosts)
    if posterior.settings.alone:
        _alike_alone(wave)
    if any(len(group) == 1 for group in wave.groups):
        _alone_beside(wave)
    _sweep(wave)
    if any(len(group) == 2 for group in wave.groups):
        _pairs_beside(wave)
    names = posterior.topology.hosts
    return tuple(tuple(names[host] for host in group) for group in wave.groups)


def _alike_alone(wave: _Wave) -> None:
    """Add some of the hosts that are alike slower in groups, and some of the others: other hardware is slower
    alone too, and many slow cards are not."""
    for group in wave.posterior.alike:
        mine = {wave.posterior.topology.index[host] for host in group.hosts}
        for side in (mine, set(range(len(wave.posterior.topology.hosts))) - mine):
            need = FEWEST - len(side & wave.alone)
            for host in [host for host in sorted(side) if wave.free(host)][: max(0, need)]:
                wave.take((host,))


def _alone_beside(wave: _Wave) -> None:
    """Add good hosts that run alone next to a suspect: a time needs others to compare with, at the same
    moment."""
    posterior = wave.posterior
    now = sum(len(group) == 1 for group in wave.groups)
    need = max(posterior.settings.references - len(wave.alone), posterior.settings.beside - now)
    for host in range(len(posterior.topology.hosts)):
        if need <= 0:
            return
        if wave.free(host) and posterior.suspicion(host) < 0.5:
            wave.take((host,))
            need -= 1


def _pairs_beside(wave: _Wave) -> None:
    """Add good hosts that run in pairs next to those that are asked for: what slows all jobs of this moment
    shows in them."""
    posterior, count = wave.posterior, len(wave.posterior.topology.hosts)
    need = posterior.settings.beside - sum(len(group) == 2 for group in wave.groups)
    for first in range(count):
        second = (first + 1) % count
        if need <= 0:
            return
        if all(wave.free(host) and wave.good(host) for host in (first, second)) and first != second:
            wave.take((first, second))
            need -= 1


def _sweep(wave: _Wave) -> None:
    """Add pairs that are still due: untried links of the ring, then, for hosts with too few jobs in groups,
    hosts further and further apart."""
    posterior, count = wave.posterior, len(wave.posterior.topology.hosts)
    if count < FEWEST and not wave.alone and posterior.settings.alone:
        # They will be held against stored baselines: alone first.
        for host in range(count):
            if wave.free(host):
                wave.take((host,))
        return
    if count == 1:
        return
    bad = {host for host, chance in posterior.suspects.items() if chance >= 0.5}
    short = [host not in bad and wave.jobs.get(host, 0) < posterior.settings.sweeps for host in range(count)]
    for first in range(count if count > 2 else 1):
        second = (first + 1) % count
        if first in bad or second in bad or not (wave.free(first) and wave.free(second)):
            continue
        untried = (min(first, second), max(first, second)) not in wave.met
        if untried and (posterior.settings.ring or short[first] or short[second]):
            wave.take((first, second))
    if count == 2:
        return
    for first in range(count):
        if not short[first] or not wave.free(first):
            continue
        others = [o for o in _near(first, count) if wave.free(o) and o not in bad]
        untried_others = [o for o in others if (min(first, o), max(first, o)) not in wave.met]
        if untried_others or others:
            wave.take((first, (untried_others or others)[0]))


def _near(host: int, count: int) -> list[int]:
    """Return the 32 nearest on the ring: enough to find a partner, and quick in large fleets."""
    near: list[int] = []
    for other in _outward(host, count):
        near.append(other)
        if len(near) == 32:
            break
    return near
