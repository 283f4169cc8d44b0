"""A fleet that is not there: jobs on groups of hosts with planted faults, for tests and benchmarks. Pure.

The model. The logarithm of a job's time is that of its slowest member (the host's own difference, and the
largest slowdown that is planted on it), or what a link or switch adds to it, plus the noise of the job and of
its wave. Alone, only slow compute shows. The slowdown of a fault is one of the job's time: 0.05 is 5 %
slower, 100 is 101 times as long. Of a group's step, `communication` is spent in collectives: a host with slow
compute does s / (1 - communication) more outside them, so that its step is s longer; the others wait. A job
that tells its course has so many windows, half of them before its middle.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from muster.core.state import State
from muster.judging.ask import next_wave
from muster.judging.faults import Kind
from muster.judging.localise import Posterior, localise
from muster.judging.observation import Group, Observation, Settings, Topology

STEPS = 100  # of a job: how long it runs
WINDOWS = 6  # of a job that tells its course

# The noise of one job: a source of random numbers and the number of hosts in -> what it adds to log(time).
Noise = Callable[[random.Random, int], float]


def gaussian(scale: float) -> Noise:
    """A normal number of this standard deviation."""
    return lambda draw, size: draw.gauss(0.0, scale)


def student(scale: float, *, slow_side: bool = False) -> Noise:
    """Student's t with three degrees of freedom, times `scale` (its standard deviation is 1.7 times that).
    `slow_side`: its absolute value, since what happens to a network only ever makes a job slower."""

    def noise(draw: random.Random, size: int) -> float:
        value = draw.gauss(0.0, scale) / math.sqrt(draw.gammavariate(1.5, 2.0) / 3.0)
        return abs(value) if slow_side else value

    return noise


def resampled(residuals: Mapping[int, Sequence[float]]) -> Noise:
    """One of the residuals, log(time / median), that real jobs on so many hosts had (or, where there were
    none, on the next smaller number)."""
    return lambda draw, size: draw.choice(residuals[max(known for known in residuals if known <= size)])


# What Fleet is told for each kind of noise. The opt-13b logs of 64 hosts have 0.38 % between hosts.
NOISES: dict[str, dict[str, Any]] = {
    "Gaussian": {"noise": 0.004},
    "t3": {"noise": student(0.004)},
    "t3, slow side": {"noise": student(0.004, slow_side=True)},
    "drift of 2 %": {"noise": 0.004, "drift": 0.02},
    "hosts differ by 0.3 %": {"noise": 0.0011, "spread": 0.003},
    "hosts differ by 0.38 %": {"noise": 0.0011, "spread": 0.0038},
}


@dataclass(frozen=True)
class Planted:
    """A fault: of a host (`compute`, `card`), a `link` of two hosts, or all behind a `switch` (by its name;
    `uplink`: only across). `by`: share of a job's time, 0 for a fault that makes jobs fail; `chance`: of
    showing in a job (below 1: it comes and goes); `work`: the only one in which it shows (a GPU that is
    throttled under a heavy load); `late`: only from the middle of a job on (a card that grows hot)."""

    kind: Kind
    where: tuple[str, ...]
    by: float
    chance: float = 1.0
    work: str | None = None
    late: bool = False


@dataclass
class SimulatedFleet:
    """Hosts with faults. `noise`: relative standard deviation from run to run, or what draws it; `spread`:
    from host to host, for good; `hiccups`: share of jobs slowed by something that does not last, by a share
    of their time between the two of `hiccup`; `older`: how many hosts are of other hardware, alike slower by
    a share; `unsteady`: share of the hosts whose jobs scatter so many times as much; `course`: deviation
    between the halves of a job, where jobs tell them;
    `waits`: jobs tell what each host waited; `drift`: of the whole fleet, from wave to wave (each wave has a
    pace of its own, whatever the one before had); `timed`: jobs tell which of them ran at once, and when."""

    topology: Topology
    faults: tuple[Planted, ...] = ()
    noise: float | Noise = 0.004
    seed: int = 0
    spread: float = 0.0
    hiccups: float = 0.0
    hiccup: tuple[float, float] = (0.01, 0.2)
    older: tuple[int, float] = (0, 0.0)
    unsteady: tuple[float, float] = (0.0, 1.0)
    course: float = 0.0
    communication: float = 0.2
    waits: bool = False
    drift: float = 0.0
    timed: bool = False
    jobs: int = field(default=0, init=False)
    waves: int = field(default=0, init=False)
    clock: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.draw = self.noise if callable(self.noise) else gaussian(self.noise)
        self.of_host: dict[str, list[Planted]] = {}
        self.elsewhere = [each for each in self.faults if each.kind in ("link", "switch", "uplink")]
        self.members = {name: set(hosts) for name, hosts in self.topology.switches}
        for each in self.faults:
            if each.kind in ("compute", "card"):
                self.of_host.setdefault(each.where[0], []).append(each)
        gauss = self.random.gauss
        self.own = {host: gauss(0.0, self.spread) if self.spread else 0.0 for host in self.topology.hosts}
        count, slower = self.older
        for host in self.random.sample(self.topology.hosts, count) if count else ():
            self.own[host] += math.log1p(slower)
        share, times = self.unsteady
        count = round(share * len(self.topology.hosts))
        self.times = dict.fromkeys(self.random.sample(self.topology.hosts, count) if count else (), times)

    def run(self, groups: Iterable[Group], work: str = "") -> list[Observation]:
        """A wave: every group's job, at once."""
        self.waves += 1
        pace = self.random.gauss(0.0, self.drift) if self.drift else 0.0
        made = [self._job(group, work, pace) for group in groups]
        if not self.timed:
            return made
        began = self.clock
        ends = [began + STEPS * (1.0 if each.seconds is None else each.seconds) for each in made]
        self.clock = max([*ends, began])
        return [
            replace(each, moment=f"wave{self.waves}", began=began, ended=ended)
            for each, ended in zip(made, ends, strict=True)
        ]

    def _job(self, hosts: Group, work: str, pace: float) -> Observation:
        self.jobs += 1
        name = f"job{self.jobs}"
        computes: dict[str, float] = {}
        late = 0.0
        worst = slowest = max([self.own[host] for host in hosts])
        for fault in self._met(hosts):
            if fault.work is not None and fault.work != work:
                continue
            if fault.chance < 1.0 and self.random.random() >= fault.chance:
                continue
            if not fault.by:
                return Observation(name, hosts, None, State.FAILED, work=work)
            by_itself = fault.kind in ("compute", "card")
            if fault.late:
                late = max(late, math.log1p(fault.by))
                continue
            worst = max(worst, (self.own[fault.where[0]] if by_itself else slowest) + math.log1p(fault.by))
            if fault.kind == "compute":
                computes[fault.where[0]] = fault.by
        if self.hiccups and self.random.random() < self.hiccups:
            worst = max(worst, slowest + math.log1p(self.random.uniform(*self.hiccup)))
        times = max([self.times.get(host, 1.0) for host in hosts]) if self.times else 1.0
        early = worst + pace + times * self.draw(self.random, len(hosts))
        halves, spread = self._course(early, late)
        seconds = 0.5 * (halves[0] + halves[1]) if halves else math.exp(early)
        computing: tuple[float, ...] = ()
        if self.waits and len(hosts) > 1:
            busy = 1.0 - self.communication
            computing = tuple(
                (busy + math.expm1(self.own[host] + math.log1p(computes.get(host, 0.0))))
                * math.exp(pace + self.draw(self.random, len(hosts)))
                for host in hosts
            )
        return Observation(name, hosts, seconds, work=work, computing=computing, spread=spread, halves=halves)

    def _course(self, early: float, late: float) -> tuple[tuple[float, float] | None, float | None]:
        """Seconds of a step before and after a job's middle, of which the second half is slower by `late`
        (log) than the first; and the standard error of their mean by so many windows."""
        if not self.course:
            return None, None
        apart = 0.5 * self.random.gauss(0.0, self.course)
        first, second = math.exp(early - apart), math.exp(early + late + apart)
        error = abs(second - first) / (first + second) / math.sqrt(WINDOWS - 1)
        return (first, second), error

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

    state: Posterior
    waves: int
    observations: tuple[Observation, ...]


def hunt(
    fleet: SimulatedFleet,
    most: int,
    settings: Settings | None = None,
    watch: Callable[[int, Posterior], None] | None = None,
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
