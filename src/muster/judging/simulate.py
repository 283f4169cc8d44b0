"""A fleet that is not there: jobs on groups of hosts with planted faults, for tests and benchmarks. Pure.

The model. A job of a group takes 1 + s times a healthy one, s being the largest slowdown of the faults that
it meets, times 1 + noise x a standard normal number. Alone, only slow compute shows. The slowdown of a fault
is one of the job's time. Of a group's step, `communication` is spent in collectives: a host with slow
compute does s / (1 - communication) more outside them, so that its step is s longer; the others wait.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from muster.judging.ask import next_wave
from muster.judging.faults import Kind
from muster.judging.localise import State, localise
from muster.judging.observation import Group, Observation, Settings, Topology


@dataclass(frozen=True)
class Planted:
    """A fault: of a host (`compute`, `card`), a `link` of two hosts, or all behind a `switch` (by its name;
    `uplink`: only across). `by`: share of a job's time, 0 for a fault that makes jobs fail; `chance`: of
    showing in a job (below 1: it comes and goes)."""

    kind: Kind
    where: tuple[str, ...]
    by: float
    chance: float = 1.0


@dataclass
class Fleet:
    """Hosts with faults. `noise`: relative standard deviation from run to run; `spread`: from host to host,
    for good; `hiccups`: share of jobs slowed by 1 to 20 % by something that does not last; `waits`: jobs tell
    what each host waited."""

    topology: Topology
    faults: tuple[Planted, ...] = ()
    noise: float = 0.004
    seed: int = 0
    spread: float = 0.0
    hiccups: float = 0.0
    communication: float = 0.2
    waits: bool = False
    jobs: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.of_host: dict[str, list[Planted]] = {}
        self.elsewhere = [each for each in self.faults if each.kind in ("link", "switch", "uplink")]
        self.members = {name: set(hosts) for name, hosts in self.topology.switches}
        for each in self.faults:
            if each.kind in ("compute", "card"):
                self.of_host.setdefault(each.where[0], []).append(each)
        self.own: dict[str, float] = {}
        if self.spread:
            self.own = {host: abs(self.random.gauss(0, self.spread)) for host in self.topology.hosts}

    def run(self, groups: Iterable[Group]) -> list[Observation]:
        """A wave: every group's job, at once."""
        return [self._job(group) for group in groups]

    def _job(self, hosts: Group) -> Observation:
        gauss = self.random.gauss
        self.jobs += 1
        name = f"job{self.jobs}"
        computes: dict[str, float] = {}
        worst = 0.0
        for fault in self._met(hosts):
            if fault.chance < 1.0 and self.random.random() >= fault.chance:
                continue
            if not fault.by:
                return Observation(name, hosts, None, "failed")
            worst = max(worst, fault.by)
            if fault.kind == "compute":
                computes[fault.where[0]] = fault.by
        if self.own:
            worst = max(worst, *(self.own[host] for host in hosts))
        if self.hiccups and self.random.random() < self.hiccups:
            worst = max(worst, self.random.uniform(0.01, 0.2))
        seconds = (1.0 + worst) * (1.0 + gauss(0.0, self.noise))
        computing: tuple[float, ...] = ()
        if self.waits and len(hosts) > 1:
            busy = 1.0 - self.communication
            computing = tuple(
                (busy + computes.get(host, 0.0)) * (1.0 + gauss(0.0, self.noise)) for host in hosts
            )
        return Observation(name, hosts, seconds, computing=computing)

    def _met(self, hosts: Group) -> list[Planted]:
        """The faults that a job on these hosts meets."""
        met: list[Planted] = []
        if self.of_host:
            for host in hosts:
                for fault in self.of_host.get(host, ()):
                    if fault.kind == "compute" or len(hosts) > 1:
                        met.append(fault)
        if self.elsewhere and len(hosts) > 1:
            links = [{a, b} for a, b in zip(hosts, (*hosts[1:], hosts[0]), strict=True)]
            for fault in self.elsewhere:
                if fault.kind == "link":
                    hit = set(fault.where) in links
                else:
                    behind = [len(link & self.members[fault.where[0]]) for link in links]
                    hit = any(n == 1 or (n and fault.kind == "switch") for n in behind)
                if hit:
                    met.append(fault)
        return met


@dataclass(frozen=True)
class Hunt:
    """What a search came to."""

    state: State
    waves: int
    observations: tuple[Observation, ...]


def hunt(
    fleet: Fleet,
    most: int,
    settings: Settings | None = None,
    watch: Callable[[int, State], None] | None = None,
    before: Sequence[Observation] = (),
) -> Hunt:
    """Waves until nothing is left to find out, or `most` of them. `watch` sees the state after each wave;
    `before`: what ran anyway."""
    observations: list[Observation] = list(before)
    state = localise(observations, fleet.topology, settings)
    waves = 0
    while waves < most:
        groups = next_wave(state)
        if not groups:
            break
        observations += fleet.run(groups)
        waves += 1
        state = localise(observations, fleet.topology, settings)
        if watch is not None:
            watch(waves, state)
    return Hunt(state, waves, tuple(observations))
