"""Encoder-decoder models: from a size's name, a configuration, a folder or a hub."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import (
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForSeq2SeqLM,
    masking_utils,
)

from muster.core import families
from muster.core.trace import TraceRequest
from muster.worker.context import Context
from muster.worker.models import (
    add_lora,
    check_kind,
    config_for,
    create,
    fit_vocabulary,
    load,
    load_from,
    without_cache,
)
from muster.worker.tracing.tasks import Inputs, TraceTask, Vocabulary, tokens_of


def make_model(context: Context, tokenizer: Any) -> Any:
    """Make the network: pretrained, or from a configuration; with adapters where the recipe says so."""
    recipe = context.recipe
    if recipe.model.init == "pretrained" and recipe.model.name:
        model = load(context, AutoModelForSeq2SeqLM, recipe.model.name, **(recipe.model.config or {}))
    else:
        config = make_config(context, tokenizer)
        mapping = MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING
        check_kind(config, mapping, "is not an encoder-decoder model", "such as t5-small, or bart")
        model = create(context, lambda: AutoModelForSeq2SeqLM.from_config(config, dtype=torch.float32))
        spread_positions(context, model, recipe.model.position_std)
    fit_vocabulary(context, model, tokenizer)
    if recipe.lora:
        model = add_lora(context, model, "SEQ_2_SEQ_LM")
    without_cache(model)
    return model


def mask_unasked() -> None:
    """Have Transformers mask padding in encoders without asking the device first whether there is any: the
    answer, which saves a sum where there is none, is waited for twice in every forward pass."""

    def unasked(make: Callable[..., Any]) -> Callable[..., Any]:
        def mask(*args: Any, allow_is_bidirectional_skip: bool = False, **named: Any) -> Any:
            skip = allow_is_bidirectional_skip and named.get("attention_mask") is None
            return make(*args, allow_is_bidirectional_skip=skip, **named)

        return mask

    for name in ("eager", "sdpa"):
        masking_utils.AttentionMaskInterface.register(name, unasked(getattr(masking_utils, f"{name}_mask")))


def spread_positions(context: Context, model: Any, std: float | None) -> None:
    """Draw T5's relative position biases from N(0, std) where the recipe says so.

    Transformers draws them like weights (std d_model^-0.5), so a small model takes long to learn word order,
    and
    with it to copy values; the demo measured 84 % against 99 % of its questions (dev/LOG.md).
    """
    if std is None:
        return
    for name, parameter in model.named_parameters():
        if "relative_attention_bias" in name:
            with context.engine.gathered(parameter) as mine:
                if mine:
                    torch.nn.init.normal_(parameter, 0.0, std)


def make_config(context: Context, tokenizer: Any) -> Any:
    """Make a configuration from a size's name, a folder or hub name, and the recipe's own fields on top."""
    spec = context.recipe.model
    fields = dict(spec.config or {})
    size_fields = families.size(spec.name)
    if size_fields is None and spec.name:
        return load_from(AutoConfig.from_pretrained, spec.name, "model.name", **fields)
    fields = {"model_type": "t5", **(size_fields or {}), **fields}
    kind = fields.pop("model_type")
    fields["vocab_size"] = max(len(tokenizer), int(fields.get("vocab_size") or 0))
    if tokenizer.pad_token_id is not None:
        fields.setdefault("pad_token_id", tokenizer.pad_token_id)
        fields.setdefault("decoder_start_token_id", tokenizer.pad_token_id)
    if tokenizer.eos_token_id is not None:
        fields.setdefault("eos_token_id", tokenizer.eos_token_id)
    return config_for(kind, fields)


def _traced_model(context: Context, request: TraceRequest, config: dict[str, Any]) -> Any:
    model = make_model(context, Vocabulary(config))
    if config.get("tie_word_embeddings") is False and model.get_output_embeddings() is not None:
        output = model.get_output_embeddings()  # as a checkpoint with one of its own is loaded
        tied = output.weight
        output.weight = torch.nn.Parameter(torch.empty_like(tied), requires_grad=tied.requires_grad)
    return model


def _traced_batch(request: TraceRequest, model: Any, samples: int) -> Inputs:
    """Make a batch as train.py collates it."""
    return {
        "input_ids": tokens_of(samples, request.tokens),
        "attention_mask": tokens_of(samples, request.tokens),
        "labels": tokens_of(samples, request.target),
        "decoder_input_ids": tokens_of(samples, request.target),
    }


TRACED = TraceTask(_traced_model, _traced_batch, lengths=("tokens", "target"), masked=True)
