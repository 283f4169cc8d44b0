"""Agree: what the hosts are decides everything that a recipe left open, before anything starts."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from muster.core.errors import RecipeError, UsageError
from muster.core.job import Facts, Job
from muster.core.recipe import Recipe
from muster.engines.base import spec_of
from muster.inputs.peaks import peaks_of
from muster.inputs.read import Inputs
from muster.planner.decide import Decided, check_disk
from muster.planner.document import Plan
from muster.planner.hosts import Chosen
from muster.planner.orders import TRACKERS, job_of, orders, rendezvous_address
from muster.planner.plan import plan_first
from muster.runs.checkpoints import Start, WantedCheckpoint
from muster.runs.continuing import continued
from muster.store.runfolder import RunFolder

NEEDED = ("torch", "transformers", "accelerate", "pydantic")
PROFILER = "deepspeed"  # has the one of measure.profile=flops


@dataclass(frozen=True)
class Attempt:
    """A run's first try, or one that goes on from a checkpoint."""

    number: int = 1
    resume: bool = False
    wanted: WantedCheckpoint = field(default_factory=WantedCheckpoint)


@dataclass(frozen=True)
class Ready:
    """A job that hosts have agreed to."""

    job: Job
    decided: Decided
    orders: dict[str, dict[str, Any]]
    plan: Plan | None  # None: nothing is trained


def agree(
    inputs: Inputs,
    run: RunFolder,
    facts: Facts,
    attempt: Attempt,
    chosen: Chosen | None = None,
    start: Start | None = None,
) -> Ready:
    """Decide everything that was open, from what the hosts are. `chosen`: these, of more that were given;
    `start`: where it goes on. Raises UsageError."""
    start = start or Start()
    recipe = inputs.recipe
    check_hosts(facts, recipe)
    decided, plan = plan_first(inputs, facts, chosen)
    check_disk(recipe, facts)
    check_sharing(recipe, facts)
    check_profile(recipe, sum(decided.slots))
    job = job_of(run.id, inputs, decided)
    threads = decided.threads if decided.device == "cpu" else None
    peaks, unmeasured = peaks_of(recipe.measure.peaks, job.placements, facts, threads)
    job = replace(
        job,
        attempt=attempt.number,
        resume_step=start.step,
        decisions=(*job.decisions, *unmeasured, *start.said),
        peaks=peaks,
    )
    if start.step is not None:
        job = continued(run, job)
    first = job.placements[0]
    address = recipe.launch.address or rendezvous_address(inputs, facts[first.host], first)
    port = int(facts[first.host]["port"])
    told = orders(job, decided.recipe, decided, inputs.env, facts, address=address, port=port)
    return Ready(job, decided, told, plan)


def needed(recipe: Recipe) -> list[str]:
    """The packages that the recipe's ranks import."""
    if not recipe.trains:
        return ["torch", "pydantic"]
    profiler = [PROFILER] if recipe.measure.profile == "flops" else []
    return list(dict.fromkeys([*NEEDED, *spec_of(recipe.engine.name).packages, *profiler]))


def check_hosts(facts: Facts, recipe: Recipe) -> None:
    """Every host has what ranks import, in the same versions. Raises UsageError naming the host."""
    wanted = needed(recipe)
    for host, about in facts.items():
        missing = [name for name in wanted if not about["versions"].get(name)]
        if missing:
            raise UsageError(
                f"{', '.join(missing)} not installed for {about['python']}",
                host=host,
                hint="pip install 'passmuster[train]' there, or launch.python=PATH of one that has it",
                failure="remote_module_missing",
            )
        for tracker in recipe.measure.report_to:
            if not any(about["versions"].get(name) for name in TRACKERS[tracker]):
                raise UsageError(
                    f"{tracker} is not installed for {about['python']}",
                    host=host,
                    where="measure.report_to",
                    hint=f"pip install {TRACKERS[tracker][0]} there, or leave it out",
                    failure="remote_module_missing",
                )
    for name in wanted:
        values = {about["versions"][name] for about in facts.values()}
        if len(values) > 1:
            held = ", ".join(f"{host}: {about['versions'][name]}" for host, about in facts.items())
            raise UsageError(
                f"hosts have different versions of {name} ({held})", hint="install one version everywhere"
            )


def check_sharing(recipe: Recipe, facts: Facts) -> None:
    """Raises UsageError where hosts would lack checkpoints that the first one writes alone."""
    apart = [host for host, about in facts.items() if not about["shared"]]
    engine = spec_of(recipe.engine.name)
    if engine.one_disk and recipe.checkpoint.every and apart and len(facts) > 1:
        raise UsageError(
            "does not see the run folder, and the first host alone writes checkpoints",
            host=apart[0],
            hint="an --output that all hosts share, engine.name=deepspeed, or checkpoint.every=null",
        )


def check_profile(recipe: Recipe, world_size: int) -> None:
    """What is to be profiled is there. Raises RecipeError."""
    measure, last = recipe.measure, recipe.train.max_steps
    if not measure.profiled or not recipe.trains:
        return
    missing = [rank for rank in measure.profile_ranks if rank >= world_size]
    if missing or not measure.profile_ranks:
        raise RecipeError(
            f"there is no rank {missing[0]}" if missing else "no rank is to be profiled",
            where="measure.profile_ranks",
            hint=f"ranks are 0 to {world_size - 1}",
        )
    if last is not None and measure.profiled.start > last:
        raise RecipeError(
            f"the run has {last} steps, so step {measure.profiled.start} is never reached",
            where="measure.profile_step",
            hint=f"at most {last}, or more train.max_steps",
        )
