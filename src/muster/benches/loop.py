"""Runs a bench's jobs: as many at once as hosts allow, never a host in two, each for itself."""

from __future__ import annotations

import os
import selectors
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Protocol

from muster.benches.child import Child, adopted, finished
from muster.benches.document import JobRecord
from muster.benches.folder import BenchFolder
from muster.benches.inputs import warm_up_overrides
from muster.benches.schedule import Task, startable
from muster.core.errors import JobError, MusterError
from muster.core.inventory import Inventory
from muster.core.recipe import Recipe
from muster.fleet.interrupts import interrupts
from muster.fleet.shell import Shell, more_files
from muster.runs.listing import stop
from muster.store.runfolder import RunFolder

TURN = 0.25  # seconds between two looks at the clock
LINGER = 5.0  # seconds in which agents end whose controller was killed; no other job gets their hosts before
PATIENCE = 60.0  # seconds until a process that was started holds its run, or has ended


class Spectator(Protocol):
    """Who watches a bench."""

    def began(self, task: Task, run: Path) -> None:
        """A job was started."""

    def ended(self, task: Task, record: JobRecord | None) -> None:
        """It is over; None: it was stopped, and will run again."""

    def turn(self, children: Sequence[Child], tasks: Sequence[Task], done: Mapping[str, JobRecord]) -> None:
        """A few times a second."""


Grown = Callable[[Mapping[str, JobRecord], Collection[str]], list[Task]]


@dataclass
class Jobs:
    """All jobs of a bench, and those that are over. `grown` gives all that there are once some have ended;
    `unstarted`: those that could not be started, and why. A bench that goes on tries them again."""

    folder: BenchFolder
    inventory: Inventory
    recipes: Mapping[str, Recipe]
    tasks: list[Task]
    done: dict[str, JobRecord]
    at_once: int
    shell: Shell
    spectator: Spectator
    grown: Grown | None = None
    unstarted: dict[str, MusterError] = field(default_factory=dict)
    children: list[Child] = field(default_factory=list)
    lingering: list[tuple[float, Task]] = field(default_factory=list)  # until when
    selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)

    def run(self) -> str | None:
        """Until all are over. -> why they were stopped before that; None: they were not."""
        self.folder.stop_request.unlink(missing_ok=True)
        with interrupts() as wish:
            try:
                while True:
                    if self.folder.stop_request.exists():
                        wish.stop = wish.stop or "stopped by `muster stop`"
                    if wish.stop:
                        for child in self.children:
                            child.stop(wish.stop)
                    elif self._start():
                        continue  # what waited for a job that cannot be started may start
                    if not self.children and (wish.stop or not self._due()):
                        return wish.stop
                    self._turn()
            finally:
                self._leave()

    def _start(self) -> bool:
        """Whatever may start now. -> whether a job could not be started."""
        if self.grown:
            self.tasks = self.grown(self.done, self.unstarted)
        now, before = time.monotonic(), len(self.unstarted)
        self.lingering = [(until, task) for until, task in self.lingering if now < until]
        running = [*(child.task for child in self.children), *(task for _, task in self.lingering)]
        over = {*self.done, *self.unstarted}
        for task in startable(self.tasks, over, running, self.at_once):
            run = self.folder.next_attempt(task.id)
            child = self._child(task, run)
            if child is None:
                continue
            self.children.append(child)
            for pipe in child.pipes:
                self.selector.register(pipe, selectors.EVENT_READ, child)
            self.spectator.began(task, run.path)
        return len(self.unstarted) > before

    def _due(self) -> bool:
        """Whether a job waits for hosts on which agents may still be."""
        over = {*self.done, *self.unstarted}
        return bool(self.lingering) and any(task.id not in over for task in self.tasks)

    def _child(self, task: Task, run: RunFolder) -> Child | None:
        """None: it cannot be started, say for want of processes here. That is this job's alone; where files
        of the bench cannot be written, all has an end: JobError."""
        by_label = {host.label: host for host in self.inventory.hosts}
        hosts = self.folder.write_hosts(task.id, [by_label[label] for label in task.hosts], self.inventory)
        argv = command(self.folder.recipe(task.entry), hosts, run, task, self.recipes[task.entry])
        more_files(8 * (len(self.children) + 2))
        log = self.folder.open_log(task.id)
        try:
            return Child(task, self.shell.start(argv), run, log)
        except MusterError as error:
            log.close()
            self.unstarted[task.id] = error
            return None

    def _leave(self) -> None:
        """The end of everything: nothing of the bench may stay behind. Jobs still run after an error alone;
        they are stopped as by Ctrl-C."""
        try:
            for child in self.children:
                child.stop("the bench has ended")
            while any(child.process.poll() is None for child in self.children):
                self._listen()
        finally:
            for child in self.children:
                child.kill()
            self.selector.close()

    def _listen(self) -> None:
        """What jobs say, and their clocks."""
        for key, _ in self.selector.select(TURN):
            child: Child = key.data
            if not child.read(key.fileobj):  # type: ignore[arg-type]
                self.selector.unregister(key.fileobj)
        for child in self.children:
            child.tick()

    def _turn(self) -> None:
        self._listen()
        for child in list(self.children):
            if child.process.poll() is not None:
                self._reap(child)
        self.spectator.turn(self.children, self.tasks, self.done)

    def _reap(self, child: Child) -> None:
        for pipe in child.pipes:
            with suppress(KeyError, ValueError):
                self.selector.unregister(pipe)
                child.read(pipe)  # what came between the last look and the end
        self.children.remove(child)
        if (child.process.poll() or 0) < 0:
            self.lingering.append((time.monotonic() + LINGER, child.task))
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


def not_started(unstarted: Mapping[str, MusterError]) -> list[str]:
    """Notes about jobs that could not be started: a line per reason."""
    by_reason: dict[str, list[str]] = {}
    for job, error in unstarted.items():
        why = f"{error} (hint: {error.hint})" if error.hint else str(error)
        by_reason.setdefault(why, []).append(job)
    return [
        f"{', '.join(jobs[:4])}{f' and {len(jobs) - 4} more' * (len(jobs) > 4)} could not be started: {why}"
        for why, jobs in by_reason.items()
    ]
