"""What a workload gives to the worker, and what every workload may use.

A workload that trains nothing has `measure(context) -> None` instead of `build`, as fabric has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from muster.store.lines import Skipped

if TYPE_CHECKING:
    from transformers import Trainer


@dataclass(frozen=True)
class Counts:
    """What a micro-batch holds: samples, real tokens, and tokens with padding.

    Real tokens may stay a tensor on the device, so that counting does not wait for it.
    """

    samples: int
    tokens: Any
    padded_tokens: int


@dataclass(frozen=True)
class HeldOut:
    """A question with its expected answer; `database`: a SQLite file that can run both, or None.
    `left_out`: why it cannot be asked; None: it can."""

    question: str
    expected: str
    database: str | None = None
    left_out: str | None = field(default=None, kw_only=True)


def limit_notes(count: int, limit: int | None) -> list[str]:
    """Note where evaluate.limit leaves out some of so many held-out samples."""
    if limit is None or count <= limit:
        return []
    return [f"held-out figures are of {limit:,} of {count:,} held-out samples (evaluate.limit)"]


@dataclass(frozen=True)
class Built:
    """A workload, ready to train."""

    trainer: Trainer
    count: Callable[[Mapping[str, Any]], Counts]
    train_samples: int
    held_out: Sequence[HeldOut]
    cut: int = 0
    skipped: Skipped = field(default_factory=Skipped)  # samples that cannot be used
    held_samples: int | None = None  # held out for the loss, where nothing of it is answered; None: as above
    notes: list[str] = field(default_factory=list)
    after: bool = False  # a micro-batch is counted when its step is done: what it holds is made there
    finish: Callable[[Path], None] | None = None  # changes the trained model's folder
    flops: bool = True  # whether a step is a forward and a backward pass of the model over its batch
