"""Hosts of different speeds in one job: which of them make it slower, and which choice is the fastest; from
their facts before it starts, or from measured speeds. Pure.

A step takes as long as the slowest rank computes, and everything else goes over the slowest link: it is the
step of `planner/time/steptime.py` on the slowest of the machines, so that all plans agree.

Where a host lacks a needed fact (a CPU's speed, a link's), there is no prediction rather than a wrong one. In
the published runs that we know, models reach 12 to 56 % of their GPUs' stated peaks, so a host is named only
where it makes an epoch slower over that whole range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property

from muster.core.batch import resolve_batch
from muster.core.errors import RecipeError, UsageError
from muster.core.hardware.devices import CPU, Device, driver_device
from muster.core.hardware.machines import Machines, machines_of
from muster.core.inventory import Host
from muster.core.job import FASTEST, SLOWER, Decision, Facts, Job
from muster.core.recipe import Recipe
from muster.core.units import format_seconds
from muster.engines.base import spec_of
from muster.engines.spread import NO_DISK, ModelSpread
from muster.inputs.model import whole_config
from muster.planner.decide import Decided
from muster.planner.machines import MachineModel, link_of
from muster.planner.memory.fit import MemoryLimit, Setting, largest_micro, may_run
from muster.planner.predict import case_of
from muster.planner.remedies import ANY_CHANGE
from muster.planner.setting import room_of, setting_of
from muster.planner.time.steptime import (
    Calibration,
    Step,
    StepCase,
    StepWork,
    case_key,
    computing,
    lump,
    predict,
)

NAMED = 8  # hosts that a text names one by one
WORTH = 0.1  # of the speed: groups that bring less are not spoken of
ROUND = 10_000  # samples, where nobody here knows how many an epoch has
SEARCHED = 12  # hosts of which every number of the fastest is looked at; of more, those above a speed


@dataclass(frozen=True)
class MixedHost:
    """A host's part of a job. `machines`: this host alone, with its link to others; `speed`: samples/s of all
    its ranks without communication, where it was measured; None: by its devices' figures."""

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
class Predicted:
    """An optimizer step on these hosts, and seconds of an epoch."""

    hosts: tuple[str, ...]
    step: Step
    epoch: float


@dataclass(frozen=True)
class Forecast:
    """Predictions for any choice of the same hosts. `case`: the job on some of them; `samples`: of an epoch;
    `batch`: samples of an optimizer step on any number of ranks, None: the case's for each rank; `slower`:
    the factor by which computation takes longer than predicted; `measured`: shares follow speeds, in
    fractions; `fits`: whether the job works on these hosts."""

    members: Sequence[MixedHost]
    case: StepCase
    samples: int
    batch: int | None = None
    calibration: Calibration = field(default_factory=Calibration)
    slower: float = 1.0
    measured: bool = False
    fits: Callable[[Sequence[MixedHost]], bool] = lambda chosen: True

    @cached_property
    def seconds(self) -> Mapping[str, float]:
        """By host, the seconds in which one of its ranks computes a sample."""

        def of(member: MixedHost) -> float:
            if member.speed is not None:
                return member.ranks / member.speed
            micro_step = computing(self.case.over(member.machines), self.calibration)
            return self.slower * micro_step / self.case.work.samples

        return {member.host: of(member) for member in self.members}

    @cached_property
    def _step(self) -> Callable[[Machines, int, float], Step]:
        @cache  # hosts that are alike make the same step
        def made(machines: Machines, micro_steps: int, compute: float) -> Step:
            case = self.case.over(machines).accumulating(micro_steps)
            return predict(case, self.calibration, micro=compute / micro_steps)

        return made

    def predict(self, chosen: Sequence[MixedHost] | None = None) -> Predicted:
        """Predict a step and an epoch on these hosts; None: on all."""
        chosen = self.members if chosen is None else chosen
        slowest = max(chosen, key=lambda member: self.seconds[member.host])
        machines = replace(slowest.machines, hosts=len(chosen)).with_slots([each.ranks for each in chosen])
        if len(chosen) > 1:
            machines = replace(machines, link=min(chosen, key=lambda each: each.bandwidth).machines.link)
        micro_batch, micro_steps = self.case.work.samples * machines.ranks, self.case.spread.micro_steps
        if self.batch is not None:
            micro_steps = max(1, -(-self.batch // micro_batch))
        batch = self.batch or micro_batch * micro_steps
        if self.measured:
            compute = batch / sum(each.ranks / self.seconds[each.host] for each in chosen)
        else:
            compute = batch / machines.ranks * self.seconds[slowest.host]
        step = self._step(machines, micro_steps, compute)
        epoch = self.samples / batch * step.seconds  # a last step that is not full counts in part
        return Predicted(tuple(member.host for member in chosen), step, epoch)

    def without(self, host: str) -> float:
        """Return the seconds of an epoch on all hosts but this one."""
        return self.predict([member for member in self.members if member.host != host]).epoch

    def best(self) -> Predicted:
        """Return the choice of hosts with the shortest epoch, of those on which the job fits; of equals the
        smaller. All hosts where it fits on none."""
        predictions = (self.predict(chosen) for chosen in self._choices() if self.fits(chosen))
        return min(predictions, key=lambda each: (each.epoch, len(each.hosts)), default=self.predict())

    def _choices(self) -> Iterator[Sequence[MixedHost]]:
        """Yield each host alone; and above every bandwidth, the fastest hosts in every number: only the
        slowest speed and the slowest link of a choice set its pace. Of many hosts, all that have a speed."""
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


def members_of(
    model: MachineModel, slots: Sequence[int], device: str, precision: str
) -> list[MixedHost] | None:
    """Return each host by itself, with its link to others; None: one of them is not known."""
    members = []
    for host, count in zip(model.hosts, slots, strict=True):
        alone = model.of((host,)).on([count], device, precision)
        link = model.link or (alone.link if alone else None)
        link = link or link_of(model.facts[host.label].get("network") or {}, model.env)
        if alone is None or link is None:
            return None
        members.append(MixedHost(host.label, alone.over(link)))
    return members


def advise(decided: Decided, model: MachineModel, samples: int | None) -> list[Decision]:
    """Return, before the start, a decision for each host that makes an epoch slower, and one that names the
    fastest hosts; none where a step's time is not known. `samples`: of an epoch."""
    recipe, job, calibration = decided.recipe, decided.job, model.calibration
    split = recipe.batch.split
    if model.one_machine or decided.setting is None or len(model.hosts) != len(decided.slots):
        return []
    members = members_of(model, decided.slots, job.device, job.precision) or []
    case = case_of(decided.setting, members[0].machines) if members else None
    if case is None or len(members) < 2 or isinstance(split, list):  # shares are given rank by rank
        return []
    calibrated = all(case_key(case.over(each.machines)) in calibration.efficiency for each in members)
    off = max(case.over(each.machines).usual.off for each in members)
    times = (1.0,) if calibrated else (1 + off, 1.0, 1 / (1 + off))
    batch = job.batch.global_ if global_given(recipe) else None
    fits = _fitting(recipe, decided.setting, model.facts)
    usual = Forecast(members, case, samples or ROUND, batch, calibration, 1.0, split == "measured", fits)
    basis = "by this plan's step times"
    if not calibrated:
        basis += (
            f"; the order is the same if computation takes {times[-1]:.1f} to {times[0]:.1f} times as long"
        )
    try:
        guesses = [replace(usual, slower=each) for each in times]
        return words(guesses, samples, basis, measured=split == "measured")
    except UsageError:  # a figure is missing, as the plan says
        return []


def global_given(recipe: Recipe) -> bool:
    """Return whether the recipe gives the size of a global batch."""
    return recipe.batch.global_ is not None or recipe.batch.tokens is not None


def _fitting(recipe: Recipe, setting: Setting, facts: Facts) -> Callable[[Sequence[MixedHost]], bool]:
    """Return a function that tells whether a job fits on some of its hosts, with its micro-batch. A rank
    holds more where fewer share the states."""

    now = setting.spread

    @cache
    def on(ranks: int, device: int | None, host: int | None) -> bool:
        there, room = setting.spreading(ranks=ranks), MemoryLimit(device, host)
        if ranks != now.ranks and setting.share < 1:  # shares are given rank by rank
            return False
        if there.spread.grouped and ranks % now.group:
            return False
        if global_given(recipe) and ranks != now.ranks:
            largest = setting.micro
            if recipe.batch.micro is None:  # fewer hosts may have to hold more each
                largest = max(1, largest_micro(there, room, largest))
            samples = setting.micro * now.micro_steps * now.ranks
            try:
                batch = resolve_batch(None, None, samples, world_size=ranks, largest=largest)
            except RecipeError:
                return False
            there = replace(there, micro=batch.micro).spreading(micro_steps=batch.accumulation)
        return may_run(there, room)

    def fits(chosen: Sequence[MixedHost]) -> bool:
        hosts, slots = [Host(each.host, each.ranks) for each in chosen], [each.ranks for each in chosen]
        room = room_of(facts, hosts, slots, setting.spread.device, shared=False)
        return on(sum(slots), room.device, room.host)

    return fits


def grouping(decided: Decided, calibration: Calibration) -> str | None:
    """Return a note where gathering weights inside each host would be faster, and is known to fit; None: it
    would not, or weights are not gathered between hosts."""
    setting, machines = decided.setting, decided.machines
    if setting is None or machines is None:
        return None
    engine, inside, spread = setting.engine, machines.per_host, setting.spread
    cut = engine.groups and engine.shards_weights(spread.stage, spread.ranks)
    given = engine.given(decided.recipe).spread
    if not cut or spread.group or given or machines.slots or spread.disk != NO_DISK:
        return None
    grouped = setting.spreading(group=inside)
    now, then = case_of(setting, machines), case_of(grouped, machines)
    if machines.hosts == 1 or inside == 1 or now is None or then is None:
        return None
    if not ANY_CHANGE.fits(grouped, decided.room):
        return None
    try:
        times = predict(now, calibration).seconds / predict(then, calibration).seconds
    except UsageError:  # a figure is missing, as the plan says
        return None
    if times < 1 + WORTH:
        return None
    return (
        f"engine.group={inside} is predicted to be {times:.1f} times as fast: weights are gathered inside "
        "each host, and ranks hold more"
    )


def review(
    recipe: Recipe,
    job: Job,
    facts: Facts,
    speeds: Sequence[float],
    trained: int,
    samples: int | None,
) -> list[Decision]:
    """Return the same from speeds that a job's ranks measured (samples/s per rank), for CPUs as well;
    `trained`: parameters."""
    env: Mapping[str, str | None] = recipe.env if job.device == "cuda" else {"NCCL_IB_DISABLE": "1"}
    members = []
    for place in job.placements:
        about = facts.get(place.host, {})
        link = link_of(about.get("network") or {}, env)
        if link is None:
            return []
        gpu = next((str(gpu["name"]) for gpu in about.get("gpus") or () if gpu.get("name")), "a GPU")
        # Speeds are measured, so that no peak is needed.
        device = Device(CPU, {}) if job.device == CPU else driver_device(gpu) or Device(gpu, {})
        machines = machines_of(device, place.slots, 1, link)
        members.append(MixedHost(place.host, machines, sum(speeds[rank] for rank in place.ranks)))
    if len(members) < 2:
        return []
    work = StepWork(job.batch.micro, 1.0, 3.0)  # what the forward pass takes of both
    engine, steps = recipe.engine.name, job.batch.accumulation
    spread = ModelSpread(engine, ranks=job.world_size, micro_steps=steps, device=job.device)
    case = StepCase(members[0].machines, job.precision, work, lump(trained), spread)
    batch = job.batch.global_ if recipe.batch.global_ or recipe.batch.tokens else None
    shared = Forecast(members, case, samples or ROUND, batch, measured=True)
    slots = [each.ranks for each in members]
    setting = setting_of(recipe, whole_config(recipe), job.precision, job.device, slots)
    if setting is not None:
        setting = replace(setting, micro=job.batch.micro).spreading(micro_steps=steps)
        shared = replace(shared, fits=_fitting(recipe, setting, facts))
    return words([shared], samples, "at the measured speeds", measured=True)


def words(guesses: Sequence[Forecast], samples: int | None, basis: str, *, measured: bool) -> list[Decision]:
    """Return the decisions for several guesses at the same hosts' speeds; predictions are those of the middle
    one.

    There are none where some guess has no choice of hosts that is faster than all of them. A host is named
    where every guess has an epoch slower with it, and the fastest choice is without it.
    """
    now = [guess.predict().epoch for guess in guesses]
    fastest = [guess.best() for guess in guesses]
    if any(chosen.epoch >= epoch for chosen, epoch in zip(fastest, now, strict=True)):
        return []
    middle = len(guesses) // 2
    chosen, guess, members = fastest[middle], guesses[middle], guesses[middle].members
    what = "per epoch" if samples else f"per {ROUND:,} samples"
    alike = all(replace(each, host=members[0].host) == members[0] for each in members)  # none is to blame
    made = []
    for each in members:
        if alike or each.host in chosen.hosts:
            continue
        without = [other.without(each.host) for other in guesses]
        if all(less < epoch for less, epoch in zip(without, now, strict=True)):
            why = f"predicted {format_seconds(now[middle])} {what} with it, "
            why += f"{format_seconds(without[middle])} without it, {basis}"
            made.append(Decision(f"host {each.host}", SLOWER, why))
    names = ", ".join(chosen.hosts[:NAMED])
    if alike:
        names = f"any {len(chosen.hosts)} of {len(members)}"
    elif len(chosen.hosts) > NAMED:
        names += f" and {len(chosen.hosts) - NAMED} more"
    text = f"predicted {format_seconds(chosen.epoch)} {what}, {format_seconds(now[middle])} with all, {basis}"
    if spec_of(guess.case.spread.engine).plain and not measured:
        other = replace(guess, measured=True).best()
        if other.epoch < chosen.epoch:
            text += f"; {format_seconds(other.epoch)} on {len(other.hosts)} hosts with batch.split=measured"
    return [*made, Decision(FASTEST, names, text)]
