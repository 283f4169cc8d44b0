"""Pipelines: steps that follow each other. Each is an ordinary run in its own folder; the pipeline's files
are above them."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from muster.core.errors import MusterError, RunFolderError, UsageError, refused
from muster.core.inventory import Inventory, frozen_inventory, inventory_document, read_inventory
from muster.core.job import Job
from muster.core.recipe import Recipe
from muster.core.recipes import dump_yaml, read_yaml
from muster.core.result import Failure, PipelineResult, Result, Seconds, StepResult
from muster.core.state import RunEnd, State
from muster.inputs.entries import models_taken, recipes_of
from muster.inputs.following import in_entry, renamed, resolved, standing_in
from muster.inputs.hub import check_names
from muster.inputs.peaks import read_peaks
from muster.inputs.pipeline import PipelineStep, load_pipeline
from muster.inputs.read import Inputs, absolute, check
from muster.planner.document import Plan
from muster.planner.machines import UserFigures
from muster.planner.plan import plan_hosts, plan_on
from muster.reports.page import report
from muster.reports.pipeline import write_page
from muster.runs.ask import check_model, check_trained
from muster.runs.checkpoints import WantedCheckpoint
from muster.runs.continuing import on_other_hosts, without
from muster.runs.dry_run import dry_run
from muster.runs.recorder import Watcher
from muster.runs.resume import check_idle, resume
from muster.runs.train import ignore, train
from muster.store.atomic import write_json, write_text
from muster.store.runfolder import PipelineFolder, RunFolder
from muster.store.runlock import Claim
from muster.store.values import forget, without_values

Seen = tuple[Watcher, Callable[[Job], None]]  # what hears of a step's events, and of its job
Seeing = Callable[[str], AbstractContextManager[Seen]]  # from a step's title


def unseen(title: str) -> AbstractContextManager[Seen]:
    """Return callbacks that ignore events and jobs."""
    return nullcontext((ignore, ignore))


# ----------------------------------------------------------------------------------------------------
# What a user typed -> steps with their recipes, checked before the first one starts.


@dataclass(frozen=True)
class PipelineInputs:
    """The steps in their order, and each one's recipe, in which `{step}` stands for that step's model,
    wherever it will be. `hosts`: None where only the steps are read."""

    about: str
    steps: tuple[PipelineStep, ...]
    recipes: Mapping[str, Recipe]
    hosts: Inventory | None = None

    @property
    def inventory(self) -> Inventory:
        """The hosts of a pipeline that is to run."""
        assert self.hosts is not None
        return self.hosts

    def before(self, step: PipelineStep) -> list[str]:
        """Return the steps whose models a step takes."""
        taken = {name for _, name in models_taken(self.recipes[step.name])}
        return [name for name in self.recipes if name in taken]

    def checked(self, folder: Path, *, hub: bool = False) -> Iterator[tuple[PipelineStep, Inputs]]:
        """Yield every step's inputs, checked as far as this machine can, with stand-ins for models, below
        `folder`. `hub`: ask it for names as well. Raises UsageError and its subclasses, naming the step."""
        by_name = {step.name: step for step in self.steps}
        for name, recipe in standing_in(self.recipes, folder):
            with in_entry(name, folder):
                if recipe.measure.peaks:
                    read_peaks(recipe.measure.peaks)
                made = check(recipe, self.inventory)
                if made.launcher.ONE_MACHINE:
                    check_names(made.recipe, made.env, hub=hub)
            yield by_name[name], made


def read_steps(file: Path, overrides: Sequence[str] = (), *, frozen: bool = False) -> PipelineInputs:
    """Return the steps of a file. `frozen`: a pipeline's own file, in which all is decided. Raises
    RecipeError."""
    made = load_pipeline(file, frozen=frozen)
    recipes = recipes_of(made.pipeline, overrides, "step", ".:")
    if not frozen:
        recipes = {name: absolute(recipe) for name, recipe in recipes.items()}
    return PipelineInputs(made.about, tuple(made.pipeline), recipes)


def read_pipeline(file: Path, hosts: str, overrides: Sequence[str] = ()) -> PipelineInputs:
    """Return steps and hosts. Raises RecipeError, InventoryError."""
    steps, inventory = read_steps(file, overrides), read_inventory(hosts, waits=True)
    if inventory.ask is not None:
        raise UsageError(
            "a pipeline is not handed to Slurm: its steps would each wait in the queue",
            where=hosts,
            hint="salloc first, or a batch script of your own with `muster train` and --hosts slurm:",
        )
    return replace(steps, hosts=inventory)


def dry_run_of(inputs: PipelineInputs, folder: PipelineFolder) -> list[dict[str, Any]]:
    """Return what each step would do, as `dry_run` describes it; models of earlier steps do not exist yet."""
    steps, later = [], str(folder.path).replace("{", "{{").replace("}", "}}") + "/{}/model"
    with tempfile.TemporaryDirectory(prefix="muster-") as stand:
        for step, made in inputs.checked(Path(stand)):
            with in_entry(step.name, Path(stand)):
                one = dry_run(made, folder.step(step.name))
            taken = inputs.before(step)
            why = [f"the model of {name}, which is not trained yet: its shape alone" for name in taken]
            one = {**one, "assumed": [*why, *one["assumed"]]}
            steps.append({"step": step.name, "after": step.after, **renamed(one, Path(stand), later)})
    return steps


def plan_steps(
    file: Path,
    hosts: str,
    on: str,
    overrides: Sequence[str],
    figures: UserFigures,
    *,
    traced: bool = True,
    say: Callable[[str], None] | None = None,
) -> dict[str, Plan]:
    """Plan each step that trains: on `hosts`, or on machines that are described (`on`)."""
    plans: dict[str, Plan | None] = {}
    with tempfile.TemporaryDirectory(prefix="muster-") as stand:
        if on:
            for name, recipe in standing_in(read_steps(file, overrides).recipes, Path(stand)):
                with in_entry(name, Path(stand)):
                    if recipe.trains:
                        plans[name] = plan_on(recipe, on, figures, traced=traced, say=say).plan
        else:
            for step, inputs in read_pipeline(file, hosts, overrides).checked(Path(stand)):
                with in_entry(step.name, Path(stand)):
                    if inputs.recipe.trains:
                        plans[step.name] = plan_hosts(inputs, figures, traced=traced, say=say).plan
    documents = {name: plan.model_dump(mode="json") for name, plan in plans.items() if plan is not None}
    named = renamed(documents, Path(stand), "{{{}}}")
    return {name: Plan.model_validate(plan) for name, plan in named.items()}


# ----------------------------------------------------------------------------------------------------
# The loop over the steps.


def run_pipeline(
    inputs: PipelineInputs, folder: PipelineFolder, *, seeing: Seeing = unseen
) -> PipelineResult:
    """Run all steps, or until one does not end well. The result is also in the folder.

    Raises UsageError where the first step cannot start; no folder is left behind then.
    """
    with tempfile.TemporaryDirectory(prefix="muster-") as stand:
        for _ in inputs.checked(Path(stand), hub=True):
            pass
    folder.create()
    try:
        _freeze(inputs, folder)
        with folder.claim() as claim:
            return _Steps(inputs, folder, seeing).run(claim)
    finally:
        if not _begun(folder):
            shutil.rmtree(folder.path, ignore_errors=True)


def resume_pipeline(
    folder: PipelineFolder,
    *,
    hosts: str | None = None,
    leave: Sequence[str] = (),
    copy: bool = False,
    seeing: Seeing = unseen,
) -> PipelineResult:
    """Continue: finished steps are kept, the interrupted one continues from its checkpoint, or from its first
    step where there is none; the others follow. `hosts`, `leave`, `copy`: as of `resume`. Raises
    RunFolderError where that is not possible."""
    before = folder.read_result()
    if folder.state().good:
        step = folder.steps[-1]
        raise RunFolderError(
            "has finished: there is nothing to resume",
            where=folder.id,
            hint=f"`muster resume {step.word} --step N` goes back to a checkpoint of that step",
        )
    check_idle(folder)
    with folder.claim() as claim:
        inputs = _reread(folder, hosts, leave)
        _freeze(inputs, folder)
        if before is not None:
            folder.result.replace(folder.path / f"result.attempt{before.attempt}.json")
        again = partial(resume, wanted=WantedCheckpoint(copy=copy), hosts=hosts, leave=leave)
        return _Steps(inputs, folder, seeing, again).run(claim)


@dataclass(frozen=True)
class _Steps:
    """The steps of a running pipeline. `again` continues one; None: it runs for the first time."""

    inputs: PipelineInputs
    folder: PipelineFolder
    seeing: Seeing
    again: Callable[..., Result] | None = None

    def run(self, claim: Claim) -> PipelineResult:
        """Run the steps that have not ended well, one after the other, and write the pipeline's result."""
        folder, steps, failure = self.folder, self.inputs.steps, None
        folder.stop_request.unlink(missing_ok=True)
        status: RunEnd = State.SUCCEEDED
        for number, step in enumerate(steps, 1):
            run = folder.step(step.name)
            if run.state().good:
                continue
            claim.touch()
            status, failure = self._ended(step, f"step {number} of {len(steps)}: {step.name}")
            if not status.good:
                failure = _of_step(failure, folder, run)
                break
        result = _fold(self.inputs, folder, status, failure)
        with refused(RunFolderError, "written", folder.result):
            write_json(folder.result, result.model_dump(mode="json"))
        with suppress(OSError, MusterError):
            write_page(folder)
        folder.stop_request.unlink(missing_ok=True)
        if status.good:  # nothing is left to resume
            for each in read_yaml(folder.pipeline)["pipeline"]:
                forget(each["recipe"].get("env_kept"))
        return result

    def _ended(self, step: PipelineStep, title: str) -> tuple[RunEnd, Failure | None]:
        """Return how a step ended, whatever happened. Raises where nothing of the pipeline has begun."""
        if self.folder.stop_request.exists():
            return State.STOPPED, Failure(what="stopped by `muster stop` before this step")
        try:
            with self.seeing(title) as (watch, announce):
                result = self._train(step, watch, announce)
            with suppress(OSError, MusterError):
                report(self.folder.step(step.name))
            return result.status, result.failure
        except (MusterError, KeyboardInterrupt) as error:
            if not _begun(self.folder):
                raise
            if isinstance(error, KeyboardInterrupt):
                return State.STOPPED, Failure(what="stopped by Ctrl-C")
            usage = isinstance(error, UsageError)
            return State.FAILED, Failure.model_validate({**error.as_dict(), "usage": usage})

    def _train(self, step: PipelineStep, watch: Watcher, announce: Callable[[Job], None]) -> Result:
        """Run a step, or continue it."""
        run, recipe = self.folder.step(step.name), self.inputs.recipes[step.name]
        models = {}
        for name in self.inputs.before(step):
            source = self.folder.step(name)
            check_trained(source)
            if self.again is not None:  # it may have lain there for long
                check_model(source)
            models[name] = str(source.model)
        if run.job.exists():
            return (self.again or resume)(run, watch=watch, announce=announce)
        if run.path.exists():  # broken off before anything was launched
            shutil.rmtree(run.path)
        made = check(resolved(recipe, models, step.name), self.inputs.inventory)
        return train(made, run, watch=watch, announce=announce)


def _begun(folder: PipelineFolder) -> bool:
    """Return whether any step has begun."""
    return any(folder.path.glob("*/job.json"))


def _of_step(failure: Failure | None, folder: PipelineFolder, run: RunFolder) -> Failure:
    """Return a step's failure as the pipeline's, with the command that continues all steps."""
    failure = failure or Failure(what="ended without a reason")
    where = f"step {run.path.name}" + (f": {failure.where}" if failure.where else "")
    go_on = f"`muster resume {folder.word}"
    hint = (failure.hint or "").replace(f"`muster resume {run.word}`", f"{go_on}`")
    if go_on not in hint:
        hint = "; ".join(part for part in (hint, f"{go_on}` goes on with this step") if part)
    return failure.model_copy(update={"where": where, "hint": hint})


def so_far(folder: PipelineFolder) -> PipelineResult:
    """Return the results of an unfinished pipeline's steps. Its status means nothing: `state` counts. Raises
    RunFolderError and RecipeError."""
    return _fold(read_steps(folder.pipeline, frozen=True), folder, State.STOPPED, None)


def _fold(
    inputs: PipelineInputs, folder: PipelineFolder, status: RunEnd, failure: Failure | None
) -> PipelineResult:
    """Return the pipeline's result from its steps."""
    results_of_steps: list[StepResult] = []
    notes: list[str] = []
    results = {step.name: folder.step(step.name).read_result() for step in inputs.steps}
    for step in inputs.steps:
        run, result = folder.step(step.name), results[step.name]
        state = run.state() if run.job.exists() else State.NOT_BEGUN
        results_of_steps.append(
            StepResult(name=step.name, after=step.after, run=str(run.path), status=state, result=result)
        )
        anew = result and result.attempt > 1 and run.read_json(run.job).get("resume_step") is None
        for name in inputs.before(step):
            source = results[name]
            if result and source and source.ended > (result.ended if anew else result.started):
                notes.append(f"{step.name} started from an earlier model of {name}, which was trained again")
    ended = [result for result in results.values() if result]
    return PipelineResult(
        id=folder.id,
        status=status,
        failure=failure,
        attempt=1 + len(list(folder.path.glob("result.attempt*.json"))),
        started=min((result.started for result in ended), default=time.time()),
        ended=time.time(),
        seconds=Seconds(total=sum(result.seconds.total for result in ended)),
        pipeline=results_of_steps,
        notes=notes,
    )


# ----------------------------------------------------------------------------------------------------
# What a pipeline that goes on reads: steps and hosts as they were decided.


def _freeze(inputs: PipelineInputs, folder: PipelineFolder) -> None:
    steps = []
    for step in inputs.steps:
        recipe = inputs.recipes[step.name].as_dict()
        # `set` has the model also where it is not that of the step before.
        frozen = {"recipe": without_values(recipe), "set": {"model": recipe["model"]}}
        steps.append({"name": step.name, "after": step.after, **frozen})
    inventory = inputs.inventory
    hosts = inventory_document(inventory.hosts, inventory.launcher)
    with refused(RunFolderError, "written", folder.path):
        write_json(folder.hosts, {**hosts, "source": inventory.source})
        write_text(folder.pipeline, dump_yaml({"about": inputs.about, "pipeline": steps}))


def _reread(folder: PipelineFolder, hosts: str | None, leave: Sequence[str]) -> PipelineInputs:
    steps = read_steps(folder.pipeline, frozen=True)
    before = frozen_inventory(folder.read_json(folder.hosts), str(folder.hosts))
    if not hosts and not leave:
        return replace(steps, hosts=before)
    inventory = without(read_inventory(hosts) if hosts else before, leave)
    recipes = {name: on_other_hosts(recipe, before, inventory) for name, recipe in steps.recipes.items()}
    return replace(steps, recipes=recipes, hosts=inventory)
