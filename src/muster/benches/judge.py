"""`muster judge`: a bench by its own records, anything else by its logs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from muster.benches.document import Bench, JobRecord
from muster.benches.fold import fold_bench
from muster.benches.folder import BenchFolder
from muster.benches.inputs import reread, started_of
from muster.benches.schedule import Task
from muster.benches.suite import Narrowing
from muster.core.errors import JobError, UsageError
from muster.core.result import JobEntry
from muster.judging import Baseline, JobClass, Settings
from muster.judging import logs as others
from muster.judging.document import Judged
from muster.store.atomic import csv_text, write_text


def judge(
    where: Path,
    *,
    slow: float | None = None,
    baseline: Path | None = None,
    at_least: str = "",
    **reading: Any,
) -> Judged:
    """Judge a bench of Muster's by its records, as the bench itself did; else every log below `where`, or in
    an archive. `slow`: None: 0.01, or a bench's own; `reading`: how logs are read, and what the others are
    (`muster.judging.logs.judge`). Raises UsageError and RunFolderError."""
    if slow is not None and not 0 < slow < 1:
        raise UsageError(f"must be between 0 and 1 (a share of the step time), not {slow:g}", where="--slow")
    if not (where / "schedule.json").is_file():
        slow = Settings.slow if slow is None else slow
        return others.judge(where, slow=slow, baseline=baseline, at_least=at_least, **reading)
    if useless := next((name for name, value in reading.items() if value and not callable(value)), None):
        what = f"is of logs, and {where} is the folder of a bench, which knows that by itself"
        raise UsageError(what, where=f"--{useless.replace('_', '-').rstrip('s')}", hint="leave it out")
    return _bench(BenchFolder(where.absolute()).marked(), slow, baseline, at_least)


def _bench(folder: BenchFolder, slow: float | None, baseline: Path | None, at_least: str) -> Judged:
    """Return what its records say. Notes that were made as it ran are in its document alone."""
    inputs, before = reread(folder), folder.read_result()
    tasks = inputs.schedule.tasks
    records = records_of(folder, tasks)
    fixed: dict[str, Any] = {
        "id": folder.id,
        "dropped": folder.read_schedule().get("dropped", {}),
        "tasks": tasks,
        "records": records,
        "started": started_of(folder),
        "ended": before.ended if before else max((each.ended for each in records.values()), default=0.0),
        "unfinished": not (before and before.complete),
    }
    notes = inputs.schedule.notes
    if before is not None:
        judged = fold_bench(inputs=inputs, stored=stored_of(folder, None), notes=(), **fixed).notes
        notes = tuple(each for each in before.notes if each not in judged)
    suite = Narrowing(at_least=at_least).of(inputs.suite)
    if slow is not None:
        suite = suite.model_copy(update={"slow": slow})
    stored = stored_of(folder, baseline)
    return fold_bench(inputs=replace(inputs, suite=suite), stored=stored, notes=notes, **fixed)


def stored_of(folder: BenchFolder, given: Path | None) -> Mapping[JobClass, Baseline]:
    """Return what is normal: by the file that is given now, else by the one that the bench has."""
    baseline = given or (folder.baseline if folder.baseline.exists() else None)
    return others.load_baselines(baseline) if baseline else {}


def records_of(folder: BenchFolder, tasks: Iterable[Task]) -> dict[str, JobRecord]:
    """Return the jobs that are over, as the schedule has them."""
    rows = {task.id: task.row for task in tasks}
    return {name: replace(record, **rows[name]) for name, record in folder.records(list(rows)).items()}


def save_table(document: Judged, path: Path) -> None:
    """Write a row per job as CSV. Raises JobError where it cannot be written."""
    table = table_of(document) if isinstance(document, Bench) else others.table_of(document)
    try:
        write_text(path, table)
    except OSError as error:
        raise JobError(f"cannot be written: {error.strerror}", where=str(path)) from None


def table_of(document: Bench) -> str:
    """Return a row per job as CSV: first the columns of the benchmark that this one replaces."""
    verdicts = {each.host: each.condition for each in document.hosts}
    extra = sorted({name for job in document.jobs for name in job.figures} - {"samples_per_second", "memory"})
    more = ["entry", "repeat", "warm_up", "world_size", "misses", "run"]
    more += [f"figure.{name}" for name in extra]
    return csv_text((*others.COLUMNS, *more), [_row(job, verdicts, extra) for job in document.jobs])


def _row(job: JobEntry, verdicts: Mapping[str, str], extra: Sequence[str]) -> list[Any]:
    figures = job.figures
    speed = figures.get("samples_per_second")
    status = "below threshold" if job.misses else "not a measurement" if job.not_measured else job.outcome
    memory = figures.get("memory")
    why = job.reason or "; ".join(job.not_measured)
    return [
        ",".join(job.hosts), None if speed is None else f"{speed:.4f}", status, job.job, job.recipe, job.size,
        None if job.took is None else f"{job.took:.3f}", why, None if memory is None else int(memory),
        job.variation, None if job.slower is None else f"{job.slower:.6f}", job.steps, job.skipped_steps,
        " ".join(dict.fromkeys(verdicts.get(host, "unknown") for host in job.hosts)), job.entry, job.repeat,
        job.warm_up, job.world_size, "; ".join(job.misses), job.run, *(figures.get(name) for name in extra),
    ]  # fmt: skip
