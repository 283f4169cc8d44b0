"""The loss of a global batch: the same on any number of ranks, however samples fall on micro-batches."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional

from muster.core.loss_parts import PLAIN_OUTPUT, most_rows, part_rows

IGNORED = -100  # labels that never count in a loss


class LossSums:
    """Sums of losses and numbers of labels while no gradient is wanted: for a mean that is exact."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin anew."""
        self.loss: Any = 0.0
        self.count: Any = 0

    def add(self, summed: torch.Tensor, count: torch.Tensor) -> None:
        """Add one batch; the sums stay on the device."""
        self.loss = self.loss + summed.detach().double()
        self.count = self.count + count


class TokenLoss:
    """Cross entropy over the labels that count of the whole global batch: sum / their number on all ranks.

    So the gradient is that of the global batch, however the tokens fall on ranks and micro-batches. `moved`:
    labels stand at their own token's place, and are predicted by the place before (causal language models).
    `head`: the model's output layer, where it and the loss may be computed together.
    """

    def __init__(
        self,
        smoothing: Callable[[], float] = lambda: 0.0,
        *,
        moved: bool = False,
        tally: LossSums | None = None,
        head: FusedHead | None = None,
    ) -> None:
        self.smoothing, self.moved, self.tally, self.head = smoothing, moved, tally, head

    @contextmanager
    def expecting(self, labels: torch.Tensor | None) -> Iterator[None]:
        """Let a forward pass of the model inside be one over a batch with these labels."""
        if self.head is None or labels is None:
            yield
            return
        self.head.found = None
        _LABELS[self.head.key] = self._placed(labels).reshape(-1), self.smoothing()
        try:
            yield
        finally:
            del _LABELS[self.head.key]

    def __call__(self, outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
        """Return the loss of a model's outputs: their logits, or the sum that the fused head made in their
        place."""
        logits = outputs["logits"] if isinstance(outputs, dict) else outputs[0]
        labels = self._placed(labels)
        if self.head is not None and logits.ndim == 0:
            fused_sum = self.head.found
            summed = logits if fused_sum is None else _Exactly.apply(logits, fused_sum)
        else:
            rows = logits.view(-1, logits.size(-1))
            summed = summed_cross_entropy(rows, labels.reshape(-1), self.smoothing())
        counted = (labels != IGNORED).sum()
        if self.tally is not None and not torch.is_grad_enabled():
            self.tally.add(summed, counted)
        return summed / (counted if num_items_in_batch is None else num_items_in_batch)

    def _placed(self, labels: torch.Tensor) -> torch.Tensor:
        """Put each label at the place that predicts it."""
        return functional.pad(labels[..., 1:], (0, 1), value=IGNORED) if self.moved else labels


# ----------------------------------------------------------------------------------------------------
# Output layer and loss together.

# By a head's key: the labels (rows) that its next pass is to be held against, and how they are smoothed. Not
# held by the head: a compiler takes tensors that modules hold for such as stay in their place, and CUDA
# graphs would be recorded anew for each batch.
_LABELS: dict[int, tuple[torch.Tensor, float]] = {}
_KEYS = itertools.count()


class FusedHead(torch.nn.Linear):  # type: ignore[misc]
    """A model's output layer, which computes the loss as well, and then returns its sum in place of logits.

    Where the logits would be many: some rows at a time, with the gradients of the layer's input and weight,
    so that the logits never lie in memory together. `always`: also where they are few; `inside`: all at once
    in plain operations, which a compiler fuses with the model's; `key`: of its labels; `found`: the sum of
    parts.
    """

    always: bool
    inside: bool
    key: int
    found: _Sum | None

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return (..., classes) logits, or the sum of the losses of all rows, in fp32."""
        width, classes = hidden.size(-1), self.weight.size(0)
        rows = hidden.numel() // width
        few = rows <= most_rows(hidden.device.type, classes, width) and not self.always
        expected = _LABELS.get(self.key)
        if expected is None or (few and not self.inside):
            return super().forward(hidden)
        labels, smoothing = expected
        if not self.inside:
            return self._in_parts(hidden.reshape(-1, width), labels, smoothing)
        return plain_cross_entropy(super().forward(hidden).reshape(-1, classes), labels, smoothing)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _in_parts(self, hidden: torch.Tensor, labels: torch.Tensor, smoothing: float) -> torch.Tensor:
        self.found = _Sum()
        given = hidden, self.weight, self.bias, labels, smoothing
        summed: torch.Tensor = _InParts.apply(*given, torch.is_grad_enabled(), self.found)
        return summed


def fused(layer: Any, *, always: bool = False, inside: bool = False) -> FusedHead:
    """Turn a layer, which keeps its weight and its hooks, into a FusedHead."""
    layer.__class__ = FusedHead
    layer.always, layer.inside, layer.key, layer.found = always, inside, next(_KEYS), None
    made: FusedHead = layer
    return made


def fused_head(model: Any, *, wanted: bool | str = "auto", inside: bool = False) -> FusedHead | None:
    """Let the model's output layer compute the loss, `inside`: as part of a compiled graph. None, and nothing
    changed, where it is not `wanted`, or where the layer or what follows it is not known to allow that."""
    config = getattr(model, "config", None)
    find = getattr(model, "get_output_embeddings", None)
    unwanted = wanted is False and not inside
    if unwanted or find is None or getattr(config, "model_type", None) not in PLAIN_OUTPUT:
        return None
    layer = find()
    if type(layer) not in (torch.nn.Linear, FusedHead):  # none, or PEFT's
        return None
    return fused(layer, always=wanted is True, inside=inside)


class _Sum:
    """What the fused loss is, and what its gradients are to be multiplied by, both in fp32.

    Between the output layer and the loss an engine may cast what the model returns (FSDP, to half precision:
    a sum above 65,504 is infinite in fp16, and has 8 bits in bf16). So the value goes beside it, and the
    scale of the gradients comes back so.
    """

    value: torch.Tensor | None = None
    scale: torch.Tensor | None = None


class _Exactly(torch.autograd.Function):  # type: ignore[misc]
    """What the model returned -> the sum as it was before any cast."""

    @staticmethod
    def forward(ctx: Any, returned: torch.Tensor, fused_sum: _Sum) -> torch.Tensor:
        assert fused_sum.value is not None
        ctx.found, ctx.dtype = fused_sum, returned.dtype
        return fused_sum.value.clone()

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *above: Any) -> Any:
        """Return one as the gradient, which every type holds exactly."""
        ctx.found.scale = above[0]
        return torch.ones_like(above[0], dtype=ctx.dtype), None


class _InParts(torch.autograd.Function):  # type: ignore[misc]
    """The summed cross entropy in fp32, some rows at a time: of (rows, classes) logits, or, with a weight, of
    the logits that it makes of (rows, width) inputs.

    The gradients are computed in the forward pass, where each part's logits are at hand, and only scaled in
    the backward pass. (The idea: Hsu et al. 2024, Liger Kernel, section 3.2.)
    """

    @staticmethod
    def forward(
        ctx: Any,
        given: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        labels: torch.Tensor,
        smoothing: float,
        training: bool,
        fused_sum: _Sum | None,
    ) -> torch.Tensor:
        kind, width = given.device.type, given.size(-1)
        classes = width if weight is None else weight.size(0)
        dtype = given.dtype if weight is None else weight.dtype
        if weight is not None and torch.is_autocast_enabled(kind):
            dtype = torch.get_autocast_dtype(kind)
        wants = [training and each for each in ctx.needs_input_grad[:3]]
        total = given.new_zeros((), dtype=torch.float32)
        of_given = torch.empty_like(given) if wants[0] else None
        of_weight = torch.zeros_like(weight, dtype=torch.float32) if wants[1] else None
        of_bias = torch.zeros_like(bias, dtype=torch.float32) if wants[2] else None
        rows_at_once = part_rows(kind, classes, 0 if weight is None else width)
        with torch.autocast(kind, enabled=False):
            matrix = None if weight is None else weight.to(dtype)
            for start in range(0, len(given), rows_at_once):
                rows = slice(start, start + rows_at_once)
                part, wanted = given[rows].to(dtype), labels[rows]
                logits = part if matrix is None else part @ matrix.T
                if bias is not None:
                    logits = logits + bias.to(dtype)
                logs = functional.log_softmax(logits, -1, dtype=torch.float32)
                del logits
                counts, right = wanted != IGNORED, wanted.clamp(min=0)[:, None]
                each = (smoothing - 1) * logs.gather(-1, right).squeeze(-1)
                if smoothing:
                    each = each - smoothing * logs.mean(-1)
                total += torch.where(counts, each, 0.0).sum()
                if not any(wants):
                    del logs
                    continue
                # Softmax - (1 - smoothing) * one-hot - smoothing / classes; rows that do not count have none.
                gradient = logs.exp_()
                if smoothing:
                    gradient -= smoothing / classes
                gradient.scatter_add_(-1, right, gradient.new_full(right.shape, smoothing - 1))
                gradient = gradient.to(dtype)
                if of_given is not None:
                    back = gradient if matrix is None else gradient @ matrix
                    of_given[rows] = back.masked_fill_(~counts[:, None], 0.0)
                if of_weight is not None:
                    of_weight += gradient.T @ part.masked_fill(~counts[:, None], 0.0)
                if of_bias is not None:
                    of_bias += counts.to(dtype) @ gradient
                del gradient, logs, part  # before the next part's logits are made
        if fused_sum is not None:
            fused_sum.value = total.detach()  # without the graph, which would outlive the step
        ctx.found = fused_sum
        ctx.save_for_backward(of_given, of_weight, of_bias)
        ctx.dtypes = [None if each is None else each.dtype for each in (given, weight, bias)]
        return total

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *above: Any) -> Any:
        """Scale the gradients in place: once."""
        scale = above[0] if ctx.found is None or ctx.found.scale is None else ctx.found.scale
        scaled = [
            None if each is None else each.mul_(scale).to(dtype)
            for each, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        ]
        return *scaled, None, None, None, None


# ----------------------------------------------------------------------------------------------------
# The loss of logits.


def summed_cross_entropy(logits: torch.Tensor, labels: torch.Tensor, smoothing: float = 0.0) -> torch.Tensor:
    """Sum the cross entropies of (rows, classes) logits in fp32; rows whose label is IGNORED are left out.

    Large logits cost their gradient and no further copy, whatever their type.
    """
    if len(logits) > most_rows(logits.device.type, logits.size(-1)):
        return _InParts.apply(logits, None, None, labels, smoothing, torch.is_grad_enabled(), None)
    return plain_cross_entropy(logits, labels, smoothing)


def plain_cross_entropy(logits: torch.Tensor, labels: torch.Tensor, smoothing: float) -> torch.Tensor:
    """Compute the same by PyTorch's own operations, with all rows at once."""
    return functional.cross_entropy(
        logits.float(), labels, ignore_index=IGNORED, label_smoothing=smoothing, reduction="sum"
    )
