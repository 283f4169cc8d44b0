"""Machines of different speeds in one job: what a step and an epoch take, and which hosts are worth having.

A step takes as long as the slowest rank computes, and everything else goes over the slowest link: it is the
step of `planner/time/steptime.py` on the slowest of the machines, so that no plan says otherwise. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from muster.core.hardware.machines import Machines
from muster.planner.time.steptime import Calibration, Step, StepCase, computing
from muster.planner.time.steptime import predict as predict_step

SEARCHED = 12  # hosts of which every number of the fastest is looked at; of more, those above a speed


@dataclass(frozen=True)
class MixedHost:
    """A host's part of a job. `machines`: this host alone, with its link to others; `speed`: samples/s of all
    its ranks without communication, where it was measured; None: as its devices' figures say."""

    host: str
    machines: Machines
    speed: float | None = None

    @property
    def ranks(self) -> int:
        """Of this host."""
        return self.machines.ranks

    @property
    def bandwidth(self) -> float:
        """Bytes/s to other hosts."""
        return self.machines.link.bandwidth if self.machines.link else 0.0


@dataclass(frozen=True)
class Load:
    """What a job does on any hosts. `case`: on some of them; `samples`: of an epoch; `batch`: samples of an
    optimizer step on any number of ranks, None: the case's for each rank; `slower`: times as long as foretold
    that computation takes."""

    case: StepCase
    samples: int
    batch: int | None = None
    calibration: Calibration = field(default_factory=Calibration)
    slower: float = 1.0

    def of_sample(self, member: MixedHost) -> float:
        """Seconds that one of the host's ranks computes for a sample."""
        if member.speed is not None:
            return member.ranks / member.speed
        return (
            self.slower
            * computing(self.case.over(member.machines), self.calibration)
            / self.case.work.samples
        )


@dataclass(frozen=True)
class Predicted:
    """An optimizer step on these hosts, and seconds of an epoch."""

    hosts: tuple[str, ...]
    step: Step
    epoch: float


@dataclass(frozen=True)
class Worth:
    """A host, and what an epoch takes with it and without it (all other hosts stay)."""

    host: str
    with_it: float
    without_it: float


class Forecast:
    """Predictions for any choice of the same hosts."""

    def __init__(self, members: Sequence[MixedHost], load: Load, *, measured: bool = False) -> None:
        """`measured`: shares follow speeds, in fractions."""
        self.members, self.load, self.measured = members, load, measured
        self.seconds = {member.host: load.of_sample(member) for member in members}
        self._step = cache(self._step_on)  # hosts that are alike make the same step

    def predict(self, chosen: Sequence[MixedHost] | None = None) -> Predicted:
        """A step and an epoch on these hosts; None: on all."""
        chosen = self.members if chosen is None else chosen
        slowest = max(chosen, key=lambda member: self.seconds[member.host])
        machines = replace(slowest.machines, hosts=len(chosen)).with_slots([each.ranks for each in chosen])
        if len(chosen) > 1:
            machines = replace(machines, link=min(chosen, key=lambda each: each.bandwidth).machines.link)
        case, whole = self.load.case, self.load.batch
        micro_steps = case.spread.micro_steps
        if whole is not None:
            micro_steps = max(1, -(-whole // (case.work.samples * machines.ranks)))
        batch = whole or case.work.samples * machines.ranks * micro_steps
        if self.measured:
            compute = batch / sum(each.ranks / self.seconds[each.host] for each in chosen)
        else:
            compute = batch / machines.ranks * self.seconds[slowest.host]
        step = self._step(machines, micro_steps, compute)
        epoch = self.load.samples / batch * step.seconds  # a last step that is not full counts in part
        return Predicted(tuple(member.host for member in chosen), step, epoch)

    def best(self) -> Predicted:
        """The choice of hosts with the shortest epoch; of equals the smaller."""
        predictions = (self.predict(chosen) for chosen in self._choices())
        return min(predictions, key=lambda predicted: (predicted.epoch, len(predicted.hosts)))

    def worths(self) -> list[Worth]:
        """For each host of several, an epoch with all and an epoch without it."""
        if len(self.members) < 2:
            return []
        whole = self.predict().epoch
        return [
            Worth(out.host, whole, self.predict([m for m in self.members if m is not out]).epoch)
            for out in self.members
        ]

    def _step_on(self, machines: Machines, micro_steps: int, compute: float) -> Step:
        case = self.load.case.over(machines).accumulating(micro_steps)
        return predict_step(case, self.load.calibration, micro=compute / micro_steps)

    def _choices(self) -> Iterator[Sequence[MixedHost]]:
        """Each host alone; and above every bandwidth, the fastest so many: only the slowest speed and the
        slowest link of a choice set its pace. Of many hosts, all that have a speed."""
        yield from ([member] for member in self.members)
        for bandwidth in sorted({member.bandwidth for member in self.members}):
            able = [member for member in self.members if member.bandwidth >= bandwidth]
            pace = sorted(self.seconds[member.host] for member in able)
            if len(self.members) <= SEARCHED:
                ordered = sorted(able, key=lambda member: self.seconds[member.host])
                together = [{member.host for member in ordered[:count]} for count in range(2, len(able) + 1)]
            else:
                together = [
                    {member.host for member in able if self.seconds[member.host] <= most}
                    for most in sorted(set(pace))
                ]
            yield from ([member for member in able if member.host in hosts] for hosts in together)
