"""Supervised fine-tuning: a decoder learns the answers to prompts."""

from __future__ import annotations

from typing import Any

from transformers import TrainingArguments

from muster.dialogues.answer import Answerer, executed, questions
from muster.dialogues.load import Encoding
from muster.dialogues.tokens import Fitting, LearnedCollator, apart, count_learned, learned, packed
from muster.worker.attention import is_unmasked
from muster.worker.context import Context
from muster.worker.decoders import make_model
from muster.worker.trainer import Trainer, wired
from muster.worker.workloads.base import Built
from muster.workloads.sft.spec import BY_MASK, SftData, check_packing

__all__ = ["Answerer", "build", "questions"]


class _Trainer(Trainer):
    """Muster's trainer; the loss is one per token.

    `unmasked`: rows are padded at their end alone, and padding is not learned, so that causal attention needs
    no mask; or they are packed, and positions begin anew with each sample. `parted`: packed rows need a mask.
    """

    per_token = True

    def __init__(self, *, unmasked: bool, parted: bool, **given: Any) -> None:
        super().__init__(**given)
        self.unmasked, self.parted = unmasked, parted

    def compute_loss(self, model: Any, inputs: dict[str, Any], *rest: Any, **named: Any) -> Any:
        """Compute as the trainer does, with the mask that the model needs: whether one masks anything is a
        question to the data, which the host would wait for in every pass."""
        if self.unmasked:
            inputs = {name: value for name, value in inputs.items() if name != "attention_mask"}
        if self.parted:
            inputs = {**inputs, "attention_mask": apart(inputs["position_ids"])}
        return super().compute_loss(model, inputs, *rest, **named)


def build(context: Context, arguments: dict[str, Any]) -> Built:
    """Build the trainer for the recipe: data, tokenizer, model, loss. Raises DataError and RecipeError."""
    data = context.recipe.data
    assert isinstance(data, SftData)
    encoding = Encoding(context)
    tokenizer, samples = encoding.tokenizer, encoding.samples
    config, fitting = encoding.config, Fitting(encoding.sequence)
    what = "everything" if data.learn == "padding" else data.learn
    train, held = (
        learned(part, encoding.templates, fitting, what, encoding.errors)
        for part in (samples.train, samples.held_out)
    )
    notes = encoding.notes
    if data.packing:
        count = f"{len(train):,} samples"
        train, held = (packed(part, encoding.sequence) for part in (train, held))
        notes.append(f"{count} are packed into {len(train):,} sequences of {encoding.sequence:,} tokens")
    whole = not data.packing and data.learn != "padding"
    model = make_model(context, config, tokenizer, longest=encoding.sequence if whole else None)
    if data.packing:
        check_packing(config.model_type, model.config._attn_implementation)
    parted = data.packing and config.model_type in BY_MASK
    trainer = wired(
        _Trainer,
        context,
        model,
        TrainingArguments(**arguments),
        train=train,
        held_out=held,
        lengths=train.lengths,
        collator=LearnedCollator(
            tokenizer.pad_token_id,
            encoding.sequence if data.packing else encoding.fixed,
            encoding.multiple,
            pads=data.learn == "padding",
        ),
        processing=tokenizer,
        grouped=data.padding == "dynamic",
        moved=True,
        unmasked=(data.packing and not parted) or is_unmasked(model),
        parted=parted,
    )
    answered = executed(samples.held_out)
    return Built(trainer, count_learned, len(train), answered, train.cut, encoding.skipped, len(held), notes)
