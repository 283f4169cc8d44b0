"""Lets a model on the CPU keep what it would keep on a GPU. docs/tracing.md has the sources.

- Dropout is one kernel there, and keeps a mask of a byte per element (ATen/native/Dropout.cpp,
  is_fused_kernel_acceptable); the CPU's keeps a factor in the values' own type.
- Attention runs as flash or memory-efficient kernels, which keep their output and a logarithm per row in
  fp32 (ATen/native/transformers/cuda/sdp_utils.cpp). Both are called here by their own names, so that what
  autograd keeps is what their own formulas ask for (tools/autograd/derivatives.yaml).
- Autocast computes norms, softmax, powers and sums in fp32 (ATen/autocast_mode.h, AT_FORALL_FP32 and
  AT_FORALL_FP32_SET_OPT_DTYPE), and the CPU's does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch.nn import functional

aten = torch.ops.aten
LARGEST_HEAD = 256  # of flash attention
HALF = (torch.bfloat16, torch.float16)

# Of autocast's lists for CUDA what models use between their matrix products.
IN_FP32 = (
    "exp", "log", "log1p", "reciprocal", "rsqrt", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar",
    "softplus", "layer_norm", "rms_norm", "group_norm", "cosine_similarity", "logsumexp", "mse_loss",
)  # fmt: skip
TO_FP32 = (
    "softmax.int",
    "log_softmax.int",
    "cumsum",
    "cumprod",
    "sum",
    "sum.dim_IntList",
    "prod",
    "prod.dim_int",
)


@contextmanager
def cuda_kernels(*, autocast: bool) -> Iterator[None]:
    """Let dropout, attention and autocast keep inside what they keep on a GPU.

    The functions themselves are replaced, for a mode would not be there when backward passes compute again.
    """
    originals = functional.dropout, functional.scaled_dot_product_attention

    def dropout(*args: Any, **kwargs: Any) -> torch.Tensor:
        return _dropout(originals[0], *args, **kwargs)

    functional.dropout, functional.scaled_dot_product_attention = dropout, _attention
    try:
        with _cuda_autocast() if autocast else nullcontext():
            yield
    finally:
        functional.dropout, functional.scaled_dot_product_attention = originals


def _dropout(
    plain: Callable[..., torch.Tensor],
    input: torch.Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
) -> torch.Tensor:
    if inplace or not training or not 0 < p < 1 or not input.numel():
        return plain(input, p, training, inplace)
    return torch.native_dropout(input, p, training)[0]


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Call flash attention where there is no mask, else the memory-efficient kernel; plain products where
    neither takes the arguments (grouped keys in fp32)."""
    if torch.is_autocast_enabled("cpu"):
        lower = torch.get_autocast_dtype("cpu")
        query, key, value = (each.to(lower) for each in (query, key, value))
        if attn_mask is not None and attn_mask.is_floating_point():
            attn_mask = attn_mask.to(lower)
    same = query.shape[-1] == value.shape[-1] and query.ndim == 4
    half, grouped = query.dtype in HALF, query.shape[1] != key.shape[1]
    with torch.autocast("cpu", enabled=False):
        if attn_mask is None and half and same and query.shape[-1] <= LARGEST_HEAD:
            return _flash(query, key, value, dropout_p, is_causal, scale)
        aligned = query.shape[-1] % (8 if half else 4) == 0
        if grouped or not same or not aligned:
            return torch._scaled_dot_product_attention_math(
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
            )[0]
        bias = None if attn_mask is None else _bias(attn_mask, query, key)
        wanted = any(each is not None and each.requires_grad for each in (query, key, value, bias))
        return aten._scaled_dot_product_efficient_attention(
            query, key, value, bias, wanted, dropout_p, is_causal, scale=scale
        )[0]


def _flash(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
) -> torch.Tensor:
    """Call flash attention with a head's size filled up to a multiple of 8 (sdp::pad_last_dim)."""
    width = query.shape[-1]
    scale = width**-0.5 if scale is None else scale
    if width % 8:
        missing = 8 - width % 8
        query, key, value = (functional.pad(each, (0, missing)) for each in (query, key, value))
    attended = aten._scaled_dot_product_flash_attention(
        query, key, value, dropout_p, is_causal, False, scale=scale
    )[0]
    return attended[..., :width]


def _bias(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Shape a mask as the kernel wants it: in the queries' type, its rows in whole sixteens, for all heads
    (convert_boolean_attn_mask and preprocess_mask)."""
    if mask.dtype is torch.bool:
        made = torch.zeros_like(mask, dtype=query.dtype)
        mask = made.masked_fill_(mask.logical_not(), float("-inf"))
    length = mask.shape[-1]
    if length % 16:
        mask = functional.pad(mask, (0, 16 - length % 16))[..., :length]
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])


@contextmanager
def _cuda_autocast() -> Iterator[None]:
    """Give the CPU's autocast the rules that only CUDA's has."""
    rules = torch.library.Library("aten", "IMPL", "AutocastCPU")
    try:
        for names, rule in ((IN_FP32, _in_fp32), (TO_FP32, _to_fp32)):
            for name in names:
                if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "AutocastCPU"):
                    bare, _, overload = name.partition(".")
                    rules.impl(name, rule(getattr(getattr(aten, bare), overload or "default")))
        yield
    finally:
        rules._destroy()


def _without_autocast() -> Any:
    return torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU))


def _in_fp32(op: Any) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with _without_autocast():
            return op(*map(_float, args), **{name: _float(value) for name, value in kwargs.items()})

    return call


def _to_fp32(op: Any) -> Callable[..., Any]:
    """Wrap an operation so that fp32 is the type of its result, where the caller names none."""

    def call(*args: Any, **kwargs: Any) -> Any:
        with _without_autocast():
            named = kwargs.get("dtype") or next(
                (each for each in args if isinstance(each, torch.dtype)), None
            )
            if args[0].dtype in HALF and named is None:
                kwargs["dtype"] = torch.float32
            return op(*args, **kwargs)

    return call


def _float(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) and value.dtype in HALF else value
