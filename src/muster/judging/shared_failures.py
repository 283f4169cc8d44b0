"""Failures caused by the workload rather than by a host: those that at least half of its jobs share. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from muster.failures.table import blame_of, is_hardware, known_failures
from muster.judging.readers.base import JobLog

FEWEST = 4  # jobs of a work, and hosts that speak of themselves, that share a way to end
# Who says it, before what is said: "rank 3: ", "[rank3]: ".
_RANK = re.compile(r"\[?(?:rank|task) ?[0-9]+\]?")
_BRACKETS = re.compile(r"(?:\[[^\]]*\] ?)+")  # when, how bad, where in the code, with which command


class Way(NamedTuple):
    """What was trained, as far as that is known, and how it ended, without the numbers in it."""

    family: str
    how: str


@dataclass(frozen=True)
class SharedEnds:
    """Ways to end that are the work's. `counts`: of how many jobs; `sizes`: on how many hosts (None: on
    whatever number)."""

    counts: Mapping[Way, int] = field(default_factory=dict)
    sizes: frozenset[tuple[Way, int | None]] = frozenset()

    def of(self, log: JobLog) -> bool:
        """Whether the job ended in one of them."""
        if log.outcome in ("succeeded", "unreadable") or certain(log):
            return False
        way = _way(log)
        return (way, None) in self.sizes or (way, len(log.hosts)) in self.sizes

    def notes(self) -> list[str]:
        """For people."""
        return [
            f"{count} jobs of {family or 'one workload'} fail the same way ({how}): no evidence against "
            f"their hosts"
            for (family, how), count in sorted(self.counts.items())
        ]


@dataclass
class _Tally:
    """Jobs, the hosts that may be to blame for them, and those that may be for all of them."""

    jobs: int = 0
    hosts: set[str] = field(default_factory=set)
    common: set[str] = field(default_factory=set)

    def add(self, hosts: Sequence[str]) -> None:
        self.common = self.common & set(hosts) if self.jobs else set(hosts)
        self.jobs += 1
        self.hosts.update(hosts)


def culprits_of(log: JobLog) -> tuple[str, ...]:
    """The hosts that the job itself holds responsible for how it ended; none, where it does not say so."""
    if blame_of(log.failure) != "host":
        return ()
    own = tuple(host for host, failure in log.failed if blame_of(failure) == "host" and host in log.hosts)
    return own or (tuple(log.hosts) if len(log.hosts) == 1 else ())


def certain(log: JobLog) -> bool:
    """Whether the way it ended is a fact about a host, however many jobs end so: nobody gets through to it,
    or its hardware is broken. All else can have one cause for many hosts: a full shared disk, an environment
    without a module, a changed key, a name server, a program that asks for too many GPUs."""
    known = known_failures().get(log.failure or "")
    return known is not None and (not known.shared or is_hardware(known.id, log.reason))


def shared_ends(logs: Sequence[JobLog]) -> SharedEnds:
    """Ways to end that at least half of the jobs of a work share, or all of it on so many hosts."""
    total: dict[tuple[str, int | None], _Tally] = {}
    ended: dict[tuple[Way, int | None], _Tally] = {}
    own: set[Way] = set()
    for log in logs:
        if log.outcome == "unreadable":
            continue
        for size in (None, len(log.hosts)):
            for name in _counted_as(log):
                total.setdefault((name, size), _Tally()).add(log.hosts)
            if log.outcome != "succeeded" and not certain(log):
                ended.setdefault((_way(log), size), _Tally()).add(culprits_of(log) or log.hosts)
        if blame_of(log.failure) == "host":
            own.add(_way(log))
    sizes = frozenset(
        (way, size)
        for (way, size), mine in ended.items()
        if _is_shared(mine, total[way.family, size], size, own=way in own)
    )
    counts: Counter[Way] = Counter()
    for way, size in sizes:
        if size is None or (way, None) not in sizes:
            counts[way] += ended[way, size].jobs
    return SharedEnds(counts, sizes)


def _is_shared(mine: _Tally, total: _Tally, size: int | None, *, own: bool) -> bool:
    """Enough jobs end so, and no few hosts explain it. `own`: their hosts speak of themselves."""
    enough = 2 * mine.jobs >= total.jobs if size is None else mine.jobs == total.jobs
    if total.jobs < FEWEST or not enough:
        return False
    if len(mine.common) == 1 and len(total.hosts) > 1:
        return False  # one host was in all of them: rather it than the work
    if own and len(mine.hosts) < FEWEST:
        return False
    return not mine.hosts or 2 * len(mine.hosts) >= len(total.hosts)


def _way(log: JobLog) -> Way:
    """How it ended: by the failure's name, or else by what it said, up to the first colon."""
    text = log.reason or ""
    while True:
        who, colon, what = text.partition(": ")
        if not colon or not (who in log.hosts or who in log.failed_hosts or _RANK.fullmatch(who)):
            break
        text = what
    kind = re.sub(r"[0-9]+", "N", _BRACKETS.sub("", text, count=1) or text).partition(":")[0][:80]
    family = log.family or log.workload or (log.format or "").partition(", ")[0]
    return Way(family, log.failure or kind or log.outcome)


def _counted_as(log: JobLog) -> set[str]:
    """What a job counts for. Of a log that ended too early to say what was trained, or even in what format it
    is, all that it can have been counts."""
    formats = (log.format or "").split(", ")
    return {name for name in (log.family, log.workload, *formats) if name} | {""}
