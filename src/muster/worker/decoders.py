"""Decoder-only models: configuration and weights, from a size's name, a configuration, a folder or a hub."""

from __future__ import annotations

from typing import Any

import torch
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, AutoModelForCausalLM

from muster.core import families
from muster.core.recipe import Recipe
from muster.worker.attention import unmask
from muster.worker.context import Context
from muster.worker.models import (
    add_lora,
    check_kind,
    config_for,
    create,
    fit_vocabulary,
    load,
    load_from,
    load_quantized,
    without_cache,
    without_layer_drop,
)


def make_config(recipe: Recipe, tokenizer: Any) -> Any:
    """Make the model's configuration. Raises RecipeError.

    A model from scratch has as many entries as its name or the recipe says, or as the tokenizer has, if that
    is more; it ends and pads with the tokenizer's tokens.
    """
    spec = recipe.model
    fields = dict(spec.config or {})
    size = families.size(spec.name)
    if spec.name and (size is None or spec.init == "pretrained"):
        config = load_from(AutoConfig.from_pretrained, spec.name, "model.name", **fields)
    else:
        fields = {"model_type": "gpt2", **(size or {}), **fields}
        kind = fields.pop("model_type")
        if tokenizer is not None:
            fields["vocab_size"] = max(len(tokenizer), int(fields.get("vocab_size") or 0))
        for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
            fields.setdefault(name, getattr(tokenizer, name, None))
        if fields["pad_token_id"] == fields["eos_token_id"]:
            fields["pad_token_id"] = None  # some models never train the embedding of padding
        config = config_for(kind, fields)
    hint = f"such as {', '.join(families.sizes('gpt2', 'opt')[:3])}, or a Llama-like configuration"
    check_kind(config, MODEL_FOR_CAUSAL_LM_MAPPING, "is not a causal language model", hint)
    if spec.init == "random" and tokenizer is not None and len(tokenizer) > config.vocab_size:
        config.vocab_size = len(tokenizer)
    return config


def make_model(context: Context, config: Any, tokenizer: Any, *, longest: int | None = None) -> Any:
    """Make the network, in fp32: pretrained, or drawn anew; with adapters where the recipe says so.

    `longest`: tokens of the longest row, where rows are neither packed nor padded at their begin: attention
    is then causal without a mask, where the model allows (worker/attention.py).
    """
    recipe = context.recipe
    if recipe.model.quantized is not None:
        model = load_quantized(context, AutoModelForCausalLM, config)
    elif recipe.model.init == "pretrained" and recipe.model.name:
        model = load(context, AutoModelForCausalLM, recipe.model.name, config=config)
    else:
        model = create(context, lambda: AutoModelForCausalLM.from_config(config, dtype=torch.float32))
    if tokenizer is not None:
        fit_vocabulary(context, model, tokenizer)
    without_cache(model)
    without_layer_drop(model)
    if longest is not None:
        unmask(model, longest)
    if recipe.lora:
        model = add_lora(context, model, "CAUSAL_LM")
    return model


def room_of(config: Any, new: int) -> tuple[int, int]:
    """Return how many of `new` tokens an answer may have, and how many of a text's last tokens fit before
    them: half of the positions at the least."""
    positions = positions_of(config)
    if positions is None:
        return new, 1 << 30
    new = min(new, positions // 2)
    return new, positions - new


def positions_of(config: Any) -> int | None:
    """Return how many positions a model has; None where it does not say."""
    names = ("model_type", *families.POSITIONS)
    return families.positions({name: getattr(config, name, None) for name in names})
