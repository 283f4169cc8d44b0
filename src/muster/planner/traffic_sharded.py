"""What ranks exchange where weights are sharded: FSDP and ZeRO-3. Pure.

- FSDP2 (torch, _fully_shard; accelerate, fsdp2_prepare_model): each unit is gathered in the forward pass and
  again in the backward pass, but for the root, which stays; gradients are reduced and scattered in the last
  micro-step alone (set_requires_gradient_sync). Each tensor is padded along its first dimension. On CPUs
  every call blocks.
- ZeRO 3 (partitioned_param_coordinator.py): a module's weights are gathered when it is reached, and at least
  one more tensor, up to the prefetch bucket, for those after it. After the forward pass they stay until the
  backward pass where no more than max_reuse_distance elements are passed through on the way. Tensors up to
  the persistence threshold stay for good, and are gathered one by one after the optimizer's step. Gradients
  are reduced and scattered at every micro-step (stage3.py), on CPUs while everyone waits. Not planned:
  embeddings that are tied to the output are gathered for each use of theirs where max_reuse_distance is
  short.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from muster.core.trace import Parameter
from muster.planner.collective import Call
from muster.planner.exchange import Passes, Segment, Traffic, buckets, step_calls
from muster.planner.spread import Spread


def fsdp(parameters: Sequence[Parameter], spread: Spread, library: str) -> Traffic:
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


def zero3(parameters: Sequence[Parameter], spread: Spread, library: str) -> Traffic:
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


def _gather(parameters: Sequence[Parameter], spread: Spread, *, pad: bool = False) -> Call:
    """Padded so that every rank has the same: along the first dimension (FSDP), or of a tensor's elements."""
    n = spread.ranks
    return Call("all-gather", spread.exchanged * sum(_padded(p, n, pad=pad) for p in parameters))


def _scatter(parameters: Sequence[Parameter], spread: Spread) -> tuple[Call, ...]:
    size = sum(_padded(p, spread.ranks, pad=True) for p in parameters)
    return (Call("reduce-scatter", spread.exchanged * size),) if size else ()


def _padded(parameter: Parameter, ranks: int, *, pad: bool) -> int:
    if not pad or not parameter.shape:
        return -(-parameter.numel // ranks) * ranks
    rows = parameter.shape[0] or 1
    return -(-rows // ranks) * ranks * (parameter.numel // rows)


def _fetched(modules: Sequence[Sequence[Parameter]], spread: Spread, there: set[Parameter]) -> list[Segment]:
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
    spread: Spread,
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
