"""Notice that a job makes no progress, probe its ranks, and report the cause."""

from __future__ import annotations

import re
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from muster.core.job import Placement
from muster.core.launch import Hang
from muster.core.result import Failure, Hung
from muster.fleet.messages import ProbeAnswer, RankProbe
from muster.fleet.standing import HangFinding, RankState, judge

SECONDS = 60.0  # without progress, by default
STEPS = 10  # in the time of so many steps no rank is suspected either
UPDATES = 3  # nor within so many of the times between two signs of progress
ANSWER = 15.0  # seconds that hosts get to say where their ranks stand
QUIET = 5.0  # seconds after which an agent is silent, which speaks once a second
LEAD = 5.0  # seconds before the limit at which they are asked, so that they have answered by then
REMEMBERED, LONGEST = 1000, 200  # lines, and characters of one
_TIMES = re.compile(r"\d+:\d\d(?::\d\d)?(?:[.,]\d+)?")  # of a day, or since something
PARTS = frozenset(("data", "forward", "backward", "optimizer"))  # phases that are parts of a step


class Watch:
    """A job's progress. `look` asks all hosts where their ranks are, and returns the hosts that were asked;
    `quiet`: returns for how many seconds a host has sent nothing at all; `now` is the clock."""

    def __init__(
        self,
        settings: Hang,
        places: Sequence[Placement],
        look: Callable[[int], Sequence[str]],
        *,
        quiet: Callable[[str], float],
        announces: bool,
        per_host: bool = False,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings, self.places, self.look, self.now = settings, places, look, now
        self.quiet = quiet
        self.announces = announces  # phases that are no parts of a step are to be waited for
        self.per_host = per_host  # a command, once per host: which ranks it has is its own affair
        self.hosts = {rank: place.host for place in places for rank in place.ranks}
        self.steps = 0  # the most of all ranks
        self.phases: dict[int, str] = {}
        self.moved = now()  # when anything went on
        self.paces: deque[float] = deque(maxlen=100)  # seconds of a step
        self.gaps: deque[float] = deque(maxlen=100)  # seconds between two signs of progress
        self.patience = 1.0  # more for each look that found something alive
        self.printed: dict[str, None] = {}  # the last lines, without times
        self.number = 0  # of the looks
        self.asked: dict[str, ProbeAnswer | None] = {}  # per host that was asked; empty: none is
        self.asked_at = 0.0
        self.unanswered: set[str] = set()  # hosts that did not answer the last look
        self.disks: dict[int, dict[str, str]] = {}  # what those had done that ranks waited for then
        self.verdict: HangFinding | None = None
        self.found: dict[str, ProbeAnswer] = {}  # of the verdict

    # --- what happens --------------------------------------------------------------------------------------

    def progress(self, steps: int | None = None) -> None:
        """Record progress: this step (of any rank), or another sign."""
        now = self.now()
        if steps is not None and steps > self.steps:
            if self.steps:
                self.paces.append((now - self.moved) / (steps - self.steps))
                self.gaps.append(now - self.moved)
            self.steps = steps
        self.moved, self.patience = now, 1.0
        self.asked, self.disks = {}, {}  # a look that is under way is for nothing

    def pulses(self, news: Sequence[Sequence[Any]]) -> None:
        """Record ranks that have done something: [rank, steps, signs of life, phase]."""
        for rank, _, _, phase in news:
            self.phases[rank] = phase
        self.progress(max(steps for _, steps, _, _ in news) or None)

    def output(self, lines: Sequence[str]) -> None:
        """Record printed lines, which count as progress where no steps are known, unless they were printed
        before, as by a program that tries the same again and again."""
        if self.steps:
            return
        new = [text for line in lines if (text := _TIMES.sub("", line[:LONGEST])) not in self.printed]
        for text in new:
            self.printed[text] = None
            if len(self.printed) > REMEMBERED:
                del self.printed[next(iter(self.printed))]
        if new:
            self.progress()

    def looked(self, host: str, answer: ProbeAnswer) -> None:
        """Take a host's answer."""
        if answer.number == self.number and host in self.asked:
            self.asked[host] = answer

    # --- what follows --------------------------------------------------------------------------------------

    @property
    def limit(self) -> float:
        """Seconds without progress after which the ranks are probed."""
        given = self.settings.seconds
        least = SECONDS if isinstance(given, str) else given
        of_steps = STEPS * statistics.median(self.paces) if self.paces else 0.0
        of_updates = UPDATES * statistics.median(self.gaps) if self.gaps else 0.0
        return max(least, of_steps, of_updates) * self.patience

    @property
    def announced(self) -> bool:
        """Whether a rank has announced something that takes long."""
        return self.announces and any(each and each not in PARTS for each in self.phases.values())

    def tick(self) -> HangFinding | None:
        """Check the clock. Return a finding once the job hangs."""
        if self.settings.seconds == "off" or self.verdict is not None:
            return None
        now = self.now()
        limit = self.limit
        if self.asked:
            missing = [host for host, answer in self.asked.items() if answer is None]
            answered = now - self.asked_at > ANSWER or all(map(self._silent, missing))
            return self._judge() if answered and now - self.moved > limit else None
        if now - self.moved > max(limit / 2, limit - LEAD):
            self.number += 1
            self.asked, self.asked_at = dict.fromkeys(self.look(self.number)), now
        return None

    def _judge(self) -> HangFinding | None:
        answers = {host: each for host, each in self.asked.items() if each is not None}
        silent = [host for host in self.asked if host not in answers]
        self.asked = {}
        looks = {look.rank: self._with_disk(look) for each in answers.values() for look in each.ranks}
        # A host that was not asked has ended: its ranks have no process any more.
        answering = [rank for rank, host in self.hosts.items() if host not in silent]
        stands = [RankState(rank, self.hosts[rank], looks.get(rank)) for rank in answering]
        if not looks:  # a command that is one process per host, say
            self.patience *= 2
            return None
        verdict = judge(stands, stepping=bool(self.steps) and not self.announced, looks=answers)
        if silent and not (verdict.certain and set(verdict.hosts) <= set(answers)):
            verdict = self._with_silent(verdict, silent)
        held = any(each.kind in ("stopped", "traced") for each in verdict.culprits)
        # A slow disk may finish nothing while it is looked at: it is looked at twice.
        waits = [each.rank for each in verdict.culprits if each.look and each.look.disk]
        again = any(rank not in self.disks for rank in waits)
        self.disks = {rank: look.disk for rank, look in looks.items() if look.disk}
        if verdict.hangs and again:
            return None
        # What the ranks of a busy host do is not known yet.
        busy = not verdict.certain and not set(silent) <= self.unanswered
        self.unanswered = set(silent)
        if not verdict.hangs or busy or ((self.announced or self.per_host) and not held):
            self.patience *= 2
            return None
        self.verdict, self.found = verdict, answers
        return verdict

    def _with_disk(self, look: RankProbe) -> RankProbe:
        """Return the probe with what a disk has done since the last one."""
        before = self.disks.get(look.rank, {})
        moved = any(look.disk.get(task, done) != done for task, done in before.items())
        return look.model_copy(update={"disk_moves": look.disk_moves or moved})

    def _silent(self, host: str) -> bool:
        """Return whether a host has sent nothing for most of the time without progress: an agent that is only
        busy sends something from time to time."""
        return self.quiet(host) > max(QUIET, (self.now() - self.moved) / 2)

    def _with_silent(self, verdict: HangFinding, silent: Sequence[str]) -> HangFinding:
        """Return the finding with the hosts that did not answer: named where all others wait, and these send
        nothing at all."""
        names = f"{', '.join(silent[:3])}{', ...' if len(silent) > 3 else ''}"
        if verdict.culprits or not verdict.waiting or not all(map(self._silent, silent)):
            return replace(verdict, what=f"{verdict.what}; no answer from {names}")
        ranks = [rank for rank, host in self.hosts.items() if host in silent]
        silence = f"no word from {names} for {max(map(self.quiet, silent)):.0f} s: stopped, down or cut off"
        others = f"the others wait for rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:8]))}"
        return replace(
            verdict,
            what=f"{silence}; {others}",
            hosts=tuple(silent),
            certain=len(silent) == 1,
            witnesses=(*verdict.witnesses, *(f"no word from {host}" for host in silent[:8])),
            hint=f"look at {silent[0]}, and whether it can be reached",
        )

    def hung(self) -> Hung:
        """Return the finding in the form of the result."""
        assert self.verdict is not None
        return Hung(
            what=self.verdict.what,
            seconds=round(self.now() - self.moved, 1),
            step=self.steps or None,
            ranks=[each.rank for each in self.verdict.culprits],
            hosts=list(self.verdict.hosts or {each.host: None for each in self.verdict.culprits}),
            certain=self.verdict.certain,
            waiting=list(self.verdict.waiting),
            witnesses=list(self.verdict.witnesses),
        )

    def failure(self) -> Failure:
        """Return why the job was ended."""
        assert self.verdict is not None
        named = self.verdict.culprits if self.verdict.certain else ()
        hosts = {each.host for each in named} or set(self.verdict.hosts if self.verdict.certain else ())
        return Failure(
            what=self.verdict.of_one,
            where=f"rank {', '.join(str(each.rank) for each in named)}" if named else None,
            host=hosts.pop() if len(hosts) == 1 else None,
            hint=self.verdict.hint,
        )

    def words(self) -> str:
        """Return in words how long there has been no progress."""
        at = f" after step {self.steps}" if self.steps else ""
        return f"no progress for {self.now() - self.moved:.0f} s{at}"

    def document(self) -> Mapping[str, Any]:
        """Return everything that was seen, for a file."""
        return {
            "verdict": self.verdict.what if self.verdict else None,
            "after": self.words(),
            "hosts": {host: each.model_dump(mode="json") for host, each in self.found.items()},
        }
