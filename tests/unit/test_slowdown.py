"""When a command's steps count as slower, and what its ranks' stacks say of whom the others wait for."""

from __future__ import annotations

from typing import Any

import pytest

from muster.core.job import Placement
from muster.core.result import KERNEL, Pace
from muster.fleet.messages import ProbeAnswer, RankProbe
from muster.runs.groups import Groups
from muster.runs.slowdown import FIRST, Slowdown, where_ranks_are
from tests.unit.test_standing import IN_ALL_REDUCE as WAITS
from tests.unit.test_standing import SLEEPING, seen

PLACES = tuple(Placement(f"node{rank}", f"node{rank}", 1, rank) for rank in range(3))
HOSTS = {rank: f"node{rank}" for rank in range(3)}


class Job:
    """Three hosts, a clock, and steps of so many seconds."""

    def __init__(self) -> None:
        self.time, self.steps = 0.0, 0
        self.looks: list[int] = []
        self.slowdown = Slowdown(PLACES, self.look, lambda: self.time)

    def look(self, number: int) -> list[str]:
        self.looks.append(number)
        return list(HOSTS.values())

    def run(self, steps: int, seconds: float) -> list[str]:
        notes = []
        for _ in range(steps):
            self.time, self.steps = self.time + seconds, self.steps + 1
            notes += [text for text in [self.slowdown.note(self.steps)] if text]
        return notes

    def answer(self, *stands: Any) -> None:
        for stand in stands:
            told = {"m": "looked", "number": self.looks[-1], "ranks": [stand.look], "xid": []}
            self.slowdown.looked(stand.host, ProbeAnswer.model_validate(told))


def test_ranks_are_looked_at_where_steps_take_twice_as_long() -> None:
    job = Job()
    assert job.run(60, 0.5) == [] and not job.looks
    job.run(30, 0.9)
    assert not job.looks  # less than twice as long
    job.run(15, 1.1)
    assert job.looks == [FIRST + 1]
    job.answer(seen(0), seen(1, SLEEPING), seen(2))
    (note,) = job.run(1, 1.1)
    assert note.startswith("steps take 1.1 s, and took 0.5") or "500 ms" in note
    assert "the others wait for rank 1 on node1 at fetch (data.py:7), in 5 of 5 looks" in note
    job.run(60, 1.1)
    assert len(job.looks) == 1  # that is what it takes now


def test_one_slow_window_is_no_slowdown() -> None:
    """As of a checkpoint or an evaluation."""
    job = Job()
    job.run(60, 0.5)
    job.run(5, 1.6)
    job.run(30, 0.5)
    assert not job.looks


def test_a_first_window_says_nothing_of_what_is_usual() -> None:
    """Of models that are compiled, and data that are read for the first time."""
    job = Job()
    job.run(5, 9.0)
    job.run(60, 0.5)
    job.run(12, 1.5)
    assert job.looks


@pytest.mark.parametrize(
    ("mains", "words"),
    [
        (
            [[WAITS] * 5, [SLEEPING] * 4 + [WAITS]],
            "the others wait for rank 1 on node1 at fetch",
        ),
        (
            [[WAITS] * 3 + [SLEEPING] * 2, [WAITS] * 2 + [SLEEPING] * 3],
            "the others wait for rank 1",
        ),
        ([[WAITS] * 5, [WAITS] * 5], "rank 0 on node0"),
        ([[SLEEPING] * 5, [SLEEPING] * 5], "rank 0 on node0 at fetch (data.py:7), in 5 of 5 looks; rank 1"),
        ([[[]] * 5, [[]] * 5], "rank 0 on node0; rank 1 on node1"),
    ],
)
def test_whom_the_others_wait_for(mains: Any, words: str) -> None:
    looks: list[RankProbe] = []
    for rank, each in enumerate(mains):
        look = seen(rank, mains=each).look
        assert look is not None
        looks.append(look)
    assert where_ranks_are(looks, HOSTS).startswith(words)


def test_ranks_without_a_group_are_noted_after_ten_seconds_of_steps() -> None:
    clock = [0.0]
    groups = Groups(2, lambda: clock[0])
    groups.heard("a", [0])
    assert groups.note(0) is None
    clock[0] = 60.0
    assert groups.note(1) is None  # the first step
    clock[0] = 71.0
    assert groups.note(9) is None  # of rank 1 nothing is known
    groups.heard("b", [1])
    assert "none of the 2 ranks" in (groups.note(9) or "")
    assert groups.note(10) is None
    clock, one = [0.0], Groups(1, lambda: clock[0])
    one.heard("a", [0])
    one.note(1)
    clock[0] = 20.0
    assert one.note(5) is None


def test_what_was_compared_is_said() -> None:
    told = Pace(hosts=2, within=0.002, moments=9, source=KERNEL).words
    assert "computes" in told and "sleeps or waits" in told
    assert "computes" not in Pace(hosts=2, within=0.002, moments=9, source="windows of steps").words
