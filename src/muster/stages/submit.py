"""Submit: a job for nodes that Slurm has yet to give, and the way back to it after this process went away."""

from __future__ import annotations

import secrets
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from muster.core.errors import InventoryError, JobError, MusterError, RunFolderError
from muster.core.recipes import dump_yaml
from muster.core.slurm import SlurmAsk
from muster.launchers.slurm import Batch, batch_script
from muster.shell import RealShell, Shell
from muster.stages.prepare import Prepared
from muster.store.atomic import write_json, write_text
from muster.store.runfolder import RunFolder

_PATIENCE = 60.0  # seconds for an answer of Slurm's controller
# States of a job that is over (squeue(1), JOB STATE CODES); SPECIAL_EXIT and REQUEUED ones come back.
_OVER = {
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED",
    "REVOKED", "TIMEOUT",
}  # fmt: skip


@dataclass(frozen=True)
class Whereabouts:
    """What Slurm says of a job. `state` None: it does not know the job (any more)."""

    job: str
    state: str | None
    reason: str | None = None
    nodes: str | None = None

    @property
    def over(self) -> bool:
        """It will not run any more."""
        return self.state is None or self.state in _OVER


def script(prepared: Prepared, run: RunFolder, ticket: str) -> str:
    """The batch script of a run. Pure but for this process's interpreter and folder. Raises
    InventoryError."""
    ask = prepared.inventory.ask
    assert ask is not None
    if ask.nodes is None:
        example = SlurmAsk(ask.partition, 2, ask.slots)
        raise InventoryError(
            "is not inside an allocation, and does not say how many nodes it wants",
            where=prepared.inventory.source,
            hint=f"such as {example}, or salloc first",
        )
    batch = Batch(
        python=sys.executable,
        recipe=str(run.submitted_recipe),
        run=str(run.path),
        output=str(run.batch_output),
        folder=str(Path.cwd()),
        name=run.id,
        ticket=ticket,
    )
    return batch_script(ask, prepared.recipe.launch, batch)


def submit(prepared: Prepared, run: RunFolder, shell: Shell | None = None) -> str:
    """Hand the run to Slurm -> its job id. A refusal leaves no folder behind.

    Raises RunFolderError, InventoryError, and JobError with what sbatch said.
    """
    shell = shell or RealShell()
    ticket = secrets.token_hex(8)
    text = script(prepared, run, ticket)
    try:
        run.path.mkdir(parents=True)
    except OSError:
        run.create()  # raises, in words
    try:
        recipe = prepared.recipe.as_dict()
        write_text(run.submitted_recipe, dump_yaml(recipe), private=bool(prepared.recipe.env))
        write_text(run.batch_script, text)
        write_json(run.submission, {"scheduler": "slurm", "ticket": ticket, "job": None})
        argv = ["sbatch", "--parsable", *prepared.recipe.launch.options, str(run.batch_script)]
        code, out, err = shell.run(argv, timeout=_PATIENCE)
        job = out.decode("utf-8", "replace").strip().partition(";")[0]
        if code != 0 or not job.isdigit():
            words = err.decode("utf-8", "replace").strip().splitlines() or [f"sbatch ended with code {code}"]
            raise JobError(words[-1], where="sbatch", hint=f"sinfo shows what there is; asked: {_text(argv)}")
    except BaseException:
        shutil.rmtree(run.path, ignore_errors=True)
        raise
    write_json(run.submission, {"scheduler": "slurm", "ticket": ticket, "job": job})
    return job


def _text(argv: list[str]) -> str:
    """A command as one line for people."""
    return " ".join(argv[:-1])


def is_submitted(run: RunFolder) -> bool:
    """Whether a batch system has (or had) the run."""
    return run.submission.is_file()


def whereabouts(run: RunFolder, shell: Shell | None = None) -> Whereabouts:
    """Ask Slurm about a submitted run. Raises RunFolderError, JobError where Slurm does not answer."""
    job = _job_id(run)
    argv = ["squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T|%r|%N"]
    code, out, err = (shell or RealShell()).run(argv, timeout=_PATIENCE)
    if code != 0:
        words = err.decode("utf-8", "replace").strip()
        if "Invalid job id" in words:
            return Whereabouts(job, None)
        raise JobError(words or f"ended with exit code {code}", where="squeue")
    lines = out.decode("utf-8", "replace").strip().splitlines()
    if not lines:
        return Whereabouts(job, None)
    state, reason, nodes = [*lines[0].split("|"), "", ""][:3]
    return Whereabouts(job, state, reason if reason != "None" else None, nodes or None)


def cancel(run: RunFolder, shell: Shell | None = None) -> None:
    """Take a run that has not begun out of Slurm's hands. Raises JobError."""
    job = _job_id(run)
    code, _, err = (shell or RealShell()).run(["scancel", job], timeout=_PATIENCE)
    if code != 0:
        raise JobError(err.decode("utf-8", "replace").strip() or f"exit code {code}", where=f"scancel {job}")
    write_json(run.submission, {**run.read_json(run.submission), "cancelled": True})


def ended_without_result(run: RunFolder, about: Whereabouts) -> MusterError:
    """Why a job that is over has left no result, as far as can be told."""
    tail = ""
    if run.batch_output.exists():
        lines = run.batch_output.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        tail = f": {lines[-1]}" if lines else ""
    state = about.state or "not known to Slurm any more"
    return JobError(
        f"Slurm job {about.job} is over ({state}) and left no result{tail}",
        where=run.id,
        hint=f"{run.batch_output} has what it printed; `muster resume {run.id}` inside an allocation goes on",
    )


def _job_id(run: RunFolder) -> str:
    try:
        job = run.read_json(run.submission)["job"]
    except KeyError:
        job = None
    if not isinstance(job, str) or not job.isdigit():
        raise RunFolderError(
            "was being submitted when its submitter ended: no Slurm job is known", where=run.id
        )
    return job
