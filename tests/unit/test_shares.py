"""Whole shares of a micro-step by speed: no other split is done sooner."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.core.batch import shares_by_speed


def slowest(shares: tuple[int, ...], speeds: list[float]) -> float:
    return max(share / speed for share, speed in zip(shares, speeds, strict=True))


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
