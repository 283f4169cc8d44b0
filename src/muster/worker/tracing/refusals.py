"""Configurations that make no model, refused before Transformers stumbles over them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from muster.core.errors import RecipeError
from muster.core.near import did_you_mean
from muster.core.trace import Request

# Widths that a number of heads has to divide; where a head has a size of its own, none has.
HEADS = (("hidden_size", "num_attention_heads"), ("n_embd", "n_head"), ("d_model", "encoder_attention_heads"))
KEYS = ("num_attention_heads", "num_key_value_heads")


def check(request: Request) -> None:
    """Raise RecipeError for an unknown model type, heads that do not divide, lengths and samples below 1."""
    from transformers import CONFIG_MAPPING

    kind = str(request.config.get("model_type") or "")
    known = list(CONFIG_MAPPING.keys())
    if kind not in known:
        raise RecipeError(
            f"Transformers has no model type {kind!r}",
            where="model.config.model_type",
            hint=did_you_mean(kind, known) or "such as t5, gpt2, opt, llama or vit",
        )
    for width, heads in HEADS:
        if not request.config.get("head_dim"):
            _divides(request.config, width, heads)
    _divides(request.config, *KEYS)
    _check_numbers(request)


def _divides(config: Mapping[str, Any], whole: str, parts: str) -> None:
    total, count = config.get(whole), config.get(parts)
    if not (isinstance(total, int) and isinstance(count, int)):
        return
    if count >= 1 and total % count == 0:
        return
    fitting = [each for each in range(1, total + 1) if total % each == 0]
    near = min(fitting, key=lambda each: abs(each - count), default=1)
    raise RecipeError(
        f"is {count}, which does not divide {whole}={total}",
        where=f"model.config.{parts}",
        hint=f"model.config.{parts}={near}",
    )


def _check_numbers(request: Request) -> None:
    lengths = {"text2sql": ("tokens", "target"), "causal-lm": ("tokens",)}
    for name in lengths.get(request.workload.replace("_", "-"), ()):
        if getattr(request, name) < 1:
            raise RecipeError(
                f"is {getattr(request, name)}, and a sample has tokens", where=name, hint=f"{name}=1"
            )
    small, large = request.samples
    if not 1 <= small < large:
        raise RecipeError(
            f"are {small} and {large}", where="samples", hint="two micro-batches, such as 1 and 2"
        )
