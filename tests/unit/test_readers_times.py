"""When a job ran, from the time stamps of its log's own lines."""

from __future__ import annotations

import tracemalloc
from datetime import datetime, timezone
from types import SimpleNamespace

import pytest

from muster.readers._live import Live
from muster.readers._read import read_blocks
from muster.readers._user import UserFormat

BEGAN = datetime(2024, 7, 8, 5, 52, 0, tzinfo=timezone.utc).timestamp()


def test_what_is_kept_of_a_log_to_know_its_end_is_bounded() -> None:
    """80 MB of long lines, some at a time."""
    tracemalloc.start()
    try:
        blocks = ([f"2024-07-08 05:52:00 {n} {'x' * 10_000}" for n in range(80)] for _ in range(100))
        (job,) = read_blocks("x.log", blocks)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert job.started == job.ended == BEGAN and peak < 16 << 20


def test_steps_that_arrive_together_are_counted_with_those_that_arrive_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Lines without stamps, ten a second, which come once a second."""
    clock = iter(range(1_000_000_000, 1_000_000_020))
    monkeypatch.setattr("muster.readers._live.time", SimpleNamespace(time=lambda: float(next(clock))))
    live = Live(UserFormat.of([r"step (?P<step>\d+)"]))
    for second in range(20):
        live.lines([f"step {10 * second + step}" for step in range(1, 11)])
    seen = live.seen(0.0)
    assert seen is not None and seen.rate == pytest.approx(10.0)
