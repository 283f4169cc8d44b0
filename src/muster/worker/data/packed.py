"""Sequences of equal length: packed text, or synthetic tokens; and their batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from muster.worker.loss import IGNORED
from muster.worker.workloads.base import Counts

Row = dict[str, Any]


class Packed(Dataset[Row]):  # type: ignore[misc]
    """A file of tokens as rows of `sequence`; the last incomplete one is left out.

    The file is mapped into memory when the first row is read: a loader's process gets the path alone.
    """

    def __init__(self, path: Path, dtype: str, tokens: int, sequence: int, limit: int | None = None) -> None:
        self.path, self.dtype, self.tokens, self.sequence = path, dtype, tokens, sequence
        whole = tokens // sequence
        self.rows = whole if limit is None else min(whole, limit)
        self.left_out = tokens % sequence
        self._mapped: Any = None

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: int) -> Row:
        """(sequence,) int64 tokens."""
        if not 0 <= index < self.rows:
            raise IndexError(index)
        if self._mapped is None:
            self._mapped = np.memmap(self.path, dtype=self.dtype, mode="r", shape=(self.tokens,))
        start = index * self.sequence
        return {"tokens": self._mapped[start : start + self.sequence].astype(np.int64)}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_mapped": None}


class SyntheticTokens(Dataset[Row]):  # type: ignore[misc]
    """Random tokens, made when they are asked for: row i of a seed is the same everywhere and at any time.

    Philox's counter-based stream (Salmon et al. 2011) with the seed and the row as its key; numpy promises
    the raw stream of a bit generator for all its versions.
    """

    def __init__(self, rows: int, sequence: int, vocab_size: int, seed: int, *, held_out: bool) -> None:
        self.rows, self.sequence, self.vocab_size, self.seed = rows, sequence, vocab_size, seed
        self.part = int(held_out)

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: int) -> Row:
        """(sequence,) int64 tokens below vocab_size."""
        if not 0 <= index < self.rows:
            raise IndexError(index)
        key = np.array([self.seed % 2**64, index], dtype=np.uint64)
        raw = np.random.Philox(key=key, counter=[0, 0, 0, self.part]).random_raw(self.sequence)
        return {"tokens": (raw % np.uint64(self.vocab_size)).astype(np.int64)}


def collate(rows: Sequence[Row]) -> dict[str, torch.Tensor]:
    """(batch, sequence) input_ids and labels. A label stands at its own token's place, as Transformers has it
    (the loss moves it); the first of a row has nothing before it and is ignored."""
    inputs = torch.from_numpy(np.stack([row["tokens"] for row in rows]))
    labels = inputs.clone()
    labels[:, 0] = IGNORED
    for index, row in enumerate(rows):
        if row.get("ignored"):
            labels[index] = IGNORED
    return {"input_ids": inputs, "labels": labels}


def count_batch(inputs: Mapping[str, Any]) -> Counts:
    """Every token of a packed row is real."""
    rows = inputs["input_ids"]
    return Counts(int(rows.shape[0]), rows.numel(), rows.numel())
