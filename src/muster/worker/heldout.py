"""The held-out loss as a true mean over tokens, whatever the batches and ranks are."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.utils.data import Dataset

from muster.worker.loss import LossSums
from muster.worker.mixin import BeforeTrainer


class ExactHeldOut(BeforeTrainer):  # type: ignore[misc]
    """Goes before a Transformers trainer among the base classes. Set `tally`, which the loss fills; without
    it, the loss is Transformers' own.

    Transformers means over batches: a short last batch, and samples that it repeats so that every rank has
    one, weigh too much. Here sums and counts of all ranks are added up. The held-out set has to be whole
    batches for every rank (Filled), or some samples count twice.
    """

    tally: LossSums | None = None
    per_token = False  # the loss is one per token of text: its exponential is the perplexity

    def evaluation_loop(self, *args: Any, metric_key_prefix: str = "eval", **named: Any) -> Any:
        """Run Transformers' loop; its loss is made exact, and language models get their perplexity."""
        if self.tally is None:
            return super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **named)
        self.tally.reset()
        output = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **named)
        sums = torch.stack([torch.as_tensor(each) for each in (self.tally.loss, self.tally.count)]).double()
        loss, count = self.accelerator.reduce(sums.to(self.accelerator.device), reduction="sum").tolist()
        if count:
            output.metrics[f"{metric_key_prefix}_loss"] = loss / count
            if self.per_token:
                output.metrics[f"{metric_key_prefix}_perplexity"] = perplexity(loss / count)
        return output


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
