"""A model's double without weights: its operations can be counted without computing or holding anything.

Every tensor of the double is on PyTorch's meta device: a shape and a type, no memory. Under ZeRO-3 it has the
whole parameters' shapes. The double is the model as it is trained, adapters and resized embeddings included.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from muster.core.flops import MatmulWork
from muster.worker.float8 import is_float8
from muster.worker.models import without_cache


def _grouped(left: torch.Tensor, right: torch.Tensor, *args: Any, **kwargs: Any) -> int:
    """Count operations of products of rows with the matrix of their group, as a mixture of experts has them:
    every row with one matrix, or, for the matrices' gradients, every row once."""
    groups = left.shape[0] if left.ndim == right.ndim == 3 else 1
    return int(2 * groups * left.shape[-2] * left.shape[-1] * right.shape[-1])


if hasattr(torch.ops.aten, "_grouped_mm"):  # PyTorch 2.13's counter has no formula for it
    flop_registry.setdefault(torch.ops.aten._grouped_mm, _grouped)


def double(model: Any) -> Any:
    """Copy a model to the meta device, in training mode, with plain (eager) attention.

    Plain attention is counted in full, whatever kernel the model itself uses. Call it before an engine wraps
    the model.
    """
    made = copy.deepcopy(model, {id(tensor): _shape_of(tensor) for _, _, tensor in held_tensors(model)})
    for module in list(made.modules()):
        for name, layer in module.named_children():
            if _in_bits(layer):  # it computes as a frozen one
                bias = layer.bias is not None
                plain = torch.nn.Linear(layer.in_features, layer.out_features, bias, device="meta")
                setattr(module, name, plain.requires_grad_(False))
            elif is_float8(layer):  # the same products, without the casts
                layer.__class__ = torch.nn.Linear
    made.train()
    without_cache(made)
    if hasattr(made, "set_attn_implementation"):
        made.set_attn_implementation("eager")
    return made


def _in_bits(layer: Any) -> bool:
    """Return whether a layer is linear with weights that are packed into bytes (bitsandbytes)."""
    weight = layer._parameters.get("weight")  # not that of a layer with adapters, which has it from its base
    return weight is not None and weight.dtype in (torch.uint8, torch.int8) and hasattr(layer, "in_features")


def held_tensors(model: Any) -> Iterator[tuple[dict[str, Any], str, torch.Tensor]]:
    """Yield every tensor that a module holds, registered or not: (where, its name there, the tensor)."""
    for module in model.modules():
        for held in (module._parameters, module._buffers, vars(module)):
            for name, tensor in held.items():
                if isinstance(tensor, torch.Tensor):
                    yield held, name, tensor


def _shape_of(tensor: torch.Tensor) -> torch.Tensor:
    shape = getattr(tensor, "ds_shape", tensor.shape)  # ZeRO-3 leaves an empty tensor in a parameter's place
    empty = torch.empty(shape, dtype=tensor.dtype, device="meta")
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(empty, requires_grad=tensor.requires_grad)
    return empty


def set_checkpointing(made: Any, on: bool) -> None:
    """Switch gradient checkpointing as Transformers' trainer does it. AttributeError where a model cannot."""
    if not on:
        off = getattr(made, "activation_checkpointing_disable", None)
        (off or made.gradient_checkpointing_disable)()
    elif hasattr(made, "activation_checkpointing_enable"):
        made.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})
    else:  # transformers before 5.20
        made.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})


def count(made: Any, inputs: Mapping[str, torch.Tensor], *, checkpointing: bool = False) -> MatmulWork:
    """Count the operations of a forward and a backward pass over a batch of meta tensors.

    `hardware` is what was counted; it is `model` as well where nothing is computed twice. The backward pass
    is PyTorch's own: frozen parameters need no gradient and get none.
    """
    if checkpointing:
        set_checkpointing(made, True)
    try:
        with _nothing_drawn(), _NoData(), FlopCounterMode(display=False) as counter:
            outputs = made(**inputs)
            forward = int(counter.get_total_flops())
            _loss(outputs).backward()
            total = int(counter.get_total_flops())
    finally:
        if checkpointing:
            set_checkpointing(made, False)
        made.zero_grad(set_to_none=True)
    return MatmulWork(forward, total, total)


def _loss(outputs: Any) -> torch.Tensor:
    """Return a number to go back from: the model's own loss, or the sum of its first output."""
    if isinstance(outputs, torch.Tensor):
        return outputs.float().sum()
    loss = outputs.get("loss") if hasattr(outputs, "get") else None
    return loss.sum() if loss is not None else outputs[0].float().sum()


class _NoData(TorchDispatchMode):  # type: ignore[misc]
    """Answers False where a model asks a tensor yes or no (is nothing masked?): a mask is made then."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default and args[0].dtype is torch.bool:
            return False
        return func(*args, **(kwargs or {}))


@contextmanager
def _nothing_drawn() -> Iterator[None]:
    """Restore the random numbers afterwards, whatever a model draws on the host inside."""
    numbers = random.getstate()
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            random.setstate(numbers)
