"""Predict what a decided job needs and takes: memory, time, other numbers of hosts, and the sentence that a
person wants. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from muster.core import families, float8
from muster.core.batch import check_groups
from muster.core.errors import RecipeError, UsageError
from muster.core.flops import training
from muster.core.hardware.devices import CPU
from muster.core.hardware.links import between_hosts
from muster.core.hardware.machines import Machines
from muster.core.recipe import Recipe
from muster.core.units import format_seconds
from muster.planner.decide import Decided, check_cuda_graphs
from muster.planner.document import MemoryPlan, ScalingPoint, TimePlan
from muster.planner.machines import UnlikeHosts, UserFigures
from muster.planner.memory.fit import (
    MARGIN,
    MemoryLimit,
    Need,
    Setting,
    lacking,
)
from muster.planner.predict import case_of, shape_of_batch, with_others
from muster.planner.time.steptime import (
    Calibration,
    Step,
    StepCase,
    StepWork,
    between,
    case_key,
    link_key,
    predict,
)
from muster.planner.ways import TrainingWay, best, ways

PARTS = ("compute", "communication", "optimizer", "transfer", "overhead")  # of a step
MOST_POINTS = 12  # of a scaling curve
TRIED = (2, 4, 8, 16, 32)  # times as many micro-steps per optimizer step
UNTRACED = (
    "samples/s is too high: memory traffic is not counted where the model is not traced. Published runs take "
    "0.9 to 1.4 times as long from about 1 G parameters on, and several times as long with 0.1 G and less"
)
NO_TIME = "no time: the model was not traced, and no formula has its operations"


@dataclass(frozen=True)
class Length:
    """How much is trained. `samples`: of an epoch, whose last step counts as a whole one; `price`: of a host
    for an hour, in any currency; `most`: seconds after which training ends; None: not given."""

    samples: int
    epochs: float = 1.0
    price: float | None = None
    most: float | None = None


@dataclass(frozen=True)
class Point:
    """A job on its machines. `whole`, `total`: seconds of all that is to be trained, and until training ends;
    `cost`: None without a price."""

    case: StepCase
    step: Step
    whole: float
    total: float
    cost: float | None

    @property
    def hosts(self) -> int:
        """The number of hosts."""
        return self.case.machines.hosts


def point(case: StepCase, length: Length, calibration: Calibration | None = None) -> Point:
    """Predict what a job takes on its machines."""
    step = predict(case, calibration)
    whole = math.ceil(length.epochs * -(-length.samples // case.batch)) * step.seconds
    total = whole if length.most is None else min(whole, length.most)
    cost = None if length.price is None else length.price * case.machines.hosts * total / 3600
    return Point(case, step, whole, total, cost)


def memory_plan(
    setting: Setting, room: MemoryLimit, needed: Need, samples: str | None = None
) -> MemoryPlan:
    """Return a rank's memory, and whether it fits. `samples`: how long they are, where they differ."""
    short = lacking(setting, room, needed)
    return MemoryPlan(
        device=needed.device,
        host=needed.host,
        device_bytes=sum(needed.device.values()),
        host_bytes=sum(needed.host.values()),
        device_room=room.device,
        host_room=room.host,
        margin=MARGIN,
        basis=needed.basis,
        moment=needed.moment,
        samples=samples,
        lacking=short.place if short is not None and short.refused else None,
    )


def predictions(
    decided: Decided,
    figures: UserFigures,
    samples: int | None,
    calibration: Calibration,
    fewer: UnlikeHosts | None = None,
) -> tuple[dict[str, Any], list[str]]:
    """Return the fields of a Plan that are predicted, as far as they can be, and notes on them. `samples`: of
    an epoch, None: not known here."""
    setting, needed = decided.setting, decided.way.needed
    if setting is None or needed is None:
        return {}, []
    how = None
    if decided.recipe.padding_varies and decided.where is not None:
        counted = decided.where.shortened(decided.recipe) is not decided.recipe
        why = "the longest of the data" if counted else "as long as the recipe lets one be"
        how = f"{setting.lengths.all:,} tokens, {why}"
    made = {
        "parameters": setting.parameters,
        "trainable": setting.trainable,
        "memory": memory_plan(setting, decided.room, needed, how),
    }
    machines = decided.machines
    try:
        case = case_of(setting, machines) if machines is not None else None
        if case is None:
            why = NO_TIME if machines is not None else ""  # else a note says which machine is not known
            why = why if setting.drawing is None else _undrawn(setting, machines)
            return made, [why] if why else []
        timed, notes = _timed(decided, case, figures, samples, calibration, fewer)
        return made | timed, notes
    except UsageError as error:  # a figure is missing: that costs the time alone
        return made, [f"no time: {error.what}" + (f" ({error.hint})" if error.hint else "")]


def _timed(
    decided: Decided,
    case: StepCase,
    figures: UserFigures,
    samples: int | None,
    calibration: Calibration,
    fewer: UnlikeHosts | None,
) -> tuple[dict[str, Any], list[str]]:
    """Return the fields of a Plan about time. Raises UsageError where a figure that the time rests on is
    neither stated nor measured."""
    recipe, once = decided.recipe, figures.tokens is not None
    per_epoch = None if samples is None or once else math.ceil(samples / case.batch)
    epochs = 1.0 if once else recipe.train.epochs
    if recipe.train.max_steps is not None and not once:  # the same samples on any number of hosts
        samples, epochs = recipe.train.max_steps * case.batch, 1.0
    minutes = None if once else recipe.train.max_minutes
    length = Length(samples or case.batch, epochs, figures.price, None if minutes is None else 60 * minutes)
    now = point(case, length, calibration)
    hosts = case.machines.hosts
    counts = sorted({*host_counts(decided.reach or hosts), hosts})
    tried = [each for n in counts if (each := on_hosts(decided, case.machines, n, fewer))]
    points = [point(each, length, calibration) for _, each in tried]
    # A sentence about the hosts that are used; of one alone, why the others are not.
    compared = [each for each in points if each.hosts <= hosts] if hosts > 1 else points
    counted = samples is not None
    fastest = max(points, key=lambda each: (each.step.samples_per_second, -each.hosts), default=None)
    made = {
        "time": _time_plan(decided, now, calibration, per_epoch, counted=counted, fewer=fewer),
        "scaling": [
            _scaling(each, points[0], _changes(way, decided.way), counted=counted)
            for each, (way, _) in zip(points, tried, strict=True)
        ],
        "fastest_hosts": fastest.hosts if fastest else None,
        "sentence": sentence(compared, length, calibration) if counted and compared else None,
    }
    return made, _notes(recipe, now, minutes, counted=counted, once=once)


def _notes(recipe: Recipe, now: Point, minutes: float | None, *, counted: bool, once: bool) -> list[str]:
    """Return notes for readers of the time. `minutes`: after which training ends; `once`: the user gave the
    number of tokens."""
    notes = []
    if counted and now.whole > now.total:
        limit = f"train.max_minutes={minutes:g}"
        notes.append(f"{limit} ends the training after {now.total / now.whole:.0%} of its steps")
    if not now.case.work.moved and now.case.machines.device.bandwidth:
        notes.append(UNTRACED)
    if once:
        steps, unlimited = round(now.whole / now.step.seconds), recipe.train.max_minutes is None
        if not unlimited or recipe.train.max_steps != steps:
            ways = f"train.max_steps={steps}{'' if unlimited else ' train.max_minutes=null'}"
            notes.append(f"--tokens in place of what the recipe trains: {ways} makes it so")
    return notes


def _undrawn(setting: Setting, machines: Machines | None) -> str:
    """Return why there is no time, and the least that generating takes: each token reads all weights once."""
    assert setting.drawing is not None
    bandwidth = machines.device.bandwidth if machines is not None else None
    rounds = setting.micro * setting.spread.micro_steps // setting.drawn
    read = rounds * setting.drawing.answer * setting.spread.element * setting.parameters
    least = f": at least {format_seconds(read / bandwidth)} of a step on this device" if bandwidth else ""
    return f"time not planned: answers are drawn token by token{least}"


def on_hosts(
    decided: Decided, machines: Machines, hosts: int, fewer: UnlikeHosts | None = None
) -> tuple[TrainingWay, StepCase] | None:
    """Return the job on a number of hosts, on another one at its best there; None: it does not fit or work.
    The global batch stays where the recipe gives it, else a rank's samples of a step do."""
    asked, where, way = decided.asked, decided.where, decided.way
    those = fewer.fastest(hosts) if fewer is not None and hosts < machines.hosts else machines.on(hosts)
    if those is None or asked is None or where is None:
        return None
    if hosts != machines.hosts:
        slots = [*those.slots, *[those.per_host] * hosts][:hosts]
        try:
            way, _ = best(ways(asked, replace(where, slots=slots, machines=those)))
            check_cuda_graphs(way.recipe, way.batch)
            check_groups(way.setting.spread.group if way.setting else 0, those.ranks)
        except RecipeError:
            return None
        if way.setting is not None and way.setting.share < 1:  # shares are given rank by rank
            return None
    refused = way.setting is None or (way.lacks is not None and way.lacks.refused)
    case = None if way.setting is None or refused else case_of(way.setting, those)
    return None if case is None else (way, case)


def host_counts(hosts: int) -> list[int]:
    """Return 1 to so many hosts; of many, powers of two and the last."""
    if hosts <= MOST_POINTS:
        return list(range(1, hosts + 1))
    powers = [1 << i for i in range(int(math.log2(hosts)) + 1)]
    return [*powers, *([hosts] if powers[-1] != hosts else [])]


def _time_plan(
    decided: Decided,
    now: Point,
    calibration: Calibration,
    per_epoch: int | None,
    *,
    counted: bool,
    fewer: UnlikeHosts | None,
) -> TimePlan:
    """Return the times of a plan. `per_epoch`: steps."""
    step, machines, setting = now.step, now.case.machines, decided.setting
    assert setting is not None
    device = machines.device
    assumed = [] if now.case.work.moved else ["operations only: memory traffic is not counted"]
    if decided.recipe.padding_varies:
        assumed.append(
            "steps are for the longest samples; with dynamic padding they are shorter"
            if setting.mean_tokens is None
            else f"steps are for samples of about {setting.tokens:.0f} tokens, the mean with padding"
        )
    watts = device.watts if counted and fewer is None else None
    tokens = step.samples_per_second * setting.tokens if decided.recipe.tokenized else None
    flops, peak = _needed(setting), (fewer or device).peak(float8.peak_of(setting.precision))
    rate = now.case.share * now.case.spread.micro_steps * flops / step.seconds if flops else None
    return TimePlan(
        **{name: getattr(step, name) for name in PARTS},
        step=step.seconds,
        step_range=between(now.case, calibration),
        samples_per_second=step.samples_per_second,
        steps=round(now.total / step.seconds) if counted else None,
        epoch=None if per_epoch is None else per_epoch * step.seconds,
        total=now.total if counted else None,
        cost=now.cost if counted else None,
        tokens_per_second=tokens,
        tokens_per_device=None if tokens is None else tokens / machines.ranks,
        # No maker states a CPU's peak.
        mfu=rate / peak if rate and peak and device.kind != CPU else None,
        kwh=machines.ranks * watts * now.total / 3.6e6 if watts else None,
        assumed=[*step.assumed, *assumed],
        calibrated=case_key(now.case) in calibration.efficiency,
    )


def _needed(setting: Setting) -> float | None:
    """Return the operations of a micro-batch that the gradient needs, none computed twice. By the family's
    formula, else by the trace."""
    products = families.products(setting.config, shape_of_batch(setting))
    if products is not None:
        frozen = setting.trainable < setting.parameters
        own: float = training(products, frozen=frozen).model
    elif setting.trace is not None:
        passes = setting.trace.at(setting.micro)
        own = passes.flops - passes.again
    else:
        return None
    whole = with_others(setting, StepWork(setting.micro, own / 3, own)).flops
    return whole * setting.padded


def _changes(way: TrainingWay, chosen: TrainingWay) -> dict[str, str]:
    """Return the settings with which a way differs from the chosen one, as overrides."""
    other, own = ({**each.changes, "batch.micro": str(each.batch.micro)} for each in (chosen, way))
    return {key: value for key, value in own.items() if other.get(key) != value}


def _scaling(each: Point, fewest: Point, changes: Mapping[str, str], *, counted: bool) -> ScalingPoint:
    speed = each.step.samples_per_second
    return ScalingPoint(
        hosts=each.hosts,
        ranks=each.case.machines.ranks,
        changes=dict(changes),
        step=each.step.seconds,
        samples_per_second=speed,
        efficiency=speed / each.hosts / (fewest.step.samples_per_second / fewest.hosts),
        total=each.total if counted else None,
        cost=each.cost if counted else None,
    )


# ----------------------------------------------------------------------------------------------------
# The sentence: several hosts against the fewest, why, and what would make them faster.


def sentence(points: Sequence[Point], length: Length, calibration: Calibration | None = None) -> str:
    """Compare all hosts with one; where one does not hold the job, with the fewest that do. `points`: of
    increasing numbers of hosts."""
    alone, together = points[0], points[-1]
    hosts, step, link = together.hosts, together.step, together.case.machines.link
    times = alone.whole / together.whole
    if alone.hosts > 1:
        head = f"At least {alone.hosts} of these hosts are needed, which take {format_seconds(alone.whole)}"
        if together is alone:
            return f"{head}."
        return f"{head}; {hosts} take {format_seconds(together.whole)}: {times:.1f} times as fast."
    if hosts == 1:
        return f"1 host takes {_time(alone.whole)}: {_where(alone.step)}."
    head = f"{hosts} hosts take {_time(together.whole)}, 1 host {_time(alone.whole)}"
    name = _spaced(link.name) if link else "?"
    network = f"the {name} network costs {_time(step.communication)} of every {_time(step.seconds)} step"
    if together.whole < alone.whole:
        return f"{head}: {times:.1f} times as fast, {times / hosts:.0%} of {hosts}; {network}."
    ways = _faster(together.case, alone, length, calibration or Calibration())
    tail = (
        f"{' or '.join(ways)} would make {hosts} hosts faster" if ways else "nothing tried makes them faster"
    )
    return f"{head}: {network}; {tail}."


def _faster(case: StepCase, alone: Point, length: Length, calibration: Calibration) -> list[str]:
    """Return the slowest usual link, and the smallest multiple of micro-steps, with which several hosts beat
    one."""

    def beats(other: StepCase) -> bool:
        return point(other, length, calibration).whole < alone.whole

    now, share = case.machines.link, 1.0
    if now is not None:  # of its stated speed, as it was measured
        measured = calibration.links.get(link_key(now, case.machines.device.kind))
        if measured is not None and measured.bandwidth is not None:
            share = measured.bandwidth / now.stated
    faster = (
        replace(link, bandwidth=min(link.bandwidth, share * link.stated))
        for link in between_hosts()
        if now is None or link.stated > now.stated
    )
    links = [next((link.name for link in faster if beats(case.over(case.machines.over(link)))), None)]
    numbers = (times * case.spread.micro_steps for times in TRIED)
    steps = next((number for number in numbers if beats(case.accumulating(number))), None)
    return [*(_spaced(name) for name in links if name), *([f"accumulation {steps}"] if steps else [])]


def _where(step: Step) -> str:
    """Return the largest part of a step."""
    parts = {
        "computation": step.compute, "the network": step.communication, "the optimizer": step.optimizer,
        "the bus to the host": step.transfer,
    }  # fmt: skip
    name = max(parts, key=lambda each: parts[each])
    return f"{name} is {parts[name] / step.seconds:.0%} of every {_time(step.seconds)} step"


def _time(seconds: float) -> str:
    """Format seconds for comparison: they stay seconds up to three hours."""
    return f"{seconds:.0f} s" if 10 <= seconds < 10800 else format_seconds(seconds)


def _spaced(name: str) -> str:
    """Format a link's speed: `10Gbit` -> `10 Gbit/s`."""
    head = name.rstrip("GMkbit")
    return f"{head} {name[len(head) :]}/s" if name.endswith("bit") and head else name
