"""The loss of a global batch: the same on any number of ranks, however samples fall on micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional

IGNORED = -100  # labels that never count in a loss
SMALL = 1 << 24  # logits up to which memory is no matter; larger ones are worked through in parts of this
SMALL_ON_CPU = 1 << 28  # there memory is cheap, and parts are slower than PyTorch's own (1.4 times)


class Tally:
    """Sums of losses and numbers of labels while no gradient is wanted: for a mean that is exact."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin anew."""
        self.loss: Any = 0.0
        self.count: Any = 0

    def add(self, summed: torch.Tensor, count: torch.Tensor) -> None:
        """One batch; stays on the device."""
        self.loss = self.loss + summed.detach().double()
        self.count = self.count + count


def token_loss(
    smoothing: Callable[[], float], *, moved: bool = False, tally: Tally | None = None
) -> Callable[..., torch.Tensor]:
    """Cross entropy over the labels that count of the whole global batch: sum / their number on all ranks.

    So the gradient is that of the global batch, however the tokens fall on ranks and micro-batches. `moved`:
    labels stand at their own token's place, and are predicted by the place before (causal language models).
    """

    def loss(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
        logits = outputs["logits"] if isinstance(outputs, dict) else outputs[0]
        if moved:
            labels = functional.pad(labels[..., 1:], (0, 1), value=IGNORED)
        summed = summed_cross_entropy(logits.view(-1, logits.size(-1)), labels.reshape(-1), smoothing())
        counted = (labels != IGNORED).sum()
        if tally is not None and not torch.is_grad_enabled():
            tally.add(summed, counted)
        return summed / (counted if num_items_in_batch is None else num_items_in_batch)

    return loss


def summed_cross_entropy(logits: torch.Tensor, labels: torch.Tensor, smoothing: float = 0.0) -> torch.Tensor:
    """The sum of cross entropies of (rows, classes) logits in fp32; rows whose label is IGNORED are left out.

    Large logits cost their gradient and no further copy, whatever their type.
    """
    if logits.numel() > (SMALL_ON_CPU if logits.device.type == "cpu" else SMALL):
        return _InParts.apply(logits, labels, smoothing)
    return functional.cross_entropy(
        logits.float(), labels, ignore_index=IGNORED, label_smoothing=smoothing, reduction="sum"
    )


class _InParts(torch.autograd.Function):  # type: ignore[misc]
    """The same sum, some rows at a time. PyTorch's own holds a float copy, logarithms and two gradients."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, labels: torch.Tensor, smoothing: float) -> torch.Tensor:
        norms = logits.new_empty(len(logits), dtype=torch.float32)
        total = logits.new_zeros((), dtype=torch.float32)
        for rows in _parts(logits):
            part, wanted = logits[rows].float(), labels[rows]
            norms[rows] = torch.logsumexp(part, -1)
            right = part.gather(-1, wanted.clamp(min=0)[:, None]).squeeze(-1)
            each = norms[rows] - (1 - smoothing) * right
            if smoothing:
                each = each - smoothing * part.mean(-1)
            total = total + torch.where(wanted != IGNORED, each, 0.0).sum()
        ctx.save_for_backward(logits, labels, norms)
        ctx.smoothing = smoothing
        return total

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *above: Any) -> Any:
        """Per row: softmax - (1 - smoothing) * one-hot - smoothing / classes."""
        logits, labels, norms = ctx.saved_tensors
        gradient = torch.empty_like(logits)
        for rows in _parts(logits):
            wanted = labels[rows]
            part = logits[rows].float().sub_(norms[rows][:, None]).exp_()
            if ctx.smoothing:
                part -= ctx.smoothing / logits.size(-1)
            minus = part.new_full((len(part), 1), ctx.smoothing - 1)
            part.scatter_add_(-1, wanted.clamp(min=0)[:, None], minus)
            part *= ((wanted != IGNORED) * above[0])[:, None]
            gradient[rows] = part
        return gradient, None, None


def _parts(logits: torch.Tensor) -> Iterator[slice]:
    rows = max(1, SMALL // logits.size(-1))
    return (slice(start, start + rows) for start in range(0, len(logits), rows))
