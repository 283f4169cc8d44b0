"""A bench's jobs as they become more: waves that results ask for, and warm-ups in place of failed ones."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from muster.benches.document import JobRecord
from muster.benches.folder import BenchFolder
from muster.benches.inputs import BenchInputs, write_schedule
from muster.benches.logs import logs_of, observed
from muster.benches.schedule import Task, possible, warmed, warmed_again, wave_tasks
from muster.benches.suite import Entry
from muster.judging import Baseline, Class, Settings, localise, next_wave


@dataclass
class Growth:
    """All jobs of a bench as far as they are known. `over`: adaptive entries with nothing left to ask."""

    inputs: BenchInputs
    folder: BenchFolder
    stored: Mapping[Class, Baseline]
    notes: list[str] = field(default_factory=list)
    over: set[str] = field(default_factory=set)

    def grown(self, done: Mapping[str, JobRecord], unstarted: Collection[str] = ()) -> list[Task]:
        """All jobs, after those that are `done`, or could not be started."""
        before = self.inputs.schedule.tasks
        tasks = self._warmed(before, done, unstarted)
        for entry in self.inputs.suite.jobs:
            if entry.name not in self.over and self.inputs.suite.of(entry).groups == "adaptive":
                tasks += self._wave(entry, done)
        if len(tasks) > len(before):
            self.inputs = replace(self.inputs, schedule=replace(self.inputs.schedule, tasks=tuple(tasks)))
            write_schedule(self.folder, self.inputs)
        return tasks

    def _warmed(
        self, tasks: Sequence[Task], done: Mapping[str, JobRecord], unstarted: Collection[str]
    ) -> list[Task]:
        """A job that was refused as bad input would be refused elsewhere."""
        failed = {
            task.id
            for task in tasks
            if task.warm_up
            and (task.id in unstarted or ((record := done.get(task.id)) and _of_hosts(record)))
        }
        made, notes = warmed_again(tasks, failed)
        self._note(notes)
        return made

    def _wave(self, entry: Entry, done: Mapping[str, JobRecord]) -> list[Task]:
        """The next wave of an entry that has run out of jobs."""
        suite, hosts = self.inputs.suite, self.inputs.inventory.names
        own = [task for task in self.inputs.schedule.tasks if task.entry == entry.name]
        if not hosts or any(task.id not in done for task in own):
            return []
        number = max((task.wave or 0 for task in own), default=0) + 1
        why = all_alike(own, number - 1, done)
        if why is not None:
            return self._end(entry, f"all jobs of wave {number - 1} ended the same way: {why}")
        recipe = self.inputs.recipes[entry.name]
        logs = logs_of(own, done, self.inputs.recipes)
        # One host alone has no fabric to measure, and may not hold a job's batch.
        alone = recipe.trains and self.inputs.impossible(entry.name, hosts[:1]) is None
        settings = Settings(slow=suite.slow, alone=alone)
        state = localise(observed(own, logs), self.inputs.topology, settings, self.stored)
        refused = {frozenset(task.hosts) for task in own if done[task.id].usage and not task.warm_up}
        groups = [group for group in next_wave(state) if frozenset(group) not in refused]
        if groups and number > suite.waves:
            return self._end(entry, f"more was left to ask after {suite.waves} waves")
        held = suite.of(entry)
        tasks = wave_tasks(entry.name, number, groups, held.timeout)
        tasks, notes = possible(tasks, self.inputs.impossible)
        self._note(notes)
        if not tasks:
            return self._end(entry)
        return warmed(tasks) if number == 1 and held.warm_up and len(tasks) > 1 else tasks

    def _end(self, entry: Entry, note: str = "") -> list[Task]:
        self.over.add(entry.name)
        self._note([f"{entry.name}: {note}"] if note else [])
        return []

    def _note(self, notes: Sequence[str]) -> None:
        self.notes += [note for note in notes if note not in self.notes]


def all_alike(tasks: Sequence[Task], wave: int, done: Mapping[str, JobRecord]) -> str | None:
    """How all jobs of an entry's last wave ended, where more of them would tell nothing: none was for its
    hosts to do, or all failed alike and none of the entry ever succeeded. None: another wave may tell more.

    A dead host alone is none of these: jobs without it succeed.
    """
    counted = [task for task in tasks if not task.warm_up]
    last = [(task, done[task.id]) for task in counted if task.wave == wave]
    if not last:
        return None
    first = last[0][1].reason or "no reason is known"
    if all(record.usage for _, record in last):
        return first
    if any(done[task.id].outcome == "succeeded" for task in counted):
        return None
    return first if len({_way(task, record) for task, record in last}) == 1 else None


def _way(task: Task, record: JobRecord) -> str:
    """How it ended, without the numbers and hosts in it."""
    if record.usage or record.outcome == "timeout":
        return "refused" if record.usage else "timeout"
    words = record.reason or ""
    for host in task.hosts:
        words = re.sub(rf"\b{re.escape(host)}\b", "HOST", words)
    return re.sub(r"[0-9]+", "N", words)


def _of_hosts(record: JobRecord) -> bool:
    """Whether it ended badly, for a reason that may lie with its hosts."""
    return record.outcome != "succeeded" and not record.usage
