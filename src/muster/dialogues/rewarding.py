"""Reward models: made for training, and loaded to give rewards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import MethodType
from typing import Any

import torch
from transformers import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING, AutoModelForSequenceClassification
from transformers.modeling_outputs import SequenceClassifierOutputWithPast

from muster.worker.attention import unmask
from muster.worker.context import Context
from muster.worker.data.padding import padded
from muster.worker.decoders import make_config
from muster.worker.models import (
    add_lora,
    check_kind,
    create,
    fit_vocabulary,
    load,
    without_cache,
    without_layer_drop,
)


def make_reward_model(context: Context, tokenizer: Any, *, longest: int | None = None) -> Any:
    """Make a decoder whose last token gives one number, in fp32. Its body is the recipe's model; the new
    layer on top is drawn from the seed. `longest`: as of make_model. Raises RecipeError."""
    recipe = context.recipe
    config = make_config(recipe, tokenizer)
    mapping = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING
    check_kind(config, mapping, "has no model in Transformers that gives a number for a text")
    config.num_labels = 1
    if recipe.model.init == "pretrained" and recipe.model.name:
        with _new_layer_expected():
            model = load(context, AutoModelForSequenceClassification, recipe.model.name, config=config)
    else:
        model = create(
            context, lambda: AutoModelForSequenceClassification.from_config(config, dtype=torch.float32)
        )
    fit_vocabulary(context, model, tokenizer)
    settle_padding(model, tokenizer)
    read_at_end(model)
    without_cache(model)
    without_layer_drop(model)
    if longest is not None:
        unmask(model, longest)
    return add_lora(context, model, "SEQ_CLS") if recipe.lora else model


def settle_padding(model: Any, tokenizer: Any) -> None:
    """Have the saved model find the last token as it was trained. Transformers takes the last one that is no
    padding: where texts are padded with their end, that is the one before the end. Without a pad token it
    takes the last one of a single text, and no batch."""
    pad = tokenizer.pad_token_id
    model.config.pad_token_id = None if pad == tokenizer.eos_token_id else pad


def read_at_end(model: Any) -> None:
    """Have a model give the number of each row's last token: of those that the mask has, the last one that is
    not the model's own pad token. Without a layer `score`, Transformers' way stays. The forward pass is
    replaced on the instance: a class of another name would stand in the saved configuration."""
    if not hasattr(model, "score"):
        return

    def forward(
        self: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **more: Any
    ) -> SequenceClassifierOutputWithPast:
        hidden = self.base_model(input_ids=input_ids, attention_mask=attention_mask, **more)[0]
        counts = torch.ones_like(input_ids) if attention_mask is None else attention_mask.long()
        if self.config.pad_token_id is not None:
            counts = counts * (input_ids != self.config.pad_token_id)
        last = (counts * torch.arange(input_ids.shape[1], device=input_ids.device)).argmax(-1)
        rows = torch.arange(len(last), device=last.device)
        return SequenceClassifierOutputWithPast(logits=self.score(hidden[rows, last]))

    model.forward = MethodType(forward, model)


@contextmanager
def _new_layer_expected() -> Iterator[None]:
    """Silence the warning inside that the layer on top is new and the language model's output layer
    unused."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


@torch.no_grad()  # type: ignore[untyped-decorator]
def rewards(model: Any, texts: Sequence[Sequence[int]], pad: int, batch: int = 64) -> torch.Tensor:
    """Return (texts) rewards of whole texts, prompt and answer, as token numbers."""
    parts = []
    for start in range(0, len(texts), batch):
        part = texts[start : start + batch]
        inputs, mask = padded(part, pad)
        device = next(model.parameters()).device
        parts.append(model(inputs.to(device), attention_mask=mask.to(device)).logits[:, 0].float())
    return torch.cat(parts) if parts else torch.zeros(0)
