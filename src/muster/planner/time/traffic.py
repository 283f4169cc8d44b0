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
- ZeRO 3 (partitioned_param_coordinator.py, stage3.py): as FSDP, below.

b: bytes of a value, Psi: parameters, a: micro-steps. "all-reduce" counts twice on a ring.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from muster.core.trace import Parameter
from muster.planner.spread import ModelSpread
from muster.planner.time.collective import Call, library_of
from muster.planner.time.exchange import Passes, Segment, Traffic, buckets, step_calls

DDP_FIRST, DDP_BUCKET = 2**20, 25 * 2**20  # bytes
STAGE0_BUCKET = 500_000_000  # elements
ALIGNMENT = 2  # elements x ranks: nccl_start_alignment_factor, to which ZeRO 1 and 2 pad a group


def traffic_of(parameters: Sequence[Parameter], spread: ModelSpread) -> Traffic:
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


def _ddp(parameters: Sequence[Parameter], spread: ModelSpread, library: str) -> Traffic:
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


def _deepspeed(parameters: Sequence[Parameter], spread: ModelSpread, library: str) -> Traffic:
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


# ----------------------------------------------------------------------------------------------------
# What ranks exchange where weights are sharded: FSDP and ZeRO-3. Pure.
#
# - FSDP2 (torch, _fully_shard; accelerate, fsdp2_prepare_model): each unit is gathered in the forward pass
#   and again in the backward pass, but for the root, which stays; gradients are reduced and scattered in the
#   last micro-step alone (set_requires_gradient_sync). Each tensor is padded along its first dimension.
#   On CPUs every call blocks.
# - ZeRO 3 (partitioned_param_coordinator.py): a module's weights are gathered when it is reached, and at
#   least one more tensor, up to the prefetch bucket, for those after it. After the forward pass they stay
#   until the backward pass where no more than max_reuse_distance elements are passed through on the way.
#   Tensors up to the persistence threshold stay for good, and are gathered one by one after the optimizer's
#   step. Gradients are reduced and scattered at every micro-step (stage3.py), on CPUs while everyone waits.
#   Not planned: embeddings that are tied to the output are gathered for each use of theirs where
#   max_reuse_distance is short.


def fsdp(parameters: Sequence[Parameter], spread: ModelSpread, library: str) -> Traffic:
    """FSDP2 with a unit per transformer block."""
    units: dict[str, list[Parameter]] = {}
    for parameter in parameters:
        units.setdefault(parameter.unit, []).append(parameter)
    whole = sum(p.numel for p in parameters) or 1
    names = sorted(units, key=lambda name: name != "")  # the root first: it is reached first
    forward: list[Segment] = []
    early: list[Segment] = []
    last: list[Segment] = []
    for name in names:
        share = sum(p.numel for p in units[name]) / whole
        gathered = (_gather(units[name], spread, pad=True),)
        reduced = _scatter([p for p in units[name] if p.trained], spread)
        again = () if name == "" else gathered
        forward.append(Segment(share, gathered))
        early.insert(0, Segment(share, again))
        last.insert(0, Segment(share, again, reduced))
    hides = spread.device == "cuda"
    return Traffic(
        Passes(tuple(forward), tuple(early)), Passes(tuple(forward), tuple(last)),
        step_calls(parameters, spread), spread.micro_steps,
        gathers_hide=hides, reduces_hide=hides, library=library,
    )  # fmt: skip


def zero3(parameters: Sequence[Parameter], spread: ModelSpread, library: str) -> Traffic:
    """DeepSpeed's stage 3, from its third step on, when it knows the order of modules."""
    stays = [p for p in parameters if p.numel <= spread.persistence]
    modules = [list(group) for _, group in groupby(parameters, key=lambda p: p.name.rpartition(".")[0])]
    forward = _fetched(modules, spread, set(stays))
    again = _regathered(modules, spread.reuse) - set(stays)
    backward = _fetched(modules[::-1], spread, set(parameters) - again)
    trained = [p for p in reversed(parameters) if p.trained]
    backward = _with_reduces(backward, modules[::-1], trained, spread)
    passes = Passes(tuple(forward), tuple(backward))
    kept = tuple(_gather([p], spread) for p in stays)
    return Traffic(
        passes, passes, (*step_calls(parameters, spread), *kept), spread.micro_steps,
        gathers_hide=True, reduces_hide=spread.overlap and spread.device == "cuda", library=library,
    )  # fmt: skip


def _gather(parameters: Sequence[Parameter], spread: ModelSpread, *, pad: bool = False) -> Call:
    """Padded so that every rank has the same: along the first dimension (FSDP), or of a tensor's elements."""
    n = spread.ranks
    return Call("all-gather", spread.exchanged * sum(_padded(p, n, pad=pad) for p in parameters))


def _scatter(parameters: Sequence[Parameter], spread: ModelSpread) -> tuple[Call, ...]:
    size = sum(_padded(p, spread.ranks, pad=True) for p in parameters)
    return (Call("reduce-scatter", spread.exchanged * size),) if size else ()


def _padded(parameter: Parameter, ranks: int, *, pad: bool) -> int:
    if not pad or not parameter.shape:
        return -(-parameter.numel // ranks) * ranks
    rows = parameter.shape[0] or 1
    return -(-rows // ranks) * ranks * (parameter.numel // rows)


def _fetched(
    modules: Sequence[Sequence[Parameter]], spread: ModelSpread, there: set[Parameter]
) -> list[Segment]:
    """A pass through the modules: what each waits for, and what it fetches for those after it."""
    whole = sum(p.numel for module in modules for p in module) or 1
    queue = [p for module in modules for p in module]
    place = {p: index for index, module in enumerate(modules) for p in module}
    held, position = set(there), 0
    gathers: list[list[Call]] = [[] for _ in modules]
    for index, module in enumerate(modules):
        missing = [p for p in module if p not in held]
        if missing:
            gathers[index].append(_gather(missing, spread))
            held |= set(missing)
        chosen: list[Parameter] = []
        while position < len(queue) and sum(p.numel for p in chosen) < spread.prefetch:
            if queue[position] not in held:
                chosen.append(queue[position])
                held.add(queue[position])
            position += 1
        if chosen:
            gathers[max(index + 1, place[chosen[0]])].append(_gather(chosen, spread))
    return [
        Segment(sum(p.numel for p in module) / whole, tuple(calls))
        for module, calls in zip(modules, gathers, strict=True)
    ]


def _regathered(modules: Sequence[Sequence[Parameter]], reuse: int) -> set[Parameter]:
    """What is dropped after a module's forward pass: its backward pass is further away than `reuse`."""
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
    """Each bucket goes off in the segment that fills it."""
    sizes = buckets([p.numel for p in trained], spread.bucket)
    found, waiting, done = [], list(sizes), 0
    for index, (segment, module) in enumerate(zip(segments, modules, strict=True)):
        done += sum(p.numel for p in module if p.trained)
        reduces = []
        while waiting and (waiting[0] <= done or index == len(modules) - 1):
            done -= waiting[0]
            reduces.append(Call("reduce-scatter", spread.exchanged * waiting.pop(0)))
        found.append(Segment(segment.share, segment.gathers, tuple(reduces)))
    return found
