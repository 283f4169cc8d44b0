"""Slurm's state of a submitted run, and how to cancel it."""

from __future__ import annotations

from dataclasses import dataclass

from muster.core.errors import JobError, MusterError, RunFolderError
from muster.fleet import shell
from muster.store.atomic import write_json
from muster.store.runfolder import RunFolder

_PATIENCE = 15.0  # seconds for an answer of Slurm's controller
# States of a job that is over (squeue(1), JOB STATE CODES); SPECIAL_EXIT and REQUEUED ones come back.
_OVER = {
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED",
    "REVOKED", "TIMEOUT",
}  # fmt: skip


@dataclass(frozen=True)
class QueueState:
    """Slurm's state of a job. `state` None: Slurm does not know the job (any more)."""

    job: str
    state: str | None
    reason: str | None = None
    nodes: str | None = None

    @property
    def over(self) -> bool:
        """Whether it will not run any more."""
        return self.state is None or self.state in _OVER

    def __str__(self) -> str:
        state = (self.state or "no longer known to Slurm").lower()
        where = f" on {self.nodes}" if self.nodes else ""
        why = f" ({self.reason})" if self.reason and self.state == "PENDING" else ""
        return f"Slurm job {self.job}: {state}{where}{why}"


def is_submitted(run: RunFolder) -> bool:
    """Return whether a batch system has (or had) the run."""
    return run.submission.is_file()


def whereabouts(run: RunFolder) -> QueueState:
    """Ask Slurm about a submitted run. Raises RunFolderError, JobError where Slurm does not answer."""
    job, cluster = _job(run)
    argv = ["squeue", "--noheader", "--all", "--states=all", f"--jobs={job}", "--format=%T|%r|%N", *cluster]
    code, out, err = shell.run(argv, timeout=_PATIENCE)
    if code != 0:
        words = err.decode("utf-8", "replace").strip()
        if "Invalid job id" in words:
            return QueueState(job, None)
        raise JobError(words or f"ended with exit code {code}", where="squeue")
    lines = [line for line in out.decode("utf-8", "replace").splitlines() if "|" in line]
    if not lines:
        return QueueState(job, None)
    state, reason, nodes = lines[-1].strip().split("|")
    return QueueState(job, state, reason if reason != "None" else None, nodes or None)


def cancel(run: RunFolder) -> None:
    """Cancel a run's job in Slurm. Raises JobError."""
    job, cluster = _job(run)
    code, _, err = shell.run(["scancel", *cluster, job], timeout=_PATIENCE)
    if code != 0:
        raise JobError(err.decode("utf-8", "replace").strip() or f"exit code {code}", where=f"scancel {job}")
    write_json(run.submission, {**run.read_json(run.submission), "cancelled": True})


def waits(run: RunFolder) -> bool:
    """Return whether Slurm has yet to start the run, for the first time or again: it has no controller then.
    """
    return is_submitted(run) and run.controller_alive() is False and not whereabouts(run).over


def ended_without_result(run: RunFolder, about: QueueState) -> MusterError:
    """Return the error that says why a job that is over has left no result, as far as can be seen."""
    tail = ""
    if run.batch_output.exists():
        lines = run.batch_output.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        tail = f": {lines[-1]}" if lines else ""
    again = f"; `muster resume {run.word}` inside an allocation goes on" if run.job.exists() else ""
    return JobError(
        f"{about}, and it left no result{tail}",
        where=run.id,
        hint=f"{run.batch_output} has what it printed{again}",
    )


def _job(run: RunFolder) -> tuple[str, list[str]]:
    """Return the job's id, and the arguments that name its cluster."""
    data = run.read_json(run.submission)
    job, cluster = data.get("job"), data.get("cluster")
    if not isinstance(job, str) or not job.isdigit():
        raise RunFolderError(
            "was being submitted when its submitter ended, and no Slurm job has started with it",
            where=run.id,
            hint=f"squeue --name=muster-{run.id} finds one that waits",
        )
    return job, [f"--clusters={cluster}"] if cluster else []
