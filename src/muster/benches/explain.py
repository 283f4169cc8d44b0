"""Explain a bench: which of its jobs failed, why, and the commonest cause."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from muster.benches.document import JobRecord
from muster.benches.folder import BenchFolder, find
from muster.core.errors import RunFolderError
from muster.core.result import Failure
from muster.core.units import counted
from muster.runs.explain import Answer, Explanation, FailedJob, explain_run
from muster.runs.explain import explain as explain_any
from muster.store.runfolder import DEFAULT_ROOT, RunFolder, folder_of, from_here


def explain(text: str, root: Path = DEFAULT_ROOT) -> Explanation:
    """Explain a bench, or whatever else a user names. Raises RunFolderError and UsageError."""
    path = folder_of(text)
    if path is None or (path.exists() and not (path / "schedule.json").is_file()):
        return explain_any(text, root)
    folder = find(text, root)
    return explain_bench(folder) if isinstance(folder, BenchFolder) else explain_run(folder)


def explain_bench(bench: BenchFolder) -> Explanation:
    """Return the commonest cause of its failed jobs, as of the first of these; and each of them. Raises
    RunFolderError for damaged files."""
    try:
        jobs = [str(each["id"]) for each in bench.read_schedule()["jobs"]]
    except (LookupError, TypeError):
        raise RunFolderError("is damaged: it names no jobs", where=str(bench.schedule)) from None
    records = bench.records(jobs)
    failed = [each for each in records.values() if not each.outcome.good]
    says = f"{len(failed)} of {counted(len(records), 'job')} failed"
    left = len(jobs) - len(records)
    notes = [f"not over: {counted(left, 'job')}"] if left else []
    if not failed:
        answer: Answer = "nothing" if bench.controller_alive() is False else "going"
        return Explanation(of=bench.id, answer=answer, says=says, notes=notes)
    explanations = [_of_job(bench, record) for record in failed]
    often = Counter(_cause(each) for each in explanations)
    first = max(explanations, key=lambda each: often[_cause(each)])
    ranked = sorted(
        zip(failed, explanations, strict=True),
        key=lambda each: (-often[_cause(each[1])], explanations.index(each[1])),
    )
    if often[_cause(first)] < len(failed):
        says += f", {often[_cause(first)]} of them by this"
    return first.model_copy(
        update={
            "of": bench.id,
            "says": f"{says}: {first.says}",
            "notes": [*first.notes, *notes],
            "jobs": [_row(*each) for each in ranked],
        }
    )


def _of_job(bench: BenchFolder, record: JobRecord) -> Explanation:
    """Explain a job by its last run; where that has no cause, by what the bench has noted."""
    run = RunFolder(bench.path / record.run)
    explanation = explain_run(run) if run.path.is_dir() else None
    if explanation and explanation.failure:
        return explanation.model_copy(update={"command": f"muster explain {from_here(run.path)}"})
    reason = record.reason or (explanation.says if explanation else "nothing says why")
    failure = Failure(what=reason, host=record.failed_host, hint=record.hint, id=record.failure)
    return Explanation(of=record.job, answer="named", says=reason, failure=failure, remedy=record.hint)


def _cause(explanation: Explanation) -> str:
    return (explanation.failure and explanation.failure.id) or explanation.says


def _row(record: JobRecord, explanation: Explanation) -> FailedJob:
    failure = explanation.failure
    return FailedJob(
        job=record.job,
        outcome=record.outcome,
        id=failure.id if failure else None,
        what=failure.what if failure else explanation.says,
        host=(failure.host if failure else None) or record.failed_host,
    )
