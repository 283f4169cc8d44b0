"""Resume: continue a run from the newest checkpoint that is complete on every host."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from muster.core.errors import RunFolderError
from muster.core.inventory import frozen_inventory, read_inventory
from muster.core.job import Job
from muster.core.recipe import Recipe
from muster.core.recipes import read_yaml, validate
from muster.core.result import Result
from muster.core.state import State
from muster.engines.base import spec_of
from muster.inputs.read import Inputs, check
from muster.results.fold import fold
from muster.runs.checkpoints import WantedCheckpoint
from muster.runs.continuing import on_other_hosts, without
from muster.runs.recorder import Watcher
from muster.runs.train import Attempt, ignore, train
from muster.store import events
from muster.store.runfolder import JobFolder, RunFolder


def resume(
    run: RunFolder,
    *,
    wanted: WantedCheckpoint | None = None,
    hosts: str | None = None,
    leave: Sequence[str] = (),
    watch: Watcher = ignore,
    announce: Callable[[Job], None] = ignore,
) -> Result:
    """Continue with the frozen recipe, on the same hosts or on `hosts`, except those to `leave` out. Raises
    RunFolderError where that is not possible.

    A checkpoint that ranks fail to load is passed over for the one before, unless its step was asked for.
    """
    wanted = wanted or WantedCheckpoint()
    run.read_result()  # raises, where it is damaged
    if run.state().good and wanted.step is None:
        raise RunFolderError(
            "has finished: there is nothing to resume",
            where=run.id,
            hint="--step N goes back to the checkpoint of that step",
        )
    if not run.job.exists():
        raise RunFolderError("has not started: there is nothing to resume", where=run.id)
    own = os.environ.get("SLURM_JOB_ID")
    check_idle(run, own)
    avoid = dict(wanted.avoid)
    inputs = None
    while True:
        with run.claim(own) as claim:  # before any host is asked: two resumes at once must not both start
            job = run.read_json(run.job)
            inputs = inputs or _inputs(run, job, hosts, leave)
            attempt = Attempt(int(job["attempt"]) + 1, replace(wanted, avoid=avoid))
            result = train(inputs, run, attempt=attempt, claim=claim, watch=watch, announce=announce)
        failed = []
        if result.status is State.FAILED and wanted.step is None:
            failed = fold(events.read_events(run.events)).failed
        bad = next((each.checkpoint for each in failed if each.checkpoint), None)
        if bad is None or bad in avoid:
            return result
        avoid[bad] = result.failure.what if result.failure else "it could not be loaded"


def check_idle(folder: JobFolder, batch_job: str | None = None) -> None:
    """Raise RunFolderError where a process controls the run, other than an earlier start of this batch job.
    """
    state = folder.state()
    controller = folder.read_json(folder.controller) if state.supervised else {}
    # Slurm starts a job again only when its first start is over: what looks alive on a dead node is not.
    again = state is State.ELSEWHERE and batch_job is not None and controller.get("batch_job") == batch_job
    if controller and not again:
        raise RunFolderError(
            f"is being run by process {controller.get('pid')} on {controller.get('machine')}",
            where=folder.id,
            hint=f"`muster stop {folder.word}` first",
        )


def _inputs(run: RunFolder, job: dict[str, Any], hosts: str | None, leave: Sequence[str]) -> Inputs:
    check_whole(run, job)
    recipe, inventory = frozen_recipe(run), frozen_inventory(job["inventory"], str(run.job))
    if hosts or leave:
        before, inventory = inventory, without(read_inventory(hosts) if hosts else inventory, leave)
        recipe = on_other_hosts(recipe, before, inventory)
    if recipe.engine.options and not spec_of(recipe.engine.name).stages:  # which earlier versions passed over
        engine = recipe.engine.model_copy(update={"options": {}})
        recipe = recipe.model_copy(update={"engine": engine})
    return check(recipe, inventory)


def frozen_recipe(run: RunFolder) -> Recipe:
    """Return the recipe of a run as it was resolved."""
    return validate(read_yaml(run.recipe), where=str(run.recipe))


def check_whole(run: RunFolder, job: Mapping[str, Any]) -> None:
    """Raise RunFolderError where the recipe lacks a setting of the job: the default would be taken for it."""
    missing = _missing(job.get("recipe") or {}, read_yaml(run.recipe))
    if missing:
        raise RunFolderError(
            f"is damaged: it has no {missing}, which the run was started with",
            where=str(run.recipe),
            hint=f"restore the file; {run.job} has the same settings under `recipe`",
        )


def _missing(whole: Mapping[str, Any], there: Any) -> str | None:
    """Return the first key, dotted, that a part lacks; None: it has all."""
    for key, value in whole.items():
        if not isinstance(there, Mapping) or key not in there:
            return key
        below = _missing(value, there[key]) if isinstance(value, Mapping) else None
        if below:
            return f"{key}.{below}"
    return None
