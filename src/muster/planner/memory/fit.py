"""Whether a job fits: bytes per rank, in named parts that add up, on the device and on the host. Pure.

States: states.py, from the model's parameter tensors. Activations: from a trace of the real model
where there is one for this arithmetic; else, of decoders, a closed form (activations.py), which misses such
traces by -18 to +37 %; else they are not counted (UNCOUNTED). The margin is for what these leave out.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from muster.core import families, float8
from muster.core.bits import Bits, moment_bytes, weight_bytes
from muster.core.trace import AFTER_BLOCKS, BACKWARD, EMBEDDINGS, Arithmetic, Pass, Trace
from muster.core.units import format_bytes
from muster.core.workload import Drawing, HeldModel, Lengths, Output
from muster.engines.base import EngineSpec, spec_of
from muster.engines.spread import ModelSpread, Tensors, trained
from muster.engines.states import Parts, States, added, elements, largest
from muster.planner.document import UNCOUNTED
from muster.planner.memory.activations import (
    KeptValues,
    activation_bytes,
    drawing_bytes,
    fused_bytes,
    logit_bytes,
    tile_bytes,
)
from muster.planner.memory.states import frozen_states, held_tensors, likely_tensors, states

MARGIN = 0.06  # of a device's or a host's memory, left free
# Of all tensors: what torch's allocator reserves and cannot hand out; more where tensors of many sizes are
# gathered and released one by one, as under ZeRO-3: published runs took 4 to 20 % more than all tensors.
SLACK, SCATTERED_SLACK = 0.04, 0.14
# On CPUs, of the C library, whose heap keeps what is freed between tensors that stay: of all tensors, and of
# weights that are gathered one by one and released between activations. Measured (docs/memory.md).
HEAP, HOLES = 0.12, 2
GB = 1_000_000_000
# A CUDA context with its libraries: 0.3 to 1 GB before Hopper; an H100 has 1.5 (docs/memory.md).
CONTEXT, CONTEXT_HOPPER = GB, GB * 3 // 2
# Times the logits that a compiled graph hands to a loss outside it: two equal runs took 0.4 and 1.4 times
# these beyond what is counted, and nobody knows why (docs/memory.md).
HANDED = 1.5
COMMUNICATOR = GB // 2  # of NCCL
# Of cuBLAS, in the main and in the backward thread, on Hopper; 8 MiB each before it
# (aten/src/ATen/cuda/CublasHandlePool.cpp, getChosenWorkspaceSize).
WORKSPACES = 2 * 32 * 2**20
PROCESS = GB * 7 // 10  # a rank's host memory before there is a model: interpreter, torch, DeepSpeed
HOPPER = (9, 0)  # a compute capability
# Whose moments the Trainer leaves in fp32 (transformers/trainer.py, create_optimizer).
_EMBEDDING = re.compile(r"embed|(?:^|\.)(?:wte|wpe|shared)\.weight$")


@dataclass(frozen=True)
class Setting:
    """What decides how much memory a rank needs: a model, its spread over ranks, and how it is trained.

    `ranks_per_host`: the most on one host; `micro`: samples of the rank that has most; `share`: of them,
    those of a rank on average, below 1 where batch.split differs; `mean_tokens`: of a sample, padding
    included, where batches are padded to their own longest sample, None: not counted; `saves`: the first rank
    gathers the trained model, `checkpoints`: or does so for each checkpoint; `fused_loss`: as the recipe has
    it; `context`: bytes of CUDA's; `quantized`: the frozen weights of linear layers; `small_moments`: Adam's,
    in 8 bits; `others`: further models of a step; `trace`: of the recipe's real model.
    """

    config: Mapping[str, Any] = field(repr=False)
    parameters: int
    trainable: int
    lengths: Lengths
    precision: str
    spread: ModelSpread
    ranks_per_host: int
    micro: int = 1
    share: float = 1.0
    mean_tokens: float | None = None
    checkpointing: bool = False
    create: str = "whole"
    saves: bool = True
    checkpoints: bool = False
    fused_loss: bool | str = False
    compiled: bool = False
    context: int = CONTEXT
    quantized: Bits | None = None
    small_moments: bool = False
    output: Output = "logits"
    others: tuple[HeldModel, ...] = ()
    drawing: Drawing | None = None
    trace: Trace | None = field(default=None, repr=False)

    def spreading(self, **changes: Any) -> Setting:
        """Return the same with other fields of its spread."""
        return replace(self, spread=replace(self.spread, **changes))

    @property
    def tokens(self) -> float:
        """Tokens of a sample on average, padding included; of the longest where no other length is known."""
        return self.lengths.all if self.mean_tokens is None else min(self.lengths.all, self.mean_tokens)

    @property
    def padded(self) -> float:
        """Tokens of a sample on average over those of the longest."""
        return self.tokens / self.lengths.all if self.lengths.all else 1.0

    @property
    def engine(self) -> EngineSpec:
        """The engine's specification."""
        return spec_of(self.spread.engine)

    @property
    def arithmetic(self) -> Arithmetic:
        """fp32; half: the whole model as it computes; autocast: weights in fp32, copies for the products."""
        whole = self.spread.keeps_half or self.spread.casts
        return self.engine.arithmetic(self.precision, self.spread.ranks, whole=whole)

    @property
    def kept(self) -> KeptValues:
        """How activations are kept. CPUs have no fused attention with dropout, and GPUs none of grouped keys
        in fp32."""
        model, cpu, element = families.stacks(self.config), self.spread.device == "cpu", self.spread.element
        fused = not (cpu and any(each.attention_dropout for each in model))
        fused = fused and (element == 2 or cpu or all(each.keys == each.query for each in model))
        mixed = self.arithmetic == "autocast"
        return KeptValues(
            element, mixed=mixed, fused=fused, mask=element if cpu else 1, compiled=self.compiled
        )

    @property
    def tensors(self) -> Tensors:
        """Parameter tensors of all that is trained."""
        tensors = self.own_tensors
        for each in self.others:
            tensors += self.tensors_of(each) if each.trained else ()
        return tensors

    @property
    def own_tensors(self) -> Tensors:
        """The model's parameter tensors: real ones where it was traced, else approximate ones."""
        if self.trace is not None:
            return self.trace.parameters
        return likely_tensors(self.config, self.parameters, self.trainable)

    def tensors_of(self, model: HeldModel) -> Tensors:
        """Return the parameter tensors of a further model of a step."""
        return held_tensors(model, self.own_tensors, self.config)

    @property
    def frozen(self) -> list[HeldModel]:
        """Further models that take memory and are not trained."""
        return [each for each in self.others if not (each.trained or each.shared)]

    @property
    def in_bits(self) -> Tensors:
        """Frozen weights in few bits: matrices of blocks, so neither embeddings nor the output layer."""
        if self.quantized is None:
            return ()
        return tuple(each for each in self._inside if not each.trained and len(each.shape) == 2)

    @property
    def in_fp8(self) -> Tensors:
        """Weights of the linear layers that compute in fp8."""
        if self.precision != float8.NAME:
            return ()
        return tuple(each for each in self._inside if float8.converts(each.shape))

    @property
    def _inside(self) -> Tensors:
        """Parameters of blocks."""
        return tuple(each for each in self.own_tensors if each.unit not in ("", EMBEDDINGS))

    @property
    def drawn(self) -> int:
        """Answers that a rank draws at once."""
        if self.drawing is None:
            return 0
        return self.micro * (self.spread.micro_steps if self.drawing.at_once else 1)

    @property
    def elements(self) -> int:
        """Parameters of all models that a rank makes."""
        return elements(self.tensors) + sum(elements(self.tensors_of(each)) for each in self.frozen)


@dataclass(frozen=True)
class Need:
    """Bytes per rank of the first host, which needs most, by purpose, at the peak. On CPUs everything is in
    `device`.

    `basis`: where the activations are from, traced or closed form, or UNCOUNTED; `moment`: when the peak is.
    """

    device: Parts
    host: Parts
    basis: str = "closed form"
    moment: str = "backward pass"

    @property
    def whole(self) -> bool:
        """Whether activations are counted."""
        return self.basis != UNCOUNTED


@dataclass(frozen=True)
class MemoryLimit:
    """Bytes that a rank may use, at the smallest device and host; None: not known."""

    device: int | None
    host: int | None
    device_name: str = "a device"
    host_name: str = "a host"
    capability: tuple[int, int] | None = None  # of that device

    @property
    def context(self) -> int:
        """Bytes of a CUDA context there."""
        return CONTEXT_HOPPER if self.capability == HOPPER else CONTEXT


def need(setting: Setting) -> Need | None:
    """Return what a rank needs at its peak, without activations where the model is neither a decoder nor
    traced for this arithmetic; None for an engine that does not declare its states."""
    activations = _activations(setting)
    tensors = setting.tensors
    held = states(setting.spread, tensors)
    if held is None:
        return None
    held, activations = _in_bits(setting, held, _in_fp8(setting, activations))
    frozen = [frozen_states(setting.spread, each, setting.tensors_of(each)) for each in setting.frozen]
    moments = moments_of(held, activations, accumulates=setting.spread.micro_steps > 1)
    gathered = added(*(each.passes for each in frozen if each))
    if setting.drawing is None:  # further models run while activations are kept, else before there are any
        moments["loss"] = added(moments["loss"], gathered)
    else:
        moments["drawing answers"] = _drawing(setting, tensors, held, activations)
    sums = {name: sum(parts.values()) for name, parts in moments.items()}
    moment = max(sums, key=lambda name: sums[name])
    device = added(held.held, *(each.held for each in frozen if each), moments[moment])
    host = added(held.host, *(each.host for each in frozen if each))
    if setting.trace is not None:
        device["model's buffers"] = setting.trace.buffers
    passes = added(held.passes, gathered)
    scattered = setting.engine.gathers_tensors
    holes = HOLES * sum(size for name, size in passes.items() if scattered and name.startswith("gathered"))
    return _with_overhead(setting, tensors, device, host, activations.basis, moment, holes)


def _in_bits(
    setting: Setting, states: States, activations: ActivationBytes
) -> tuple[States, ActivationBytes]:
    """Return states and activations with weights and moments in few bits, of an engine whose ranks hold all
    in fp32. A matrix is made of whole numbers for its product alone: autocast has no copy of it that stays.
    """
    small, held = setting.in_bits, dict(states.held)
    if setting.small_moments:
        held["optimizer"] = sum(
            8 * each.numel if _EMBEDDING.search(each.name) else moment_bytes(each.numel)
            for each in trained(setting.tensors)
        )
    if setting.quantized is None or not small:
        return replace(states, held=held), activations
    kept = sum(weight_bytes(setting.quantized, each.shape) for each in small)
    held["parameters"] -= 4 * elements(small)
    layer = {"a layer as whole numbers": setting.spread.element * largest(small)}
    return (
        replace(states, held=added(held, {"quantised weights": kept})),
        _without_copies(setting, activations, small, layer),
    )


def _without_copies(
    setting: Setting, activations: ActivationBytes, tensors: Tensors, layer: Parts
) -> ActivationBytes:
    """Return activations with no copies of these weights, and a layer's in their place. With gradient
    checkpointing, those of blocks do not stay anyway."""
    copies, gone = sum(activations.copies.values()), setting.spread.element * elements(tensors)
    left = copies - gone if copies >= gone else copies
    return replace(activations, copies={"copies in half precision": left, **layer})


def _in_fp8(setting: Setting, activations: ActivationBytes) -> ActivationBytes:
    """Return activations with linear layers in fp8: autocast makes no copy of their weights. A layer's
    matrices are cast for its products alone, input and output's gradient along both sides; torchao keeps the
    originals, which autocast's products would keep as well. Where nothing is compiled a cast makes two copies
    in fp32."""
    layers = setting.in_fp8
    if not layers:
        return activations
    rows = setting.micro * setting.lengths.sequences * setting.lengths.tokens

    def made(rows_of: int, columns: int) -> int:
        whole = rows_of * columns + 2 * rows * (rows_of + columns)
        largest_of = max(rows_of * columns, rows * rows_of, rows * columns)
        return whole + (0 if setting.compiled else 8 * largest_of)

    layer = {"a layer in fp8": max(made(*each.shape) for each in layers)}
    return _without_copies(setting, activations, layers, layer)


def _drawing(setting: Setting, tensors: Tensors, states: States, activations: ActivationBytes) -> Parts:
    """Return what is on the device, besides what is always held, while a rank generates answers."""
    assert setting.drawing is not None
    gathered = setting.engine.gathers_to_draw(setting.spread, tensors)
    weights = states.passes if gathered is None else {"gathered parameters": gathered}
    made = drawing_bytes(setting.config, setting.drawing, setting.drawn, setting.kept)
    return added(weights, activations.copies, made)


def _activations(setting: Setting) -> ActivationBytes:
    """Return the activations of the model, and by the closed form of further ones that are trained with it.
    """
    own = _own_activations(setting)
    more: Parts = {}
    for each in setting.others:
        config = setting.config if each.config is None else each.config
        kept = activation_bytes(config, setting.lengths, setting.kept, checkpointing=setting.checkpointing)
        if each.trained and kept is not None:
            more = added(more, {f"activations of the {each.role}": setting.micro * kept})
    return replace(own, top=added(own.top, more), later=added(own.later, more))


def _own_activations(setting: Setting) -> ActivationBytes:
    """Return traced activations where the trace is of this arithmetic: not of another engine or precision,
    nor with other checkpointing, nor compiled otherwise; else those of the closed form of decoders."""
    trace = setting.trace
    asked = (setting.arithmetic, setting.spread.device, setting.checkpointing, setting.compiled)
    if trace is not None and asked == (trace.arithmetic, trace.device, trace.checkpointing, trace.compiled):
        return traced(trace.at(setting.micro))
    config, lengths, kept = setting.config, setting.lengths, setting.kept
    weights = kept.element * elements(setting.tensors) if kept.mixed else 0
    copies = {"copies in half precision": weights}
    each = activation_bytes(config, lengths, kept, checkpointing=setting.checkpointing)
    if each is None:
        return ActivationBytes(UNCOUNTED, {}, {}, 0, copies)
    sequences = setting.micro * lengths.sequences
    rows = sequences * lengths.tokens
    logits: int | None = None
    if setting.output == "log-probs":
        logits = tile_bytes(config, rows, kept, setting.spread.device)
    elif setting.output == "numbers":
        logits = 0
    elif setting.output == "logits":
        logits = fused_bytes(config, rows, kept, setting.spread.device, setting.fused_loss)
    if logits is None:
        logits = sequences * logit_bytes(config, lengths, kept)
    parts = {"activations": sequences * each, "logits and loss": logits}
    return ActivationBytes("closed form", parts, parts, 0, copies)


def _with_overhead(
    setting: Setting, tensors: Tensors, device: Parts, host: Parts, basis: str, moment: str, holes: int
) -> Need:
    """Add what a process needs otherwise, and the model while it is made. `holes`: in a CPU's heap."""
    count = elements(tensors)
    whole = setting.create == "whole" and setting.quantized is None  # else read and cut tensor by tensor
    making = 4 * (setting.elements if whole else largest(tensors))
    engine = setting.engine
    first = _of_the_first_rank(setting, engine, tensors, count)
    if setting.spread.device == "cpu":
        everything = added(device, host)
        slack = holes + int(HEAP * sum(everything.values()))
        everything = added(everything, {"allocator slack": slack})
        if sum(everything.values()) < making:
            everything, moment = {"the model while it is made": making}, "making the model"
        return Need({**everything, "process": PROCESS, **first}, {}, basis, moment)
    device = added(device, {"matrix products": WORKSPACES})
    scattered = engine.gathers_tensors and engine.shards_weights(setting.spread.stage)
    device["allocator slack"] = int((SCATTERED_SLACK if scattered else SLACK) * sum(device.values()))
    device["CUDA context"] = setting.context
    if setting.spread.ranks > 1:
        device["NCCL"] = COMMUNICATOR
    parts = host if sum(host.values()) >= making else {"the model while it is made": making}
    return Need(device, {**added(parts), "process": PROCESS, **first}, basis, moment)


def _of_the_first_rank(setting: Setting, engine: EngineSpec, tensors: Tensors, count: int) -> Parts:
    """Return what the first rank makes or gathers in its host's memory, one after the other: the largest
    counts, as a part of each of that host's ranks.

    A checkpoint has the whole model too (transformers 5.23, trainer.py, save_model), and FSDP's the whole
    optimizer (accelerate 1.15, utils/fsdp_utils.py, save_fsdp_optimizer).
    """
    parts: Parts = {}
    if setting.create == "sharded" and engine.made_by_first:
        parts["the whole model, made by the first rank"] = 4 * count
    if engine.shards_weights(setting.spread.stage, setting.spread.ranks) and setting.spread.ranks > 1:
        if setting.saves or setting.checkpoints:
            parts["the whole model, saved by the first rank"] = engine.weight_bytes(setting.spread) * count
        if setting.checkpoints and engine.gathers_optimizer:
            states = 2 * setting.spread.kept * elements(trained(tensors))
            parts["the whole optimizer, saved by the first rank"] = states
    largest = max(parts, key=lambda name: parts[name], default="")
    return {largest: parts[largest] // setting.ranks_per_host} if parts else {}


def fits(setting: Setting, room: MemoryLimit) -> bool:
    """Return whether a rank's need is within its room, less the margin: plans choose by themselves only such
    ways. What is not known is taken to fit."""
    return lacking(setting, room) is None


def may_run(setting: Setting, room: MemoryLimit) -> bool:
    """Return whether a rank's need is within its room, margin included: what a user asks for may be that
    tight."""
    short = lacking(setting, room)
    return short is None or not short.refused


@dataclass(frozen=True)
class Shortage:
    """Where there is too little memory: device or host, and the bytes that a rank needs and has there. CPUs
    have a device's memory in their host's."""

    place: str
    needed: int
    has: int
    cpu: bool = False

    @property
    def refused(self) -> bool:
        """Whether it cannot run. A host has other processes as well, for which the margin is; a GPU that is
        tight may be enough."""
        return self.cpu or self.place == "host" or self.needed > self.has

    def __str__(self) -> str:
        kind = "memory" if self.cpu else f"{self.place} memory"
        tight = f", of which {MARGIN:.0%} stay free" if self.needed <= self.has else ""
        return f"{format_bytes(self.needed)} of {format_bytes(self.has)} of {kind}{tight}"


def lacking(setting: Setting | None, room: MemoryLimit, counted: Need | None = None) -> Shortage | None:
    """Return what there is too little of; None: it fits, or a rank's need is not known. `counted`: its need,
    where that was computed before."""
    if setting is None or (counted := counted or need(setting)) is None:
        return None
    cpu, device, host = (
        setting.spread.device == "cpu",
        sum(counted.device.values()),
        sum(counted.host.values()),
    )
    for place, needed, has in (("device", device, room.device), ("host", host, room.host)):
        if has is not None and needed > (1 - MARGIN) * has:
            return Shortage(place, needed, has, cpu)
    return None


def largest_micro(setting: Setting, room: MemoryLimit, top: int) -> int:
    """Return the largest micro-batch up to `top` that fits; 0: not even one sample does."""

    def too_large(micro: int) -> bool:
        return not fits(replace(setting, micro=micro), room)

    return bisect_left(range(1, max(1, top) + 1), True, key=too_large)  # what is needed grows with it


# ----------------------------------------------------------------------------------------------------
# What the passes over a micro-batch keep and need, and when a rank holds most. Pure.


@dataclass(frozen=True)
class ActivationBytes:
    """Bytes of the passes over a micro-batch. `basis`: as in Need; `top`: at their peak; `later`: at most,
    once there are gradients; `growing`: what whole gradients add to that as they come, where there are none
    before; `output`: what the output layer's own gradients add to `top`; `copies`: of weights, all along. A
    closed form has one figure for all of the backward pass."""

    basis: str
    top: Parts
    later: Parts
    growing: int
    copies: Parts
    output: int = 0


def traced(at: Pass) -> ActivationBytes:
    """Return a trace's activations.

    Between the last block and the loss the peak is the loss's, before there is any gradient. When the first
    ones come there, about as much is left as is kept for the backward pass.
    """
    kept = {"activations": max(0, at.saved - at.logits), "logits and loss": min(at.logits, at.saved)}
    peak = max(at.saved, at.forward_peak, at.backward_peak)
    later, growing, output = peak, max(peak, at.growing_peak), 0
    if AFTER_BLOCKS in at.peaks:
        others = [
            pair for part, pair in at.peaks.items() if part.startswith(BACKWARD) and part != AFTER_BLOCKS
        ]
        later = max([at.saved, 0, *(plain for plain, _ in others)])
        growing = max([later, *(grown for _, grown in others)])
        output = max(0, at.peaks[AFTER_BLOCKS][1] - peak)
    handed = {"logits handed over": round(HANDED * at.handed)} if at.handed else {}
    return ActivationBytes(
        "traced",
        top={**kept, "temporary tensors": peak - at.saved, **handed},
        later={**kept, "temporary tensors": later - at.saved, **handed},
        growing=growing - later,
        copies={"copies in half precision": at.copies},
        output=output,
    )


def moments_of(states: States, activations: ActivationBytes, *, accumulates: bool) -> dict[str, Parts]:
    """Return what is on the device, besides what is always held, at each moment that may be the peak.

    Activations are freed as gradients come. Where they were traced and there are no gradients from earlier
    micro-batches, whole gradients were traced as well, and with others the peak is at one end of the backward
    pass; else all are taken to be there at once.
    """
    quiet = added(states.passes, activations.copies)
    later = added(quiet, states.backward, activations.later)
    ending = added(quiet, states.backward if states.ending is None else states.ending, states.gradients)
    loss = added(quiet, states.loss, activations.top)
    if states.loss:  # gathered by itself: its gradients come beside it
        loss = added(loss, {"gradients in flight": activations.output})
    if activations.basis != "traced" or accumulates:
        moments = {"backward pass": added(later, states.gradients), "loss": added(loss, states.gradients)}
        if states.ending is not None:
            moments["end of the backward pass"] = ending
        return {**moments, **states.after}
    if states.whole:
        first = later.pop("gradients in flight", 0)  # the others were traced
        gone = sum(activations.copies.values())  # with the activations
        grown = {"gradients": max(activations.growing - gone, first)}
        return {"backward pass": added(later, grown), "loss": loss, **states.after}
    return {"backward pass": later, "loss": loss, "end of the backward pass": ending, **states.after}
