"""Which jobs a bench has, in which order they may start. Pure and deterministic.

The one rule that nothing may break: no host is in two jobs at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from muster.benches.suite import Sizes, Suite
from muster.inputs.entries import in_order
from muster.workloads.fabric.request import rounds as pairings

# ----------------------------------------------------------------------------------------------------
# Hosts in groups: so many of each size that every host has its job, the last overlapping. Pure.

RING = 6  # hosts: disjoint pairs of so few are fewer than the four times that can outvote a bad one


@dataclass(frozen=True)
class HostGroup:
    """The hosts of one job, in the order of the inventory. `leftover`: those for which it was made, in a last
    group that overlaps the one before."""

    hosts: tuple[str, ...]
    leftover: tuple[str, ...] = ()

    @property
    def again(self) -> tuple[str, ...]:
        """Hosts that had a job of this size already."""
        return tuple(host for host in self.hosts if self.leftover and host not in self.leftover)


def sizes_of(groups: Sizes, count: int) -> tuple[list[int], list[int]]:
    """Return the numbers of hosts of a job, each once, in the order given; and those for which there are too
    few."""
    if groups == "adaptive":
        return [], []
    if groups == "doubling":
        wanted = [1 << power for power in range(count.bit_length()) if 1 << power <= count] + [count]
    else:
        wanted = [count if size == "all" else int(size) for size in groups]
    unique = list(dict.fromkeys(wanted))
    return [size for size in unique if 1 <= size <= count], [size for size in unique if size > count]


def groups_of(hosts: Sequence[str], size: int, *, first: bool = False) -> list[HostGroup]:
    """Return neighbours in groups of `size`, which is at most the number of hosts. `first`: one group alone.

    Of hosts that are left over, a last group is made with the ones before them. Of few hosts, pairs are all
    neighbours on their ring: every host is in two, every link in one.
    """
    if not 1 <= size <= len(hosts):
        raise ValueError(f"no group of {size} can be made of {len(hosts)} hosts")
    if first:
        return [HostGroup(tuple(hosts[:size]))]
    if size == 2 and len(hosts) <= RING:
        return [
            HostGroup((hosts[a], hosts[b])) for wave in pairings(range(len(hosts)), "ring") for a, b in wave
        ]
    whole = len(hosts) // size * size
    made = [HostGroup(tuple(hosts[at : at + size])) for at in range(0, whole, size)]
    if whole < len(hosts):
        made.append(HostGroup(tuple(hosts[-size:]), leftover=tuple(hosts[whole:])))
    return made


# ----------------------------------------------------------------------------------------------------
# Which jobs a bench has, in which order they may start.

WARM_UPS = 3  # of an entry at most, where those before did not end well
Impossible = Callable[[str, Sequence[str]], str | None]  # entry, hosts -> why there can be no such job


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

    @property
    def row(self) -> dict[str, Any]:
        """Its part of a row of the document."""
        names = ("entry", "hosts", "repeat", "warm_up", "leftover", "wave")
        return {"job": self.id, **{name: getattr(self, name) for name in names}}


def read_task(data: dict[str, Any]) -> Task:
    """Return the task of schedule.json's data. Raises KeyError, TypeError or ValueError for other data."""
    lists = {key: tuple(str(each) for each in data[key]) for key in ("hosts", "leftover", "after")}
    return Task(**{**data, **lists})


@dataclass(frozen=True)
class Schedule:
    """All jobs in their order of preference, and what is impossible."""

    tasks: tuple[Task, ...]
    notes: tuple[str, ...] = ()


def make_schedule(
    suite: Suite, hosts: Sequence[str], impossible: Impossible = lambda entry, hosts: None
) -> Schedule:
    """Schedule entries in the suite's order; of each, sizes as given; of each size, all groups once, then
    again for every repeat, overlapping groups last; without those that are impossible. Adaptive entries have
    no jobs yet."""
    tasks: list[Task] = []
    notes: list[str] = []
    for entry in in_order(suite.jobs):
        held = suite.of(entry)
        if held.groups == "adaptive" and held.repeats > 1:
            notes.append(f"{entry.name}: not repeated: its groups are chosen from results")
        sizes, missing = sizes_of(held.groups, len(hosts))
        if missing:
            sizes_words = ", ".join(str(size) for size in missing)
            notes.append(f"{entry.name}: no group of {sizes_words}: there are {len(hosts)} hosts")
        own: list[Task] = []
        for size in sizes:
            groups = groups_of(hosts, size, first=held.cover == "first")
            notes += _leftovers(entry.name, size, groups)
            for repeat, (number, group) in product(range(1, held.repeats + 1), enumerate(groups, 1)):
                again = f"-r{repeat}" if held.repeats > 1 else ""
                identity = f"{entry.name}-{size}x-{number:03d}{again}"
                leftover = group.leftover
                own.append(Task(identity, entry.name, group.hosts, held.timeout, repeat, leftover=leftover))
        own, why = possible(own, impossible)
        notes += why
        if entry.after:
            own = following(own, entry.name, entry.after, tasks)
        elif held.warm_up and _beside(own):
            own = warmed(own)
        tasks += own
    return Schedule(tuple(tasks), tuple(notes))


def following(own: Sequence[Task], entry: str, after: Sequence[str], tasks: Sequence[Task]) -> list[Task]:
    """Return an entry's jobs, each behind the ones of the entries that it follows on the same hosts, where
    there are such; the caches are filled by then."""
    ids = {task.id for task in tasks}
    made = []
    for task in own:
        before = tuple(f"{name}{task.id.removeprefix(entry)}" for name in after)
        if ids.issuperset(before):
            made.append(replace(task, after=before))
    return made


def possible(tasks: Sequence[Task], impossible: Impossible) -> tuple[list[Task], list[str]]:
    """Return possible jobs, and why others are not: each reason once."""
    left: list[Task] = []
    notes: dict[str, None] = {}
    for task in tasks:
        why = impossible(task.entry, task.hosts)
        if why is None:
            left.append(task)
        else:
            notes[why] = None
    return left, list(notes)


def _beside(tasks: Sequence[Task]) -> bool:
    """Return whether any two of them could run at once. Groups of a size are disjoint but for the last one,
    so that the first of each size is enough."""
    firsts = {len(task.hosts): set(task.hosts) for task in reversed(tasks)}
    return any(first.isdisjoint(other.hosts) for first in firsts.values() for other in tasks)


def warmed(tasks: Sequence[Task]) -> list[Task]:
    """Add a short job before all of them, on the first of the smallest groups: one writer for every cache
    that is still empty."""
    first = min(tasks, key=lambda task: len(task.hosts))
    lead = _warm_up(f"{first.entry}-warmup", first)
    return [lead, *(replace(each, after=(*each.after, lead.id)) for each in tasks)]


def warmed_again(tasks: Sequence[Task], failed: Collection[str]) -> tuple[list[Task], list[str]]:
    """Add another warm-up, on other hosts, for each entry whose last one failed: what waited for that one
    waits for the new one. Return also notes on entries that have had enough of them, or have no other hosts.
    """
    made = list(tasks)
    notes: list[str] = []
    for entry in dict.fromkeys(task.entry for task in tasks if task.id in failed and task.warm_up):
        leads = [task for task in made if task.warm_up and task.entry == entry]
        last = leads[-1]
        if last.id not in failed:
            continue
        tried = {host for lead in leads for host in lead.hosts}
        waiting = [task for task in made if last.id in task.after]
        others = [task for task in waiting if tried.isdisjoint(task.hosts)]
        if not others or len(leads) >= WARM_UPS:
            count = "the warm-up" if len(leads) == 1 else f"each of {len(leads)} warm-ups"
            notes.append(f"{entry}: {count} failed, so its jobs may have found empty caches")
            continue
        first = min(others, key=lambda task: len(task.hosts))
        lead = replace(_warm_up(f"{entry}-warmup{len(leads) + 1}", first), after=(last.id,))
        instead = {last.id: lead.id}
        moved = {
            task.id: replace(task, after=tuple(instead.get(each, each) for each in task.after))
            for task in waiting
        }
        made = [moved.get(task.id, task) for task in made]
        made.insert(made.index(last) + 1, lead)
    return made, notes


def _warm_up(identity: str, on: Task) -> Task:
    return Task(identity, on.entry, on.hosts, on.timeout, warm_up=True, wave=on.wave)


def wave_tasks(entry: str, wave: int, groups: Sequence[Sequence[str]], timeout: float) -> list[Task]:
    """Return the jobs of a wave that was chosen from results: disjoint groups."""
    return [
        Task(f"{entry}-wave{wave}-{number:03d}", entry, tuple(hosts), timeout, wave=wave)
        for number, hosts in enumerate(groups, 1)
    ]


def startable(
    tasks: Iterable[Task], done: Collection[str], running: Collection[Task], at_once: int | None
) -> list[Task]:
    """Return what may start now, in order: hosts all free, what it waits for is over, and not too many at
    once."""
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
    """Return the schedule if all jobs took the same time: what runs at once, for a dry run."""
    finished = set(done)
    made = []
    while now := startable(tasks, finished, (), at_once):
        made.append(now)
        finished |= {task.id for task in now}
    return made


def _leftovers(entry: str, size: int, groups: Sequence[HostGroup]) -> list[str]:
    last = groups[-1]
    if not last.leftover:
        return []
    names, again = ", ".join(last.leftover), ", ".join(last.again)
    return [f"{entry}, {size} hosts a job: {names} left over, so a last group has {again} a second time"]
