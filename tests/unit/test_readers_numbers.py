"""Figures and times as tools print them. What is read in whole logs of them stands in
tests/golden/documents/readings.txt."""

from __future__ import annotations

import re

import pytest

from muster.readers._frame import Frame, moment
from muster.readers.base import FIGURE


def test_a_figure_ends_where_the_number_does() -> None:
    """A comma after it belongs to the line."""
    for text, figure in (("192, ", "192"), ("1.536000e+03, x", "1.536000e+03"), ("1,536,", "1,536"),
                         ("20, RunningAvg", "20"), ("1_536]", "1_536"), ("64 ranks", "64")):  # fmt: skip
        found = re.match(FIGURE, text)
        assert found is not None and found[0] == figure


@pytest.mark.parametrize("batch", ["1536", "1.536000e+03", "1,536", "1_536", "1.536e3"])
@pytest.mark.parametrize("line", ['    "train_batch_size": {}, ', "  train_batch_size ............. {}"])
def test_a_batch_of_more_than_a_thousand(batch: str, line: str) -> None:
    frame = Frame()
    frame.line(line.format(batch))
    assert frame.batch == 1536


@pytest.mark.parametrize(
    "line",
    [
        "dist_world_size={}",
        "  world_size ................... {}",
        "using world size: {}, data-parallel-size: 8",
        "'distributed_world_size': {}, 'distributed_rank': 0",
    ],
)
def test_the_world_size(line: str) -> None:
    for text, size in (("64", 64), ("1.024000e+03", 1024), ("1,024", 1024)):
        frame = Frame()
        frame.line(line.format(text))
        assert frame.world_size == size
    for other in ("group_world_size=2", "local_world_size=4", "tensor_model_parallel_world_size = 4"):
        frame.line(other)
    assert frame.world_size == 1024


def test_times_with_a_zone_are_of_one_clock() -> None:
    there, here = moment("2024-05-01T14:00:00+02:00"), moment("2024-05-01T12:00:00Z")
    assert there == here == 1714564800


@pytest.mark.parametrize(
    ("text", "hours"),
    [("11:58:10 PM", 23), ("11:58:10 am", 11), ("1:58:10PM", 13), ("12:58:10.0 AM", 0), ("12:58:10 PM", 12)],
)
def test_times_of_half_a_day(text: str, hours: int) -> None:
    assert moment(text) == 3600 * hours + 60 * 58 + 10


def test_a_part_of_the_ranks_is_not_all_of_them() -> None:
    """NCCL makes a communicator of all ranks, and then smaller ones."""
    frame = Frame()
    for ranks in (16, 8, 2):
        frame.line(f"n1:10:20 [0] NCCL INFO comm 0x1 rank 0 nranks {ranks}")
    assert frame.ranks == 16
