"""Text to SQL: an encoder-decoder model (T5) learns to translate questions."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
)

from muster.core.recipe import Recipe
from muster.store.records import find_data, names_of
from muster.worker.context import Context
from muster.worker.data.digest import short_digest
from muster.worker.data.hub import hub_parts
from muster.worker.data.tokenizer import named_tokenizer, train_tokenizer
from muster.worker.loss import IGNORED
from muster.worker.models import load_from, to_answer
from muster.worker.together import check_alike, first_on_disk
from muster.worker.trainer import Common, wired
from muster.worker.workloads.base import Built, Counts, HeldOut
from muster.workloads.text2sql.model import make_model
from muster.workloads.text2sql.spec import (
    ANSWERS,
    Generated,
    TextToSqlData,
    held_out_questions,
    pair_of,
    read_pairs,
)

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
    notes += cover_characters(tokenizer, [pair.expected for pair in train])
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
    return Built(trainer, count_batch, len(encoded), held, cut, notes=notes)


def digest_of_pairs(train: Sequence[HeldOut], held_out: Sequence[HeldOut], tokenizer: Any) -> str:
    """Of questions and SQL in their order, and of the tokens' numbers."""
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


def make_tokenizer(context: Context, train: Sequence[HeldOut]) -> Any:
    """The model's own tokenizer, or one trained on the data (the same on every rank: same data, no
    chance)."""
    model = context.recipe.model
    name = named_tokenizer(model)
    if name is None:
        prefix = data_of(context.recipe).prefix
        return train_tokenizer(
            (text for pair in train for text in (prefix + pair.question, pair.expected)), model.vocab_size
        )
    return load_from(AutoTokenizer.from_pretrained, name, "model.tokenizer")


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


def questions(recipe: Recipe, cache: Path) -> list[HeldOut]:
    """All held-out questions. Raises DataError."""
    return load_pairs(data_of(recipe), cache, may_write=True, seed=recipe.train.seed).held_out


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


# ----------------------------------------------------------------------------------------------------
# Questions and their SQL: from files, a hub data set, or generated; tokenized, batched, padded.


@dataclass(frozen=True)
class Pairs:
    """The training and the held-out pairs, and a note that says where they are from."""

    train: list[HeldOut]
    held_out: list[HeldOut]
    about: str = ""


def load_pairs(data: TextToSqlData, cache: Path, *, may_write: bool, seed: int) -> Pairs:
    """The recipe's pairs. `may_write`: this process may fill `cache`. Raises DataError."""
    if data.name:
        train, held_out, about = _from_hub(data)
    else:
        folder = Path(data.path).expanduser() if data.path else cache
        if not data.path and may_write:
            _generate(data.generated or Generated(), cache)
        files = find_data(folder)
        about = f"questions: {names_of(files.train)}"
        missing: set[str] = set()
        train, field = _from_files(files.train, data, data.limit, missing)
        held_out, _ = _from_files(files.validation, data, None, missing) if files.validation else ([], field)
        about += f", held out {names_of(files.validation)}" if held_out else ""
        about += f"; answers: field {field}"
        if missing:
            about += f"; no such database, so not executed: {', '.join(sorted(missing)[:3])}"
            about += f" and {len(missing) - 3} more" if len(missing) > 3 else ""
    if not held_out:
        held = held_out_questions((pair.question for pair in train), data, seed)
        held_out = [pair for pair in train if pair.question in held]
        train = [pair for pair in train if pair.question not in held]
        about += f"; held out {len(held_out):,} of them"
    return Pairs(train, held_out, about if data.name or data.path else "")


def _generate(generated: Generated, folder: Path) -> None:
    from muster.worker.data import sqlgen

    sqlgen.build(folder, seed=generated.seed, train=generated.train, validation=generated.validation)


def _from_files(
    files: Sequence[Path], data: TextToSqlData, limit: int | None, missing: set[str]
) -> tuple[list[HeldOut], str]:
    """Pairs, and the field that the answers are from. `missing` gains databases that are not there."""
    pairs, field = [], data.sql
    for row in read_pairs(files, data, limit=limit):
        beside = files[0].parent / row.database if row.database else None
        known = str(beside) if beside is not None and beside.is_file() else None
        if row.database and known is None:
            missing.add(row.database)
        pairs.append(HeldOut(row.question, row.sql, known))
        field = row.answer
    return pairs, field


def _from_hub(data: TextToSqlData) -> tuple[list[HeldOut], list[HeldOut], str]:
    assert data.name
    loaded = hub_parts(data.name, data.subset)
    held_name = next((name for name in ("validation", "test") if name in loaded and len(loaded[name])), None)
    parts: dict[str, list[HeldOut]] = {}
    field = data.sql
    for name in ("train", held_name):
        if name is None:
            continue
        rows = loaded[name]
        used = [key for key in rows.column_names if key in _roots(data)]
        rows, parts[name] = rows.select_columns(used) if used else rows, []
        for number, record in enumerate(rows):
            row = pair_of(record, data, f"data.name={data.name}, {name}[{number}]", blank=True)
            parts[name].append(HeldOut(row.question, row.sql))
            field = row.answer
    about = f"questions: {data.name}" + (f", held out its part {held_name}" if held_name else "")
    held_out = parts[held_name] if held_name else []
    return parts["train"][: data.limit], held_out, f"{about}; answers: field {field}"


def _roots(data: TextToSqlData) -> set[str]:
    """The columns that questions and answers may be in: only these are decoded."""
    fields = (data.question, data.sql, *ANSWERS)
    return {*fields, *(field.partition(".")[0] for field in fields)}


class Encoded(Dataset[dict[str, list[int]]]):  # type: ignore[misc]
    """Pairs as token numbers, cut to the recipe's lengths. `cut` counts the pairs that lost something."""

    def __init__(self, pairs: Sequence[HeldOut], tokenizer: Any, data: TextToSqlData) -> None:
        self.cut = 0
        self.rows: list[tuple[list[int], list[int]]] = []
        for start in range(0, len(pairs), 10_000):
            part = pairs[start : start + 10_000]
            sources = tokenizer([data.prefix + pair.question for pair in part])["input_ids"]
            targets = tokenizer([pair.expected for pair in part])["input_ids"]
            for source, target in zip(sources, targets, strict=True):
                self.cut += len(source) > data.max_source or len(target) > data.max_target
                self.rows.append((_cut(source, data.max_source), _cut(target, data.max_target)))
        self.lengths = [(len(source), len(target)) for source, target in self.rows]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        source, target = self.rows[index]
        return {"input_ids": source, "labels": target}


def _cut(tokens: list[int], length: int) -> list[int]:
    """At most `length` tokens; the last one (the end mark) stays."""
    return tokens if len(tokens) <= length else [*tokens[: length - 1], tokens[-1]]


@dataclass(frozen=True)
class PairCollator:
    """Rows -> a padded batch: to its longest row (rounded up to `multiple`), or to fixed lengths.

    Decoder inputs are the labels moved right by one, so that the loss may be computed outside of the model.
    """

    pad: int
    start: int
    fixed: tuple[int, int] | None = None
    multiple: int = 1

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        """(batch, source) input_ids and attention_mask, (batch, target) labels and decoder_input_ids."""
        source, target = self.fixed or (
            _round_up(max(len(row["input_ids"]) for row in rows), self.multiple),
            _round_up(max(len(row["labels"]) for row in rows), self.multiple),
        )
        inputs = torch.full((len(rows), source), self.pad)
        mask = torch.zeros((len(rows), source), dtype=torch.long)
        labels = torch.full((len(rows), target), IGNORED)
        decoder = torch.full((len(rows), target), self.pad)
        for index, row in enumerate(rows):
            question, answer = row["input_ids"], row["labels"]
            inputs[index, : len(question)] = torch.tensor(question)
            mask[index, : len(question)] = 1
            if not row.get("ignored"):  # it only fills up a held-out batch
                labels[index, : len(answer)] = torch.tensor(answer)
            moved = [self.start, *answer[:-1]]
            decoder[index, : len(moved)] = torch.tensor(moved)
        return {"input_ids": inputs, "attention_mask": mask, "labels": labels, "decoder_input_ids": decoder}


def _round_up(length: int, multiple: int) -> int:
    return -(-length // multiple) * multiple


def count_batch(inputs: Mapping[str, Any]) -> Counts:
    """Source and target tokens of a batch; padding is apart."""
    labels, mask = inputs["labels"], inputs["attention_mask"]
    real = mask.sum() + (labels != IGNORED).sum()
    return Counts(int(labels.shape[0]), real, mask.numel() + labels.numel())
