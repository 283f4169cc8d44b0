"""Causal language modelling: a decoder (GPT-2, OPT, Llama and their like) learns to go on with text."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, TrainingArguments

from muster.core.errors import DataError, RecipeError, UsageError
from muster.core.recipe import Recipe
from muster.store.lines import Skipped
from muster.worker import answering
from muster.worker.context import Context
from muster.worker.data.tokenizer import load_tokenizer
from muster.worker.decoders import make_config, make_model, room_of
from muster.worker.heldout import perplexity
from muster.worker.loss import LossSums, TokenLoss, fused_head
from muster.worker.together import check_alike
from muster.worker.trainer import Trainer, wired
from muster.worker.workloads.base import Built, limit_notes
from muster.workloads.causal_lm.model import sequence_of
from muster.workloads.causal_lm.sources import source_of
from muster.workloads.causal_lm.spec import TextData
from muster.workloads.causal_lm.tokens import (
    Packed,
    SyntheticTokens,
    Tokenizing,
    Tokens,
    collate,
    count_batch,
    open_tokens,
)

NEW_TOKENS = 64  # that `muster ask` adds to a text where the recipe does not say
Rows = Packed | SyntheticTokens


class _Trainer(Trainer):
    """Muster's trainer; the loss is one per token."""

    per_token = True


def data_of(recipe: Recipe) -> TextData:
    """Return the recipe's data section, which is this workload's."""
    assert isinstance(recipe.data, TextData)
    return recipe.data


def build(context: Context, arguments: dict[str, Any]) -> Built:
    """Build the trainer for the recipe: data, tokenizer, model, loss. Raises DataError and RecipeError."""
    recipe, data = context.recipe, data_of(context.recipe)
    tokens = None if data.synthetic else _tokens(context)
    tokenizer = tokens.tokenizer if tokens else None
    config = make_config(recipe, tokenizer)
    sequence = sequence_of(data, config)
    model = make_model(context, config, tokenizer, longest=sequence)
    if tokens:
        train, held_out = _packed(recipe, tokens, sequence)
    else:
        train, held_out = _synthetic(context, config, sequence)
    trainer = wired(
        _Trainer,
        context,
        model,
        TrainingArguments(**arguments),
        train=train,
        held_out=held_out,
        lengths=[sequence] * len(train),
        collator=collate,
        processing=tokenizer,
        moved=True,
    )
    notes = _notes(tokens, train, held_out) if tokens else []
    skipped = Skipped(**tokens.meta["skipped"]) if tokens else Skipped()
    held = len(held_out)
    return Built(trainer, count_batch, len(train), [], skipped=skipped, held_samples=held, notes=notes)


# --- data ------------------------------------------------------------------------------------------------


def _tokens(context: Context) -> Tokens:
    """Open this machine's tokens. All ranks must have the same ones. Raises DataError."""
    recipe = context.recipe
    tokens = open_tokens(source_of(data_of(recipe)), tokenizing(recipe), cache_folder(recipe))
    check_alike(context, "the text is", lambda: tokens.digest)
    return tokens


def tokenizing(recipe: Recipe) -> Tokenizing:
    """Choose the recipe's tokenizer: the model's own, a named one, or one that is trained on the text."""
    model, fraction = recipe.model, recipe.data.validation_fraction
    tokenizer = load_tokenizer(model)
    return Tokenizing(tokenizer, model.vocab_size if tokenizer is None else 0, fraction)


def cache_folder(recipe: Recipe) -> Path:
    """Return where tokens are kept on each machine, for all runs."""
    return Path(recipe.launch.workdir or "~/.cache/muster").expanduser() / "tokens"


def _packed(recipe: Recipe, tokens: Tokens, sequence: int) -> tuple[Rows, Rows]:
    train = Packed(*tokens.part("train"), sequence, recipe.data.limit)
    if not len(train):
        raise DataError(
            f"its {train.tokens:,} tokens do not fill one sequence of {sequence:,}",
            where="data",
            hint="more text, or a shorter data.sequence",
        )
    return train, Packed(*tokens.part("validation"), sequence, recipe.evaluate.limit)


def _synthetic(context: Context, config: Any, sequence: int) -> tuple[Rows, Rows]:
    recipe, data = context.recipe, data_of(context.recipe)
    assert data.synthetic
    vocabulary = int(config.vocab_size)
    size = data.synthetic.vocab_size or vocabulary
    if size > vocabulary:
        raise RecipeError(
            f"is {size:,}, and the model knows {vocabulary:,} tokens",
            where="data.synthetic.vocab_size",
            hint="model.config.vocab_size",
        )
    rows = data.synthetic.samples
    if rows is None and recipe.train.max_steps:
        rows = recipe.train.max_steps * context.batch.global_
    if rows is None:
        raise RecipeError(
            "the number of samples is missing", where="data.synthetic.samples", hint="or train.max_steps"
        )
    rows = min(rows, data.limit or rows)
    held = min(data.synthetic.validation, recipe.evaluate.limit or data.synthetic.validation)
    seed = data.synthetic.seed
    return (
        SyntheticTokens(rows, sequence, size, seed, held_out=False),
        SyntheticTokens(held, sequence, size, seed, held_out=True),
    )


def _notes(tokens: Tokens, train: Rows, held_out: Rows) -> list[str]:
    """Note what was read, and what of it was left out."""
    meta = tokens.meta
    parts = meta["parts"]
    notes = [
        f"text: {meta['about']}; documents: {parts['train']['documents']:,}; tokens for training: "
        f"{parts['train']['tokens']:,}, held out: {parts['validation']['tokens']:,} ({meta['split']})"
    ]
    for name, rows in (("training", train), ("held-out", held_out)):
        if isinstance(rows, Packed) and rows.left_out:
            left = f"the last {rows.left_out:,} {name} tokens"
            notes.append(f"{left} do not fill a sequence of {rows.sequence:,}: left out")
    if not len(held_out) and parts["validation"]["tokens"]:
        notes.append("the held-out text does not fill one sequence: there is no perplexity")
    if isinstance(held_out, Packed):
        notes += limit_notes(held_out.tokens // held_out.sequence, held_out.limit)
    return notes


# --- answering -------------------------------------------------------------------------------------------


class Answerer(answering.Answerer):
    """Go on with texts."""

    kind = AutoModelForCausalLM

    @property
    def tokenized(self) -> bool:
        """Whether the model was trained on text."""
        return data_of(self.recipe).synthetic is None

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def answer(self, questions: Sequence[str]) -> tuple[list[str], float]:
        """Return how the model goes on with each text, and the seconds from tokenizing to text.

        Raises UsageError for a model that was trained on synthetic tokens: it has no words.
        """
        if self.tokenizer is None:
            raise UsageError(
                "was trained on synthetic tokens: it knows no text",
                where="ask",
                hint="`muster ask RUN --evaluate` gives its perplexity",
            )
        began = time.perf_counter()
        new, room = room_of(self.model.config, self.recipe.evaluate.max_new_tokens or NEW_TOKENS)
        prompts = [self._tokens(question)[-room:] for question in questions]
        answers = [""] * len(prompts)
        size = self.recipe.evaluate.batch
        for length in sorted({len(prompt) for prompt in prompts}):  # equal lengths: nothing is padded
            alike = [index for index, prompt in enumerate(prompts) if len(prompt) == length]
            for start in range(0, len(alike), size):
                part = alike[start : start + size]
                inputs = torch.tensor([prompts[index] for index in part], device=self.device)
                made = self.model.generate(
                    inputs,
                    attention_mask=torch.ones_like(inputs),
                    max_new_tokens=new,
                    num_beams=self.recipe.evaluate.beams,
                    do_sample=False,
                    eos_token_id=self.tokenizer.eos_token_id,
                    pad_token_id=self._filler(),
                    streamer=self.streamer,
                )
                for index, row in zip(part, made[:, length:], strict=True):
                    answers[index] = self.tokenizer.decode(
                        row, skip_special_tokens=True, clean_up_tokenization_spaces=False
                    )
        return answers, time.perf_counter() - began

    def _tokens(self, text: str) -> list[int]:
        tokens: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        start = self.tokenizer.bos_token_id
        return tokens or [self._filler() if start is None else start]

    def _filler(self) -> int:
        candidates = (self.tokenizer.pad_token_id, self.tokenizer.eos_token_id, 0)
        return int(next(each for each in candidates if each is not None))

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def score(self, cache: Path, limit: int | None) -> dict[str, float]:
        """Return the held-out text's perplexity. Raises DataError."""
        recipe, data = self.recipe, data_of(self.recipe)
        config = self.model.config
        sequence = sequence_of(data, config)
        most = min((each for each in (limit, recipe.evaluate.limit) if each), default=None)
        if data.synthetic:
            given = data.synthetic
            size = given.vocab_size or config.vocab_size
            rows: Rows = SyntheticTokens(given.validation, sequence, size, given.seed, held_out=True)
        else:
            how = Tokenizing(self.tokenizer, 0, data.validation_fraction)
            tokens = open_tokens(source_of(data), how, cache_folder(recipe))
            rows = Packed(*tokens.part("validation"), sequence)
        count = len(rows) if most is None else min(len(rows), most)
        if not count:
            raise DataError("the held-out text does not fill one sequence", where="data")
        began = time.perf_counter()
        tally = LossSums()
        loss = TokenLoss(moved=True, tally=tally, head=fused_head(self.model))
        size = recipe.batch.micro or 8
        for start in range(0, count, size):
            batch = collate([rows[index] for index in range(start, min(start + size, count))])
            labels = batch["labels"].to(self.device)
            with loss.expecting(labels):
                outputs = self.model(batch["input_ids"].to(self.device), use_cache=False)
            loss(outputs, labels)
        mean = float(tally.loss) / int(tally.count)
        return {
            "loss": mean,
            "perplexity": perplexity(mean),
            "tokens": int(tally.count),
            "sequences": count,
            "seconds": time.perf_counter() - began,
        }
