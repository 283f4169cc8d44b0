"""What matrix products compute in: set as the recipe says, after every library has set it too."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.nn.utils.stateless import _reparametrize_module

from muster.core.errors import WorkerError
from muster.core.hardware.devices import WIDE
from muster.worker.context import Context

_CHECKPOINTING = "_set_gradient_checkpointing"  # of Transformers' models, called when it is switched
FORCED = "NVIDIA_TF32_OVERRIDE"  # has the last word in NVIDIA's libraries


def hold_arithmetic(context: Context) -> None:
    """Set tf32 as the recipe says, when the trainer is made. Raises WorkerError where products compute in
    something else nevertheless.

    Transformers sets it with its arguments. Accelerate 1.15 (state.py: AcceleratorState) switches it on
    afterwards where a model is compiled in fp32, by another setting than Transformers', which takes no second
    call (enable_tf32 is cached).
    """
    if context.device != "cuda":
        return
    set_tf32(context.precision != "fp32")
    computed = arithmetic_of(context)
    if computed != context.precision:
        forced = os.environ.get(FORCED)
        raise WorkerError(
            f"matrix products compute in {computed}, and the recipe says {context.precision}",
            where="precision",
            hint=f"unset {FORCED}, which is {forced}" if forced else f"precision={computed}",
        )


def set_tf32(on: bool) -> None:
    """Let products and convolutions of fp32 compute in tf32, or not, by PyTorch's older settings and, where
    it has them (2.9 and later), by the newer ones: it raises where it is asked by the older ones and both
    differ, as compilers of some versions ask."""
    backends = torch.backends
    backends.cuda.matmul.allow_tf32 = backends.cudnn.allow_tf32 = on
    if hasattr(backends.cuda.matmul, "fp32_precision"):
        for place in (backends, backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn):
            place.fp32_precision = "tf32" if on else "ieee"


def cast_weights(model: Any) -> None:
    """Have each pass of `model` cast its weights to bf16 first, and compute in nothing else. The weights
    themselves stay as they are, and so does what their gradients are in.

    A compiler sees the casts as part of the pass, also where layers are computed again. A copy of the model
    casts its own weights.
    """
    own = model.forward
    model.forward = functools.update_wrapper(functools.partial(_cast, model, own), own)
    for module in model.modules():
        if setting := getattr(module, _CHECKPOINTING, None):
            setattr(module, _CHECKPOINTING, functools.partial(_checkpoint, module, setting))


def _cast(model: Any, own: Callable[..., Any], *given: Any, **named: Any) -> Any:
    weights = {name: each.to(torch.bfloat16) for name, each in model.named_parameters()}
    with _reparametrize_module(model, weights, tie_weights=True):
        return own(*given, **named)


def _checkpoint(model: Any, setting: Callable[..., None], *given: Any, **named: Any) -> None:
    """Switch checkpointing as Transformers does. Each layer is then computed again with the weights of its
    first time, in a backward pass where the model has its weights in fp32."""
    setting(*given, **named)
    for layer in model.modules():
        if again := vars(layer).get("_gradient_checkpointing_func"):
            layer._gradient_checkpointing_func = functools.partial(_twice, layer, again)


def _twice(layer: Any, again: Callable[..., Any], *given: Any, **named: Any) -> Any:
    if not torch.compiler.is_compiling():
        named["context_fn"] = functools.partial(_contexts, layer)
    return again(*given, **named)


def _contexts(layer: Any) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Return the contexts of a layer's first computation, which is now, and of the second."""
    weights = dict(layer.named_parameters())
    return nullcontext(), _reparametrize_module(layer, weights, tie_weights=True)


def arithmetic_of(context: Context) -> str:
    """Return what matrix products compute in: fp32, tf32, bf16 or fp16."""
    if context.precision not in WIDE or context.device != "cuda":
        return context.precision
    forced = {"0": "fp32", "1": "tf32"}.get(os.environ.get(FORCED, ""))
    return forced or ("tf32" if tf32_is_on() else "fp32")


def tf32_is_on() -> bool:
    """Return whether products of fp32 matrices compute in tf32."""
    backends = torch.backends
    precision = getattr(backends.cuda.matmul, "fp32_precision", None)
    if precision is None:
        return bool(torch.get_float32_matmul_precision() != "highest")
    return bool((backends.fp32_precision if precision == "none" else precision) == "tf32")
