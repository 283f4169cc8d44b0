"""Batch arithmetic: derived exactly, never 0; an impossible combination says which numbers would fit."""

from __future__ import annotations

import pytest

from muster.core.batch import resolve_batch
from muster.core.errors import RecipeError


@pytest.mark.parametrize(
    ("micro", "accumulation", "global_", "world", "expected"),
    [
        (32, None, None, 3, (32, 1, 96)),
        (32, 2, None, 3, (32, 2, 192)),
        (8, None, 64, 2, (8, 4, 64)),
        (None, 4, 64, 2, (8, 4, 64)),
        (8, 4, 64, 2, (8, 4, 64)),
        (None, None, None, 4, (8, 1, 32)),
        (None, 3, None, 2, (8, 3, 48)),
        (None, None, 64, 2, (8, 4, 64)),  # 32 a rank: 8 x 4
        (None, None, 6, 2, (3, 1, 6)),
        (None, None, 22, 2, (1, 11, 22)),  # 11 a rank: only 1 x 11 stays within the default micro-batch
        (None, None, 2, 2, (1, 1, 2)),
        (None, None, 10**18, 1, (8, 125 * 10**15, 10**18)),
    ],
)
def test_the_rest_is_derived(
    micro: int | None,
    accumulation: int | None,
    global_: int | None,
    world: int,
    expected: tuple[int, int, int],
) -> None:
    batch = resolve_batch(micro, accumulation, global_, world_size=world)
    assert (batch.micro, batch.accumulation, batch.global_) == expected


@pytest.mark.parametrize(
    ("micro", "accumulation", "global_", "world", "what", "hint"),
    [
        (None, None, 1, 2, "2 ranks (= 2 per step)", "batch.global=2"),
        (None, None, 100, 3, "3 ranks (= 3 per step)", "batch.global=99 or batch.global=102"),
        (
            16,
            None,
            24,
            1,
            "micro-batch 16 x 1 rank",
            "batch.global=16 or batch.global=32, or batch.micro=12",
        ),
        (None, 5, 24, 2, "accumulation 5 x 2 ranks", "batch.global=20 or batch.global=30"),
        (8, 4, 48, 2, "micro-batch 8 x accumulation 4 x 2 ranks", "batch.global=64, or batch.accumulation=3"),
        (9, 4, 48, 2, "micro-batch 9 x accumulation 4 x 2 ranks", "batch.global=72, or batch.micro=6"),
        (5, 5, 48, 2, "(= 50 per step)", "batch.global=50, or one of the three as auto"),
    ],
)
def test_what_would_fit(
    micro: int | None, accumulation: int | None, global_: int, world: int, what: str, hint: str
) -> None:
    with pytest.raises(RecipeError) as caught:
        resolve_batch(micro, accumulation, global_, world_size=world)
    assert caught.value.where == "batch.global"
    assert what in caught.value.what
    assert (caught.value.hint or "").startswith(f"would fit: {hint}")


@pytest.mark.parametrize("name", ["micro", "accumulation", "global"])
@pytest.mark.parametrize("value", [0, -3])
def test_no_number_is_below_one(name: str, value: int) -> None:
    numbers = {"micro": None, "accumulation": None, "global": None, name: value}
    with pytest.raises(RecipeError, match=f"batch.{name}: must be at least 1, not {value}"):
        resolve_batch(numbers["micro"], numbers["accumulation"], numbers["global"], world_size=2)
