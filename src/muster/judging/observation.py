"""What is judged: results of jobs on groups of hosts, and facts about the hosts. Pure data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from muster.core.errors import UsageError
from muster.core.state import JobEnd, State

Group = tuple[str, ...]  # the hosts of one job, in ring order
Link = tuple[int, int]  # two hosts by their index, the smaller first


@dataclass(frozen=True)
class Observation:
    """One finished job.

    `hosts` in the order of the ring that its collectives take; `seconds` of a step, None where there are
    none; `work`: what was run and on what hardware: only observations with the same `work` and number of
    hosts are compared; `computing`: seconds that each host took for what it does by itself, outside of
    collectives, or for a part of it that is the same on all, in the order of `hosts`, or nothing; `culprits`:
    hosts that the job's own logs hold responsible for its failure; `hardware`: for an error of their
    hardware, which is no chance; `stops`: nothing says how it ended, so that its log may just have been cut;
    `moment`: observations that share one were made side by side
    (judging/detrend.py); `began`, `ended`: when the job ran, in seconds on any one clock, from which moments
    follow where none is given; `exchanges`: the step is nothing but an exchange between hosts, so that a slow
    processor does not show in it; `spread`: relative standard error of `seconds`, by the job's own windows:
    its reading is not known any better; `halves`: seconds of a usual step (or
    sample, alike in all jobs of a work) before and after the job's middle.
    Raises UsageError for hosts that stand twice, and figures that do not go together.
    """

    job: str
    hosts: Group
    seconds: float | None
    outcome: JobEnd = State.SUCCEEDED
    work: str = ""
    computing: tuple[float, ...] = ()
    culprits: tuple[str, ...] = ()
    hardware: bool = False
    stops: bool = False
    moment: str = ""
    began: float | None = None
    ended: float | None = None
    exchanges: bool = False
    spread: float | None = None
    halves: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if not self.hosts or (len(self.hosts) > 1 and len(set(self.hosts)) < len(self.hosts)):
            raise UsageError("a job needs at least one host, and each host once", where=self.job)
        if self.outcome.good and (
            self.seconds is None or not (self.seconds > 0 and math.isfinite(self.seconds))
        ):
            raise UsageError(f"a succeeded job needs a step time, not {self.seconds}", where=self.job)
        if self.began is not None and self.ended is not None and not self.began <= self.ended < math.inf:
            raise UsageError(
                f"it cannot have begun at {self.began} and ended at {self.ended}", where=self.job
            )
        if self.spread is not None and not 0 <= self.spread < math.inf:
            raise UsageError(f"a spread must be 0 or more, not {self.spread}", where=self.job)
        if self.halves is not None and not all(0 < each < math.inf for each in self.halves):
            raise UsageError(f"halves need times of their steps, not {self.halves}", where=self.job)
        if self.computing and len(self.computing) != len(self.hosts):
            raise UsageError(
                f"{len(self.computing)} times for {len(self.hosts)} hosts",
                where=self.job,
                hint="give one per host in their order, or none",
            )


@dataclass(frozen=True)
class Topology:
    """The hosts to judge, in the order of the ring that the real job will take; and which are behind which
    switch.

    Raises UsageError for a duplicate host, or one behind two switches, or behind one but not listed.
    """

    hosts: tuple[str, ...]
    switches: tuple[tuple[str, tuple[str, ...]], ...] = ()
    index: Mapping[str, int] = field(init=False, repr=False, compare=False)
    behind: tuple[int, ...] = field(init=False, repr=False, compare=False)  # host -> switch; -1 none

    @classmethod
    def of(cls, hosts: Sequence[str], switches: Mapping[str, Sequence[str]]) -> Topology:
        """Return the topology with the switches of these hosts: others behind them are left out."""
        names = set(hosts)
        there = {name: tuple(host for host in behind if host in names) for name, behind in switches.items()}
        return cls(tuple(hosts), tuple((name, behind) for name, behind in there.items() if behind))

    def __post_init__(self) -> None:
        index = {host: i for i, host in enumerate(self.hosts)}
        if len(index) < len(self.hosts):
            raise UsageError("a host is listed twice", where="topology")
        behind = [-1] * len(self.hosts)
        for number, (name, members) in enumerate(self.switches):
            for host in members:
                if host not in index:
                    raise UsageError("is behind a switch, but not among the hosts", host=host, where=name)
                if behind[index[host]] >= 0:
                    raise UsageError("is behind two switches", host=host, where=name)
                behind[index[host]] = number
        object.__setattr__(self, "index", index)
        object.__setattr__(self, "behind", tuple(behind))


@dataclass(frozen=True)
class Settings:
    """How strict to be.

    `slow`: the smallest slowdown that counts (share of a step's time); where noise is above 0.4 of it, 2.5
    standard deviations of it count instead, divided by the root of half the number of a host's jobs.
    `convict`: the probability above which a host is called bad; `named`: above which the kind of fault, or a
    link or a switch, is named; `clear`: below which a suspicion is dropped; `sweeps`: jobs in a group that
    every host shall have had; `ring`: try every link between neighbours; `references`: hosts that run alone
    next to a suspect, to compare it with; `beside`: jobs of a kind that a wave shall have, so that what slows
    all of them shows; `alone`: whether a job on one host can be run, and shows anything.
    """

    slow: float = 0.01
    convict: float = 0.97
    named: float = 0.9
    clear: float = 0.01
    sweeps: int = 6
    ring: bool = True
    references: int = 31
    beside: int = 8
    alone: bool = True


def ring_links(hosts: tuple[int, ...]) -> tuple[Link, ...]:
    """Return the links between neighbours in a ring of these hosts: one for two of them, none for one."""
    if len(hosts) < 2:
        return ()
    if len(hosts) == 2:
        a, b = hosts
        return ((a, b) if a < b else (b, a),)
    return tuple((a, b) if a < b else (b, a) for a, b in zip(hosts, (*hosts[1:], hosts[0]), strict=True))
