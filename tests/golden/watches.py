"""A job of three ranks that makes progress or none, watched on a clock of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from muster.core.job import Placement
from muster.core.launch import Hang
from muster.fleet.messages import ProbeAnswer
from muster.runs.hang import Watch
from tests.unit.test_standing import SLEEPING, behind, linked, seen

PLACES = tuple(Placement(f"node{rank}", f"node{rank}", 1, rank) for rank in range(3))
STANDS = {"seen": seen, "behind": behind, "linked": linked}


class Job:
    """What the hosts would answer, when they were looked at, and what came of it."""

    def __init__(self, *, announces: bool, per_host: bool, **settings: Any) -> None:
        self.time = 0.0
        self.looks: list[float] = []
        self.stands([["seen", 0], ["behind", 1], ["seen", 2]])
        self.ended: list[str] = []
        self.heard: dict[str, float] = {}  # hosts that have said nothing since
        self.watch = Watch(
            Hang.model_validate(settings), PLACES, self.look,
            quiet=lambda host: self.time - self.heard.get(host, self.time),
            announces=announces, per_host=per_host, now=lambda: self.time,
        )  # fmt: skip

    def look(self, number: int) -> Sequence[str]:
        self.looks.append(self.time)
        return [place.host for place in PLACES if place.host not in self.ended]

    def stands(self, ranks: Sequence[Any]) -> None:
        """How ranks are seen from now on: a kind, its numbers, and other fields."""
        self.states = []
        for kind, *given in ranks:
            fields = given.pop() if isinstance(given[-1], dict) else {}
            if fields.pop("sleeps", False):
                fields["main"] = SLEEPING
            self.states.append(STANDS[kind](*given, **fields))

    def answer(self) -> None:
        """All hosts whose ranks are seen answer."""
        for state in self.states:
            ranks = [state.look] if state.look else []
            found = {"m": "looked", "number": len(self.looks), "ranks": ranks, "xid": []}
            self.watch.looked(state.host, ProbeAnswer.model_validate(found))

    def until(self, end: float, steps_every: float = 0, output_every: float = 0, news: bool = True) -> None:
        """Let the time pass, up to a hang."""
        while self.time < end and self.watch.verdict is None:
            self.time = round(self.time + 0.5, 1)
            if steps_every and self.time % steps_every == 0:
                self.watch.pulses([[0, self.watch.steps + 1, self.watch.steps + 1, ""]])
            if output_every and self.time % output_every == 0:
                self.watch.output([f"line {self.time}" if news else f"[10:00:{self.time}] the same"])
            asked = len(self.looks)
            if self.watch.tick() is None and len(self.looks) > asked:
                self.answer()

    def until_look(self) -> None:
        """Let the time pass until hosts are asked, which do not answer yet."""
        before = len(self.looks)
        while len(self.looks) == before:
            self.time += 1
            self.watch.tick()

    def tick(self, seconds: float = 0) -> None:
        """Look at the clock, so many seconds later."""
        self.time += seconds
        self.watch.tick()

    def wait(self, seconds: float, **how: Any) -> None:
        self.until(self.time + seconds, **how)

    def late_answer(self) -> None:
        """A host answers a look that nobody remembers."""
        late = ProbeAnswer.model_validate({"m": "looked", "number": 99, "ranks": [], "xid": []})
        self.watch.looked("node0", late)


def watched(*acts: Any, announces: bool = True, per_host: bool = False, **settings: Any) -> Iterator[str]:
    """What a watch makes of a job: after each act that takes time, when it looked, and whom it found."""
    job = Job(announces=announces, per_host=per_host, **settings)
    for name, *given in acts:
        named = given.pop() if given and isinstance(given[-1], dict) else {}
        if name in ("ended", "heard"):
            setattr(job, name, named or given)
            continue
        before = len(job.looks)
        getattr(job.watch if name in ("pulses", "output") else job, name)(*given, **named)
        if job.watch.verdict is not None:
            yield f"{name} {given}: looks {job.looks[before:]}, hangs at {job.time}"
            break
        if name in ("until", "wait", "until_look", "tick"):
            yield f"{name} {given}: looks {job.looks[before:]}"
    asked = {host: "answered" if answer else "silent" for host, answer in job.watch.asked.items()}
    yield f"steps {job.watch.steps}; asked {asked}, limit {job.watch.limit:g} s"
    if job.watch.verdict is not None:
        hung, failure = job.watch.hung(), job.watch.failure()
        yield f"ranks {hung.ranks}, hosts {hung.hosts}, certain {hung.certain}, step {hung.step}: {hung.what}"
        yield f"{failure.host}: {failure.what}; hint: {failure.hint}"
