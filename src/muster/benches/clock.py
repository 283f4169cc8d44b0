"""How long a bench's jobs take: which one is late compared with those alike, and what is left. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence

from muster.benches.document import JobRecord
from muster.benches.schedule import Task

ALIKE = 3  # jobs of an entry and a size that have to succeed before another can be late
LATE = 4.0  # times their median
LEAST = 60.0  # seconds beyond their median: starts of short jobs differ by less

Kind = tuple[str, int]  # an entry's name, hosts of a job


def kind_of(task: Task | JobRecord) -> Kind:
    """Return the kind of a job: jobs of one kind do the same work on as many hosts."""
    return task.entry, len(task.hosts)


def durations(records: Iterable[JobRecord]) -> dict[Kind, list[float]]:
    """Return the seconds of the jobs that succeeded, by kind; warm-ups do less work and are left out."""
    seconds: dict[Kind, list[float]] = {}
    for record in records:
        if record.outcome.good and not record.warm_up:
            seconds.setdefault(kind_of(record), []).append(record.took or 0.0)
    return seconds


def late_after(task: Task, seconds: Mapping[Kind, Sequence[float]]) -> float | None:
    """Return the seconds after which a job is late; None: too few jobs alike have succeeded."""
    alike = seconds.get(kind_of(task), ())
    if task.warm_up or len(alike) < ALIKE:
        return None
    usual = statistics.median(alike)
    return max(LATE * usual, usual + LEAST)


def expected(tasks: Iterable[Task], seconds: Mapping[Kind, Sequence[float]]) -> dict[Kind, float | None]:
    """Return the seconds that jobs of each kind are likely to take: the median of those alike, else of their
    entry's; None: no such job has succeeded."""
    usual: dict[Kind, float | None] = {}
    for kind in {kind_of(task) for task in tasks}:
        alike = seconds.get(kind) or [
            each for (entry, _), some in seconds.items() if entry == kind[0] for each in some
        ]
        usual[kind] = statistics.median(alike) if alike else None
    return usual


def remaining(
    tasks: Sequence[Task], over: Collection[str], seconds: Mapping[Kind, Sequence[float]], at_once: int | None
) -> tuple[float, int]:
    """Estimate the seconds until all jobs have ended, and count those of which no job alike has ended yet,
    which are not in it. Jobs that run count as if they began now.

    No schedule is shorter than its busiest host, nor than all jobs over the number at once (Graham 1969).
    """
    usual = expected(tasks, seconds)
    busy: dict[str, float] = {}
    total, unknown = 0.0, 0
    for task in tasks:
        if task.id in over:
            continue
        took = usual[kind_of(task)]
        if took is None:
            unknown += 1
            continue
        total += took
        for host in task.hosts:
            busy[host] = busy.get(host, 0.0) + took
    return max([total / (at_once or math.inf), *busy.values()]), unknown
