"""Scatter of values, by statistics that a few outliers do not move. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

MAD = 1.4826  # of a normal distribution: its standard deviation over its MAD


HALF = 3  # values, from which on the middle of a half is known


def halves_of(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the medians of the values before and after the middle. None: there are too few."""
    half = len(values) // 2
    return (statistics.median(values[:half]), statistics.median(values[-half:])) if half >= HALF else None


def variation(values: Sequence[float], least: int = 2) -> float | None:
    """Return the coefficient of variation; None: fewer than `least` values, or no mean above 0."""
    mean = statistics.fmean(values) if len(values) >= least else 0.0
    return statistics.stdev(values) / mean if mean > 0 else None


def deviation(values: Sequence[float], middle: float | None = None) -> float:
    """Return the median distance from the middle (by default their median), scaled: for normal values their
    standard deviation. Raises StatisticsError where there are no values."""
    middle = statistics.median(values) if middle is None else middle
    return MAD * statistics.median(abs(each - middle) for each in values)
