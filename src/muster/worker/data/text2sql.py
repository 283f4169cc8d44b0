"""Questions and their SQL: from JSON lines, a hub data set, or generated; tokenized, batched, padded."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from muster.core.data import Generated
from muster.core.data import TextToSqlData as Data
from muster.core.errors import DataError
from muster.store.records import find_data, read_records
from muster.worker.data.hub import hub_parts
from muster.worker.loss import IGNORED
from muster.worker.workloads.base import Counts, HeldOut


@dataclass(frozen=True)
class Pair:
    """A question, its SQL, and the database that can run it."""

    question: str
    sql: str
    database: str | None = None


def load_pairs(data: Data, cache: Path, *, may_write: bool, seed: int) -> tuple[list[Pair], list[Pair]]:
    """The training and the held-out pairs. `may_write`: this process may fill `cache`. Raises DataError."""
    if data.name:
        train, held_out = _from_hub(data)
    else:
        folder = Path(data.path).expanduser() if data.path else cache
        if not data.path and may_write:
            _generate(data.generated or Generated(), cache)
        files = find_data(folder)
        train = _from_file(files.train, data, data.limit)
        held_out = _from_file(files.validation, data, None) if files.validation else []
    if not held_out:
        train, held_out = _split(train, data.validation_fraction, seed)
    return train, held_out


def _generate(generated: Generated, folder: Path) -> None:
    from muster.worker.data import sqlgen

    sqlgen.build(folder, seed=generated.seed, train=generated.train, validation=generated.validation)


def _from_file(path: Path, data: Data, limit: int | None) -> list[Pair]:
    pairs = []
    for record in read_records(path, (data.question, data.sql), limit=limit):
        database = record.get("database")
        beside = path.parent / database if isinstance(database, str) else None
        known = str(beside) if beside is not None and beside.is_file() else None
        pairs.append(Pair(record[data.question], record[data.sql], known))
    return pairs


def _from_hub(data: Data) -> tuple[list[Pair], list[Pair]]:
    assert data.name
    loaded = hub_parts(data.name)
    parts: dict[str, list[Pair]] = {}
    for name in ("train", "validation", "test"):
        if name in loaded:
            missing = {data.question, data.sql} - set(loaded[name].column_names)
            if missing:
                raise DataError(
                    f"has no field {sorted(missing)[0]!r}",
                    where=f"data.name={data.name}",
                    hint=f"its fields: {', '.join(loaded[name].column_names)}; set data.question, data.sql",
                )
            parts[name] = [Pair(str(row[data.question]), str(row[data.sql])) for row in loaded[name]]
    return parts["train"][: data.limit], parts.get("validation") or parts.get("test") or []


def _split(pairs: list[Pair], fraction: float, seed: int) -> tuple[list[Pair], list[Pair]]:
    """Hold out a part; equal questions stay on one side."""
    questions = sorted({pair.question for pair in pairs})
    random.Random(seed).shuffle(questions)
    held = set(questions[: max(1, int(len(questions) * fraction))])
    train = [pair for pair in pairs if pair.question not in held]
    if not train:
        raise DataError(f"{len(pairs)} samples are too few to hold some out")
    return train, [pair for pair in pairs if pair.question in held]


class Encoded(Dataset[dict[str, list[int]]]):  # type: ignore[misc]
    """Pairs as token numbers, cut to the recipe's lengths. `cut` counts the pairs that lost something."""

    def __init__(self, pairs: Sequence[Pair], tokenizer: Any, data: Data) -> None:
        self.cut = 0
        self.rows: list[tuple[list[int], list[int]]] = []
        for start in range(0, len(pairs), 10_000):
            part = pairs[start : start + 10_000]
            sources = tokenizer([data.prefix + pair.question for pair in part])["input_ids"]
            targets = tokenizer([pair.sql for pair in part])["input_ids"]
            for source, target in zip(sources, targets, strict=True):
                self.cut += len(source) > data.max_source or len(target) > data.max_target
                self.rows.append((_cut(source, data.max_source), _cut(target, data.max_target)))
        self.lengths = [len(source) + len(target) for source, target in self.rows]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        source, target = self.rows[index]
        return {"input_ids": source, "labels": target}


def _cut(tokens: list[int], length: int) -> list[int]:
    """At most `length` tokens; the last one (the end mark) stays."""
    return tokens if len(tokens) <= length else [*tokens[: length - 1], tokens[-1]]


@dataclass(frozen=True)
class Collator:
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


def held_out(pairs: Iterable[Pair]) -> list[HeldOut]:
    """Pairs as questions to answer."""
    return [HeldOut(pair.question, pair.sql, pair.database) for pair in pairs]
