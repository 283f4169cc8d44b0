"""Run a suite on hosts: many jobs on groups of them, one verdict per host. docs/bench.md."""

from __future__ import annotations

import json
import math
import os
import selectors
import statistics
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from muster.benches.child import Child, adopted, finished
from muster.benches.clock import Kind, durations, expected, kind_of, late_after
from muster.benches.document import Bench, JobRecord
from muster.benches.fold import fold_bench
from muster.benches.folder import BenchFolder
from muster.benches.inputs import (
    BenchInputs,
    freeze_bench,
    reread,
    started_of,
    write_schedule,
)
from muster.benches.judge import records_of, stored_of, table_of
from muster.benches.logs import logs_of, observed
from muster.benches.schedule import Task, possible, rounds, startable, warmed, warmed_again, wave_tasks
from muster.benches.suite import Entry
from muster.checks.check import check as inspect
from muster.checks.inspection import Inspection, lately_left_out
from muster.core.errors import JobError, MusterError, UsageError
from muster.core.inventory import Host
from muster.core.recipe import Recipe
from muster.core.state import State
from muster.core.units import counted, format_seconds
from muster.fleet import shell
from muster.fleet.interrupts import interrupts
from muster.fleet.shell import more_files
from muster.inputs.entries import models_taken
from muster.judging import Baseline, JobClass, Posterior, Settings, localise, next_wave
from muster.judging.baseline import FEWEST
from muster.judging.joblogs import how_ended
from muster.judging.logs import load_baselines
from muster.runs.ask import check_model
from muster.runs.listing import stop
from muster.store.runfolder import RunFolder
from muster.store.runlock import Claim

# ----------------------------------------------------------------------------------------------------
# Runs a bench's jobs: as many at once as hosts allow, never a host in two, each for itself.

TURN = 0.25  # seconds between two looks at the clock
LINGER = 5.0  # seconds in which agents end whose controller was killed; no other job gets their hosts before
PATIENCE = 60.0  # seconds until a process that was started holds its run, or has ended


class BenchWatcher:
    """Callbacks while a bench runs; these do nothing."""

    def begins(self, at_once: int) -> None:
        """Take notice that the jobs begin, so many at a time."""

    def began(self, task: Task, run: Path) -> None:
        """Take notice that a job was started."""

    def ended(self, task: Task, record: JobRecord | None) -> None:
        """Take notice that a job is over; None: it was stopped, and will run again."""

    def turn(self, children: Sequence[Child], tasks: Sequence[Task], done: Mapping[str, JobRecord]) -> None:
        """Take notice of the state, a few times a second."""

    def announce(self, text: str) -> None:
        """Take notice of what comes next."""

    def progress(self, done: int, total: int, unreached: int) -> None:
        """Take notice of how many hosts have answered the inspection."""


Grown = Callable[[Mapping[str, JobRecord], Collection[str]], list[Task]]


@dataclass
class Jobs:
    """All jobs of a bench, and those that are over. `grown` returns all jobs once some have ended;
    `unstarted`: those that could not be started, and why. A bench that continues tries them again.

    `minutes`: the time given. A job that is not likely to end within it is not started.
    """

    folder: BenchFolder
    inputs: BenchInputs
    tasks: list[Task]
    done: dict[str, JobRecord]
    spectator: BenchWatcher
    grown: Grown
    claim: Claim
    minutes: float = math.inf
    unstarted: dict[str, MusterError] = field(default_factory=dict)
    children: list[Child] = field(default_factory=list)
    lingering: list[tuple[float, Task]] = field(default_factory=list)  # until when
    selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    begun: float = field(default_factory=time.monotonic)  # of the time given
    seconds: dict[Kind, list[float]] = field(init=False)  # that jobs took

    def __post_init__(self) -> None:
        self.seconds = durations(self.done.values())

    def run(self) -> str | None:
        """Run until all are over. Return why they were stopped before that; None: they were not."""
        self.folder.stop_request.unlink(missing_ok=True)
        given = f"the {self.minutes:g} minutes given are over"
        self.spectator.begins(self.inputs.at_once)
        with interrupts() as wish:
            try:
                while True:
                    self.claim.touch()
                    if self.folder.stop_request.exists():
                        wish.stop = wish.stop or "stopped by `muster stop`"
                    if self.left() <= 0:
                        wish.stop = wish.stop or given
                    if wish.stop:
                        for child in self.children:
                            child.stop(wish.stop)
                    elif self._start():
                        continue  # what waited for a job that cannot be started may start
                    waits = self.lingering and self._open()  # for hosts on which agents may still be
                    if not self.children and (wish.stop or not waits):
                        return wish.stop or (given if self._open() and self.minutes < math.inf else None)
                    self._listen()
                    self._cut_late()
                    for child in list(self.children):
                        if child.process.poll() is not None:
                            self._reap(child)
                    self.spectator.turn(self.children, self.tasks, self.done)
            finally:
                self._leave()

    def left(self) -> float:
        """Return the seconds that are left of the time given."""
        return self.begun + 60 * self.minutes - time.monotonic()

    def _cut_late(self) -> None:
        """End jobs that take several times as long as those alike: that is evidence, and the bench goes on.
        """
        for child in self.children:
            limit, age = late_after(child.task, self.seconds), time.monotonic() - child.begun
            if limit is not None and age > limit:
                alike = self.seconds[kind_of(child.task)]
                usual = format_seconds(statistics.median(alike))
                child.time_out(
                    f"cut after {format_seconds(age)}: {len(alike)} jobs alike took {usual} (median)",
                    late=True,
                )

    def _start(self) -> bool:
        """Start whatever may start now. Return whether a job is over that was not even started."""
        self.tasks = self.grown(self.done, self.unstarted)
        now, before = time.monotonic(), len(self.unstarted) + len(self.done)
        self.lingering = [(until, task) for until, task in self.lingering if now < until]
        running = [*(child.task for child in self.children), *(task for _, task in self.lingering)]
        over = {*self.done, *self.unstarted}
        for task in startable(self._in_time(), over, running, self.inputs.at_once):
            run = self.folder.next_attempt(task.id)
            if any(self._failed(each) for each in task.after):
                self._give_up(task, run)
                continue
            child = self._child(task, run)
            if child is None:
                continue
            self.children.append(child)
            for pipe in child.pipes:
                self.selector.register(pipe, selectors.EVENT_READ, child)
            self.spectator.began(task, run.path)
        return len(self.unstarted) + len(self.done) > before

    def _in_time(self) -> list[Task]:
        """Return the jobs that are likely to end in the time given."""
        if self.minutes == math.inf:
            return self.tasks
        usual, left = expected(self.tasks, self.seconds), self.left()
        return [task for task in self.tasks if (usual[kind_of(task)] or 0.0) <= left]

    def _open(self) -> bool:
        """Return whether a job is neither over nor given up."""
        return any(task.id not in self.done and task.id not in self.unstarted for task in self.tasks)

    def _failed(self, job: str) -> bool:
        """Return whether a job that others follow did not end well; a warm-up's end does not matter."""
        if any(task.id == job and task.warm_up for task in self.tasks):
            return False
        return job in self.unstarted or not self.done[job].outcome.good

    def _give_up(self, task: Task, run: RunFolder) -> None:
        """Give up a job whose model does not exist."""
        why = f"follows {', '.join(filter(self._failed, task.after))}, which did not succeed"
        now = time.time()
        record = JobRecord(
            **task.row,
            outcome=State.FAILED,
            reason=why,
            usage=True,
            run=self.folder.relative(run),
            started=now,
            ended=now,
        )
        self.folder.write_record(record)
        self.done[task.id] = record
        self.spectator.ended(task, record)

    def _child(self, task: Task, run: RunFolder) -> Child | None:
        """Start a job's process. None: it cannot be started, for example for want of processes here. That
        concerns this job alone; where files of the bench cannot be written, the bench ends: JobError."""
        inventory = self.inputs.inventory
        by_label = {host.label: host for host in inventory.hosts}
        hosts = self.folder.write_hosts(task.id, [by_label[label] for label in task.hosts], inventory)
        recipe = self.inputs.recipes[task.entry]
        more_files(8 * (len(self.children) + 2))
        log = self.folder.open_log(task.id)
        try:
            argv = [
                *command(self.folder.recipe(task.entry), hosts, run, task, recipe),
                *self._models(task, recipe),
            ]
            return Child(task, shell.start(argv), run, log)
        except MusterError as error:
            log.close()
            self.unstarted[task.id] = error
            return None

    def _models(self, task: Task, recipe: Recipe) -> list[str]:
        """Return the models of the jobs that a job follows, as changes of its recipe. Raises RunFolderError
        where one is no longer as it was saved."""
        entries = {each.id: each.entry for each in self.tasks}
        runs = {
            entries[job]: RunFolder(self.folder.path / self.done[job].run)
            for job in task.after
            if job in self.done
        }
        taken = [(where, runs[entry]) for where, entry in models_taken(recipe) if entry in runs]
        for _, run in taken:
            check_model(run)
        return [f"{where}={json.dumps(str(run.model))}" for where, run in taken]

    def _leave(self) -> None:
        """End everything: nothing of the bench may stay behind. Jobs still run after an error alone; they are
        stopped as by Ctrl-C."""
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
        """Read what jobs print, and check their clocks."""
        for key, _ in self.selector.select(TURN):
            child: Child = key.data
            if not child.read(key.fileobj):  # type: ignore[arg-type]
                self.selector.unregister(key.fileobj)
        for child in self.children:
            child.tick()

    def _reap(self, child: Child) -> None:
        for pipe in child.pipes:
            with suppress(KeyError, ValueError):
                self.selector.unregister(pipe)
                child.read(pipe)  # what came between the last look and the end
        self.children.remove(child)
        if (child.process.poll() or 0) < 0:
            self.lingering.append((time.monotonic() + LINGER, child.task))
        record = finished(child, self.folder.relative(child.run))
        child.close()
        if record is not None:
            self.folder.write_record(record)
            self.done[record.job] = record
            self.seconds = durations(self.done.values())
        self.spectator.ended(child.task, record)


def command(file: Path, hosts: Path, run: RunFolder, task: Task, recipe: Recipe) -> list[str]:
    """Return the command that starts a job."""
    more = recipe.short if task.warm_up else ()
    train = [sys.executable, "-m", "muster", "train", str(file), "--hosts", str(hosts)]
    return [*train, "--output", str(run.path), "--json", *more]


def settle_unfinished(folder: BenchFolder, tasks: Iterable[Task], done: dict[str, JobRecord]) -> list[str]:
    """Settle the jobs of a bench that was interrupted: those that ended well meanwhile count, those that
    still run are stopped (their hosts are about to get others). Return notes. Raises JobError where one
    cannot be stopped."""
    _await_begun(folder)
    notes = []
    for task in tasks:
        attempts = folder.attempts(task.id)
        if task.id in done or not attempts:
            continue
        last = attempts[-1]
        if last.state().supervised:
            _stopped(last, task)
            notes.append(f"{task.id} was still running, and was stopped")
        record = adopted(task, last, folder.relative(last))
        if record is not None:
            folder.write_record(record)
            done[task.id] = record
    return notes


def _await_begun(folder: BenchFolder) -> None:
    """Wait for `muster train` processes of a killed bench that hold no run yet: each does soon, or ends.
    Raises JobError where one does neither."""
    limit = time.monotonic() + PATIENCE
    while beginning := [run for run in _outputs(folder) if not run.state().supervised]:
        if time.monotonic() > limit:
            raise JobError(
                "a process of this bench neither begins nor ends",
                where=beginning[0].id,
                hint=f"find it: pgrep -f {beginning[0].path}",
            )
        time.sleep(0.2)


def _outputs(folder: BenchFolder) -> list[RunFolder]:
    """Return run folders of living processes on this machine that were started for jobs of this bench."""
    begin, folders = f"{folder.runs}/".encode(), []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended
            words = entry.read_bytes().split(b"\0")
            for flag, value in pairwise(words):
                if flag == b"--output" and value.startswith(begin):
                    folders.append(RunFolder(Path(os.fsdecode(value))))
    return folders


def _stopped(run: RunFolder, task: Task) -> None:
    try:
        ended = stop(run, patience=60)
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
    """Return notes on jobs that could not be started: a line per reason."""
    by_reason: dict[str, list[str]] = {}
    for job, error in unstarted.items():
        why = f"{error} (hint: {error.hint})" if error.hint else str(error)
        by_reason.setdefault(why, []).append(job)
    return [
        f"{', '.join(jobs[:4])}{f' and {len(jobs) - 4} more' * (len(jobs) > 4)} could not be started: {why}"
        for why, jobs in by_reason.items()
    ]


# ----------------------------------------------------------------------------------------------------
# A bench's jobs as they become more: waves that results ask for, and warm-ups in place of failed ones.


@dataclass
class Growth:
    """All jobs of a bench as far as they are known. `over`: adaptive entries with nothing left to ask.
    `timed`: the bench has a time, and adaptive entries ask as long as it lasts."""

    inputs: BenchInputs
    folder: BenchFolder
    stored: Mapping[JobClass, Baseline]
    notes: list[str] = field(default_factory=list)
    over: set[str] = field(default_factory=set)
    timed: bool = False

    def grown(self, done: Mapping[str, JobRecord], unstarted: Collection[str] = ()) -> list[Task]:
        """Return all jobs, after those that are `done`, or could not be started."""
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
        """Return the jobs with new warm-ups, but for one that was refused as bad input: it would be refused
        elsewhere."""
        bad = {job for job, record in done.items() if not record.outcome.good and not record.usage}
        failed = {task.id for task in tasks if task.warm_up and task.id in bad | set(unstarted)}
        made, notes = warmed_again(tasks, failed)
        self._note(notes)
        return made

    def _wave(self, entry: Entry, done: Mapping[str, JobRecord]) -> list[Task]:
        """Return the next wave of an entry that has run out of jobs."""
        suite, hosts = self.inputs.suite, self.inputs.inventory.names
        own = [task for task in self.inputs.schedule.tasks if task.entry == entry.name]
        if not hosts or any(task.id not in done for task in own):
            return []
        number = max((task.wave or 0 for task in own), default=0) + 1
        records = {task.id: done[task.id] for task in own}
        why = all_alike(records.values(), number - 1)
        if why is not None:
            return self._end(entry, f"all jobs of wave {number - 1} ended the same way: {why}")
        recipe = self.inputs.recipes[entry.name]
        observations = observed(logs_of(records, self.inputs.recipes))
        # One host alone has no fabric to measure, and may not hold a job's batch.
        alone = (recipe.trains or recipe.foreign) and self.inputs.impossible(entry.name, hosts[:1]) is None
        settings = Settings(slow=suite.slow, alone=alone)
        posterior = localise(observations, self.inputs.topology, settings, self.stored)
        refused = {frozenset(each.hosts) for each in records.values() if each.usage and not each.warm_up}
        groups = [group for group in next_wave(posterior) if frozenset(group) not in refused]
        if groups and number > suite.waves and not self.timed:
            return self._end(
                entry, f"more was left to ask after {suite.waves} waves{more_waves(posterior, suite.waves)}"
            )
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


MANY_WAVES = 50
SURE = 5.0  # standard errors by which a slowdown has to stand out


def more_waves(posterior: Posterior, made: int) -> str:
    """Return the observed spread in words, and how many waves would resolve the slowdown that is asked for:
    the error of a mean falls with the root of their number. Empty where no spread is known; no number where
    as many were `made`, so that it is not the spread that leaves questions."""
    baselines = [each for each in posterior.baselines.values() if each.count >= FEWEST and not each.stored]
    spreads = [each.sigma for each in baselines]
    if not spreads:
        return ""
    spread, slow = statistics.median(spreads), posterior.settings.slow
    waves = math.ceil((SURE * spread / slow) ** 2)
    seen = f": jobs alike differ by {spread:.1%}, and {slow:.1%} is asked for (`slow`)"
    if waves <= made:
        return seen
    if waves <= MANY_WAVES:
        return f"{seen}; about {waves} waves would tell (`waves`, or `--minutes`)"
    return f"{seen}, which no sensible number of waves would tell; {SURE * spread:.0%} could be told in one"


def all_alike(records: Iterable[JobRecord], wave: int) -> str | None:
    """Return how all jobs of an entry's last wave ended, where more of them would show nothing: none was
    feasible for its hosts, or all failed alike and none of the entry ever succeeded. None: another wave may
    show more.

    A dead host alone is none of these: jobs without it succeed.
    """
    counted = [record for record in records if not record.warm_up]
    last = [record for record in counted if record.wave == wave]
    if not last:
        return None
    first = last[0].reason or "no reason is known"
    if all(record.usage for record in last):
        return first
    if any(record.outcome.good for record in counted):
        return None
    ways = {"refused" if record.usage else how_ended(record) for record in last}
    return first if len(ways) == 1 else None


IGNORED = BenchWatcher()


def bench(
    inputs: BenchInputs,
    folder: BenchFolder,
    watcher: BenchWatcher = IGNORED,
    *,
    baseline: Path | None = None,
    minutes: float = math.inf,
) -> Bench:
    """Run a suite to its end, or until Ctrl-C. The results are also in the folder.

    `baseline`: what an earlier bench, or `muster judge --json`, found normal; `minutes`: the time given.
    Raises UsageError (nothing was started then) and JobError.
    """
    stored = load_baselines(baseline) if baseline else {}
    if "," in str(folder.path):
        raise UsageError("a comma in it would divide hosts", where=str(folder.path), hint="another --output")
    folder.create()
    with folder.claim() as claim:
        _keep_baseline(folder, baseline)
        freeze_bench(folder, inputs)
        return _run(inputs, folder, watcher, minutes, stored, claim)


def continue_bench(
    folder: BenchFolder,
    watcher: BenchWatcher = IGNORED,
    *,
    at_once: int | None = None,
    baseline: Path | None = None,
    minutes: float = math.inf,
) -> Bench:
    """Continue an interrupted bench: jobs that are over are not run again. The baseline is the last one
    given. Raises as `bench`."""
    folder = folder.marked()
    inputs = reread(folder, at_once)
    stored = stored_of(folder, baseline)
    with folder.claim() as claim:
        _keep_baseline(folder, baseline)
        return _run(inputs, folder, watcher, minutes, stored, claim)


def _keep_baseline(folder: BenchFolder, baseline: Path | None) -> None:
    """Keep the baseline for a bench that continues: the file may be another by then."""
    if baseline is not None:
        folder.write(folder.baseline, baseline.read_text(encoding="utf-8"))


def dry_run(inputs: BenchInputs, folder: BenchFolder) -> dict[str, Any]:
    """Return the schedule as data: jobs with their commands, and what would run at the same time."""
    suite, tasks = inputs.suite, inputs.schedule.tasks
    adaptive = [each.name for each in suite.jobs if suite.of(each).groups == "adaptive"]
    waves = rounds(tasks, inputs.at_once)
    return {
        "suite": inputs.name,
        "about": suite.about,
        "hosts": list(inputs.inventory.names),
        "check": suite.check.model_dump(mode="json") if suite.check else None,
        "at_once": inputs.at_once,
        "jobs": [
            {
                **asdict(task),
                "command": command(
                    folder.recipe(task.entry),
                    folder.hosts(task.id),
                    folder.next_attempt(task.id),
                    task,
                    inputs.recipes[task.entry],
                ),
            }
            for task in tasks
        ],
        "waves": [[task.id for task in wave] for wave in waves],
        "at_most_seconds": sum(max(task.timeout for task in wave) for wave in waves),
        "adaptive": adaptive,
        "notes": [
            *inputs.schedule.notes,
            *(f"{name}: its groups are chosen from results" for name in adaptive),
        ],
    }


def _run(
    inputs: BenchInputs,
    folder: BenchFolder,
    watcher: BenchWatcher,
    minutes: float,
    stored: Mapping[JobClass, Baseline],
    claim: Claim,
) -> Bench:
    """Inspect hosts, where the suite asks for it and it was not done yet; then run the jobs."""
    begun = time.monotonic()
    if inputs.suite.check is not None and not folder.inspection.exists():
        watcher.announce(f"inspecting {counted(len(inputs.inventory.hosts), 'host')}")
        inspection = _inspection(inputs, watcher, claim)
        usable = [Host(each.name, each.slots) for each in inspection.usable]
        inputs = inputs.on(usable)
        write_schedule(folder, inputs, inspection.left_out)
        folder.write_data(folder.inspection, inspection.model_dump(mode="json"))
    dropped = folder.read_schedule().get("dropped", {})
    for host, why in dropped.items():
        watcher.announce(f"{host} takes no part: {why}")
    growth = Growth(inputs, folder, stored, timed=minutes < math.inf)
    tasks = list(inputs.schedule.tasks)
    done = records_of(folder, tasks)
    left_out = [] if inputs.suite.check else lately_left_out(inputs.inventory.names, time.time())
    notes = [*left_out, *settle_unfinished(folder, tasks, done)]
    for note in notes:
        watcher.announce(note)
    if done:
        watcher.announce(f"{len(done)} jobs are over already")
    jobs = Jobs(folder, inputs, tasks, done, watcher, growth.grown, claim, minutes, begun=begun)
    stopped = jobs.run()
    document = fold_bench(
        id=folder.id,
        inputs=inputs,
        dropped=dropped,
        tasks=jobs.tasks,
        records=jobs.done,
        notes=[
            *left_out,
            *inputs.schedule.notes,
            *growth.notes,
            *not_started(jobs.unstarted),
            *([stopped] if stopped else []),
        ],
        started=started_of(folder),
        ended=time.time(),
        stored=stored,
        unfinished=stopped is not None,
    )
    folder.write_data(folder.result, document.model_dump(mode="json"))
    folder.write(folder.table, table_of(document))
    return document


def _inspection(inputs: BenchInputs, watcher: BenchWatcher, claim: Claim) -> Inspection:
    def progress(done: int, total: int, unreached: int) -> None:
        claim.touch()
        watcher.progress(done, total, unreached)

    checks = inputs.suite.check
    assert checks is not None
    recipe = next(
        (each for each in inputs.recipes.values() if each.trains), next(iter(inputs.recipes.values()))
    )
    return inspect(
        inputs.inventory, recipe, named=inputs.name, profile=checks.profile, gpus=checks.gpus,
        group=checks.group, progress=progress, announce=watcher.announce,
    )  # fmt: skip
