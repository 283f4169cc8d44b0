"""Randomness that is the same on every host and Python version.

Only `random.Random(int).random()` is promised to stay the same over Python versions, so `choice`,
`shuffle` and the rest are rebuilt from it here.
"""

from __future__ import annotations

import random
from collections.abc import MutableSequence, Sequence
from typing import TypeVar

T = TypeVar("T")


class Dice:
    """A seeded source of choices."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed).random

    def chance(self, probability: float) -> bool:
        """Return true with the given probability."""
        return self._random() < probability

    def below(self, limit: int) -> int:
        """Return a whole number in [0, limit)."""
        return int(self._random() * limit)

    def between(self, low: int, high: int) -> int:
        """Return a whole number in [low, high]."""
        return low + self.below(high - low + 1)

    def pick(self, items: Sequence[T]) -> T:
        """One of the items."""
        return items[self.below(len(items))]

    def pair(self, items: Sequence[T]) -> tuple[T, T]:
        """Two different places of the sequence, in either order."""
        first = self.below(len(items))
        second = self.below(len(items) - 1)
        return items[first], items[second + (second >= first)]

    def shuffle(self, items: MutableSequence[T]) -> None:
        """Reorder in place (Fisher-Yates)."""
        for last in range(len(items) - 1, 0, -1):
            other = self.below(last + 1)
            items[last], items[other] = items[other], items[last]
