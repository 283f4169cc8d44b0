"""When a job that makes no progress is looked at, and when it is let alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import pytest

from muster.core.job import Placement
from muster.core.launch import Hang
from muster.fleet.messages import ProbeAnswer
from muster.runs.hang import Watch
from tests.unit.test_standing import SLEEPING, behind, linked, seen

PLACES = tuple(Placement(f"node{rank}", f"node{rank}", 1, rank) for rank in range(3))


class Job:
    """Three ranks, a clock, and what the hosts would answer."""

    def __init__(self, *, announces: bool = True, per_host: bool = False, **settings: Any) -> None:
        self.time = 0.0
        self.looks: list[float] = []
        self.stands = [seen(0), behind(1), seen(2)]
        self.ended: set[str] = set()
        self.heard: dict[str, float] = {}  # hosts that have said nothing since
        self.watch = Watch(
            Hang.model_validate(settings),
            PLACES,
            self.look,
            quiet=lambda host: self.time - self.heard.get(host, self.time),
            announces=announces,
            per_host=per_host,
            now=lambda: self.time,
        )

    def look(self, number: int) -> Sequence[str]:
        self.looks.append(self.time)
        return [place.host for place in PLACES if place.host not in self.ended]

    def answer(self) -> None:
        for stand in self.stands:
            told = [stand.look] if stand.look else []
            found = ProbeAnswer.model_validate(
                {"m": "looked", "number": len(self.looks), "ranks": told, "xid": []}
            )
            self.watch.looked(stand.host, found)

    def until(
        self, end: float, *, steps_every: float = 0.0, output_every: float = 0.0, news: bool = True
    ) -> float | None:
        """Let the time pass. -> when the job was found to hang"""
        while self.time < end:
            self.time = round(self.time + 0.5, 1)
            if steps_every and self.time % steps_every == 0:
                self.watch.pulses([[0, self.watch.steps + 1, self.watch.steps + 1, ""]])
            if output_every and self.time % output_every == 0:
                self.watch.output([f"line {self.time}" if news else f"[10:00:{self.time}] the same"])
            asked = len(self.looks)
            if self.watch.tick():
                return self.time
            if len(self.looks) > asked:
                self.answer()
        return None


def test_nothing_is_looked_at_while_steps_come() -> None:
    job = Job()
    assert job.until(1000, steps_every=5) is None and not job.looks


def test_a_minute_by_default() -> None:
    job = Job()
    job.until(100, steps_every=1)
    assert job.until(1000) == pytest.approx(161, abs=1)
    found = job.watch.hung()
    assert (found.ranks, found.certain, found.step) == ([1], True, 100)
    assert job.watch.failure().host == "node1"


def test_ten_steps_where_that_is_longer() -> None:
    job = Job()
    job.until(600, steps_every=20)
    assert job.until(2000) == pytest.approx(801, abs=1)


def test_steps_that_are_told_many_at_a_time() -> None:
    """A line for every hundred of them: three such times are waited for."""
    job = Job()
    for number in range(1, 6):
        job.until(50.0 * number)
        job.watch.pulses([[0, 100 * number, number, ""]])
    assert job.until(2000) == pytest.approx(401, abs=1)


@pytest.mark.parametrize(("given", "wanted"), [(10, 111), (120, 221)])
def test_as_given(given: float, wanted: float) -> None:
    job = Job(seconds=given)
    job.until(100, steps_every=0.5)
    assert job.until(1000) == pytest.approx(wanted, abs=1)


def test_the_beginning_of_a_line_tells_whether_it_is_new() -> None:
    """A line of a million digits takes no time, and is no news when it comes again."""
    job = Job(seconds=20)
    for _ in range(3):
        job.until(job.time + 10)
        job.watch.output(["7" * 1_000_000])
    assert job.until(1000) == pytest.approx(31, abs=1)


@pytest.mark.parametrize("off", ["off", False])
def test_off(off: Literal["off", False]) -> None:
    job = Job(seconds=off)
    job.until(10, steps_every=1)
    assert job.until(5000) is None and not job.looks


def test_output_counts_until_steps_are_known() -> None:
    job = Job()
    assert job.until(300, output_every=5) is None and not job.looks
    job.until(310, steps_every=1)
    assert job.until(1000, output_every=5) is not None  # NCCL's watchdog prints, too


def test_what_is_alive_is_asked_more_and_more_rarely() -> None:
    job = Job()
    job.stands[1] = behind(1, io=1 << 20)
    job.until(100, steps_every=1)
    assert job.until(2000) is None
    gaps = [after - before for before, after in zip(job.looks, job.looks[1:], strict=False)]
    assert job.looks[0] == pytest.approx(155, abs=1) and len(job.looks) < 8
    assert gaps == sorted(gaps)
    job.stands[1] = behind(1)
    assert job.until(10_000) is not None  # and when it is no longer, that is found


def test_progress_while_hosts_answer_is_progress() -> None:
    job = Job()
    job.until(100, steps_every=1)
    while not job.looks:
        job.time += 1
        job.watch.tick()
    job.watch.pulses([[0, 101, 101, ""]])
    job.answer()
    assert job.watch.tick() is None and job.watch.verdict is None


def test_a_host_that_does_not_answer_keeps_nobody() -> None:
    job = Job()
    job.until(100, steps_every=1)
    while not job.looks:
        job.time += 1
        job.watch.tick()
    answer = job.answer
    job.stands = job.stands[:2]
    answer()
    assert job.watch.tick() is None
    job.time += 20
    verdict = job.watch.tick()
    assert verdict is not None and [each.rank for each in verdict.culprits] == [1]


def test_a_host_that_has_ended_is_missed() -> None:
    """Its rank left early, and the others wait for it: it is not the network."""
    job = Job()
    job.until(100, steps_every=1)
    job.ended = {"node1"}
    job.stands = [seen(0), seen(2)]
    assert job.until(1000) is not None
    assert (job.watch.hung().ranks, job.watch.hung().certain) == ([1], True)


def test_a_host_that_does_not_answer_is_told_where_nobody_is_named() -> None:
    """All that are seen wait in the same collective: the one that is not seen may keep them."""
    job = Job()
    job.until(100, steps_every=1)
    job.stands = [seen(0), seen(2)]
    assert job.until(1000) is not None
    assert "node1" in job.watch.hung().what and not job.watch.hung().certain


def test_a_host_of_which_nothing_is_heard() -> None:
    """It is stopped as a whole, its agent as well: named once the time is over, and not later."""
    job = Job(seconds=10)
    job.until(100, steps_every=0.5)
    job.stands, job.heard = [seen(0), seen(2)], {"node1": 100.0}
    assert job.until(200) == pytest.approx(110, abs=1)
    found = job.watch.hung()
    assert (found.hosts, found.ranks, found.certain) == (["node1"], [], True)
    assert job.watch.failure().host == "node1" and "rank 1" in found.what
    job = Job(seconds=10)  # and by its address, which no host that answers has
    job.until(100, steps_every=0.5)
    job.stands, job.heard = [linked(0, 1), linked(2, 1)], {"node1": 100.0}
    assert job.until(200) is not None and job.watch.hung().hosts == ["node1"]


def test_a_disk_that_is_slow_and_one_that_is_dead() -> None:
    """It finishes nothing within a look: what it has done is compared with the next one."""
    job = Job(seconds=10)
    job.until(100, steps_every=0.5)
    done = {"disk": {"7": "1 2"}}
    job.stands[1] = behind(1, states=["D"] * 5, **done)
    assert job.until(130) == pytest.approx(110, abs=3) and len(job.looks) == 2
    slow = Job(seconds=10)
    slow.until(100, steps_every=0.5)
    for end in range(101, 200):
        slow.stands[1] = behind(1, states=["D"] * 5, disk={"7": f"{end // 5} 2"})
        assert slow.until(end) is None
    assert len(slow.looks) < 7


def test_a_host_that_is_only_busy() -> None:
    """Its agent speaks, and has not looked in time: it is asked once more before anything is said."""
    job = Job(seconds=60)
    job.until(100, steps_every=0.5)
    job.stands = [seen(0), seen(2)]
    assert job.until(200) is None
    job.stands = [seen(0), seen(1, main=SLEEPING, io=1 << 20), seen(2)]
    assert job.until(300) is None and len(job.looks) == 2
    job.stands = [seen(0), seen(2)]
    assert job.until(3000) is not None
    assert job.watch.hung().hosts == [] and "no answer from node1" in job.watch.hung().what


def test_a_host_of_which_nothing_is_heard_beside_a_rank_that_is_stopped() -> None:
    job = Job(seconds=10)
    job.until(100, steps_every=0.5)
    job.stands, job.heard = [seen(0), behind(2, states=["T"] * 5)], {"node1": 100.0}
    assert job.until(200) is not None
    assert job.watch.hung().ranks == [2] and job.watch.failure().host == "node2"


def test_a_command_per_host_has_ranks_of_its_own() -> None:
    """Nobody knows how many: only a process that is stopped is a hang."""
    job = Job(per_host=True)
    job.stands = [seen(0)]
    job.until(100, steps_every=1)
    assert job.until(2000) is None
    job.stands = [behind(0, states=["T"] * 5)]
    assert job.until(9000) is not None


def announce(job: Job, phase: str) -> None:
    job.watch.pulses([[1, 100, 1000, phase]])


def test_what_a_program_announces_is_waited_for() -> None:
    """`with muster.phase("evaluate")`, but for a process that is stopped."""
    job = Job()
    job.until(100, steps_every=1)
    announce(job, "evaluate")
    assert job.until(2000) is None
    job.stands[1] = behind(1, states=["T"] * 5)
    assert job.until(5000) is not None


def test_parts_of_a_step_announce_nothing() -> None:
    job = Job()
    job.until(100, steps_every=1)
    announce(job, "forward")
    assert job.until(2000) is not None


def test_an_old_answer_is_none() -> None:
    job = Job()
    job.until(100, steps_every=1)
    while not job.looks:
        job.time += 1
        job.watch.tick()
    late = ProbeAnswer.model_validate({"m": "looked", "number": 99, "ranks": [], "xid": []})
    job.watch.looked("node0", late)
    assert job.watch.tick() is None and job.watch.asked["node0"] is None


def test_the_same_line_again_is_no_progress() -> None:
    """As of a rendezvous that asks for a name that nobody knows; a line that differs in a number is news."""
    assert Job().until(300, output_every=5) is None
    assert Job().until(300, output_every=5, news=False) is not None
