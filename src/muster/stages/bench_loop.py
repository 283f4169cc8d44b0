"""Runs a bench's jobs: as many at once as hosts allow, never a host in two, each for itself."""

from __future__ import annotations

import os
import selectors
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Protocol

from muster.core.bench import JobRecord
from muster.core.errors import JobError, MusterError
from muster.core.inventory import Inventory
from muster.core.recipe import Recipe
from muster.planner.rota import Task, startable
from muster.shell import Shell, more_files
from muster.stages.bench_child import Child, adopted, finished
from muster.stages.bench_inputs import warm_up_overrides
from muster.stages.runs import stop
from muster.store.benchfolder import BenchFolder
from muster.store.runfolder import RunFolder
from muster.supervise.interrupts import interrupts

TURN = 0.25  # seconds between two looks at the clock
PATIENCE = 60.0  # seconds until a process that was started holds its run, or has ended


class Spectator(Protocol):
    """Who watches a bench."""

    def began(self, task: Task, run: Path) -> None:
        """A job was started."""

    def ended(self, task: Task, record: JobRecord | None) -> None:
        """It is over; None: it was stopped, and will run again."""

    def turn(self, children: Sequence[Child], tasks: Sequence[Task], done: Mapping[str, JobRecord]) -> None:
        """A few times a second."""


@dataclass
class Jobs:
    """All jobs of a bench, and those that are over. `more` gives further ones when it is asked for."""

    folder: BenchFolder
    inventory: Inventory
    recipes: Mapping[str, Recipe]
    tasks: list[Task]
    done: dict[str, JobRecord]
    at_once: int
    shell: Shell
    spectator: Spectator
    more: Callable[[Mapping[str, JobRecord]], Sequence[Task]] = lambda done: ()
    children: list[Child] = field(default_factory=list)
    selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)

    def run(self) -> str | None:
        """Until all are over. -> why they were stopped before that; None: they were not."""
        try:
            with interrupts() as wish:
                while True:
                    if wish.stop:
                        for child in self.children:
                            child.stop(wish.stop)
                    else:
                        self._start()
                    if not self.children:
                        return wish.stop
                    self._turn()
        finally:
            for child in self.children:  # none but after an error
                child.kill()
            self.selector.close()

    def _start(self) -> None:
        """Whatever may start now."""
        self._grow()
        running = [child.task for child in self.children]
        for task in startable(self.tasks, self.done, running, self.at_once):
            run = self.folder.next_attempt(task.id)
            try:
                child = self._child(task, run)
            except MusterError as error:  # such as no more processes here: this job's alone
                self._over(task, _not_started(task, self._relative(run), error))
                continue
            self.children.append(child)
            for pipe in child.pipes:
                self.selector.register(pipe, selectors.EVENT_READ, child)
            self.spectator.began(task, run.path)

    def _grow(self) -> None:
        """Another wave, where results ask for one."""
        self.tasks += self.more(self.done)

    def _child(self, task: Task, run: RunFolder) -> Child:
        by_label = {host.label: host for host in self.inventory.hosts}
        hosts = self.folder.write_hosts(task.id, [by_label[label] for label in task.hosts], self.inventory)
        recipe = self.recipes[task.entry]
        more_files(8 * (len(self.children) + 2))
        return Child(
            task,
            self.shell.start(command(self.folder.recipe(task.entry), hosts, run, task, recipe)),
            run,
            self.folder.said(task.id).open("ab"),
        )

    def _turn(self) -> None:
        for key, _ in self.selector.select(TURN):
            child: Child = key.data
            if not child.read(key.fileobj):  # type: ignore[arg-type]
                self.selector.unregister(key.fileobj)
        for child in list(self.children):
            child.tick()
            if child.process.poll() is not None:
                self._reap(child)
        self.spectator.turn(self.children, self.tasks, self.done)

    def _reap(self, child: Child) -> None:
        for pipe in child.pipes:
            with suppress(KeyError, ValueError):
                self.selector.unregister(pipe)
                child.read(pipe)  # what came between the last look and the end
        self.children.remove(child)
        record = finished(child, self._relative(child.run))
        child.close()
        self._over(child.task, record)

    def _over(self, task: Task, record: JobRecord | None) -> None:
        if record is not None:
            self.folder.write_record(record)
            self.done[task.id] = record
        self.spectator.ended(task, record)

    def _relative(self, run: RunFolder) -> str:
        return str(run.path.relative_to(self.folder.path))


def command(file: Path, hosts: Path, run: RunFolder, task: Task, recipe: Recipe) -> list[str]:
    """What starts a job."""
    more = warm_up_overrides(recipe) if task.warm_up else ()
    train = [sys.executable, "-m", "muster", "train", str(file), "--hosts", str(hosts)]
    return [*train, "--output", str(run.path), "--json", *more]


def settle_unfinished(folder: BenchFolder, tasks: Iterable[Task], done: dict[str, JobRecord]) -> list[str]:
    """Of a bench that was broken off: jobs that ended well while nobody watched count, those that still run
    are stopped (their hosts are about to get others). -> notes. Raises JobError where one cannot be."""
    _await_begun(folder)
    notes = []
    for task in tasks:
        attempts = folder.attempts(task.id)
        if task.id in done or not attempts:
            continue
        last = attempts[-1]
        if last.state() in ("running", "elsewhere"):
            _stopped(last, task)
            notes.append(f"{task.id} was still running, and was stopped")
        record = adopted(task, last, str(last.path.relative_to(folder.path)))
        if record is not None:
            folder.write_record(record)
            done[task.id] = record
    return notes


def _await_begun(folder: BenchFolder) -> None:
    """A bench that was killed may have left `muster train` processes that hold no run yet: each does soon, or
    ends. Raises JobError where one does neither."""
    limit = time.monotonic() + PATIENCE
    while beginning := [run for run in _outputs(folder) if run.state() not in ("running", "elsewhere")]:
        if time.monotonic() > limit:
            raise JobError(
                "a process of this bench neither begins nor ends",
                where=beginning[0].id,
                hint=f"find it: pgrep -f {beginning[0].path}",
            )
        time.sleep(0.2)


def _outputs(folder: BenchFolder) -> list[RunFolder]:
    """Run folders of living processes on this machine that were started for jobs of this bench."""
    begin, found = f"{folder.runs}/".encode(), []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended
            words = entry.read_bytes().split(b"\0")
            for flag, value in pairwise(words):
                if flag == b"--output" and value.startswith(begin):
                    found.append(RunFolder(Path(os.fsdecode(value))))
    return found


def _stopped(run: RunFolder, task: Task) -> None:
    try:
        ended = stop(run, patience=60).result
    except MusterError:  # its controller is gone in this moment
        ended = None
    limit = time.monotonic() + 15
    while ended is None and run.controller_alive() is not False:
        if time.monotonic() > limit:
            raise JobError(
                "still runs, and does not stop", where=task.id, hint=f"`muster stop {run.path}`, then again"
            )
        time.sleep(0.2)


def _not_started(task: Task, relative: str, error: MusterError) -> JobRecord:
    now = time.time()
    return JobRecord(
        job=task.id,
        outcome="failed",
        reason=str(error),
        hint=error.hint,
        usage=True,
        run=relative,
        started=now,
        ended=now,
    )
