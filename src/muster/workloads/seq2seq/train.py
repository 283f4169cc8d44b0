"""Texts to texts: an encoder-decoder model (T5) learns what each input becomes."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import AutoModelForSeq2SeqLM, Seq2SeqTrainer, Seq2SeqTrainingArguments

from muster.core.data import Generated
from muster.core.recipe import Recipe
from muster.core.units import counted
from muster.store.records import LoadedSamples
from muster.worker import answering
from muster.worker.context import Context
from muster.worker.data import sqlgen
from muster.worker.data.hub import hub_samples
from muster.worker.data.padding import padded
from muster.worker.data.sampler import GroupedSampler
from muster.worker.data.tokenizer import load_tokenizer, train_tokenizer
from muster.worker.loss import IGNORED
from muster.worker.together import check_alike, first_on_disk, short_digest
from muster.worker.trainer import TrainerBase, wired
from muster.worker.workloads.base import Built, Counts, HeldOut, limit_notes
from muster.workloads.seq2seq.model import make_model, mask_unasked
from muster.workloads.seq2seq.shapes import Shape, choose_shapes, round_up, shape_of
from muster.workloads.seq2seq.spec import PairData, PairRow, load_rows


@dataclass(frozen=True)
class TextPair(HeldOut):
    """An input and its target. `schema`: the end of the input that describes tables; empty: there is none."""

    schema: str = ""


def data_of(recipe: Recipe) -> PairData:
    """Return the recipe's data section, which is this workload's."""
    assert isinstance(recipe.data, PairData)
    return recipe.data


class _Trainer(TrainerBase, Seq2SeqTrainer):  # type: ignore[misc]
    """Transformers' trainer with what Muster adds."""


def build(context: Context, arguments: dict[str, Any]) -> Built:
    """Build the trainer for the recipe: data, tokenizer, model, loss. Raises DataError and RecipeError."""
    recipe, data = context.recipe, data_of(context.recipe)
    with first_on_disk(context) as first:
        pairs = load_pairs(data, context.cache, may_write=first, seed=recipe.train.seed)
    train, held, limit = pairs.train, pairs.held_out, recipe.evaluate.limit
    tokenizer = make_tokenizer(context, train)
    check_alike(context, "the questions are", lambda: digest_of_pairs(train, held, tokenizer))
    notes = [*([pairs.about] if pairs.about else []), *pairs.notes, *limit_notes(len(held), limit)]
    held = held[:limit]
    notes += cover_characters(tokenizer, [pair.expected for pair in train])
    model = make_model(context, tokenizer)
    mask_unasked()
    encoded = Encoded(train, tokenizer, data)
    encoded_held = Encoded(held, tokenizer, data)
    notes += schemas_cut(encoded, encoded_held, data.max_source)
    if encoded.ended:
        notes.append("the tokenizer puts no end behind a text: every target gets one")
    start = model.config.decoder_start_token_id
    multiple = context.padding_multiple
    shapes = shapes_for(context, encoded, encoded_held, multiple)
    if data.padding == "buckets":
        notes.append(
            "padded to " + ", ".join(f"{source} x {target}" for source, target in shapes) + " tokens"
        )
        compile_each(len(shapes))
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
            shapes=shapes,
            multiple=multiple,
        ),
        processing=tokenizer,
        grouped=data.padding != "fixed",
    )
    cut = encoded.cut + encoded_held.cut
    return Built(trainer, count_batch, len(encoded), held, cut, pairs.skipped, notes=notes)


def shapes_for(context: Context, train: Encoded, held_out: Encoded, multiple: int) -> tuple[Shape, ...]:
    """Choose the shapes that batches are padded to, by the first epoch's batches; none where each has its
    own."""
    data, batch = data_of(context.recipe), context.batch
    if data.padding == "fixed":
        return ((data.max_source, data.max_target),)
    if data.padding == "dynamic" or not len(train):
        return ()
    order = [
        train.lengths[index]
        for index in GroupedSampler(train.lengths, batch.global_, context.recipe.train.seed)
    ]
    parts = [order[start : start + batch.micro] for start in range(0, len(order), batch.micro)]
    return choose_shapes(
        [longest(part) for part in parts], longest([*train.lengths, *held_out.lengths]), multiple=multiple
    )


def longest(lengths: Sequence[Shape]) -> Shape:
    """Return the longest source and the longest target."""
    return max(source for source, _ in lengths), max(target for _, target in lengths)


def compile_each(shapes: int) -> None:
    """Have torch.compile, where a model is compiled, make a graph of fixed sizes for each shape, of training
    and of evaluation, in place of one for any size."""
    config = torch._dynamo.config
    config.automatic_dynamic_shapes = False
    config.recompile_limit = max(config.recompile_limit, 2 * shapes + 1)


def digest_of_pairs(train: Sequence[HeldOut], held_out: Sequence[HeldOut], tokenizer: Any) -> str:
    """Hash inputs and targets in their order, and the tokens' numbers."""
    digests = [
        short_digest(text for pair in part for text in (pair.question, pair.expected))
        for part in (train, held_out)
    ]
    vocabulary = sorted(tokenizer.get_vocab().items())
    tokens = short_digest(f"{number} {token}" for token, number in vocabulary)
    return (
        f"{len(train):,} to train on ({digests[0]}) and {len(held_out):,} held out ({digests[1]}), "
        f"{len(vocabulary):,} tokens ({tokens})"
    )


def make_tokenizer(context: Context, train: Sequence[TextPair]) -> Any:
    """Load the model's own tokenizer, or train one on the data (the same on every rank: same data, no
    chance)."""
    model = context.recipe.model
    tokenizer = load_tokenizer(model)
    if tokenizer is None:
        prefix = data_of(context.recipe).prefix
        texts = [text for pair in train for text in (prefix + alone(pair), pair.expected)]
        schemas = dict.fromkeys(pair.schema for pair in train)  # once each: many samples share one
        return train_tokenizer([*texts, *schemas], model.vocab_size)
    return tokenizer


def alone(pair: TextPair) -> str:
    """Return the input without its schema."""
    return pair.question.removesuffix(pair.schema)


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


def questions(recipe: Recipe, cache: Path) -> list[TextPair]:
    """Read all held-out inputs with their targets. Raises DataError."""
    return load_pairs(data_of(recipe), cache, may_write=True, seed=recipe.train.seed).held_out


class Answerer(answering.Answerer):
    """Answer questions in batches."""

    kind = AutoModelForSeq2SeqLM
    tokenized = True

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def answer(self, questions: Sequence[str]) -> tuple[list[str], float]:
        """Return the answers in the order of the questions, and the seconds from tokenizing to text."""
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


# ----------------------------------------------------------------------------------------------------
# Inputs and their targets: from files, a hub data set, or generated; tokenized, batched, padded.


def load_pairs(data: PairData, cache: Path, *, may_write: bool, seed: int) -> LoadedSamples[TextPair]:
    """Load the recipe's pairs. `may_write`: this process may fill `cache`. Raises DataError."""
    given = data.name or data.path
    if not given and may_write:
        made = data.generated or Generated()
        sqlgen.build(cache, seed=made.seed, train=made.train, validation=made.validation)
    path = None if data.name else Path(data.path).expanduser() if data.path else cache
    read = load_rows(data, seed, path, hub_samples)
    rows = (*read.train, *read.held_out)
    about = f"questions: {read.about}; {_fields_note(read.train[:1], data)}"
    missing = sorted({row.missing for row in rows if row.missing}) if data.executed else []
    if missing:
        about += f"; no such database, so not executed: {', '.join(missing[:3])}"
        about += f" and {len(missing) - 3} more" if len(missing) > 3 else ""
    train, held_out = (_pairs(part, data) for part in (read.train, read.held_out))
    return LoadedSamples(train, held_out, read.skipped, about if given else "", read.notes)


def _fields_note(rows: Sequence[PairRow], data: PairData) -> str:
    """Say which fields the pairs come from, by one of their rows."""
    names = [row.fields for row in rows] or data.candidates()[:1]
    schema = f", schema: {data.schema_}" if data.schema_ else ""
    return f"inputs: field {names[0][0]}{schema}; answers: field {names[0][1]}"


def _pairs(rows: Sequence[PairRow], data: PairData) -> list[TextPair]:
    def database(row: PairRow) -> str | None:
        return str(row.database) if data.executed and row.database else None

    return [TextPair(row.input, row.target, database(row), row.schema) for row in rows]


class Encoded(Dataset[dict[str, list[int]]]):  # type: ignore[misc]
    """Pairs as token numbers, cut to the recipe's lengths; every target has an end. `cut` counts the pairs
    that lost something, `schemas_cut` those that lost a part of their schema, `questions_cut` those of them
    that lost more, `ended` the targets that the tokenizer left without an end."""

    def __init__(self, pairs: Sequence[TextPair], tokenizer: Any, data: PairData) -> None:
        self.cut = self.schemas_cut = self.questions_cut = self.ended = 0
        end = tokenizer.eos_token_id
        self.rows: list[tuple[list[int], list[int]]] = []
        for start in range(0, len(pairs), 10_000):
            part = pairs[start : start + 10_000]
            sources = tokenizer([data.prefix + pair.question for pair in part])["input_ids"]
            targets = tokenizer([pair.expected for pair in part])["input_ids"]
            for pair, source, target in zip(part, sources, targets, strict=True):
                if end is not None and target[-1:] != [end]:
                    self.ended += 1
                    target = [*target, end]
                self.cut += len(source) > data.max_source or len(target) > data.max_target
                if pair.schema and len(source) > data.max_source:
                    question = tokenizer(data.prefix + alone(pair))["input_ids"]
                    self.schemas_cut += 1
                    self.questions_cut += len(question) > data.max_source
                self.rows.append((_cut(source, data.max_source, end), _cut(target, data.max_target, end)))
        self.lengths = [(len(source), len(target)) for source, target in self.rows]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        source, target = self.rows[index]
        return {"input_ids": source, "labels": target}


def schemas_cut(train: Encoded, held_out: Encoded, length: int) -> list[str]:
    """Note where schemas were too long for data.max_source."""
    cut, questions = train.schemas_cut + held_out.schemas_cut, train.questions_cut + held_out.questions_cut
    if not cut:
        return []
    note = f"data.max_source={length} is too short for {counted(cut, 'sample')}: the end of the schema is cut"
    return [note + (f"; {counted(questions, 'sample')} lost a part of the question too" if questions else "")]


def _cut(tokens: list[int], length: int, end: int | None) -> list[int]:
    """Cut to at most `length` tokens; an end at their end stays."""
    if len(tokens) <= length:
        return tokens
    return [*tokens[: length - 1], end] if tokens[-1] == end else tokens[:length]


@dataclass(frozen=True)
class PairCollator:
    """Rows -> a padded batch: to the next of `shapes`, or to its longest row, rounded up to `multiple`.

    Decoder inputs are the labels moved right by one, so that the loss may be computed outside of the model.
    """

    pad: int
    start: int
    shapes: tuple[Shape, ...] = ()
    multiple: int = 1

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        """Return (batch, source) input_ids and attention_mask, (batch, target) labels and
        decoder_input_ids."""
        own = longest([(len(row["input_ids"]), len(row["labels"])) for row in rows])
        rounded = (round_up(own[0], self.multiple), round_up(own[1], self.multiple))
        source, target = shape_of(own, self.shapes) if self.shapes else rounded
        answers = [row["labels"] for row in rows]
        inputs, mask = padded([row["input_ids"] for row in rows], self.pad, source)
        # A row that is ignored only fills up a held-out batch.
        asked = [() if row.get("ignored") else row["labels"] for row in rows]
        labels, _ = padded(asked, IGNORED, target)
        decoder, _ = padded([[self.start, *answer[:-1]] for answer in answers], self.pad, target)
        return {"input_ids": inputs, "attention_mask": mask, "labels": labels, "decoder_input_ids": decoder}


def count_batch(inputs: Mapping[str, Any]) -> Counts:
    """Count source and target tokens of a batch; padding is apart."""
    labels, mask = inputs["labels"], inputs["attention_mask"]
    real = mask.sum() + (labels != IGNORED).sum()
    return Counts(int(labels.shape[0]), real, mask.numel() + labels.numel())
