"""What ranks exchange in an optimizer step, call by call, by engine. Pure.

Read in the engines' own code, and held against what they really call by tests/real/test_traffic.py:

- DDP (torch, reducer.cpp): gradients in buckets of at least 25 MiB, the first one of 1 MiB, in the order in
  which they are ready; only the last micro-step of an optimizer step exchanges (accelerate's no_sync).
- DeepSpeed 0 (runtime/engine.py, allreduce_gradients): after the last micro-step, in buckets of 5e8 elements.
- ZeRO 1 (runtime/zero/stage_1_and_2.py, reduce_gradients): all-reduces whole buckets after the last
  micro-step (use_multi_rank_bucket_allreduce), then all-gathers the weights (all_gather_dp_groups): 3 b Psi
  in all.
- ZeRO 2 (same file, reduce_independent_p_g_buckets_and_remove_grads): the same in every micro-step's
  backward pass: 2 b Psi a + b Psi.
- ZeRO 3 (partitioned_param_coordinator.py, stage3.py): planner/traffic_sharded.py, as FSDP.

b: bytes of a value, Psi: parameters, a: micro-steps. "all-reduce" counts twice on a ring.
"""

from __future__ import annotations

from collections.abc import Sequence

from muster.core.trace import Parameter
from muster.planner.collective import Call, library_of
from muster.planner.exchange import Passes, Segment, Traffic, buckets, step_calls
from muster.planner.spread import Spread
from muster.planner.traffic_sharded import fsdp, zero3

DDP_FIRST, DDP_BUCKET = 2**20, 25 * 2**20  # bytes
STAGE0_BUCKET = 500_000_000  # elements
ALIGNMENT = 2  # elements x ranks: nccl_start_alignment_factor, to which ZeRO 1 and 2 pad a group


def traffic_of(parameters: Sequence[Parameter], spread: Spread) -> Traffic:
    """What is exchanged per optimizer step. One rank alone exchanges nothing.

    Raises ValueError for an engine that is not known.
    """
    if spread.engine not in ("ddp", "fsdp", "deepspeed"):
        raise ValueError(f"no traffic is known of an engine {spread.engine!r}")
    library = library_of(spread.device)
    if spread.ranks == 1:
        return Traffic(Passes(), Passes(), (), spread.micro_steps, library=library)
    if spread.engine == "ddp":
        return _ddp(parameters, spread, library)
    if spread.engine == "fsdp":
        return fsdp(parameters, spread, library)
    if spread.stage == 3:
        return zero3(parameters, spread, library)
    return _deepspeed(parameters, spread, library)


def lump(count: int, trained: int | None = None, layers: int = 12) -> tuple[Parameter, ...]:
    """Parameters where only their number is known: layers of about the same size. `trained`: so many in
    adapters beside them, and they are frozen; None: all of them."""
    sizes = [count * (i + 1) // layers - count * i // layers for i in range(layers)]
    own = trained is None
    parts = tuple(Parameter(f"layers.{i}.weight", (s,), own, f"layers.{i}") for i, s in enumerate(sizes))
    return parts if trained is None else (*parts, Parameter("adapter", (trained,), True, ""))


def _ddp(parameters: Sequence[Parameter], spread: Spread, library: str) -> Traffic:
    """Gradients are fp32 whatever autocast computes in: DDP keeps fp32 weights."""
    segments, filled, most = [], 0, DDP_FIRST
    whole = sum(p.numel for p in parameters if p.trained) or 1
    for parameter in reversed([p for p in parameters if p.trained]):
        filled += 4 * parameter.numel
        if filled >= most:
            segments.append(_reducing(filled, 4 * whole))
            filled, most = 0, DDP_BUCKET
    if filled:
        segments.append(_reducing(filled, 4 * whole))
    return Traffic(
        Passes(), Passes((), tuple(segments)), step_calls(parameters, spread), spread.micro_steps,
        reduces_hide=True, library=library,
    )  # fmt: skip


def _reducing(size: int, whole: int) -> Segment:
    return Segment(size / whole, (), (Call("all-reduce", size),))


def _deepspeed(parameters: Sequence[Parameter], spread: Spread, library: str) -> Traffic:
    trained = [p for p in parameters if p.trained]
    element = spread.exchanged
    small = step_calls(parameters, spread)
    if spread.stage == 0:
        sizes, filled = [], 0
        for parameter in trained:  # sent after the tensor that overfills it
            filled += parameter.numel
            if filled > STAGE0_BUCKET:
                sizes.append(filled)
                filled = 0
        sizes += [filled] if filled else []
        reduces = tuple(Call("all-reduce", element * size) for size in sizes)
        return Traffic(Passes(), Passes(), (*reduces, *small), spread.micro_steps, library=library)
    groups = spread.optimizer_groups(tuple(trained))
    unit = ALIGNMENT * spread.ranks
    gathers = tuple(
        Call("all-gather", element * (-(-sum(p.numel for p in group) // unit) * unit)) for group in groups
    )
    if spread.stage == 1 and not spread.overlap:
        order = [p.numel for group in groups for p in group]
        reduces = tuple(Call("all-reduce", element * size) for size in buckets(order, spread.bucket))
        return Traffic(Passes(), Passes(), (*reduces, *small, *gathers), spread.micro_steps, library=library)
    whole = sum(p.numel for p in trained) or 1
    backward = tuple(
        _reducing(element * size, element * whole)
        for size in buckets([p.numel for p in reversed(trained)], spread.bucket)
    )
    return Traffic(
        early=Passes((), backward) if spread.stage == 2 else Passes(),
        last=Passes((), backward),
        step=(*small, *gathers),
        micro_steps=spread.micro_steps,
        reduces_hide=spread.overlap and spread.device == "cuda",
        library=library,
    )
