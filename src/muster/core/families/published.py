"""How a size was trained when it was published."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PublishedTraining:
    """The values that `auto` takes for a published size. `tokens`: per optimizer step."""

    learning_rate: float
    tokens: int
