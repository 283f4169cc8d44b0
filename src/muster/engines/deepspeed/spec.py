"""DeepSpeed ZeRO 0 to 3, with offload, from a JSON of its own. Pure but for reading a user's file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, ClassVar

from muster.core.batch import Batch
from muster.core.errors import RecipeError
from muster.core.job import Decision, Facts, Job, Placement
from muster.core.recipe import Engine, Recipe
from muster.core.trace import Parameter
from muster.engines.base import EngineSpec, Fixed
from muster.engines.deepspeed import config as configuration
from muster.engines.deepspeed.reading import chosen, section
from muster.engines.spread import NO_DISK, ModelSpread, NvmeOffload, Tensors, trained
from muster.engines.states import Parts, States, added, elements, largest, up
from muster.engines.traffic import Call, Passes, Segment, Traffic, counting, reducing

# Seconds per tensor and micro-step that its hooks take beyond PyTorch's own, by stage: DeepSpeed 0.19 on a
# core of an EPYC, slopes between 100 and 400 tensors. Stage 3 of matrices that fill a bucket each, as they do
# in Transformers' sizes: 1.3 to 1.5 ms there over gloo (benchmarks/launches.py), 0.85 ms on an A100 as Qwen
# was published with 256 tokens.
HOOKS = (20e-6, 40e-6, 45e-6, 850e-6)
# Of stage 3's computation: it waits for what it fetched two modules before
# (partitioned_param_coordinator.py).
IN_TURN = 0.5
_TRACKERS = {"tensorboard": "tensorboard", "wandb": "wandb", "comet": "comet-ml"}  # sections -> packages


class DeepSpeedSpec(EngineSpec):
    """The model is in the chosen precision, and cut as its stage says."""

    title: ClassVar[str] = "DeepSpeed"
    packages: ClassVar[tuple[str, ...]] = ("deepspeed",)
    stages: ClassVar[tuple[int, ...]] = (0, 1, 2, 3)
    offloads: ClassVar[tuple[str, ...]] = ("none", "optimizer", "optimizer+param")  # stages: in config.py
    groups: ClassVar[str] = "engine.zero=3: hpZ"
    relief: ClassVar[bool] = True
    cutting: ClassVar[dict[str, str] | None] = {"engine.zero": "3"}
    gathers_tensors: ClassVar[bool] = True
    copies: ClassVar[int] = 6

    def extras(self, recipe: Recipe) -> tuple[str, ...]:
        """Name what the monitors import that the user's configuration switches on (monitor/utils.py)."""
        given = configuration.given_config(recipe)
        return tuple(
            package for key, package in _TRACKERS.items() if section(given, key).get("enabled") is True
        )

    # --- the recipe, and a configuration of the engine's own ---------------------------------------------

    def described(self, engine: Engine) -> str:
        if engine.config:
            return f"{self.name} with {engine.config}"
        whole = super().described(engine)
        return whole + (f" {engine.offload}" if engine.offload != "none" else "")

    def checked(self, recipe: Recipe) -> Recipe:
        """Check the recipe by the configuration that it would get. Raises RecipeError."""
        engine = recipe.engine
        self.check_sync(engine)
        self.check_group(engine)
        floor = recipe.train.min_learning_rate
        if floor and section(configuration.given_config(recipe), "scheduler"):
            raise RecipeError(
                f"is {floor:g}, and DeepSpeed's configuration has a scheduler of its own",
                where="train.min_learning_rate",
                hint="leave one of them out",
            )
        self.check_length(recipe, recipe.train.max_steps)
        if engine.config:
            if engine.group:
                raise RecipeError(
                    f"is {engine.group}, but {engine.config} says how ZeRO-3 cuts weights",
                    where="engine.group",
                    hint=f"zero_optimization.{_GROUP} in that file or in engine.options",
                )
        elif engine.group and _GROUP in section(engine.options, "zero_optimization"):
            raise RecipeError(
                f"is {engine.group}, but engine.options gives {_GROUP}",
                where="engine.group",
                hint="leave one of them out",
            )
        mildest = recipe.choosing(zero=self.open_stages(recipe)[-1])
        configuration.deepspeed_config(mildest, Batch(1, 1, 1), "fp32")  # which refuses what cannot be
        return recipe

    def check_length(self, recipe: Recipe, steps: int | None) -> None:
        """Raise RecipeError for a scheduler of other steps, which Transformers refuses in ranks."""
        _, scheduler = chosen(configuration.given_config(recipe), "scheduler")
        total = scheduler.get("total_num_steps", "auto")
        if steps and total not in ("auto", steps):
            length = "train.max_steps is" if recipe.train.max_steps else "the training on these data has"
            raise RecipeError(
                f"is {total}, but {length} {steps}{'' if recipe.train.max_steps else ' steps'}",
                where="the DeepSpeed configuration: scheduler.params.total_num_steps",
                hint='"auto" there',
            )

    def given(self, recipe: Recipe) -> Fixed:
        """Return what the user's own file fixes, with engine.options laid over it."""
        engine, config = recipe.engine, configuration.given_config(recipe)
        fixed = self.fixed(config)
        if engine.config:  # what it leaves out is as DeepSpeed has it
            silent = recipe.precision == "auto" and configuration.leaves_precision(config)
            precision = "fp32" if silent and fixed.precision is None else fixed.precision
            return replace(fixed, precision=precision, stage=fixed.stage or 0, spread=True)
        decided = section(engine.options, "zero_optimization").keys() & _SPREAD
        return replace(fixed, spread=bool(decided))

    def fixed(self, config: Mapping[str, Any]) -> Fixed:
        """Return what is not "auto"."""
        schedule = configuration.NEAREST_SCHEDULES.get(chosen(config, "scheduler")[0])
        return Fixed(
            precision=configuration.user_precision(config),
            batch=configuration.user_batch(config),
            train={**configuration.user_training(config), **({"schedule": schedule} if schedule else {})},
            optimizer=configuration.other_optimizer(config),
            schedule=(configuration.user_schedule(config) or ("",))[0],
            rise=configuration.user_rise(config),
            stage=configuration.user_stage(config),
        )

    def decisions(self, recipe: Recipe) -> list[Decision]:
        return configuration.user_decisions(recipe, self.given(recipe).stage)

    def uncounted(self, recipe: Recipe, precision: str) -> list[str]:
        return configuration.uncounted(configuration.deepspeed_config(recipe, Batch(1, 1, 1), precision))

    def open_stages(self, recipe: Recipe) -> list[int]:
        """List the stages of ZeRO that the recipe leaves open, mildest first; one where it gives a stage.

        Raises RecipeError where the user's own configuration says one as well.
        """
        engine = recipe.engine
        if engine.zero != "auto":
            return [engine.zero]
        if engine.config or "stage" in section(engine.options, "zero_optimization"):
            raise RecipeError(
                f"is auto, but {engine.config or 'engine.options'} gives a stage",
                where="engine.zero",
                hint="leave engine.zero out, or engine.config" if engine.config else "leave one of them out",
            )
        if engine.group:
            return [3]
        return {"none": [0, 1, 2, 3], "optimizer": [1, 2, 3], "optimizer+param": [3]}[engine.offload]

    config = staticmethod(configuration.deepspeed_config)
    filled = staticmethod(configuration.fill_auto)

    def compiles(self, section: Mapping[str, Any]) -> bool:
        """Return whether CPU Adam is compiled, for an optimizer in host memory."""
        return section.get("offload") not in (None, "none") or bool(section.get("config"))

    # --- how the model is spread -------------------------------------------------------------------------

    def spread_of(self, recipe: Recipe, precision: str, width: int) -> dict[str, Any]:
        """Return stage, offload and sizes, a user's own file included."""
        whole = configuration.deepspeed_config(recipe, Batch(1, 1, 1), precision)
        zero = whole.get("zero_optimization") or {}
        stage = int(zero.get("stage", 0))
        offloads = {name: section(zero, f"offload_{name}") for name in ("optimizer", "param")}
        offload, disk = _offloads(stage, offloads)
        sizes: dict[str, Any] = {"stage": stage, "offload": offload, "disk": disk, **self.sizes(stage, width)}
        if zero.get("reduce_bucket_size") == "auto":  # of any stage: Transformers'
            sizes["bucket"] = configuration.by_width(width)["reduce_bucket_size"]
        given = {field: zero.get(key, default) for key, (field, default) in _SIZES.items()}
        sizes |= {field: int(value) for field, value in given.items() if isinstance(value, int | float)}
        sizes["pins"] = all(each.get("pin_memory", True) for each in offloads.values())
        # Its stages take the norm whatever it is for, plain data parallelism to clip alone.
        normed = stage > 0 and zero.get("compute_grad_norm", True)
        sizes["clips"] = bool(normed or whole["gradient_clipping"])
        sizes["overlap"] = bool(zero.get("overlap_comm", stage == 3))
        sizes["together"] = "optimizer" in whole
        kept = configuration.moments(whole, offloaded="optimizer" in offload)
        sizes["moments"] = 2 if kept is None else kept  # Adam's, and the plan says that it is not counted
        sizes |= configuration.gradient_bytes(whole)
        if "optimizer" in offload and disk.holds == "none":
            sizes["ratio"] = section(zero, "offload_optimizer").get("ratio", 1.0)
        group = _number(zero, _GROUP, 1) if stage == 3 else 1
        sizes["group"] = group if group > 1 else 0
        return sizes

    def sizes(self, stage: int, width: int) -> dict[str, Any]:
        """Return the sizes of a stage: 1 and 2 have a bucket of their own; "auto" of stage 3 is
        Transformers', by the hidden size (transformers/integrations/deepspeed.py,
        trainer_config_finalize)."""
        if stage < 3:
            return {"bucket": configuration.REDUCE_BUCKET if stage else 0}
        sizes = configuration.by_width(width).items()
        return {**{_SIZES[key][0]: value for key, value in sizes}, "overlap": True}

    def lighter(self, stage: int, offload: str) -> Iterator[dict[str, str]]:
        """Yield higher stages; then offload, from the present stage on."""
        for higher in range(stage + 1, 4):
            yield {"engine.zero": str(higher)}
        for at in range(max(1, stage), 4):
            zero = {} if at == stage else {"engine.zero": str(at)}
            for more in ("optimizer", "optimizer+param") if at == 3 else ("optimizer",):
                if more != offload and offload != "optimizer+param":
                    yield {**zero, "engine.offload": more}

    def casts_model(self, ranks: int = 2) -> bool:
        return True

    def weight_bytes(self, spread: ModelSpread) -> int:
        """Return the bytes in the model's precision: the copy in fp32 is the optimizer's."""
        return spread.element

    def shards_weights(self, stage: int, ranks: int = 2) -> bool:
        """Return whether the stage is 3; on one rank, that is one part."""
        return stage == 3

    def optimizer_parts(self, spread: ModelSpread) -> int:
        return spread.ranks if spread.stage > 0 else 1

    def states(self, spread: ModelSpread, tensors: Tensors, rank: int | None = None) -> States:
        if spread.stage == 0:
            return _held_0(spread, tensors)
        if spread.sums_apart:
            return _held_apart(spread, tensors)
        return _held_3(spread, tensors) if spread.stage == 3 else _held_1_2(spread, tensors, rank)

    def gathers_to_draw(self, spread: ModelSpread, tensors: Tensors) -> int | None:
        """Count all weights in stage 3, once for all tokens (trl/models/utils.py,
        unwrap_model_for_generation)."""
        return spread.element * elements(tensors) if spread.stage == 3 and spread.ranks > 1 else None

    def traffic(self, parameters: Sequence[Parameter], spread: ModelSpread) -> Traffic:
        return (_exchanged_3 if spread.stage == 3 else _exchanged_0_to_2)(parameters, spread)

    def handling(self, parameters: Sequence[Parameter], stage: int) -> float:
        return HOOKS[stage] * sum(p.trained or stage == 3 for p in parameters)

    def in_turn(self, stage: int) -> float:
        return IN_TURN if stage == 3 else 0.0

    def crossings(self, spread: ModelSpread) -> int:
        """Count in stages 1 and 2: gradients down (stage 2: of every micro-step), weights up
        (`stage_1_and_2.py`).

        Stage 3 (`stage3.py`): gradients down; of every further micro-step the sum up and down again
        (`partition_grads`); up for the norm and down to the optimizer
        (`_offload_grad_partition_at_boundary`); weights up, where they do not stay on the host. Of
        parameters alone: new weights down (`_reassign_or_swap_out_partitioned_parameters`).
        """
        if not spread.moves_optimizer:
            return 1
        if spread.stage < 3:
            return (spread.micro_steps if spread.stage > 1 else 1) + 1
        return 2 * spread.micro_steps + (1 if spread.moves_parameters else 2)

    # --- checkpoints -------------------------------------------------------------------------------------

    def cannot_resume(
        self, recipe: Recipe, before: Job, places: Sequence[Placement], facts: Facts
    ) -> tuple[str, str] | None:
        """Refuse other numbers of ranks where checkpoints cannot be cut anew, and hosts with disks of their
        own that lack their ranks' parts: DeepSpeed cuts its checkpoints by rank."""
        if sum(place.slots for place in places) != before.world_size:
            whole = _cannot_recut(recipe, facts)
            if whole is None:
                return None
            return (
                f"DeepSpeed cuts its checkpoints by rank, and they cannot be cut anew: {whole}",
                f"hosts with {before.world_size} slots in all (node1:4,node2:4)",
            )
        had = {each.host: each for each in before.placements}
        for each in places:
            if facts[each.host]["shared"] or (had.get(each.host) and had[each.host].ranks == each.ranks):
                continue
            holders = [old.host for old in before.placements if set(old.ranks) & set(each.ranks)]
            return (
                f"DeepSpeed's parts of ranks {each.ranks[0]} to {each.ranks[-1]} are on the disks of "
                f"{', '.join(holders)}, and these ranks would run on {each.host}",
                "the same hosts in the same order; or an --output that all hosts share, for a new run",
            )
        return None


SPEC = DeepSpeedSpec


def _cannot_recut(recipe: Recipe, facts: Facts) -> str | None:
    """Return why its checkpoints cannot be read by another number of ranks; None: they can.

    With stages 0 to 2 the weights after it are those of a run that never stopped. With stage 3 updates were
    3 to 5 % others (DeepSpeed 0.19, universal checkpoints).
    """
    apart = next((host for host, about in facts.items() if not about["shared"]), None)
    if apart:
        return f"{apart} does not see the parts of the other hosts"
    if recipe.engine.zero not in (0, 1, 2):
        return "ZeRO-3's optimizer states do not come back exactly"
    given = str(configuration.given_config(recipe))
    return "its states are offloaded" if recipe.engine.offload != "none" or "offload_" in given else None


def _offloads(stage: int, asked: Mapping[str, Mapping[str, Any]]) -> tuple[str, NvmeOffload]:
    """Return what is moved to the host's memory, each part by itself, and what of it to a disk. Stage 0 moves
    nothing, and only stage 3 parameters, or anything to a disk (engine.py, _configure_zero_optimizer;
    stage3.py, _configure_offloading; stage_1_and_2.py, cpu_offload)."""
    able = {0: (), 3: ("optimizer", "param")}.get(stage, ("optimizer",))
    moved = [name for name in able if asked[name].get("device", "none") != "none"]
    gone = [name for name in moved if stage == 3 and asked[name]["device"] == "nvme"]
    if not gone:
        return "+".join(moved) or "none", NO_DISK
    states, values = asked["optimizer"], asked["param"]
    disk = NvmeOffload(
        "+".join(gone),
        state_buffers=_number(states, "buffer_count", 4),
        value_buffers=_number(values, "buffer_count", 5) * _number(values, "buffer_size", 100_000_000),
        kept=_number(values, "max_in_cpu", 1_000_000_000),
    )
    return "+".join(moved), disk


def _number(config: Mapping[str, Any], key: str, default: int) -> int:
    value = config.get(key, default)
    return int(value) if isinstance(value, int | float) else default


_GROUP = configuration.GROUP
_SPREAD = {"stage", "offload_optimizer", "offload_param", _GROUP}  # keys of zero_optimization
# Its keys -> fields of ModelSpread, and its own defaults (zero/config.py). "auto" leaves what `sizes` gave.
_SIZES = {
    "reduce_bucket_size": ("bucket", configuration.REDUCE_BUCKET),
    "stage3_prefetch_bucket_size": ("prefetch", 50_000_000),
    "stage3_param_persistence_threshold": ("persistence", 100_000),
    "stage3_max_live_parameters": ("live", 1_000_000_000),
    "stage3_max_reuse_distance": ("reuse", 1_000_000_000),
    "sub_group_size": ("sub_group", 1_000_000_000),
}


# ----------------------------------------------------------------------------------------------------
# What DeepSpeed's ZeRO stages hold, with and without offload. Pure.
#
# Sources: DeepSpeed 0.19, deepspeed/runtime: engine.py (_configure_optimizer, allreduce_gradients),
# fp16/unfused_optimizer.py, zero/stage_1_and_2.py, zero/stage3.py, zero/partition_parameters.py,
# zero/parameter_offload.py, zero/partitioned_param_coordinator.py, swap_tensor; ops/adam/cpu_adam.py.
# Gradients are added up in the model's precision (engine.py, get_data_types). The Trainer's fused AdamW
# works in place.

REDUCED_AT_ONCE = 500_000_000  # elements: engine.py, MEMORY_OPT_ALLREDUCE_SIZE
TO_DISK = 2**20  # bytes of a tensor from which on it goes to a disk (swap_tensor/utils.py, MIN_AIO_BYTES)
NORM = 8  # bytes: gradients are converted to double, one tensor at a time (zero/utils.py, get_norm_dtype)


def _held_0(spread: ModelSpread, tensors: Tensors) -> States:
    """Count stage 0: everything on every rank. In fp32 the optimizer is the bare one; in half precision an
    fp32 copy of each parameter, and of each gradient during the step (FP16_UnfusedOptimizer; FP16_Optimizer,
    with DeepSpeed's own Adam, flattens them as well). Gradients are flattened once more to be reduced, also
    on one rank."""
    e, own = spread.element, elements(trained(tensors))
    held = {"parameters": e * elements(tensors), "optimizer": 4 * spread.moments * own}
    gradients = {"gradients": e * own}
    step = dict(gradients)
    if e == 2:
        held["fp32 master"] = 4 * own
        step["fp32 gradients"] = (8 if spread.own_adam else 4) * own
    after = {
        "gradient reduction": {**gradients, "buckets": _reducing(spread, trained(tensors), e)},
        "optimizer step": step,
    }
    backward = {"gradients in flight": e * largest(trained(tensors))}
    return States(held, {}, {}, gradients, backward, after, whole=True)


def _reducing(spread: ModelSpread, tensors: Tensors, kept: int) -> int:
    """Return the bytes of what is flattened at once to be reduced, and of its copy in the type of messages.
    `kept`: of a gradient."""
    flat = min(elements(tensors), REDUCED_AT_ONCE + largest(tensors))
    return flat * (kept + (spread.message if spread.message != kept else 0))


def _held_apart(spread: ModelSpread, tensors: Tensors) -> States:
    """Return the states of stage 1 in bf16 that adds up in fp32 (BF16_Optimizer): all sums on every rank, in
    flat tensors, besides the gradients as they come, which stay until the next step."""
    e, n, own = spread.element, spread.ranks, trained(tensors)
    part = sum(up(elements(group), 2 * n) // n for group in spread.optimizer_groups(tensors))
    held = {
        "parameters": e * (n * part + elements(tensors) - elements(own)),
        "fp32 gradients": spread.summed * n * part,
        "fp32 master": 4 * part,
        "optimizer": 4 * spread.moments * part,
    }
    gradients = {"gradients": e * elements(own)}
    reduction = {**gradients, "buckets": _reducing(spread, own, spread.summed)}
    backward = {"gradients in flight": e * largest(own)}
    after = {"gradient reduction": reduction, "optimizer step": gradients}
    return States(held, {}, {}, gradients, backward, after, whole=True)


def _held_1_2(spread: ModelSpread, tensors: Tensors, rank: int | None) -> States:
    """Count stages 1 and 2. Each optimizer group is one flat tensor, padded to twice the ranks; a rank owns
    one part of it: with an fp32 copy, also where the model is in fp32, and the optimizer's states.

    Stage 1 keeps all gradients until they are reduced; then, and in stage 2 at once, those of a part stay,
    whole where they cross its edge (copy_grads_in_partition). The whole reduce bucket is allocated with the
    first gradient (setup_buckets), and what is reduced is flattened once more where there are several ranks.
    The step flattens a part's gradients, and converts them to fp32.
    """
    e, n = spread.element, spread.ranks
    own = trained(tensors)
    groups = spread.optimizer_groups(tensors)
    parts = [up(elements(group), 2 * n) // n for group in groups]
    part, most = sum(parts), max(parts, default=0)
    frozen = elements(tensors) - elements(own)
    held = {"parameters": e * (n * part + frozen)}
    cut = list(zip(groups, parts, strict=True))
    kept = e * sum(_whole(group, size, rank) for group, size in cut)
    touched = spread.bucket if spread.device == "cuda" else min(spread.bucket, elements(own))
    used = min(spread.bucket, elements(own))
    piece = max((_piece(group, size, rank) for group, size in cut), default=0)
    flat = used if spread.stage == 2 and n > 1 else 0
    sent = spread.message
    apart = spread.stage == 2 and spread.summed > e  # a part's, added up in a buffer of exactly its size
    if apart:
        kept = spread.summed * part
    backward = {
        "buckets": spread.buckets * sent * touched,
        "gradients in flight": e * largest(own) + sent * flat,
    }
    gradients = {"gradients": e * elements(own) if spread.stage == 1 else kept}
    stays = spread.stage == 1 and spread.accumulates  # the bucket, from the first micro-batch on
    passes = {"buckets": backward.pop("buckets")} if stays else {}
    if spread.moves_optimizer:
        # A part's gradients go straight to the host; one goes by way of these buffers, and is measured.
        held["transfer buffer"] = e * largest(own)
        backward["gradients in flight"] += NORM * piece
        host = _offloaded(spread, groups, parts, kept)
        at_once = spread.stage == 2
        return States(held, host, passes, {} if at_once else gradients, backward, whole=not at_once)
    held |= {"fp32 master": 4 * part, "optimizer": 4 * spread.moments * part}
    after = {
        "optimizer step": {"gradients": kept, "fp32 gradients": 0 if apart else (6 if e == 2 else 4) * most},
        "gradient norm": {"gradients": kept, "gradients in flight": NORM * piece},
    }
    if spread.stage == 1:
        more = max(0, kept - e * used)
        bucket = {"buckets": spread.buckets * sent * touched}
        after["gradient reduction"] = {**gradients, **bucket, "gradients of the part": more}
    elif apart:
        pass  # what is reduced is added at once
    elif spread.accumulates:
        backward["gradients in flight"] += kept  # a micro-batch's own, before they are added
    elif elements(own) <= spread.bucket:  # all wait in the bucket
        after["gradient reduction"] = {**backward, **gradients}
        gradients, backward = {}, {**backward, "gradients in flight": e * largest(own)}
    return States(held, {}, passes, gradients, backward, after, whole=spread.stage == 1)


def _offloaded(spread: ModelSpread, groups: list[Tensors], parts: list[int], kept: int) -> Parts:
    """Count the host memory of stages 1 and 2 with the optimizer offloaded. Its states are not pinned."""
    e, pinned = spread.element, spread.pinned
    host = {
        "fp32 master": sum(pinned(4 * size) for size in parts),
        "fp32 gradients": sum(pinned(4 * size) for size in parts),
        "optimizer": 4 * spread.moments * sum(parts),
        "transfer buffer": sum(pinned(e * size) for size in parts),
    }
    host["transfer buffer"] += pinned(e * max(largest(group) for group in groups)) if groups else 0
    if spread.accumulates:
        host["accumulated gradients"] = pinned(kept)
    return host


def _piece(group: Tensors, size: int, rank: int | None) -> int:
    """Count the elements of the largest piece of a tensor that a rank's part has; None: that any part may
    have."""
    if rank is None:
        return min(largest(group), size)
    most, at, begin = 0, 0, rank * size
    for each in group:
        most = max(most, min(at + each.numel, begin + size) - max(at, begin))
        at += each.numel
    return most


def _whole(group: Tensors, size: int, rank: int | None) -> int:
    """Count the elements of all tensors that lie in a rank's part, wholly or partly, each whole; None: of the
    rank with most.

    Source: zero/stage_1_and_2.py, get_partition_info.
    """
    sums: dict[int, int] = {}
    inside = at = 0
    for each in group:
        first, last = at // size, (at + each.numel - 1) // size
        at += each.numel
        if rank is not None:
            inside += each.numel if first <= rank <= last else 0
            continue
        for edge in {first, last}:
            sums[edge] = sums.get(edge, 0) + each.numel
        if last - first > 1:  # parts that have nothing else
            inside = max(inside, each.numel)
    return max(inside, max(sums.values(), default=0))


def _held_3(spread: ModelSpread, tensors: Tensors) -> States:
    """Count stage 3. Each tensor is padded to the ranks and cut. Trained shards lie in one flat tensor, with
    one of their gradients, an fp32 copy, also where the model is in fp32, and the optimizer's states; one
    reduce bucket stays.

    Parameters of at most `persistence` elements are gathered again after each step and stay so. What is
    gathered in a pass: `_gathered`. In flight: the largest gradient, which does not fit the bucket as a
    rule, and the copy that is reduced. The step works on sub-groups, after all parameters were released.
    Parameters and the optimizer are offloaded each by itself (_configure_offloading).
    """
    e, n = spread.element, spread.ranks
    own = trained(tensors)
    groups = [_shards(group, n) for group in spread.optimizer_groups(tensors)]
    part = sum(sum(group) for group in groups)
    all_ = sum(_shards(tensors, n))
    biggest = largest(own)
    bucket = spread.bucket if spread.device == "cuda" else min(spread.bucket, elements(own))
    held = {"buckets": spread.message * bucket}
    if not spread.moves_parameters:
        held["parameters"] = e * all_
    travels = n > 1 or spread.moves_parameters
    if travels:
        small = (up(each.numel, n) for each in tensors if each.numel <= spread.persistence)
        held["persistent parameters"] = e * sum(small)
    passes = {"gathered parameters": e * _gathered(spread, tensors) if travels else 0}
    second = _second_copies(spread, tensors)
    if not spread.moves_parameters:
        passes |= second
    copied = max(min(spread.bucket, elements(own)), up(biggest, n) if biggest % n else 0)
    backward = {"gradients in flight": e * biggest + spread.message * copied}
    subs = [size for group in groups for size in _sub_groups(group, spread.sub_group)]
    host: Parts = {}
    if spread.moves_parameters:
        host = added(_parameters_on_host(spread, tensors, groups, subs), second)
    if not spread.moves_optimizer:
        held |= {"fp32 master": 4 * part, "optimizer": 4 * spread.moments * part}
        held["gradients"] = spread.summed * part
        step = {"fp32 gradients": (6 if spread.summed == 2 else 4) * max(subs, default=0)}
        norm = {"gradients in flight": NORM * -(-biggest // n)}
        there = {} if spread.moves_parameters else second
        after = {"optimizer step": {**there, **step}, "gradient norm": {**there, **norm}}
        return States(held, host, passes, {}, backward, after)
    backward["gradients in flight"] += (e + 4 + NORM) * -(-biggest // n)  # a shard's, on its way to the host
    if spread.disk.optimizer:  # all of a bucket's wait in fp32 (partition_grads)
        backward["gradients in flight"] += 4 * -(-min(spread.bucket, elements(own)) // n)
    stay = int((1 - spread.ratio) * len(subs))  # the first ones (stage3.py, subgroup_to_device)
    if stay:
        here = sum(subs[:stay])
        held |= {"fp32 master": 4 * here, "optimizer": 4 * spread.moments * here, "fp32 gradients": 4 * here}
    host = added(host, _optimizer_on_host(spread, part, subs[stay:]))
    return States(held, host, passes, {}, backward)


def _second_copies(spread: ModelSpread, tensors: Tensors) -> Parts:
    """Count hpZ's second copies, where the parameters lie, from their first use after an update to the step's
    end (_partition_param_sec; groups.py, _create_zero_param_parallel_group). Nothing without groups."""
    n = spread.ranks
    if not spread.group or n == 1:
        return {}
    sharing = min(spread.group, n)
    sizes = [
        spread.element * (up(each.numel, n) // sharing) for each in tensors if each.numel > spread.persistence
    ]
    return {"second copies": sum(map(spread.pinned, sizes) if spread.moves_parameters else sizes)}


def _optimizer_on_host(spread: ModelSpread, part: int, subs: list[int]) -> Parts:
    """Count the optimizer's states, fp32 copies and gradients in host memory; a rank's gradients as they are
    reduced.

    On a disk: of sub-groups that are large enough, whose states come by way of buffers of the largest one's
    size; the first step makes its moments beside them (SwapBufferManager, swap_in_optimizer_state).
    """
    gone = spread.disk.optimizer
    here = [size for size in subs if not gone or 4 * size < TO_DISK]
    host = {
        "fp32 master": 4 * sum(here),
        "optimizer": 4 * spread.moments * sum(here),
        "fp32 gradients": sum(spread.pinned(4 * size) for size in here),
        "gradients": spread.pinned(spread.element * part),
    }
    if gone:
        buffers = 4 * (spread.disk.state_buffers + spread.moments)
        host["disk buffers"] = buffers * max(subs, default=0)
    return host


def _parameters_on_host(
    spread: ModelSpread, tensors: Tensors, groups: list[list[int]], subs: list[int]
) -> Parts:
    """Count trained shards in one flat block a group; frozen ones as they are. Each had a block of its own
    while the model was cut, which torch's allocator of pinned memory keeps (_partition_param).

    On a disk: what is over `kept`, and frozen shards that are large enough; they come by way of buffers, and
    go by way of one for all of the largest sub-group (_create_param_groups_fp16_flat_cpu_memory,
    reserve_partitioned_swap_space).
    """
    e, n, gone = spread.element, spread.ranks, spread.disk.parameters
    left = spread.disk.kept if gone else sum(sum(group) for group in groups)
    flat = buffers = 0
    for group in groups:
        size = min(sum(group), left)
        flat, left = flat + spread.pinned(e * size), left - size
        if size < sum(group):
            buffers = e * n * max(subs)

    def stays(size: int) -> bool:
        return not gone or e * size < TO_DISK

    frozen = _shards(tuple(each for each in tensors if not each.trained), n)
    parts = {"parameters": flat + sum(spread.pinned(e * size) for size in frozen if stays(size))}
    if spread.device == "cuda" and spread.pins:
        large = tuple(each for each in trained(tensors) if each.numel > spread.persistence)
        shards = [size for size in _shards(large, n) if stays(size)]
        parts["pinned blocks kept"] = sum(spread.pinned(e * size) for size in shards)
    if gone:
        parts["disk buffers"] = e * spread.disk.value_buffers + buffers
    return parts


def _shards(tensors: Tensors, ranks: int) -> list[int]:
    """Count the elements of each tensor's shard. Source: zero/partition_parameters.py, _aligned_size."""
    return [-(-each.numel // ranks) for each in tensors]


def _sub_groups(shards: list[int], size: int) -> list[int]:
    """Count the elements of a group's sub-groups. Source: zero/stage3.py, _create_fp16_sub_groups."""
    if size >= sum(shards):
        return [sum(shards)] if shards else []
    made, open_ = [], 0
    for index, each in enumerate(shards):
        open_ += each
        if open_ >= size or index == len(shards) - 1:
            made.append(open_)
            open_ = 0
    return made


def _gathered(spread: ModelSpread, tensors: Tensors) -> int:
    """Count the elements of whole parameters at the end of a forward pass, at most.

    Each module that is reached fetches `prefetch` elements more, norms and containers as well, so that
    fetching runs ahead until `live` elements are there (_fetch_sub_module_impl). Without that: a module's
    parameters are not released where they come again within `reuse` elements, forward and back, so those of
    the last half of that (__params_to_release). Besides the module that computes, and what is on its way,
    which lies in a flat buffer as well (AllGatherCoalescedHandle).
    """
    modules: dict[str, int] = {}
    for each in tensors:
        if each.numel > spread.persistence:
            name = each.name.rpartition(".")[0]
            modules[name] = modules.get(name, 0) + each.numel
    all_ = sum(modules.values())
    most = max(spread.reuse // 2, spread.live if spread.prefetch else 0)
    return min(all_, most + max(modules.values(), default=0)) + min(all_, spread.prefetch)


# ----------------------------------------------------------------------------------------------------
# What ranks exchange in an optimizer step under DeepSpeed 0.19, call by call. Pure.
#
# Read in its own code, and held against what it really calls by tests/real/test_traffic.py:
#
# - stage 0 (runtime/engine.py, allreduce_gradients): after the last micro-step, in buckets of 5e8 elements.
# - 1 (runtime/zero/stage_1_and_2.py, reduce_gradients): all-reduces whole buckets after the last micro-step
#   (use_multi_rank_bucket_allreduce), then all-gathers the weights (all_gather_dp_groups): 3 b Psi in all.
# - 2 (same file, reduce_independent_p_g_buckets_and_remove_grads): the same in every micro-step's backward
#   pass: 2 b Psi a + b Psi.
# - 3 (partitioned_param_coordinator.py): a module's weights are gathered when it is reached, and at least one
#   more tensor, up to the prefetch bucket, for those after it. After the forward pass they stay until the
#   backward pass where no more than max_reuse_distance elements are passed through on the way. Tensors up to
#   the persistence threshold stay for good, and are gathered one by one after the optimizer's step. Gradients
#   are reduced and scattered at every micro-step (stage3.py), on CPUs while everyone waits. Not planned:
#   embeddings that are tied to the output are gathered for each use of theirs where max_reuse_distance is
#   short.

STAGE0_BUCKET = 500_000_000  # elements
ALIGNMENT = 2  # elements x ranks: nccl_start_alignment_factor, to which stages 1 and 2 pad a group


def _step(parameters: Sequence[Parameter], spread: ModelSpread) -> tuple[Call, ...]:
    """List the small calls: how many tokens a step has; a norm of the gradients for each group of the
    optimizer, to clip them; whether half precision overflowed."""
    calls = counting(spread)
    if spread.sums_apart or (spread.stage == 0 and spread.element == 2):
        return tuple(calls)  # whose optimizers have whole gradients
    if spread.clips:
        groups = spread.optimizer_groups(tuple(p for p in parameters if p.trained))
        norms = len(groups) if spread.stage else 1
        calls += [Call("all-reduce", 8 if spread.stage == 3 else 4)] * norms
    if spread.stage in (1, 2) and spread.element == 2:
        calls.append(Call("all-reduce", 1))
    return tuple(calls)


def _exchanged_0_to_2(parameters: Sequence[Parameter], spread: ModelSpread) -> Traffic:
    own = [p for p in parameters if p.trained]
    element = spread.element
    small = _step(parameters, spread)
    if spread.stage == 0 or spread.sums_apart:
        sizes, filled = [], 0
        for parameter in own:  # sent after the tensor that overfills it
            filled += parameter.numel
            if filled > STAGE0_BUCKET:
                sizes.append(filled)
                filled = 0
        sizes += [filled] if filled else []
    if spread.stage == 0:
        return Traffic(Passes(), Passes(), (*_reduces(sizes, spread), *small), spread.micro_steps)
    groups = spread.optimizer_groups(tuple(own))
    unit = ALIGNMENT * spread.ranks
    gathers = tuple(
        Call("all-gather", element * (-(-sum(p.numel for p in group) // unit) * unit)) for group in groups
    )
    if spread.stage == 1 and (spread.sums_apart or not spread.overlap):
        if not spread.sums_apart:
            sizes = buckets([p.numel for group in groups for p in group], spread.bucket)
        reduces = _reduces(sizes, spread)
        return Traffic(Passes(), Passes(), (*reduces, *small, *gathers), spread.micro_steps)
    whole = sum(p.numel for p in own) or 1
    backward = tuple(
        reducing(spread.message * size, spread.message * whole)
        for size in buckets([p.numel for p in reversed(own)], spread.bucket)
    )
    return Traffic(
        early=Passes((), backward) if spread.stage == 2 else Passes(),
        last=Passes((), backward),
        step=(*small, *gathers),
        micro_steps=spread.micro_steps,
        reduces_hide=spread.overlap and spread.device == "cuda",
    )


def _reduces(sizes: Sequence[int], spread: ModelSpread) -> tuple[Call, ...]:
    return tuple(Call("all-reduce", spread.message * size) for size in sizes)


def _exchanged_3(parameters: Sequence[Parameter], spread: ModelSpread) -> Traffic:
    """List the calls of stage 3 from its third step on, when it knows the order of modules. In groups (hpZ)
    trained weights are gathered from all ranks in the first forward pass after an update, and from the
    group's second copy afterwards; frozen ones always so (invalidate_secondary_tensor). The first micro-step
    is `last` here."""
    stays = [p for p in parameters if p.numel <= spread.persistence]
    modules = [list(group) for _, group in groupby(parameters, key=lambda p: p.name.rpartition(".")[0])]
    again = _regathered(modules, spread.reuse) - set(stays)
    for module in modules:  # no gradient goes further back than to what is trained
        if any(p.trained for p in module):
            break
        again -= set(module)
    own = [p for p in reversed(parameters) if p.trained]
    backward = _fetched(modules[::-1], spread, set(parameters) - again)
    backward = _with_reduces(backward, modules[::-1], own, spread)
    forward, updated = (_fetched(modules, spread, set(stays), updated=new) for new in (False, True))
    kept = tuple(_gather([p], spread) for p in stays)
    return Traffic(
        early=Passes(tuple(forward), tuple(backward)), last=Passes(tuple(updated), tuple(backward)),
        step=(*_step(parameters, spread), *kept), micro_steps=spread.micro_steps,
        gathers_hide=True, reduces_hide=spread.overlap and spread.device == "cuda",
    )  # fmt: skip


def _gather(parameters: Sequence[Parameter], spread: ModelSpread, group: int = 0) -> Call:
    """Gather tensors in one call, each padded so that every rank has the same number of its elements."""
    return Call("all-gather", spread.element * sum(up(p.numel, spread.ranks) for p in parameters), group)


def _gathers(parameters: Sequence[Parameter], spread: ModelSpread, *, updated: bool) -> list[Call]:
    """Gather from all ranks, and from the group what it has. `updated`: it has nothing that is trained."""
    far, near = list[Parameter](), list[Parameter]()
    for p in parameters:
        (near if spread.grouped and not (updated and p.trained) else far).append(p)
    return [_gather(part, spread, group) for part, group in ((far, 0), (near, spread.group)) if part]


def buckets(sizes: Sequence[int], most: int) -> list[int]:
    """Fill buckets: one is sent before the tensor that would overfill it."""
    sent, filled = [], 0
    for size in sizes:
        if filled and filled + size > most:
            sent.append(filled)
            filled = 0
        filled += size
    return [*sent, filled] if filled else sent


def _fetched(
    modules: Sequence[Sequence[Parameter]],
    spread: ModelSpread,
    there: set[Parameter],
    *,
    updated: bool = False,
) -> list[Segment]:
    """Pass through the modules: list what each waits for, and what it fetches for those after it."""
    whole = sum(p.numel for module in modules for p in module) or 1
    queue = [p for module in modules for p in module]
    place = {p: index for index, module in enumerate(modules) for p in module}
    held, position = set(there), 0
    gathers: list[list[Call]] = [[] for _ in modules]
    for index, module in enumerate(modules):
        missing = [p for p in module if p not in held]
        if missing:
            gathers[index] += _gathers(missing, spread, updated=updated)
            held |= set(missing)
        chosen: list[Parameter] = []
        while position < len(queue) and sum(p.numel for p in chosen) < spread.prefetch:
            if queue[position] not in held:
                chosen.append(queue[position])
                held.add(queue[position])
            position += 1
        if chosen:
            later = max(index + 1, place[chosen[0]])
            gathers[later] += _gathers(chosen, spread, updated=updated)
    return [
        Segment(sum(p.numel for p in module) / whole, tuple(calls))
        for module, calls in zip(modules, gathers, strict=True)
    ]


def _regathered(modules: Sequence[Sequence[Parameter]], reuse: int) -> set[Parameter]:
    """Return what is dropped after a module's forward pass: its backward pass is further away than
    `reuse`."""
    dropped: set[Parameter] = set()
    after = sum(p.numel for module in modules for p in module)
    for module in modules:
        after -= sum(p.numel for p in module)
        if 2 * after >= reuse:  # forward to the end and backward to here
            dropped |= set(module)
    return dropped


def _with_reduces(
    segments: Sequence[Segment],
    modules: Sequence[Sequence[Parameter]],
    trained: Sequence[Parameter],
    spread: ModelSpread,
) -> list[Segment]:
    """Add each bucket's call to the segment that fills it."""
    sizes = buckets([p.numel for p in trained], spread.bucket)
    made, waiting, done = [], list(sizes), 0
    for index, (segment, module) in enumerate(zip(segments, modules, strict=True)):
        done += sum(p.numel for p in module if p.trained)
        reduces = []
        while waiting and (waiting[0] <= done or index == len(modules) - 1):
            done -= waiting[0]
            reduces.append(Call("reduce-scatter", spread.message * waiting.pop(0)))
        made.append(Segment(segment.share, segment.gathers, tuple(reduces)))
    return made
