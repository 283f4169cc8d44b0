"""Scatter that a few outliers do not move. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

MAD = 1.4826  # of a normal distribution: its standard deviation over its MAD


def deviation(values: Sequence[float], middle: float | None = None) -> float:
    """The median distance from the middle (by default their median), scaled: for normal values their standard
    deviation. Raises StatisticsError where there are no values."""
    middle = statistics.median(values) if middle is None else middle
    return MAD * statistics.median(abs(each - middle) for each in values)
