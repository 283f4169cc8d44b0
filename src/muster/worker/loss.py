"""The loss of a global batch: the same on any number of ranks, however samples fall on micro-batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

IGNORED = -100  # labels that never count in a loss


def token_loss(smoothing: Callable[[], float]) -> Callable[..., torch.Tensor]:
    """Cross entropy over the labels that count of the whole global batch: sum / their number on all ranks.

    So the gradient is that of the global batch, however the tokens fall on ranks and micro-batches.
    """

    def loss(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
        logits = outputs["logits"] if isinstance(outputs, dict) else outputs[0]
        summed = functional.cross_entropy(
            logits.float().view(-1, logits.size(-1)),
            labels.reshape(-1),
            ignore_index=IGNORED,
            label_smoothing=smoothing(),
            reduction="sum",
        )
        count = num_items_in_batch if num_items_in_batch is not None else (labels != IGNORED).sum()
        return summed / count

    return loss
