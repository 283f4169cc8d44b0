"""Whether a training changed the weights."""

from __future__ import annotations

from typing import Any

import torch
from transformers import TrainerCallback

BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes of an element
PIECE = 1 << 24  # elements that are added up at a time: torch copies them to int64 first


class WeightWatch(TrainerCallback):  # type: ignore[misc]
    """Sums the bits of this rank's trained weights before the first step and after the last one.

    `changed`: None before the end, where no step was taken, or where a rank cannot see its weights.
    """

    changed: bool | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        """Sum up the weights, which are in their places now, also those of a checkpoint."""
        self._step, self._before = state.global_step, sums_of(model)

    def on_train_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        """Compare."""
        if state.global_step > self._step and self._before:
            self.changed = sums_of(model) != self._before


def sums_of(model: Any) -> list[int]:
    """Sum the bits of each trained parameter's part on this rank as whole numbers; empty where one is on a
    disk."""
    sums = []
    for each in model.parameters():
        if not each.requires_grad:
            continue
        part = getattr(each, "ds_tensor", each)  # of ZeRO-3
        if getattr(getattr(part, "status", None), "name", "") == "NOT_AVAILABLE":
            return []
        local = part.to_local() if hasattr(part, "to_local") else part
        bits = local.detach().contiguous().view(-1).view(BITS[local.element_size()])
        sums.append(torch.stack([piece.sum(dtype=torch.int64) for piece in bits.split(PIECE)]).sum())
    return [int(each) for each in sums]
