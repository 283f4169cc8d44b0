"""List, show and stop runs."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from muster.core.errors import MusterError, RunFolderError
from muster.core.state import State
from muster.store.runfolder import PipelineFolder, RunFolder

if TYPE_CHECKING:
    from muster.core.result import Result


@dataclass(frozen=True)
class ShownRun:
    """A run as `muster show` presents it: its result, or its progress."""

    state: State
    result: Result | None
    step: int
    total_steps: int | None
    loss: float | None
    job: dict[str, Any]
    damage: str | None = None  # a file that cannot be read


def metrics(run: RunFolder) -> str:
    """Return what the training has measured so far, step by step, as CSV. Raises RunFolderError where nothing
    trains."""
    from muster.core.recipe import recipe_class
    from muster.results.fold import fold
    from muster.results.metrics import metrics_csv
    from muster.store import events

    job = run.read_json(run.job) if run.job.exists() else {}
    if not recipe_class((job.get("recipe") or {}).get("workload")).trains:
        hint = f"its tables are CSV files in {run.fabric}" if run.fabric.is_dir() else None
        raise RunFolderError("trains nothing: there is no metric by step", where=run.id, hint=hint)
    return metrics_csv(fold(events.read_events(run.events)), job.get("world_size"))


def show(run: RunFolder) -> ShownRun:
    """Return the present state of a run."""
    damage, result, job = None, None, {}
    try:
        state = run.state()
        job = run.read_json(run.job) if run.job.exists() else {}
        result = run.read_result()
    except RunFolderError as error:
        state, damage = State.DAMAGED, str(error)
    if result is not None:  # the events, which take long to read, say no more
        return ShownRun(state, result, result.steps, _total_steps(run), result.loss_final, job)
    from muster.results.fold import fold
    from muster.store import events

    folder = fold(events.read_events(run.events))
    started = next(iter(folder.started.values()), None)
    logs = [folder.logs[step] for step in sorted(folder.logs)]
    return ShownRun(
        state=state,
        result=None,
        step=max([*folder.windows, folder.progress.step if folder.progress else 0]),
        total_steps=started.total_steps if started else None,
        loss=logs[-1].loss if logs else None,
        job=job,
        damage=damage,
    )


def _total_steps(run: RunFolder) -> int | None:
    """Return the optimizer steps of the whole run, as its first rank reported at its start."""
    try:
        with run.events.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if '"started"' in line and (event := json.loads(line)).get("kind") == "started":
                    return int(event["total_steps"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        pass  # there are none, or the file is damaged
    return None


def stop(run: RunFolder | PipelineFolder, *, patience: float = 30) -> State | None:
    """Ask the run's controller to stop the job on all hosts, and wait for the result for at most `patience`
    seconds. Return how it ended; None: it has not, and the request stands.

    A run that waits for Slurm is cancelled. Raises RunFolderError, and JobError where Slurm does not answer.
    """
    from muster.runs.slurm_queue import cancel, waits

    state = run.state()
    if isinstance(run, RunFolder) and not state.good and waits(run):
        cancel(run)
        return State.CANCELLED
    if not state.supervised:
        raise RunFolderError(f"is not running: it is {state}", where=run.id)
    run.stop_request.touch()
    limit = time.monotonic() + patience
    while time.monotonic() < limit:
        result = run.read_result()
        if result is not None:
            return result.status
        if run.controller_alive() is False:
            raise RunFolderError(
                "its controller is gone, so the agents have ended the ranks",
                where=run.id,
                hint=f"`muster resume {run.word}`",
            )
        time.sleep(0.2)
    return None


def queued(run: RunFolder) -> str | None:
    """Return Slurm's state of a run that has not begun; None: no batch system has it, or it has begun."""
    if run.state() is not State.SUBMITTED:
        return None
    from muster.runs.slurm_queue import whereabouts

    try:
        return str(whereabouts(run))
    except MusterError as error:
        return str(error)
