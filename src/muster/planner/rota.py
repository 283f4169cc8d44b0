"""Which jobs a bench has, in which order they may start. Pure and deterministic.

The one rule that nothing may break: no host is in two jobs at a time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from muster.core.suite import Suite
from muster.planner.groups import HostGroup, groups_of, sizes_of


@dataclass(frozen=True)
class Task:
    """A job that is to run: an entry of the suite on a group of hosts."""

    id: str
    entry: str
    hosts: tuple[str, ...]
    timeout: float  # seconds
    repeat: int = 1
    warm_up: bool = False  # short, alone, and no part of any result
    leftover: tuple[str, ...] = ()  # hosts for whose sake this overlapping group is there
    after: tuple[str, ...] = ()  # ids of jobs that must have ended before
    wave: int | None = None  # of an adaptive entry

    def as_dict(self) -> dict[str, Any]:
        """Plain data for schedule.json."""
        return asdict(self)


def read_task(data: dict[str, Any]) -> Task:
    """What `as_dict` gave. Raises KeyError, TypeError or ValueError where it is not that."""
    lists = {key: tuple(str(each) for each in data[key]) for key in ("hosts", "leftover", "after")}
    return Task(**{**data, **lists})


@dataclass(frozen=True)
class Rota:
    """All jobs in their order of preference, and what could not be."""

    tasks: tuple[Task, ...]
    notes: tuple[str, ...] = ()


def make_rota(suite: Suite, hosts: Sequence[str]) -> Rota:
    """Entries in the suite's order; of each, sizes as given; of each size, all groups once, then again for
    every repeat, overlapping groups last. Adaptive entries have no jobs yet."""
    tasks: list[Task] = []
    notes: list[str] = []
    for entry in suite.jobs:
        held = suite.of(entry)
        sizes, missing = sizes_of(held.groups, len(hosts))
        if missing:
            sizes_words = ", ".join(str(size) for size in missing)
            notes.append(f"{entry.name}: no group of {sizes_words}: there are {len(hosts)} hosts")
        own: list[Task] = []
        for size in sizes:
            groups = groups_of(hosts, size, first=held.cover == "first")
            notes += _leftovers(entry.name, size, groups)
            own += [
                _task(entry.name, group, number, repeat, held.timeout, held.repeats)
                for repeat in range(1, held.repeats + 1)
                for number, group in enumerate(groups, 1)
            ]
        if held.warm_up and _beside(own):
            own = warmed(own)
        tasks += own
    return Rota(tuple(tasks), tuple(notes))


def _beside(tasks: Sequence[Task]) -> bool:
    """Whether any two of them could run at once."""
    return any(set(tasks[0].hosts).isdisjoint(other.hosts) for other in tasks[1:])


def warmed(tasks: Sequence[Task]) -> list[Task]:
    """A short job on the first group before all of them: one writer for every cache that is still empty."""
    first = tasks[0]
    lead = Task(
        f"{first.entry}-warmup", first.entry, first.hosts, first.timeout, warm_up=True, wave=first.wave
    )
    return [lead, *(Task(**{**vars(each), "after": (*each.after, lead.id)}) for each in tasks)]


def wave_tasks(entry: str, wave: int, groups: Sequence[Sequence[str]], timeout: float) -> list[Task]:
    """The jobs of a wave that was chosen from results: disjoint groups."""
    return [
        Task(f"{entry}-wave{wave}-{number:03d}", entry, tuple(hosts), timeout, wave=wave)
        for number, hosts in enumerate(groups, 1)
    ]


def startable(
    tasks: Iterable[Task], done: Collection[str], running: Collection[Task], at_once: int | None
) -> list[Task]:
    """What may start now, in order: hosts all free, what it waits for is over, and not too many at once."""
    busy = {host for task in running for host in task.hosts}
    under_way = {task.id for task in running}
    chosen: list[Task] = []
    for task in tasks:
        if at_once is not None and len(under_way) + len(chosen) >= at_once:
            break
        if task.id in done or task.id in under_way or not all(each in done for each in task.after):
            continue
        if busy.isdisjoint(task.hosts):
            chosen.append(task)
            busy.update(task.hosts)
    return chosen


def rounds(tasks: Sequence[Task], at_once: int | None, done: Collection[str] = ()) -> list[list[Task]]:
    """The schedule if all jobs took the same time: what runs beside each other, for a dry run."""
    finished = set(done)
    made = []
    while now := startable(tasks, finished, (), at_once):
        made.append(now)
        finished |= {task.id for task in now}
    return made


def _task(entry: str, group: HostGroup, number: int, repeat: int, timeout: float, repeats: int) -> Task:
    again = f"-r{repeat}" if repeats > 1 else ""
    identity = f"{entry}-{len(group.hosts)}x-{number:03d}{again}"
    return Task(identity, entry, group.hosts, timeout, repeat, leftover=group.leftover)


def _leftovers(entry: str, size: int, groups: Sequence[HostGroup]) -> list[str]:
    last = groups[-1]
    if not last.leftover:
        return []
    names, again = ", ".join(last.leftover), ", ".join(last.again)
    return [f"{entry}, {size} hosts a job: {names} left over, so a last group has {again} a second time"]
