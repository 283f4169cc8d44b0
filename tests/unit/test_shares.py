"""Whole shares of a micro-step by speed: no other split is done sooner."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.core.errors import RecipeError
from muster.core.shares import check_given_shares, shares_by_speed


def slowest(shares: tuple[int, ...], speeds: list[float]) -> float:
    return max(share / speed for share, speed in zip(shares, speeds, strict=True))


@pytest.mark.parametrize(
    ("total", "speeds", "shares"),
    [
        (16, [1.0, 1.0], (8, 8)),
        (16, [100.0, 50.0], (11, 5)),
        (16, [50.0, 100.0], (5, 11)),
        (16, [100.0, 103.0], (8, 8)),  # what is hardly faster does not get a sample more
        (3, [1.0, 1000.0], (1, 2)),  # nobody is left without
        (2, [5.0, 5.0], (1, 1)),
        (48, [20.3, 20.3, 20.3, 5.5, 6.5], (13, 13, 14, 4, 4)),
    ],
)
def test_shares_follow_speeds(total: int, speeds: list[float], shares: tuple[int, ...]) -> None:
    found = shares_by_speed(total, speeds)
    assert sum(found) == total
    assert slowest(found, speeds) <= slowest(shares, speeds)
    if len(speeds) == 2:
        assert found == shares


@given(st.data())
def test_no_split_is_done_sooner(data: st.DataObject) -> None:
    """Against all splits there are, with limits."""
    count = data.draw(st.integers(1, 3))
    total = data.draw(st.integers(count, 12))
    speeds = data.draw(st.lists(st.floats(0.1, 10), min_size=count, max_size=count))
    limits = data.draw(st.lists(st.integers(1, 12), min_size=count, max_size=count))
    every = [s for s in product(*(range(1, limit + 1) for limit in limits)) if sum(s) == total]
    if not every:
        with pytest.raises(ValueError, match="do not hold"):
            shares_by_speed(total, speeds, limits)
        return
    found = shares_by_speed(total, speeds, limits)
    assert found in every
    assert slowest(found, speeds) == min(slowest(s, speeds) for s in every)


def test_a_limit_is_kept_and_others_take_the_rest() -> None:
    assert shares_by_speed(16, [100.0, 50.0], [9, 16]) == (9, 7)


@pytest.mark.parametrize(
    ("total", "speeds"), [(1, [1.0, 1.0]), (4, [1.0, 0.0]), (4, [1.0, float("nan")]), (4, [-1.0, 1.0])]
)
def test_what_cannot_be_split(total: int, speeds: list[float]) -> None:
    with pytest.raises(ValueError):
        shares_by_speed(total, speeds)


def test_given_shares_fit_the_job() -> None:
    check_given_shares([11, 5], world_size=2, micro=8)
    with pytest.raises(RecipeError, match="has 3 shares, and the job has 2 ranks"):
        check_given_shares([8, 4, 4], world_size=2, micro=8)
    with pytest.raises(RecipeError, match=r"sum to 15, and micro-batch 8 x 2 ranks = 16"):
        check_given_shares([10, 5], world_size=2, micro=8)
