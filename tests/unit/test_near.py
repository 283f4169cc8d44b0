"""Near names: a slip of the keyboard, a missing prefix, a part of the name; nothing for something far off."""

from __future__ import annotations

import pytest

from muster.core.near import did_you_mean, near_names

PATHS = [
    "engine",
    "engine.name",
    "engine.zero",
    "batch.micro",
    "batch.global",
    "train.warmup",
    "measure.warmup",
]


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("engine.zerro", "engine.zero"),
        ("batch.mirco", "batch.micro"),
        ("zero", "engine.zero"),
        ("micro", "batch.micro"),
    ],
)
def test_the_nearest_comes_first(name: str, first: str) -> None:
    assert near_names(name, PATHS)[0] == first


def test_a_last_part_that_fits_in_two_places_gives_both() -> None:
    assert set(near_names("launch.warmup", PATHS)) == {"measure.warmup", "train.warmup"}


def test_a_part_of_a_longer_name() -> None:
    assert near_names("micro_batch", ["train_micro_batch_size_per_gpu", "zero"]) == [
        "train_micro_batch_size_per_gpu"
    ]


def test_no_more_than_the_limit_and_none_twice() -> None:
    names = [f"node{i}" for i in range(9)]
    near = near_names("node", [*names, *names])
    assert len(near) == len(set(near)) == 3


def test_nothing_is_near() -> None:
    assert near_names("quux", PATHS) == []
    assert did_you_mean("quux", PATHS) is None
    assert did_you_mean("quux", []) is None


def test_the_hint() -> None:
    assert did_you_mean("batch.mirco", PATHS[:4]) == "did you mean batch.micro?"
