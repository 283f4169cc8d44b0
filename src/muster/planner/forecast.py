"""From a decided job to its plan: memory, time, scaling, and the sentence that a person wants. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace

from muster.core import families, float8
from muster.core.batch import resolve_batch
from muster.core.errors import RecipeError, UsageError
from muster.core.flops import training
from muster.core.hardware.devices import CPU
from muster.core.hardware.links import between_hosts
from muster.core.hardware.machines import Machines
from muster.core.recipe import Recipe
from muster.core.units import format_seconds
from muster.engines.base import spec_of
from muster.planner.decide import Decided
from muster.planner.document import MemoryPlan, Plan, ScalingPoint, TimePlan
from muster.planner.memory.fit import (
    MARGIN,
    MemoryLimit,
    Need,
    Setting,
    lacking,
    largest_micro,
    may_run,
    need,
)
from muster.planner.predict import case_of, shape_of_batch, with_others
from muster.planner.time.steptime import (
    Calibration,
    Step,
    StepCase,
    StepWork,
    between,
    case_key,
    evaluation,
    link_key,
    predict,
)

MOST_POINTS = 12  # of a scaling curve
UNTRACED = (
    "samples/s is too high: memory traffic is not counted where the model is not traced. Published runs take "
    "0.9 to 1.4 times as long from about 1 G parameters on, and several times as long with 0.1 G and less"
)
UNCOUNTED = "no time: the model was not traced, and no formula has its operations"


@dataclass(frozen=True)
class Trained:
    """How much is trained, and what its time rests on. `samples`: of an epoch, None: not known here; `once`:
    they are all that is to be trained; `price`: of a host for an hour; `fewer`: the machines of so many
    hosts, where they differ."""

    calibration: Calibration
    samples: int | None = None
    once: bool = False
    price: float | None = None
    fewer: Callable[[int], Machines | None] | None = None


def memory_plan(setting: Setting, room: MemoryLimit, needed: Need) -> MemoryPlan:
    """A rank's memory, and whether it fits."""
    host = dict(needed.host)
    device = dict(needed.device)
    for name, size in needed.first.items():
        (device if setting.spread.device == "cpu" else host)[name] = size // setting.ranks_per_host
    short = lacking(setting, room, needed)
    return MemoryPlan(
        device=device,
        host=host,
        device_bytes=sum(device.values()),
        host_bytes=sum(host.values()),
        device_room=room.device,
        host_room=room.host,
        margin=MARGIN,
        basis=needed.basis,
        moment=needed.moment,
        lacking=short.place if short is not None and short.refused else None,
    )


def plan_of(decided: Decided, start: Plan, trained: Trained) -> Plan:
    """Return the plan `start` with memory, time and scaling, as far as they can be told."""
    setting, room = decided.setting, decided.room
    needed = need(setting) if setting is not None else None
    if setting is None or needed is None:
        return start
    made = start.model_copy(
        update={
            "parameters": setting.parameters,
            "trainable": setting.trainable,
            "memory": memory_plan(setting, room, needed),
        }
    )
    try:
        return _with_time(decided, setting, trained, made)
    except UsageError as error:  # a figure is missing: that costs the time alone
        note = f"no time: {error.what}" + (f" ({error.hint})" if error.hint else "")
        return made.model_copy(update={"notes": [*made.notes, note]})


def _with_time(decided: Decided, setting: Setting, trained: Trained, made: Plan) -> Plan:
    """Raises UsageError where a figure that the time rests on is neither stated nor measured."""
    recipe, machines, calibration = decided.recipe, decided.machines, trained.calibration
    case = case_of(setting, machines) if machines is not None else None
    if case is None:
        why = UNCOUNTED if machines is not None else ""  # else a note says which machine is not known
        why = why if setting.drawing is None else _undrawn(setting, machines)
        return made.model_copy(update={"notes": [*made.notes, *([why] if why else [])]})
    samples, epochs = trained.samples, recipe.train.epochs
    if trained.once:
        epochs = 1.0
    elif recipe.train.max_steps is not None:  # the same samples on any number of hosts
        samples, epochs = recipe.train.max_steps * case.batch, 1.0
    minutes = None if trained.once else recipe.train.max_minutes
    most = None if minutes is None else 60 * minutes
    length = Length(samples or case.batch, epochs, price=trained.price, most=most)
    now = point(case, length, calibration)
    hosts = case.machines.hosts
    counts = sorted({*host_counts(decided.reach or hosts), hosts})
    cases = (on_hosts(recipe, setting, case.machines, decided.room, n, trained.fewer) for n in counts)
    points = curve(cases, length, calibration)
    # A sentence about the hosts that are used; of one alone, why the others are not.
    compared = [each for each in points if each.hosts <= hosts] if hosts > 1 else points
    alone = points[0] if points else now
    counted = samples is not None
    notes = list(made.notes)
    if counted and now.whole > now.total:
        limit = f"train.max_minutes={minutes:g}"
        notes.append(f"{limit} ends the training after {now.total / now.whole:.0%} of its steps")
    assumed = [] if case.work.moved else ["operations only: memory traffic is not counted"]
    if not case.work.moved and case.machines.device.bandwidth:
        notes.append(UNTRACED)
    if trained.once:
        steps, unlimited = round(now.whole / now.step.seconds), recipe.train.max_minutes is None
        if not unlimited or recipe.train.max_steps != steps:
            ways = f"train.max_steps={steps}{'' if unlimited else ' train.max_minutes=null'}"
            notes.append(f"--tokens in place of what the recipe trains: {ways} makes it so")
    if recipe.padding_varies:
        assumed.append("steps are for the longest samples; with dynamic padding they are shorter")
    return made.model_copy(
        update={
            "time": _time_plan(now, trained, counted=counted, assumed=assumed).model_copy(
                update=_as_tokens(recipe, setting, now)
            ),
            "scaling": [_scaling(each, alone, counted=counted) for each in points],
            "fastest_hosts": fastest(points).hosts if points else None,
            "sentence": _sentence(compared, length, calibration) if counted else None,
            "notes": notes,
        }
    )


def _undrawn(setting: Setting, machines: Machines | None) -> str:
    """Why there is no time, and the least that drawing takes: each token reads all weights once."""
    assert setting.drawing is not None
    bandwidth = machines.device.bandwidth if machines is not None else None
    rounds = setting.micro * setting.spread.micro_steps // setting.drawn
    read = rounds * setting.drawing.answer * setting.spread.element * setting.parameters
    least = f": at least {format_seconds(read / bandwidth)} of a step on this device" if bandwidth else ""
    return f"time not planned: answers are drawn token by token{least}"


def global_given(recipe: Recipe) -> bool:
    """Whether the recipe, or the engine's configuration of the user's own, says how large a global batch
    is."""
    by_file = spec_of(recipe.engine.name).given(recipe).batch.get("global")
    return by_file is not None or recipe.batch.global_ is not None or recipe.batch.tokens is not None


def on_hosts(
    recipe: Recipe,
    setting: Setting,
    machines: Machines,
    room: MemoryLimit,
    hosts: int,
    fewer: Callable[[int], Machines | None] | None = None,
) -> StepCase | None:
    """Return the job on another number of hosts; None: it does not fit or work out there. The global batch
    stays where the recipe says which, else micro-batch and accumulation do. `fewer`: as in Trained."""
    those = fewer(hosts) if fewer is not None and hosts < machines.hosts else machines.on(hosts)
    if those is None:
        return None
    ranks, now = those.ranks, setting.spread
    there = setting.spreading(ranks=ranks)
    if there.spread.grouped and ranks % now.group:
        return None
    if setting.share < 1 and ranks != now.ranks:  # shares are given rank by rank
        return None
    if global_given(recipe) and ranks != now.ranks:
        largest = setting.micro
        if recipe.batch.micro is None:  # fewer hosts may have to hold more each
            largest = max(1, largest_micro(there, room, largest))
        samples = setting.micro * now.micro_steps * now.ranks
        try:
            batch = resolve_batch(None, None, samples, world_size=ranks, largest=largest)
        except RecipeError:
            return None
        there = replace(there, micro=batch.micro).spreading(micro_steps=batch.accumulation)
    return case_of(there, those) if may_run(there, room) else None


def _sentence(points: Sequence[Point], length: Length, calibration: Calibration) -> str | None:
    """All hosts against one; where one does not hold the job, against the fewest that do."""
    if not points:
        return None
    fewest, most = points[0], points[-1]
    if fewest.hosts == 1:
        return say(fewest, most, length, calibration).text
    head = f"At least {fewest.hosts} of these hosts are needed, which take {format_seconds(fewest.whole)}"
    if most is fewest:
        return f"{head}."
    times = fewest.whole / most.whole
    return f"{head}; {most.hosts} take {format_seconds(most.whole)}: {times:.1f} times as fast."


def host_counts(hosts: int) -> list[int]:
    """1 to so many hosts; of many, powers of two and the last."""
    if hosts <= MOST_POINTS:
        return list(range(1, hosts + 1))
    powers = [1 << i for i in range(int(math.log2(hosts)) + 1)]
    return [*powers, *([hosts] if powers[-1] != hosts else [])]


def _as_tokens(recipe: Recipe, setting: Setting, now: Point) -> dict[str, float | None]:
    """Tokens a second and MFU. No maker states a CPU's peak."""
    device, step = now.case.machines.device, now.step
    tokens = step.samples_per_second * setting.lengths.all if recipe.tokenized else None
    flops, peak = _needed(setting), device.peak(float8.peak_of(setting.precision))
    rate = now.case.share * now.case.spread.micro_steps * flops / step.seconds if flops else None
    return {
        "tokens_per_second": tokens,
        "tokens_per_device": None if tokens is None else tokens / now.case.machines.ranks,
        "mfu": rate / peak if rate and peak and device.kind != CPU else None,
    }


def _needed(setting: Setting) -> float | None:
    """Operations of a micro-batch that the gradient needs: none are computed twice. By the family's formula,
    else by the trace, where what is computed again is about a forward pass."""
    products = families.products(setting.config, shape_of_batch(setting))
    if products is not None:
        frozen = setting.trainable < setting.parameters
        own: float = training(products, frozen=frozen).model
    elif setting.trace is not None:
        passes = setting.trace.at(setting.micro)
        own = passes.flops - (passes.forward_flops if setting.trace.checkpointing else 0)
    else:
        return None
    return with_others(setting, StepWork(setting.micro, own / 3, own)).flops


def _time_plan(now: Point, trained: Trained, *, counted: bool, assumed: list[str]) -> TimePlan:
    step, machines = now.step, now.case.machines
    watts = machines.device.watts if counted and trained.fewer is None else None  # unlike ones have others
    parts = {name: value for name, value in asdict(step).items() if name in _PARTS}
    per_epoch = (
        None if trained.samples is None or trained.once else math.ceil(trained.samples / now.case.batch)
    )
    return TimePlan(
        **parts,
        step=step.seconds,
        step_range=between(now.case, trained.calibration),
        samples_per_second=step.samples_per_second,
        steps=round(now.total / step.seconds) if counted else None,
        epoch=None if per_epoch is None else per_epoch * step.seconds,
        total=now.total if counted else None,
        cost=now.cost if counted else None,
        kwh=machines.ranks * watts * now.total / 3.6e6 if watts else None,
        assumed=[*step.assumed, *assumed],
        calibrated=case_key(now.case) in trained.calibration.efficiency,
    )


_PARTS = ("compute", "communication", "optimizer", "transfer", "overhead")


def _scaling(each: Point, alone: Point, *, counted: bool) -> ScalingPoint:
    speed = each.step.samples_per_second
    return ScalingPoint(
        hosts=each.hosts,
        ranks=each.case.machines.ranks,
        step=each.step.seconds,
        samples_per_second=speed,
        efficiency=speed / each.hosts / (alone.step.samples_per_second / alone.hosts),
        total=each.total if counted else None,
        cost=each.cost if counted else None,
    )


# ----------------------------------------------------------------------------------------------------
# From a step to what a person asks: how long, for how much, on how many hosts, and what would be faster.
# Pure.

TRIED = (2, 4, 8, 16, 32)  # times as many micro-steps per optimizer step


@dataclass(frozen=True)
class Length:
    """How much is trained. `samples`: of an epoch; `held_out`: evaluated after each one; `price`: of a host
    for an hour, in any currency; `most`: seconds after which training ends; None: not given. An epoch's last
    step counts as a whole one."""

    samples: int
    epochs: float = 1.0
    held_out: int = 0
    price: float | None = None
    most: float | None = None


@dataclass(frozen=True)
class Point:
    """A job on so many hosts. `epoch`, `whole`, `total`: seconds, evaluation included, of an epoch, of all
    that is to be trained, and until training ends; `cost`: None without a price."""

    hosts: int
    case: StepCase
    step: Step
    epoch: float
    whole: float
    total: float
    cost: float | None


@dataclass(frozen=True)
class ScalingWords:
    """The sentence, and what would make more hosts faster than one: a link's name, a number of
    micro-steps."""

    text: str
    link: str | None = None
    micro_steps: int | None = None


def point(case: StepCase, length: Length, calibration: Calibration | None = None) -> Point:
    """What a job takes on its machines."""
    step = predict(case, calibration)
    steps = -(-length.samples // case.batch)
    held_out = evaluation(case, length.held_out, calibration) if length.held_out else 0.0
    epoch = steps * step.seconds + held_out
    whole = length.epochs * epoch
    total = whole if length.most is None else min(whole, length.most)
    hosts = case.machines.hosts
    cost = None if length.price is None else length.price * hosts * total / 3600
    return Point(hosts, case, step, epoch, whole, total, cost)


def curve(
    cases: Iterable[StepCase | None], length: Length, calibration: Calibration | None = None
) -> list[Point]:
    """A job on each number of hosts on which it works out."""
    return [point(case, length, calibration) for case in cases if case is not None]


def fastest(points: Sequence[Point]) -> Point:
    """Where most samples/s are; of equals the one with fewer hosts."""
    return max(points, key=lambda each: (each.step.samples_per_second, -each.hosts))


def say(
    alone: Point, together: Point, length: Length, calibration: Calibration | None = None
) -> ScalingWords:
    """Several hosts against one, why, and what would change it."""
    hosts, many = together.hosts, together.case
    if hosts == 1:
        return ScalingWords(f"1 host takes {_time(alone.whole)}: {_where(alone.step)}.")
    head = f"{hosts} hosts take {_time(together.whole)}, 1 host {_time(alone.whole)}"
    step, link = together.step, many.machines.link
    name = _spaced(link.name) if link else "?"
    network = f"the {name} network costs {_time(step.communication)} of every {_time(step.seconds)} step"
    if together.whole < alone.whole:
        times = alone.whole / together.whole
        return ScalingWords(f"{head}: {times:.1f} times as fast, {times / hosts:.0%} of {hosts}; {network}.")
    faster = _faster_link(many, alone, length, calibration)
    more = _more_steps(many, alone, length, calibration)
    ways = [_spaced(faster)] if faster else []
    ways += [f"accumulation {more}"] if more else []
    tail = (
        f"; {' or '.join(ways)} would make {hosts} hosts faster"
        if ways
        else "; nothing tried makes them faster"
    )
    return ScalingWords(f"{head}: {network}{tail}.", faster, more)


def _faster_link(case: StepCase, alone: Point, length: Length, calibration: Calibration | None) -> str | None:
    """The slowest usual link with which several hosts beat one."""
    now = case.machines.link
    share = _reached(case, calibration)
    for link in between_hosts():
        if now is not None and link.stated <= now.stated:
            continue
        better = replace(link, bandwidth=min(link.bandwidth, share * link.stated))
        if point(case.over(case.machines.over(better)), length, calibration).whole < alone.whole:
            return link.name
    return None


def _reached(case: StepCase, calibration: Calibration | None) -> float:
    """What share of its stated speed the present link was measured to reach; 1: not measured."""
    link = case.machines.link
    links = (calibration or Calibration()).links
    name = link_key(link, case.machines.device.kind) if link is not None else ""
    if link is None or name not in links:
        return 1.0
    measured = links[name].bandwidth
    return 1.0 if measured is None else measured / link.stated


def _more_steps(case: StepCase, alone: Point, length: Length, calibration: Calibration | None) -> int | None:
    """The fewest times as many micro-steps with which several hosts beat one host as it is."""
    for times in TRIED:
        micro_steps = times * case.spread.micro_steps
        if point(case.accumulating(micro_steps), length, calibration).whole < alone.whole:
            return micro_steps
    return None


def _where(step: Step) -> str:
    """The largest part of a step."""
    parts = {
        "computation": step.compute, "the network": step.communication, "the optimizer": step.optimizer,
        "the bus to the host": step.transfer,
    }  # fmt: skip
    name = max(parts, key=lambda each: parts[each])
    return f"{name} is {parts[name] / step.seconds:.0%} of every {_time(step.seconds)} step"


def _time(seconds: float) -> str:
    """Seconds that are compared stay seconds up to three hours."""
    return f"{seconds:.0f} s" if 10 <= seconds < 10800 else format_seconds(seconds)


def _spaced(name: str) -> str:
    """`10Gbit` -> `10 Gbit/s`."""
    head = name.rstrip("GMkbit")
    return f"{head} {name[len(head) :]}/s" if name.endswith("bit") and head else name
