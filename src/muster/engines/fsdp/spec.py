"""FSDP2: weights, gradients and optimizer states are sharded over the ranks. Pure.

Sources: torch 2.13, torch/distributed/fsdp/_fully_shard (_fully_shard.py; _fsdp_param.py,
_init_sharded_param; _fsdp_collectives.py, foreach_all_gather and foreach_reduce; _fsdp_param_group.py);
accelerate 1.15, utils/fsdp_utils.py (fsdp2_prepare_model). The optimizer is the Trainer's fused AdamW,
which works in place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from muster.core.job import Facts, Job, Placement
from muster.core.recipe import Recipe
from muster.core.trace import EMBEDDINGS, Parameter
from muster.engines.base import EngineSpec
from muster.engines.spread import ModelSpread, Tensors, trained
from muster.engines.states import Parts, States, elements, unspread
from muster.engines.traffic import Call, Passes, Segment, Traffic, counting


class FsdpSpec(EngineSpec):
    """Weights are kept in fp32, and gathered in the chosen precision. On one rank there is nothing to shard
    over: it trains as DDP's do."""

    title: ClassVar[str] = "FSDP"
    offloads: ClassVar[tuple[str, ...]] = ("none", "optimizer+param")
    made_by_first: ClassVar[bool] = True
    defers_reduction: ClassVar[bool] = True
    groups: ClassVar[str] = "HSDP"
    keeps_half: ClassVar[bool] = True
    float8: ClassVar[bool] = True
    cutting: ClassVar[dict[str, str] | None] = {"engine.zero": "0"}
    one_disk: ClassVar[bool] = True
    gathers_optimizer: ClassVar[bool] = True
    pickles: ClassVar[bool] = False

    def lighter(self, stage: int, offload: str) -> Iterator[dict[str, str]]:
        if offload == "none":
            yield {"engine.offload": "optimizer+param"}

    def casts_model(self, ranks: int = 2) -> bool:
        return ranks > 1

    def shards_weights(self, stage: int, ranks: int = 2) -> bool:
        return ranks > 1

    def spread_of(self, recipe: Recipe, precision: str, width: int) -> dict[str, Any]:
        return {"group": recipe.engine.group or 0}

    def optimizer_parts(self, spread: ModelSpread) -> int:
        return _sharing(spread)

    def states(self, spread: ModelSpread, tensors: Tensors, rank: int | None = None) -> States:
        if spread.ranks == 1:
            return unspread(spread, tensors)
        sharing = _sharing(spread)
        return _sharded(replace(spread, ranks=sharing), tensors, (rank or 0) % sharing)

    def traffic(self, parameters: Sequence[Parameter], spread: ModelSpread) -> Traffic:
        """List the calls of a step. Each transformer block is a unit, gathered in the forward pass and again
        in the backward pass, but for the root, which stays; gradients are reduced and scattered in the last
        micro-step alone (set_requires_gradient_sync), or in every one (sync_each_batch). Each tensor is
        padded along its first dimension. On CPUs every call blocks.

        In groups, gathers and scatters are a group's; then each rank reduces its part with those of the same
        place in the other groups (foreach_reduce, HSDP).
        """
        sharing = _sharing(spread)
        group = sharing if spread.grouped else 0
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
            gathered = (Call("all-gather", spread.element * _padded(units[name], sharing), group),)
            size = spread.element * _padded([p for p in units[name] if p.trained], sharing)
            reduced: tuple[Call, ...] = (Call("reduce-scatter", size, group),) if size else ()
            if reduced and group:
                reduced += (Call("all-reduce", size // group, group, across=True),)
            again = () if name == "" else gathered
            forward.append(Segment(share, gathered))
            early.insert(0, Segment(share, again, () if spread.sums_whole else reduced))
            last.insert(0, Segment(share, again, reduced))
        norms = spread.kept * sum(p.trained for p in parameters)  # of every tensor, together
        step = [*counting(spread), *([Call("all-reduce", norms, group)] if spread.clips else [])]
        hides = spread.device == "cuda"
        return Traffic(
            Passes(tuple(forward), tuple(early)), Passes(tuple(forward), tuple(last)),
            tuple(step), spread.micro_steps, gathers_hide=hides, reduces_hide=hides,
        )  # fmt: skip

    def crossings(self, spread: ModelSpread) -> int:
        """Count the ways of gradients down, as they are reduced (foreach_reduce), and of weights up."""
        reduced = spread.micro_steps if spread.sync_each_batch else 1
        return reduced + 1 if spread.moves_optimizer else 1

    def cannot_resume(
        self, recipe: Recipe, before: Job, places: Sequence[Placement], facts: Facts
    ) -> tuple[str, str] | None:
        """Refuse one rank where several saved, and several where one did: several ranks read what any several
        saved."""
        if (sum(place.slots for place in places) == 1) == (before.world_size == 1):
            return None
        return (
            "one rank alone is not sharded, and does not read what sharded ranks saved, "
            "or they what it saved",
            "fsdp goes on from several ranks on any several: HOST:2 makes two on one host",
        )


SPEC = FsdpSpec


def _sharing(spread: ModelSpread) -> int:
    """Return the number of ranks that the model is cut over."""
    return spread.group if spread.grouped else spread.ranks


def _padded(parameters: Sequence[Parameter], ranks: int) -> int:
    """Count all elements, each tensor padded along its first dimension so that every rank has the same."""
    return ranks * sum(_rows(each, ranks) for each in parameters)


def _sharded(spread: ModelSpread, tensors: Tensors, rank: int) -> States:
    """Count shards of every tensor's first dimension, each with as many rows as the first rank's, usually in
    fp32; a module at once is gathered in the chosen precision.

    Gathered: the root's own tensors from their first use to the end of the backward pass; the output's, with
    the last norm, until its gradients are there; of the others the one that computes, and the flat buffer
    from which the next one is copied. In flight: a module's gradients, and the copy that is reduced (on CPUs
    gloo makes one more). At the end of the backward pass the root's, of which those tied to the output have
    two, when no other module is gathered; or those of input embeddings that are a module by themselves.
    Micro-batches before the last one of a step leave whole gradients on every rank (accelerate's no_sync:
    set_requires_gradient_sync(False)), whose place shards take in the last one's backward pass. With
    sync_each_batch they leave shards, to which each new one is added (foreach_reduce).
    """
    own, e, w = trained(tensors), spread.element, spread.kept
    shards = sum(_rows(each, spread.ranks) for each in tensors)
    held = {
        "parameters": w * shards,
        "optimizer": 2 * w * sum(_rows(each, spread.ranks, rank) for each in own),
    }
    kept = w * sum(_rows(each, spread.ranks) for each in own)
    root, output, inputs, module = _units(spread, tensors)
    passes = {"gathered layers": e * root.whole}
    loss = {"gathered layers": e * output.whole}
    gradients = {"gradients": kept}
    if spread.sums_whole:
        passes["accumulated gradients"] = e * elements(own)
        gradients = {"gradients": max(0, kept - e * elements(own))}
    backward: Parts = {"gathered layers": e * 2 * module.whole}
    copies = 3 if spread.device == "cpu" else 2
    # The output's gradients are reduced while the last block is gathered for the backward pass.
    first = copies * output.trained - module.whole
    last = 2 * root.trained - 2 * module.whole
    backward["gradients in flight"] = e * max(2 * module.trained, first, last)
    # The input embeddings' are the last ones: all shards are there but theirs, which the result becomes, or
    # to which it is added.
    there = spread.accumulates and spread.sync_each_batch
    alone = copies * e * inputs.trained + (e if there else e - w) * inputs.trained // spread.ranks
    ending = {
        "gathered layers": e * 2 * module.whole,
        "gradients in flight": e * max(2 * module.trained, last),
    }
    if alone > sum(ending.values()):
        ending = {"gradients in flight": alone}
    if spread.offload == "none":
        after = {"optimizer step": {"gradients": kept}}
        return States(held, {}, passes, gradients, backward, after, loss=loss, ending=ending)
    host = {
        "parameters": sum(spread.pinned(w * _rows(each, spread.ranks)) for each in tensors),
        "gradients": sum(spread.pinned(w * _rows(each, spread.ranks)) for each in own),
        "optimizer": held["optimizer"],
    }
    return States({}, host, passes, {}, backward, loss=loss, ending=ending)


def _rows(tensor: Parameter, ranks: int, rank: int = 0) -> int:
    """Count the elements of a rank's shard, as torch.chunk cuts it; the first rank's is as large as any."""
    if not tensor.shape:
        return tensor.numel
    rows = -(-tensor.shape[0] // ranks)
    here = min(rows, max(0, tensor.shape[0] - rank * rows))
    return here * (tensor.numel // tensor.shape[0] if tensor.shape[0] else 0)


@dataclass(frozen=True)
class _Unit:
    """Elements of a module, padded as ranks cut them: all of them, and those that are trained."""

    whole: int = 0
    trained: int = 0


def _units(spread: ModelSpread, tensors: Tensors) -> tuple[_Unit, _Unit, _Unit, _Unit]:
    """Divide the model: the root, the output, the input embeddings by themselves, and the largest block.

    The output and the last norm are what comes after the last block, where the embeddings are by themselves;
    where they are tied, all is the root's, from the first module on.
    """
    blocks: dict[str, list[Parameter]] = {}
    for each in tensors:
        blocks.setdefault(each.unit, []).append(each)
    inputs = blocks.pop(EMBEDDINGS, [])
    root, output = blocks.pop("", []), list[Parameter]()
    if inputs and blocks:
        last = max(index for index, each in enumerate(tensors) if each.unit in blocks)
        late = set(tensors[last + 1 :])
        root, output = [each for each in root if each not in late], [each for each in root if each in late]
    units = [_unit(spread, block) for block in blocks.values()]
    most = max(units, key=lambda unit: unit.whole, default=_Unit())
    return _unit(spread, root), _unit(spread, output), _unit(spread, inputs), most


def _unit(spread: ModelSpread, tensors: Sequence[Parameter]) -> _Unit:
    sizes = [(spread.ranks * _rows(each, spread.ranks), each.trained) for each in tensors]
    return _Unit(sum(size for size, _ in sizes), sum(size for size, own in sizes if own))
