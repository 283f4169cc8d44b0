"""The held-out loss as a true mean over tokens, whatever the batches and ranks are."""

from __future__ import annotations

import math
from typing import Any

import torch

from muster.worker.loss import Tally


class ExactHeldOut:
    """Goes before a Transformers trainer among the base classes. Set `tally`, which the loss fills.

    Transformers means over batches: a short last batch, and samples that it repeats so that every rank has
    one, weigh too much. Here sums and counts of all ranks are added up. The held-out set has to be whole
    batches for every rank (worker/data/packed.py: Filled), or some samples count twice.
    """

    tally: Tally

    def evaluation_loop(self, *args: Any, metric_key_prefix: str = "eval", **named: Any) -> Any:
        """Transformers' loop, with its loss made exact, and the perplexity."""
        self.tally.reset()
        output = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **named)  # type: ignore[misc]
        accelerator: Any = self.accelerator  # type: ignore[attr-defined]
        sums = torch.stack([torch.as_tensor(each) for each in (self.tally.loss, self.tally.count)]).double()
        loss, count = accelerator.reduce(sums.to(accelerator.device), reduction="sum").tolist()
        if count:
            output.metrics[f"{metric_key_prefix}_loss"] = loss / count
            output.metrics[f"{metric_key_prefix}_perplexity"] = perplexity(loss / count)
        return output


def perplexity(loss: float) -> float:
    """exp of a mean loss in nats per token; infinite where that is no number any more."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf
