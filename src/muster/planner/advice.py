"""Which hosts make a job slower, from what they say of themselves before it starts. Pure.

Where a host does not say what is needed (a CPU's speed, a link's), there is no prediction rather than a wrong
one. Between the published runs that are known to us, models reach 12 to 56 % of their GPUs' stated peaks, so
a host is named only where it makes an epoch slower all over that range.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from muster.core.errors import UsageError
from muster.core.hardware.devices import CPU, Device, driver_device
from muster.core.hardware.machines import Machines, machines_of
from muster.core.job import FASTEST, SLOWER, Decision, Job
from muster.core.recipe import Recipe
from muster.core.units import format_seconds
from muster.engines.base import spec_of
from muster.engines.spread import NO_DISK, ModelSpread
from muster.planner.machines import link_of
from muster.planner.memory.fit import MemoryLimit, Setting
from muster.planner.predict import case_of
from muster.planner.remedies import ANY_CHANGE
from muster.planner.time.mixed import Forecast, Load, MixedHost
from muster.planner.time.reached import reached
from muster.planner.time.steptime import Calibration, StepCase, StepWork, case_key, lump, predict

NAMED = 8  # hosts that a text names one by one
WORTH = 0.1  # of the speed: groups that bring less are not spoken of
ROUND = 10_000  # samples, where nobody here knows how many an epoch has


def advise(
    recipe: Recipe,
    case: StepCase,
    members: Sequence[MixedHost],
    calibration: Calibration,
    *,
    batch: int | None,
    samples: int | None,
) -> list[Decision]:
    """Before the start: a decision for each host that makes an epoch slower, and one that names the fastest
    hosts. `case`: the job on all of them; `batch`: of a step, where it is the same on any number of hosts."""
    if len(members) < 2 or isinstance(recipe.batch.split, list):  # shares are given rank by rank
        return []
    calibrated = all(case_key(case.over(each.machines)) in calibration.efficiency for each in members)
    off = max(reached(each.machines.device, case.precision).off for each in members)
    times = (1.0,) if calibrated else (1 + off, 1.0, 1 / (1 + off))
    loads = [Load(case, samples or ROUND, batch, calibration, each) for each in times]
    basis = "by this plan's step times"
    if not calibrated:
        basis += (
            f"; the order is the same if computation takes {times[-1]:.1f} to {times[0]:.1f} times as long"
        )
    measured = recipe.batch.split == "measured"
    return words(members, loads, _of(samples), basis, measured=measured)


def grouping(
    recipe: Recipe, setting: Setting, machines: Machines, room: MemoryLimit, calibration: Calibration
) -> str | None:
    """That gathering weights inside each host would be faster, where it is known to fit; None: it would not,
    or weights are not gathered between hosts."""
    engine, inside = setting.engine, machines.per_host
    spread = setting.spread
    cut = engine.groups and engine.shards_weights(spread.stage, spread.ranks)
    if not cut or spread.group or engine.given(recipe).spread or machines.slots or spread.disk != NO_DISK:
        return None
    grouped = setting.spreading(group=inside)
    now, then = case_of(setting, machines), case_of(grouped, machines)
    if machines.hosts == 1 or inside == 1 or now is None or then is None:
        return None
    if not ANY_CHANGE.fits(grouped, room):
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
    facts: Mapping[str, Mapping[str, Any]],
    speeds: Sequence[float],
    trained: int,
    samples: int | None,
) -> list[Decision]:
    """The same from speeds that a job's ranks measured (samples/s per rank), for CPUs as well; `trained`:
    parameters."""
    env: Mapping[str, str | None] = recipe.env if job.device == "cuda" else {"NCCL_IB_DISABLE": "1"}
    members = []
    for place in job.placements:
        about = facts.get(place.host, {})
        link = link_of(about.get("network") or {}, env)
        if link is None:
            return []
        machines = machines_of(_device(job.device, about), place.slots, 1, link)
        members.append(MixedHost(place.host, machines, sum(speeds[rank] for rank in place.ranks)))
    if len(members) < 2:
        return []
    work = StepWork(job.batch.micro, 1.0, 3.0)  # what the forward pass takes of both
    engine, steps = recipe.engine.name, job.batch.accumulation
    spread = ModelSpread(engine, ranks=job.world_size, micro_steps=steps, device=job.device)
    case = StepCase(members[0].machines, job.precision, work, lump(trained), spread)
    batch = job.batch.global_ if recipe.batch.global_ or recipe.batch.tokens else None
    load = Load(case, samples or ROUND, batch)
    return words(members, [load], _of(samples), "at the measured speeds", measured=True)


def _device(kind: str, about: Mapping[str, Any]) -> Device:
    """The host's GPU, or its CPUs; speeds are measured, so that no peak is needed."""
    if kind == CPU:
        return Device(CPU, {})
    name = next((str(gpu["name"]) for gpu in about.get("gpus") or () if gpu.get("name")), "a GPU")
    return driver_device(name) or Device(name, {})


def _of(samples: int | None) -> str:
    return "per epoch" if samples else f"per {ROUND:,} samples"


def words(
    members: Sequence[MixedHost], loads: Sequence[Load], what: str, basis: str, *, measured: bool
) -> list[Decision]:
    """The decisions for several guesses at the same hosts' speeds; predictions are those of the middle one.

    Nothing is said where some guess has no choice of hosts that is faster than all of them. A host is named
    where every guess has an epoch slower with it, and the fastest choice is without it.
    """
    guesses = [Forecast(members, load, measured=measured) for load in loads]
    now = [guess.predict().epoch for guess in guesses]
    fastest = [guess.best() for guess in guesses]
    if any(chosen.epoch >= epoch for chosen, epoch in zip(fastest, now, strict=True)):
        return []
    middle = len(guesses) // 2
    chosen = fastest[middle]
    alike = all(replace(each, host=members[0].host) == members[0] for each in members)  # none is to blame
    tables = [] if alike else [guess.worths() for guess in guesses]
    made = [
        Decision(
            f"host {each.host}",
            SLOWER,
            f"predicted {format_seconds(each.with_it)} {what} with it, {format_seconds(each.without_it)} "
            f"without it, {basis}",
        )
        for index, each in enumerate(tables[middle] if tables else ())
        if each.host not in chosen.hosts
        and all(table[index].without_it < table[index].with_it for table in tables)
    ]
    names = ", ".join(chosen.hosts[:NAMED])
    if alike:
        names = f"any {len(chosen.hosts)} of {len(members)}"
    elif len(chosen.hosts) > NAMED:
        names += f" and {len(chosen.hosts) - NAMED} more"
    text = f"predicted {format_seconds(chosen.epoch)} {what}, {format_seconds(now[middle])} with all, {basis}"
    plain = spec_of(loads[middle].case.spread.engine).plain
    other = Forecast(members, loads[middle], measured=True).best() if plain and not measured else chosen
    if other.epoch < chosen.epoch:
        text += f"; {format_seconds(other.epoch)} on {len(other.hosts)} hosts with batch.split=measured"
    return [*made, Decision(FASTEST, names, text)]
