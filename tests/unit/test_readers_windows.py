"""Windows of steps, and the rate they come to."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.readers._read import _unrounded, contradicting
from muster.readers.base import HEAD, TAIL, LogWindow, MeasuredWindows, Reading, Series
from tests.unit.logs import one

WINDOWS = st.builds(
    LogWindow,
    steps=st.integers(1, 50),
    skipped=st.just(0),
    samples=st.floats(1, 1e6),
    seconds=st.floats(1e-3, 1e4),
)


@given(st.lists(WINDOWS, min_size=1, max_size=40))
def test_a_rate_is_samples_over_seconds(windows: list[LogWindow]) -> None:
    """Of the windows after the warm-up, whatever their lengths: never a mean of rates."""
    series = Series()
    for window in windows:
        series.add(window)
    found = series.measured()
    assert found is not None
    rest = windows[-found.windows :]
    assert found.rate == pytest.approx(sum(w.samples for w in rest) / sum(w.seconds for w in rest))
    passed = sum(w.steps for w in windows[: -found.windows])
    assert passed - (windows[-found.windows - 1].steps if passed else 0) <= max(
        10, sum(w.steps for w in windows) / 3
    )


def test_long_runs_keep_a_bounded_number_of_windows() -> None:
    series = Series()
    for number in range(100_000):
        series.add(LogWindow(10, int(number % 50 == 0), 640.0, 2.0 + number % 2))
    assert len(series.head) <= HEAD and len(series.tail) <= TAIL
    found = series.measured()
    # Every 25th of the windows of two seconds had a skipped step; they alternate with 25 of three seconds.
    assert found is not None and found.rate == pytest.approx(49 * 640 / (24 * 2 + 25 * 3), rel=1e-3)
    assert found.steps == 10 * (98_000 - 1)  # one window of warm-up had a skipped step


def test_nonsense_is_no_window() -> None:
    series = Series()
    for window in (
        LogWindow(0, 0, 1, 1),
        LogWindow(1, 0, 1, 0),
        LogWindow(1, 0, 1, float("nan")),
        LogWindow(1, 2, 1, 1),
    ):
        series.add(window)
    assert series.measured() is None


def test_formats_that_count_unlike_things_do_not_contradict_each_other() -> None:
    steps = MeasuredWindows(steps=10, skipped=0, samples=10.0, seconds=10.0, unit="steps")
    samples = replace(steps, samples=640.0, unit="samples")
    first, other = Reading("a", unit="steps"), Reading("b", sure=False)
    assert contradicting([(first, steps), (other, samples)]) is None
    assert contradicting([(first, replace(samples, samples=700.0)), (other, samples)]) == 64.0


def test_the_error_of_windows_between_whole_seconds_by_hand() -> None:
    """Of four windows with a variance of 4 in all, rounding is 16/9; of both ends 1/3 is left."""
    windows = MeasuredWindows(steps=40, skipped=0, samples=40.0, seconds=100.0, windows=4, error=0.02)
    assert _unrounded(windows) == pytest.approx((4 - 16 / 9 + 1 / 3) ** 0.5 / 100)
    assert _unrounded(replace(windows, error=None)) is None


def test_stamps_leave_out_the_same_warm_up() -> None:
    """Lines every three steps, with stamps of whole seconds; from a step on, each takes longer. These are
    merged to windows of a hundred seconds, and none of the fast steps after the warm-up are lost."""
    at, lines = datetime(2032, 1, 20, 9), list[str]()
    for number in range(3, 121, 3):
        each = 2.8 if number <= 48 else 3.7
        at += timedelta(seconds=3 * each)
        lines.append(
            f" [{at:%Y-%m-%d %H:%M:%S}] iteration {number:8d}/     120 | consumed samples: {128 * number} | "
            f"elapsed time per iteration (ms): {1000 * each:.1f} | global batch size:   128 | lm loss: 3.1 |"
        )
    figures = one(lines, "n1.log").measured
    assert figures is not None and figures.halves is not None
    assert figures.seconds / figures.steps == pytest.approx((36 * 2.8 + 72 * 3.7) / 108, rel=0.005)
