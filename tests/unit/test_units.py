"""Numbers for people: an unknown one says so, and no rounding crosses into a silly unit (1024.0 KiB)."""

from __future__ import annotations

import pytest

from muster.core.units import format_bytes, format_count, format_seconds


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "unknown"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1023.6, "1.0 KiB"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (1024**2 - 1, "1.0 MiB"),
        (3 * 1024**3, "3.0 GiB"),
        (-2048, "-2.0 KiB"),
        (5000 * 1024**5, "5000.0 PiB"),
    ],
)
def test_bytes(count: float | None, text: str) -> None:
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "unknown"),
        (0.25, "0.25 s"),
        (10, "10 s"),
        (59.7, "1 min 0 s"),
        (75, "1 min 15 s"),
        (3599.6, "1 h 0 min"),
        (7300, "2 h 1 min"),
        (100 * 3600, "100 h 0 min"),
    ],
)
def test_seconds(seconds: float | None, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "unknown"),
        (0, "0"),
        (1234, "1234"),
        (9999, "9999"),
        (10_000, "10.0 K"),
        (999_999, "1.0 M"),
        (60_506_624, "60.5 M"),
        (999_960_000, "1.0 B"),
        (2_851_598_336, "2.9 B"),
        (3e12, "3.0 T"),
        (0.5, "0.50"),
    ],
)
def test_counts(count: float | None, text: str) -> None:
    assert format_count(count) == text
