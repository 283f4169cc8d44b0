"""The ways in which a recipe can run on some machines, and the best of them: the fastest that fits; where
speeds are not known, the mildest that fits. Each has its learning rate, its batch, how the model is made.
Pure."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from muster.core import families
from muster.core.batch import DEFAULT_MICRO, MULTIPLE, Batch, mean_padded, resolve_batch
from muster.core.errors import DataError, RecipeError
from muster.core.hardware.machines import Machines
from muster.core.job import Decision
from muster.core.near import near_names
from muster.core.recipe import Recipe
from muster.core.trace import Trace
from muster.core.units import counted, format_bytes, format_number
from muster.core.workload import Survey
from muster.engines.base import spec_of
from muster.inputs.model import check_model, model_config, whole_config
from muster.planner.document import Candidate
from muster.planner.memory.fit import MemoryLimit, Need, Setting, Shortage, lacking, largest_micro, need
from muster.planner.predict import predict
from muster.planner.remedies import SYNC, OpenChoices
from muster.planner.setting import sequence_of, setting_of
from muster.planner.time.steptime import Calibration, Step

# A model is made in shards where the whole of it in fp32 takes more than this of what a rank may use.
WHOLE_AT_MOST = 0.25
Tracer = Callable[[Recipe, str, str, int], "Trace | None"]  # recipe, precision, device, ranks


@dataclass(frozen=True)
class RunTarget:
    """What a job runs on, and in what precision. `machines`: those that its time rests on, None: not known;
    `tracer`: of real models, None: nothing is traced; `survey`: of the data, None: not made."""

    precision: str
    device: str
    slots: Sequence[int]
    room: MemoryLimit
    machines: Machines | None = None
    calibration: Calibration = field(default_factory=Calibration)
    tracer: Tracer | None = None
    survey: Survey | None = None

    @property
    def multiple(self) -> int:
        """Of the lengths to which batches are padded."""
        return MULTIPLE if self.device == "cuda" else 1

    def shortened(self, recipe: Recipe) -> Recipe:
        """Return the recipe with samples as long as the longest that there is, where that is known."""
        longest = self.survey.longest if self.survey is not None and recipe.padding_varies else None
        return recipe if longest is None else recipe.with_lengths(longest.rounded(self.multiple))

    def trace(self, recipe: Recipe, ranks: int) -> Trace | None:
        """Return a trace of the recipe's model with its longest samples."""
        made = self.shortened(recipe)
        return self.tracer(made, self.precision, self.device, ranks) if self.tracer else None


@dataclass(frozen=True)
class TrainingWay:
    """A recipe as it can be run, and what it needs and takes.

    `recipe`: with what was `auto` in its model and training; `setting`: None where model or lengths are not
    known here; `changes`: the overrides that distinguish it from others; `decisions`: what was decided on it;
    `needed`: of a rank, None where that is not known; `lacks`: what there is too little of; `step`: None
    where its time is not known.
    """

    recipe: Recipe
    batch: Batch
    setting: Setting | None = None
    changes: Mapping[str, str] = field(default_factory=dict)
    decisions: Sequence[Decision] = ()
    needed: Need | None = None
    lacks: Shortage | None = None
    step: Step | None = None

    @property
    def memory(self) -> int:
        """Bytes of a rank's device; 0: not known, or only a lower bound is known, which would fit."""
        if self.needed is None or not (self.needed.whole or self.lacks):
            return 0
        return sum(self.needed.device.values())

    @property
    def fits(self) -> bool | None:
        """Whether it fits; None: not known."""
        return self.lacks is None if self.memory else None

    @property
    def speed(self) -> float:
        """Samples/s; 0: not known."""
        return self.step.samples_per_second if self.step else 0.0


def ways(recipe: Recipe, where: RunTarget) -> list[TrainingWay]:
    """Return every combination of what is open, mildest first, whether it fits or not: without recomputation,
    at low stages; where it accumulates and the recipe leaves open when gradients are reduced, both, the one
    with less communication first.

    Raises RecipeError where there is none, such as for numbers that contradict each other.
    """
    config, engine = whole_config(recipe), spec_of(recipe.engine.name)
    again, zero = recipe.train.gradient_checkpointing, recipe.engine.zero
    stages = engine.open_stages(recipe)
    defers = engine.defers_reduction and sum(where.slots) > 1 and recipe.engine.sync_each_batch == "auto"
    tried, impossible = list[TrainingWay](), list[RecipeError]()
    for checkpointing, stage in itertools.product([False, True] if again == "auto" else [again], stages):
        changes = {"engine.zero": str(stage)} if zero == "auto" else {}
        changes |= {"train.gradient_checkpointing": str(checkpointing).lower()} if again == "auto" else {}
        made = recipe.choosing(zero=stage, checkpointing=checkpointing)
        try:
            one = size(made, config, where, changes)
            if not defers or one.batch.accumulation == 1:
                tried.append(one)
                continue
            for each in (False, True):
                more = {**changes, SYNC: str(each).lower()}
                tried.append(size(made.choosing(sync_each_batch=each), config, where, more))
        except RecipeError as error:  # what the recipe wants does not go this way (model.create=sharded)
            impossible.append(error)
    if not tried:
        raise impossible[-1]
    return tried


def best(tried: Sequence[TrainingWay]) -> tuple[TrainingWay, str]:
    """Return which way, and why: of those that fit the fastest; the mildest where one's speed is not known.
    None is known to fit: the mildest of which all but the activations is counted and fits; else the smallest.
    A way of which nothing is counted is taken only where that holds for all."""
    counted = [each for each in tried if each.fits is not None]
    if not counted:
        return tried[0], "the mildest: whether it fits is unknown"
    fitting = [each for each in counted if each.fits]
    among = f"of {len(fitting)} settings that fit (of {len(tried)})"
    uncertain = [each for each in tried if each.fits is None and each.setting is not None]
    if not fitting and uncertain:
        return uncertain[0], "the mildest that may fit: whether it does is unknown"
    if not fitting:
        return min(counted, key=lambda each: each.memory), "needs the least memory, and does not fit"
    if any(each.step is None for each in fitting):
        return fitting[0], f"the mildest {among}; some speeds are unknown"
    fastest = max(fitting, key=lambda each: each.speed)
    return fastest, f"the fastest {among}: {format_number(fastest.speed)} samples/s predicted"


def compared(tried: Sequence[TrainingWay], chosen: TrainingWay, reason: str) -> list[Candidate]:
    """Return all ways, and why each was chosen or lost."""

    def lost(way: TrainingWay) -> str:
        if way.fits is None:
            return "whether it fits is unknown"
        if not way.fits:
            return f"does not fit: {way.lacks}"
        if way.step is None or chosen.step is None:
            return "fits as well; costs more computation or communication"
        slower = 1 - way.speed / chosen.speed
        return f"{slower:.0%} slower" if slower > 0.005 else "as fast, but not milder"

    return [
        Candidate(
            changes=dict(each.changes),
            fits=each.fits,
            memory=each.memory,
            step=each.step.seconds if each.step else None,
            samples_per_second=each.speed or None,
            chosen=each is chosen,
            why=reason if each is chosen else lost(each),
        )
        for each in tried
    ]


def size(
    recipe: Recipe, config: Mapping[str, Any] | None, where: RunTarget, changes: Mapping[str, str]
) -> TrainingWay:
    """Return the recipe's way, with everything decided that depends on the size of the model.

    `config`: None where it is not known here; `changes`: what distinguishes it from other ways. Raises
    RecipeError for numbers that contradict each other.
    """
    decisions: list[Decision] = []
    ranks, room = sum(where.slots), where.room
    trace = where.trace(recipe, ranks)
    recipe = _learning_rate(recipe, decisions)
    longest = where.shortened(recipe)
    setting = setting_of(longest, config, where.precision, where.device, where.slots, trace)
    setting = None if setting is None else replace(setting, context=room.context)
    recipe, setting = _creation(recipe, setting, room, decisions)
    batch = _batch(recipe, config, ranks, setting, room, decisions)
    if setting is None:
        return TrainingWay(recipe, batch, None, changes, decisions)
    split = recipe.batch.split if isinstance(recipe.batch.split, list) else [batch.micro]
    most = max(split)  # of any rank
    setting = replace(setting, micro=most, share=sum(split) / len(split) / most)
    setting = setting.spreading(micro_steps=batch.accumulation)
    if recipe.padding_varies and where.survey is not None and where.survey.lengths:
        batches = -(-(where.survey.samples or 0) // batch.global_)
        setting = replace(setting, mean_tokens=mean_padded(where.survey.lengths, batches, where.multiple))
    step = predict(setting, where.machines, where.calibration)
    needed = need(setting)
    lacks = lacking(setting, room, needed)
    way = TrainingWay(recipe, batch, setting, changes, decisions, needed, lacks, step)
    if needed is not None and way.fits and room.device is not None:
        total = sum(needed.device.values())
        parts = sorted(needed.device.items(), key=lambda part: -part[1])[:3]
        words = ", ".join(f"{name} {format_bytes(value)}" for name, value in parts if value > total / 100)
        how = "estimated" if needed.basis == "closed form" else "activations traced"
        why = f"{how}, of {format_bytes(room.device)} for each: {words}"
        decisions.append(Decision("memory of a rank", f"about {format_bytes(total)}", why))
    return replace(way, changes={**changes, "batch.micro": str(most)}) if changes and way.memory else way


def _learning_rate(recipe: Recipe, decisions: list[Decision]) -> Recipe:
    """Return the recipe with its rate; `auto`: the published one of the size. Raises RecipeError where there
    is none."""
    if recipe.train.learning_rate != "auto":
        return recipe
    published = families.published(recipe.model.name)
    if published is None:
        raise _not_published(recipe, "train.learning_rate", "train.learning_rate=5e-5")
    rate = published.learning_rate
    decisions.append(Decision("train.learning_rate", rate, f"{recipe.model.name} was trained with it"))
    train = recipe.train.model_copy(update={"learning_rate": rate})
    if train.min_learning_rate > rate:
        what = f"is {train.min_learning_rate:g}, above train.learning_rate={rate:g}"
        raise RecipeError(what, where="train.min_learning_rate")
    return recipe.model_copy(update={"train": train})


def _not_published(recipe: Recipe, where: str, instead: str) -> RecipeError:
    name = recipe.model.name
    near = near_names(name, families.sizes("opt")) if name else []
    return RecipeError(
        f"is auto, and how {name or 'your own model'} was trained is not known",
        where=where,
        hint=f"{instead}, or a size with a published one, such as {near[0] if near else 'opt-125m'}",
    )


def _creation(
    recipe: Recipe, setting: Setting | None, room: MemoryLimit, decisions: list[Decision]
) -> tuple[Recipe, Setting | None]:
    """Decide whether the model is made whole or in shards: in shards where the engine can, and the whole is
    much of what a rank may use."""
    engine, choice = spec_of(recipe.engine.name), recipe.model.create
    shards = setting is not None and engine.shards_weights(setting.spread.stage, setting.spread.ranks)
    if choice == "sharded" and setting is not None and not engine.shards_weights(setting.spread.stage):
        raise RecipeError(
            "is sharded, and every rank of this engine holds the whole model",
            where="model.create",
            hint="engine.name=deepspeed engine.zero=3, or engine.name=fsdp",
        )
    if choice == "auto":
        choice = "whole"
        share = room.host if room.host is not None else room.device
        whole = 4 * setting.elements if setting else 0
        if shards and share is not None and whole > WHOLE_AT_MOST * share:
            choice = "sharded"
            why = (
                f"the whole of it would take {format_bytes(whole)} of {room.host_name}'s memory for each rank"
            )
            decisions.append(Decision("model.create", choice, why))
    model = recipe.model.model_copy(update={"create": choice})
    made = replace(setting, create=choice) if setting else None
    return recipe.model_copy(update={"model": model}), made


def _batch(
    recipe: Recipe,
    config: Mapping[str, Any] | None,
    world_size: int,
    setting: Setting | None,
    room: MemoryLimit,
    decisions: list[Decision],
) -> Batch:
    """Return the three batch numbers."""
    given = recipe.batch
    wanted = _wanted(recipe, config, given.global_)
    top = DEFAULT_MICRO
    gpus = setting is not None and setting.spread.device == "cuda" and room.device is not None
    needed = need(setting) if setting is not None else None
    # Where all that a rank needs is known, a larger micro-batch is known to fit.
    if gpus and wanted and (needed is None or needed.whole):
        top = max(1, wanted // world_size)  # GPUs gain by large micro-batches, CPUs do not
    largest, batch = _fitting(recipe, wanted, world_size, setting, room, top)
    product = f"{batch.micro} x {batch.accumulation} x {counted(world_size, 'rank')} = {batch.global_}"
    why = {"micro": product, "accumulation": product, "global": product}
    if setting is not None and room.device is not None and largest < top:
        why["micro"] += f"; {largest} is the largest that fits"
    elif top != DEFAULT_MICRO:
        why["micro"] += "; all of a rank's share fits at once"
    if recipe.batch.tokens is not None and wanted is not None:
        why["global"] += _about_tokens(recipe, config, wanted, batch)
    for name, value, asked in (
        ("micro", batch.micro, given.micro),
        ("accumulation", batch.accumulation, given.accumulation),
        ("global", batch.global_, given.global_),
    ):
        if asked is None:
            decisions.append(Decision(f"batch.{name}", value, why[name]))
    return batch


def _fitting(
    recipe: Recipe,
    wanted: int | None,
    world_size: int,
    setting: Setting | None,
    room: MemoryLimit,
    top: int,
) -> tuple[int, Batch]:
    """Return the largest micro-batch that fits, up to `top`, and the batch that it makes.

    Accumulation may need more memory than one micro-batch a step, so that it is sought once more with it.
    """

    given = recipe.batch

    def made(setting: Setting | None) -> tuple[int, Batch]:
        largest, micro, target = top, given.micro, given.global_
        if setting is not None and micro is None:
            largest = max(1, largest_micro(setting, room, top))
        if recipe.batch.tokens is not None and wanted is not None:
            micro, target = _nearest(wanted, micro, given.accumulation, world_size, largest)
        elif micro is None and given.accumulation is None and target is None:
            target = DEFAULT_MICRO * world_size  # what memory allows does not change what is trained
        batch = resolve_batch(micro, given.accumulation, target, world_size=world_size, largest=largest)
        return largest, batch

    largest, batch = made(setting)
    if setting is not None and batch.accumulation > 1 and setting.spread.micro_steps == 1:
        return made(setting.spreading(micro_steps=batch.accumulation))
    return largest, batch


def _wanted(recipe: Recipe, config: Mapping[str, Any] | None, given: int | None) -> int | None:
    """Return the samples of a global batch that was asked for, in samples or in tokens; None: neither.

    Raises RecipeError where tokens have no meaning, or `auto` finds no published number.
    """
    tokens = recipe.batch.tokens
    if tokens is None:
        return given
    sequence = sequence_of(recipe, config)
    if sequence is None:
        raise RecipeError(
            "counts packed sequences, and their length is unknown",
            where="batch.tokens",
            hint="data.sequence=N for a language model, or batch.global=N samples",
        )
    if tokens == "auto":
        published = families.published(recipe.model.name)
        if published is None:
            raise _not_published(recipe, "batch.tokens", "batch.global=N")
        tokens = published.tokens
    return max(1, round(tokens / sequence))


def _nearest(
    wanted: int, micro: int | None, accumulation: int | None, world_size: int, largest: int
) -> tuple[int | None, int]:
    """Return micro-batch and the multiple of a micro-step's samples that is nearest to `wanted` samples.

    The micro-batch, where it is open: the largest power of two that fits, or half of it where that alone
    makes `wanted` exactly.
    """
    if micro is None and accumulation is None:
        most = min(largest, max(1, wanted // world_size))
        power: int = 1 << (most.bit_length() - 1)
        exact = [m for m in (power, power // 2) if m and wanted % (m * world_size) == 0]
        micro = exact[0] if exact else power
    unit = (micro or 1) * (accumulation or 1) * world_size
    return micro, max(1, round(wanted / unit)) * unit


def _about_tokens(recipe: Recipe, config: Mapping[str, Any] | None, wanted: int, batch: Batch) -> str:
    sequence = sequence_of(recipe, config) or 0
    source = f"as {recipe.model.name} was trained" if recipe.batch.tokens == "auto" else "as asked for"
    asked = wanted * sequence if recipe.batch.tokens == "auto" else recipe.batch.tokens
    if batch.global_ == wanted:
        return f"; {asked:,} tokens, {source}"
    off = 100 * (batch.global_ / wanted - 1)
    return f"; the multiple nearest to {wanted} samples ({asked:,} tokens, {source}): {off:+.1f} %"


def open_choices(recipe: Recipe, where: RunTarget) -> OpenChoices:
    """Return what the recipe, and a user's own DeepSpeed configuration, leave open to remedies."""

    def trace(setting: Setting) -> Trace | None:
        spread = setting.spread
        made = recipe.choosing(zero=spread.stage, checkpointing=setting.checkpointing)
        made = made.model_copy(update={"engine": made.engine.model_copy(update={"name": spread.engine})})
        return where.trace(made, spread.ranks)

    def takes(model: str) -> bool:
        made = recipe.model_copy(update={"model": recipe.model.model_copy(update={"name": model})})
        try:
            check_model(made)
            made.check_data(None, model_config(made) or {})
        except (RecipeError, DataError):
            return False
        return True

    own, split = spec_of(recipe.engine.name).given(recipe), recipe.batch.split
    fixed = set(own.batch) | ({"micro", "ranks"} if isinstance(split, list) else set())
    if own.spread or split == "measured":  # which few engines can do
        fixed.add("engine")
    about = recipe.batch.tokens is not None
    return OpenChoices(
        accumulation=recipe.batch.accumulation,
        global_=None if about else recipe.batch.global_,
        samples=_wanted(recipe, whole_config(recipe), None) if about else None,
        fixed=frozenset(fixed),
        trace=trace,
        takes=takes,
    )
