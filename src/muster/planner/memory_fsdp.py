"""What FSDP2 and DistributedDataParallel hold. Pure.

Sources: torch 2.13, torch/distributed/fsdp/_fully_shard (_fsdp_param.py, _init_sharded_param;
_fsdp_collectives.py, foreach_all_gather and foreach_reduce; _fsdp_param_group.py) and
torch/nn/parallel/distributed.py; accelerate 1.15, utils/fsdp_utils.py (fsdp2_prepare_model). The optimizer is
the Trainer's fused AdamW, which works in place.
"""

from __future__ import annotations

from muster.core.trace import Parameter
from muster.planner.memory import Parts, Spread, States, Tensors, elements, largest, trained


def ddp(spread: Spread, tensors: Tensors) -> States:
    """Everything in fp32 on every rank.

    With several ranks the reducer keeps the gradients once more, in buckets (gradient_as_bucket_view is
    off). In half precision autocast keeps copies of the weights, which is `Setting`'s to say.
    """
    own = elements(trained(tensors))
    held = {"parameters": 4 * elements(tensors), "optimizer": 8 * own}
    if spread.ranks > 1:
        held["buckets"] = 4 * own
    gradients = {"gradients": 4 * own}
    backward = {"gradients in flight": 4 * largest(trained(tensors))}  # one more, before it is added
    return States(held, {}, {}, gradients, backward, {"optimizer step": dict(gradients)}, whole=True)


def fsdp(spread: Spread, tensors: Tensors, rank: int = 0) -> States:
    """fp32 shards of every tensor's first dimension, each with as many rows as the first rank's; a module at
    once is gathered in the chosen precision.

    Gathered: the root's own tensors from their first use to the end of the backward pass; of the others the
    one that computes, and the flat buffer from which the next one is copied. In flight: a module's
    gradients, and the copy that is reduced; at the end of the backward pass the root's, when no other module
    is gathered. Micro-batches before the last one of a step leave whole gradients on every rank (accelerate's
    no_sync: set_requires_gradient_sync(False)), whose place shards take in the last one's backward pass.
    """
    own, e = trained(tensors), spread.element
    shards = sum(_rows(each, spread.ranks) for each in tensors)
    held = {"parameters": 4 * shards, "optimizer": 8 * sum(_rows(each, spread.ranks, rank) for each in own)}
    kept = 4 * sum(_rows(each, spread.ranks) for each in own)
    root, module = _units(spread, tensors)
    passes = {"gathered layers": e * root}
    gradients = {"gradients": kept}
    if spread.accumulates:
        passes["accumulated gradients"] = e * elements(own)
        gradients = {"gradients": max(0, kept - e * elements(own))}
    backward: Parts = {"gathered layers": e * 2 * module}
    if own:
        backward["gradients in flight"] = e * max(2 * module, 2 * root - 2 * module)
    if spread.offload == "none":
        return States(held, {}, passes, gradients, backward, {"optimizer step": {"gradients": kept}})
    host = {
        "parameters": sum(spread.pinned(4 * _rows(each, spread.ranks)) for each in tensors),
        "gradients": sum(spread.pinned(4 * _rows(each, spread.ranks)) for each in own),
        "optimizer": held["optimizer"],
    }
    return States({}, host, passes, {}, backward)


def _rows(tensor: Parameter, ranks: int, rank: int = 0) -> int:
    """Elements of a rank's shard, as torch.chunk cuts it; the first rank's is as large as any."""
    if not tensor.shape:
        return tensor.numel
    rows = -(-tensor.shape[0] // ranks)
    here = min(rows, max(0, tensor.shape[0] - rank * rows))
    return here * (tensor.numel // tensor.shape[0] if tensor.shape[0] else 0)


def _units(spread: Spread, tensors: Tensors) -> tuple[int, int]:
    """Elements that are gathered with the root, and with the largest other module."""
    sums: dict[str, int] = {"": 0}
    for each in tensors:
        sums[each.unit] = sums.get(each.unit, 0) + spread.ranks * _rows(each, spread.ranks)
    root = sums.pop("")
    return root, max(sums.values(), default=0)
