"""Notice that a command's steps became much slower, probe its ranks, and report whom the others wait for."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence

from muster.core.job import Placement
from muster.core.units import format_seconds
from muster.fleet.messages import Frame, ProbeAnswer, RankProbe
from muster.fleet.standing import in_collective, line_of

STEPS, SECONDS = 5, 2.0  # of a window, at least
EARLIER = 3  # windows that say what is usual, without the first one
TWICE = 2.0  # times as long as usual
LOOKS = 3  # of a job
ANSWER = 15.0  # seconds that hosts get
FIRST = 1_000_000  # number of the first look: the hang watch counts its own from 1
WAITS, WORKS = 0.6, 0.4  # of the looks: who waits for others so often, or no oftener
SHOWN = 4  # ranks whose lines are named


class Slowdown:
    """Windows of a job's steps, by the controller's clock. `look` asks all hosts where their ranks are, and
    returns the hosts that were asked."""

    def __init__(
        self,
        places: Sequence[Placement],
        look: Callable[[int], Sequence[str]],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.look, self.now = look, now
        self.hosts = {rank: place.host for place in places for rank in place.ranks}
        self.begin: tuple[float, int] | None = None  # of the window: when, and the steps until then
        self.windows: list[float] = []  # seconds of a step in each
        self.usual: float | None = None
        self.number = FIRST
        self.asked: dict[str, ProbeAnswer | None] = {}
        self.asked_at = 0.0

    def looked(self, host: str, answer: ProbeAnswer) -> None:
        """Take a host's answer."""
        if answer.number == self.number and host in self.asked:
            self.asked[host] = answer

    def note(self, steps: int) -> str | None:
        """Return a note on a job that has taken so many steps; None: there is nothing to note."""
        if self.asked:
            return self._told()
        if not self._window(steps) or self.number >= FIRST + LOOKS:
            return None
        if self.usual is None or min(self.windows[-2:]) < TWICE * self.usual:
            return None
        self.number += 1
        self.asked, self.asked_at = dict.fromkeys(self.look(self.number)), self.now()
        return None

    def _window(self, steps: int) -> bool:
        """Return whether a window is complete now."""
        now = self.now()
        if self.begin is None or steps < self.begin[1]:
            self.begin = (now, steps) if steps else None
            return False
        seconds, done = now - self.begin[0], steps - self.begin[1]
        if done < STEPS or seconds < SECONDS:
            return False
        self.begin = now, steps
        self.windows.append(seconds / done)
        if self.usual is None and len(self.windows) > EARLIER:
            self.usual = statistics.median(self.windows[1:])
        return True

    def _told(self) -> str | None:
        """Return what the answers show, once all have arrived."""
        if None in self.asked.values() and self.now() - self.asked_at < ANSWER:
            return None
        looks = [look for answer in self.asked.values() if answer for look in answer.ranks]
        before, self.asked = self.usual or 0.0, {}
        self.usual = self.windows[-1]
        if not looks:
            return None
        slow = f"steps take {format_seconds(self.windows[-1])}, and took {format_seconds(before)}"
        return f"{slow}: {where_ranks_are(looks, self.hosts)}"


def where_ranks_are(looks: Sequence[RankProbe], hosts: dict[int, str]) -> str:
    """Return whom the others wait for, or the lines at which ranks were seen most."""
    waits = {each.rank: _waiting(each) for each in looks}
    late = [each for each in looks if waits[each.rank] <= WORKS]
    others = [each for each in looks if waits[each.rank] >= WAITS]
    if late and others and len(late) + len(others) == len(looks):
        named = "; ".join(_seen(each, hosts) for each in late[:SHOWN])
        return f"the others wait for {named}"
    return "; ".join(_seen(each, hosts) for each in looks[:SHOWN])


def _seen(look: RankProbe, hosts: dict[int, str]) -> str:
    lines = Counter(line for each in _apart(look) if (line := line_of(each)))
    best = lines.most_common(1)
    at = f" at {best[0][0]}, in {best[0][1]} of {len(look.mains)} looks" if best else ""
    return f"rank {look.rank} on {hosts.get(look.rank, '?')}{at}"


def _apart(look: RankProbe) -> list[list[Frame]]:
    """Return the rank's stacks outside of collectives; all stacks where there are none."""
    seen = [each for each in look.mains if each]
    return [each for each in seen if not in_collective(each)] or seen


def _waiting(look: RankProbe) -> float:
    """Return the share of the samples in which the rank was in a collective."""
    seen = [each for each in look.mains if each]
    return sum(map(in_collective, seen)) / len(seen) if seen else 0.5
