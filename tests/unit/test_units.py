"""Numbers for people: an unknown one says so, and no rounding crosses into a silly unit (1000.0 kB)."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from muster.core.units import (
    counted,
    format_bytes,
    format_count,
    format_flops,
    format_seconds,
    parse_bytes,
    parse_count,
)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "unknown"),
        (0, "0 B"),
        (999, "999 B"),
        (999.6, "1.0 kB"),
        (1000, "1.0 kB"),
        (1536, "1.5 kB"),
        (1000**2 - 1, "1.0 MB"),
        (80e9, "80.0 GB"),
        (-2048, "-2.0 kB"),
        (5000e15, "5000.0 PB"),
    ],
)
def test_bytes(count: float | None, text: str) -> None:
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "unknown"),
        (math.nan, "unknown"),
        (0, "0 s"),
        (0.000123, "0.123 ms"),
        (0.25, "250 ms"),
        (0.9996, "1.00 s"),
        (1.25, "1.25 s"),
        (9.996, "10.00 s"),
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
        (1234, "1,234"),
        (9999, "9,999"),
        (5347.88, "5,348"),
        (10_000, "10.0 K"),
        (999_999, "1.0 M"),
        (60_506_624, "60.5 M"),
        (999_960_000, "1.0 B"),
        (2_851_598_336, "2.9 B"),
        (3e12, "3.0 T"),
        (0.5, "0.5000"),
    ],
)
def test_counts(count: float | None, text: str) -> None:
    assert format_count(count) == text


@pytest.mark.parametrize(
    ("number", "thing", "text"),
    [(0, "host", "0 hosts"), (1, "host", "1 host"), (2, "host", "2 hosts"), (12000, "loss", "12,000 losses")],
)
def test_one_and_many(number: int, thing: str, text: str) -> None:
    assert counted(number, thing) == text


def test_sizes_are_written_in_one_place() -> None:
    """Whoever divides by 1024 to show bytes has units of his own."""
    source = Path(__file__).parents[2] / "src" / "muster"
    own = re.compile(r"}\s?[KMGT]iB|[:}]\S*}\s?[MG]B(?!/s)")
    found = [
        f"{path.relative_to(source)}: {line.strip()}"
        for path in source.rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if own.search(line)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("512", 512), ("2GB", 2_000_000_000), ("2 gb", 2_000_000_000), ("1.5 TiB", 3 << 39), ("1KiB", 1024),
        ("40G", 40_000_000_000), ("7B", 7), ("GB", None), ("-1GB", None), ("2GiBs", None),
    ],
)  # fmt: skip
def test_a_size_as_people_write_it(text: str, size: int | None) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    ("value", "text"),
    [(2.5e6, "2.5 MFLOP/s"), (3e9, "3 GFLOP/s"), (4.123e14, "412.3 TFLOP/s"), (1.5e15, "1.5 PFLOP/s")],
)
def test_operations_per_second(value: float, text: str) -> None:
    assert format_flops(value) == text


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("20B", 20 * 10**9), ("1.5t", 15 * 10**11), ("300 M", 3 * 10**8), ("2e9", 2 * 10**9), ("7", 7),
        ("1,000k", 10**6), ("0", None), ("-3", None), ("many", None), ("3G", None), ("1e999", None),
        ("1e19", None),
        ("", None),
    ],
)  # fmt: skip
def test_numbers_as_people_write_them(text: str, count: int | None) -> None:
    assert parse_count(text) == count
