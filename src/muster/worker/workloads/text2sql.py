"""Text to SQL: an encoder-decoder model (T5) learns to translate questions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
)

from muster.core import families
from muster.core.data import TextToSqlData
from muster.core.errors import RecipeError
from muster.core.recipe import Recipe
from muster.worker.context import Context
from muster.worker.data.digest import short_digest
from muster.worker.data.text2sql import Encoded, PairCollator, QuestionPair, count_batch, held_out, load_pairs
from muster.worker.data.tokenizer import train_tokenizer
from muster.worker.models import (
    add_lora,
    config_for,
    create,
    fit_vocabulary,
    gathered,
    load,
    load_from,
    to_answer,
    without_cache,
)
from muster.worker.together import check_alike, first_on_disk
from muster.worker.trainer import Common, wired
from muster.worker.workloads.base import Built, HeldOut

EVALUATION_SAMPLES = 2000  # for the loss during training, which wants to be cheap


def data_of(recipe: Recipe) -> TextToSqlData:
    """The recipe's data section, which is this workload's."""
    assert isinstance(recipe.data, TextToSqlData)
    return recipe.data


class _Trainer(Common, Seq2SeqTrainer):  # type: ignore[misc]
    """Transformers' trainer with what Muster adds."""


def build(context: Context, arguments: dict[str, Any]) -> Built:
    """The trainer for the recipe: data, tokenizer, model, loss. Raises DataError and RecipeError."""
    recipe, data = context.recipe, data_of(context.recipe)
    with first_on_disk(context) as first:
        pairs = load_pairs(data, context.cache, may_write=first, seed=recipe.train.seed)
    train, held = pairs.train, pairs.held_out
    tokenizer = make_tokenizer(context, train)
    check_alike(context, "the questions are", lambda: digest_of_pairs(train, held, tokenizer))
    limit = recipe.evaluate.limit
    held = held[:limit]
    notes = [pairs.about] if pairs.about else []
    notes += cover_characters(tokenizer, [pair.sql for pair in train])
    model = make_model(context, tokenizer)
    encoded = Encoded(train, tokenizer, data)
    encoded_held = Encoded(held[:EVALUATION_SAMPLES], tokenizer, data)
    start = model.config.decoder_start_token_id
    fixed = (data.max_source, data.max_target) if data.padding == "fixed" else None
    trainer = wired(
        _Trainer,
        context,
        model,
        Seq2SeqTrainingArguments(**arguments),
        train=encoded,
        held_out=encoded_held,
        lengths=encoded.lengths,
        collator=PairCollator(
            pad=tokenizer.pad_token_id,
            start=tokenizer.pad_token_id if start is None else start,
            fixed=fixed,
            multiple=8 if context.device == "cuda" else 1,  # tensor cores want it; on a CPU it is only work
        ),
        processing=tokenizer,
        grouped=data.padding == "dynamic",
    )
    cut = encoded.cut + encoded_held.cut
    return Built(trainer, count_batch, len(encoded), held_out(held), cut, notes=notes)


def digest_of_pairs(train: Sequence[QuestionPair], held_out: Sequence[QuestionPair], tokenizer: Any) -> str:
    """Of questions and SQL in their order, and of the tokens' numbers."""
    digests = [
        short_digest(text for pair in part for text in (pair.question, pair.sql))
        for part in (train, held_out)
    ]
    vocabulary = sorted(tokenizer.get_vocab().items())
    tokens = short_digest(f"{number} {token}" for token, number in vocabulary)
    return (
        f"{len(train):,} to train on ({digests[0]}) and {len(held_out):,} held out ({digests[1]}), "
        f"{len(vocabulary):,} tokens ({tokens})"
    )


def make_tokenizer(context: Context, train: Sequence[QuestionPair]) -> Any:
    """The model's own tokenizer, or one trained on the data (the same on every rank: same data, no
    chance)."""
    model = context.recipe.model
    choice = model.tokenizer
    if choice == "auto":
        own = model.name if model.name and (model.init == "pretrained" or Path(model.name).is_dir()) else None
        choice = own or "train"
    if choice == "train":
        prefix = data_of(context.recipe).prefix
        return train_tokenizer(
            (text for pair in train for text in (prefix + pair.question, pair.sql)), model.vocab_size
        )
    return load_from(AutoTokenizer.from_pretrained, choice, "model.tokenizer")


def cover_characters(tokenizer: Any, texts: Sequence[str]) -> list[str]:
    """Add characters of the answers that the tokenizer cannot write (T5's has no `<`). -> notes."""
    unknown = tokenizer.unk_token_id
    characters = sorted(set("".join(texts)))
    if unknown is None:
        return []
    missing = [c for c in characters if unknown in tokenizer(c, add_special_tokens=False)["input_ids"]]
    if not missing:
        return []
    tokenizer.add_tokens(missing)
    return [f"added to the tokenizer, which had no token for them: {' '.join(missing)}"]


def make_model(context: Context, tokenizer: Any) -> Any:
    """The network: pretrained, or from a configuration; with adapters where the recipe says so."""
    recipe = context.recipe
    if recipe.model.init == "pretrained" and recipe.model.name:
        model = load(context, AutoModelForSeq2SeqLM, recipe.model.name, **(recipe.model.config or {}))
    else:
        config = make_config(context, tokenizer)
        kind = type_of(config)
        model = create(context, lambda: kind._from_config(config, dtype=torch.float32))
        spread_positions(model, recipe.model.position_std)
    fit_vocabulary(context, model, tokenizer)
    if recipe.lora:
        model = add_lora(context, model, "SEQ_2_SEQ_LM")
    without_cache(model)
    return model


def spread_positions(model: Any, std: float | None) -> None:
    """Draw T5's relative position biases from N(0, std) where the recipe says so.

    Transformers draws them like weights (std d_model^-0.5), so a small model takes long to learn word order,
    and
    with it to copy values; the demo measured 84 % against 99 % of its questions (dev/LOG.md).
    """
    if std is None:
        return
    for name, parameter in model.named_parameters():
        if "relative_attention_bias" in name:
            with gathered([parameter]) as mine:
                if mine:
                    torch.nn.init.normal_(parameter, 0.0, std)


def type_of(config: Any) -> Any:
    """The encoder-decoder class for a configuration."""
    from transformers import MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING as MAPPING

    if type(config) not in MAPPING:
        raise RecipeError(
            f"{config.model_type} is not an encoder-decoder model",
            where="model",
            hint="such as t5-small, or bart",
        )
    return MAPPING[type(config)]


def make_config(context: Context, tokenizer: Any) -> Any:
    """A configuration from a size's name, a folder or hub name, and the recipe's own fields on top."""
    spec = context.recipe.model
    fields = dict(spec.config or {})
    known = families.size(spec.name)
    if known is None and spec.name:
        return load_from(AutoConfig.from_pretrained, spec.name, "model.name", **fields)
    fields = {"model_type": "t5", **(known or {}), **fields}
    kind = fields.pop("model_type")
    fields["vocab_size"] = max(len(tokenizer), int(fields.get("vocab_size", 0)) if known else 0)
    if tokenizer.pad_token_id is not None:
        fields.setdefault("pad_token_id", tokenizer.pad_token_id)
        fields.setdefault("decoder_start_token_id", tokenizer.pad_token_id)
    if tokenizer.eos_token_id is not None:
        fields.setdefault("eos_token_id", tokenizer.eos_token_id)
    return config_for(kind, fields)


def questions(recipe: Recipe, cache: Path) -> list[HeldOut]:
    """All held-out questions. Raises DataError."""
    pairs = load_pairs(data_of(recipe), cache, may_write=True, seed=recipe.train.seed)
    return held_out(pairs.held_out)


class Answerer:
    """The trained model, answering questions in batches."""

    def __init__(self, folder: Path, recipe: Any, device: str) -> None:
        self.recipe = recipe
        self.streamer: Any = None  # Transformers': hears the answer to a single question as it grows
        self.tokenizer = load_from(AutoTokenizer.from_pretrained, str(folder), "model")
        self.model = to_answer(AutoModelForSeq2SeqLM, folder, device)
        self.device = self.model.device

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def answer(self, questions: Sequence[str]) -> tuple[list[str], float]:
        """Answers in the order of the questions, and the seconds they took (tokenizing to text)."""
        began = time.perf_counter()
        data, evaluate = data_of(self.recipe), self.recipe.evaluate
        order = sorted(range(len(questions)), key=lambda i: len(questions[i]))
        answers = [""] * len(questions)
        for start in range(0, len(order), evaluate.batch):
            part = order[start : start + evaluate.batch]
            texts = [data.prefix + questions[i] for i in part]
            batch = self.tokenizer(
                texts, padding=True, truncation=True, max_length=data.max_source, return_tensors="pt"
            ).to(self.device)
            batch.pop("token_type_ids", None)
            made = self.model.generate(
                **batch,
                max_new_tokens=evaluate.max_new_tokens or data.max_target,
                num_beams=evaluate.beams,
                do_sample=False,
                streamer=self.streamer,
            )
            decoded = self.tokenizer.batch_decode(
                made, skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
            for index, text in zip(part, decoded, strict=True):
                answers[index] = text.strip()
        return answers, time.perf_counter() - began
