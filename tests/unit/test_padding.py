"""Rows of tokens of unlike lengths as one tensor."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from muster.worker.data.padding import padded  # noqa: E402

ROWS = st.lists(st.lists(st.integers(0, 2**40), min_size=1, max_size=9), min_size=1, max_size=6)


@given(ROWS, st.integers(0, 5), st.booleans(), st.sampled_from([0, -100, 7]))
def test_each_row_stands_at_one_side_and_padding_at_the_other(
    rows: list[list[int]], more: int, left: bool, pad: int
) -> None:
    length = max(map(len, rows)) + more
    tokens, mask = padded(rows, pad, length if more else None, left=left)
    assert tokens.shape == mask.shape == (len(rows), length) and tokens.dtype == mask.dtype == torch.int64
    for row, made, real in zip(rows, tokens.tolist(), mask.tolist(), strict=True):
        empty = length - len(row)
        assert made == ([pad] * empty + row if left else row + [pad] * empty)
        assert real == ([0] * empty + [1] * len(row) if left else [1] * len(row) + [0] * empty)


def test_a_row_without_tokens_is_padding() -> None:
    tokens, mask = padded([[], [3, 4]], -100, 3)
    assert tokens.tolist() == [[-100] * 3, [3, 4, -100]] and mask.tolist() == [[0] * 3, [1, 1, 0]]
