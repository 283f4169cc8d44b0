"""The held-out loss as a true mean over tokens, whatever the batches and ranks are."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.utils.data import Dataset

from muster.worker.loss import LossSums


def mean_of(tally: LossSums, accelerator: Any) -> float | None:
    """Return the mean over what all ranks have added up; None: nothing. Held-out sets have to be whole
    batches for every rank (PaddedRows), or some samples count twice."""
    sums = torch.stack([torch.as_tensor(each) for each in (tally.loss, tally.count)]).double()
    loss, count = accelerator.reduce(sums.to(accelerator.device), reduction="sum").tolist()
    return loss / count if count else None


class PaddedRows(Dataset[dict[str, Any]]):  # type: ignore[misc]
    """Held-out rows, filled up to a multiple of `unit` with rows whose labels count for nothing.

    So that every rank has whole batches, and none is dealt a sample twice.
    """

    def __init__(self, rows: Dataset[dict[str, Any]], unit: int) -> None:
        self.inner = rows
        self.real = len(rows)
        self.whole = -(-self.real // unit) * unit

    def __len__(self) -> int:
        return self.whole

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return a row; with `ignored` where it only fills up."""
        if index < self.real:
            return dict(self.inner[index])
        return {**self.inner[0], "ignored": True}


def perplexity(loss: float) -> float:
    """Return exp of a mean loss in nats per token; infinite where that is no number any more."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf
