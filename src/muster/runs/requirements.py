"""Check what must be there before a job starts: packages, room on disks, a shared folder, ranks to profile.
"""

from __future__ import annotations

from muster.core.checkpoints import bytes_needed
from muster.core.errors import RecipeError, UsageError
from muster.core.job import Facts
from muster.core.recipe import Recipe
from muster.core.units import format_bytes
from muster.engines.base import spec_of
from muster.inputs.model import parameters
from muster.planner.orders import TRACKERS
from muster.store.runfolder import RunFolder

NEEDED = ("torch", "transformers", "accelerate", "pydantic")
PROFILER = "deepspeed"  # has the one of measure.profile=flops


def needed(recipe: Recipe) -> list[str]:
    """Return the packages that the recipe's ranks import."""
    if not recipe.trains:
        return [*recipe.imported, *recipe.offered_by]
    more = [PROFILER] if recipe.measure.profile == "flops" else []
    more += [*spec_of(recipe.engine.name).packages, *recipe.packages, *recipe.extras, *recipe.offered_by]
    return list(dict.fromkeys([*NEEDED, *more]))


def check_hosts(facts: Facts, recipe: Recipe) -> None:
    """Check that every host has what ranks import, in the same versions. Raises UsageError naming the host.
    """
    wanted = needed(recipe)
    for host, about in facts.items():
        missing = [name for name in wanted if not about["versions"].get(name)]
        if missing:
            raise UsageError(
                f"{', '.join(missing)} not installed for {about['python']}",
                host=host,
                hint=f"pip install {' '.join(missing)} there, or `muster prepare` installs all of it; or "
                "launch.python=PATH of one that has it",
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
    own = spec_of(recipe.engine.name).extras(recipe) if recipe.trains else ()
    host, about = next(iter(facts.items()))
    missing = [name for name in own if not about["versions"].get(name)]
    if missing:
        raise UsageError(
            f"{', '.join(missing)} not installed for {about['python']}, and the {recipe.engine.name} "
            "configuration reports to it",
            host=host,
            hint=f"pip install {' '.join(missing)} there, or leave that section out",
            failure="remote_module_missing",
        )
    for name in wanted:
        values = {about["versions"][name] for about in facts.values()}
        if len(values) > 1:
            held = ", ".join(f"{host}: {about['versions'][name]}" for host, about in facts.items())
            raise UsageError(
                f"hosts have different versions of {name} ({held})", hint="install one version everywhere"
            )


def check_sharing(recipe: Recipe, run: RunFolder, facts: Facts) -> None:
    """Raise UsageError where hosts would lack checkpoints that the first one writes alone, or the models of a
    pipeline's earlier steps."""
    apart = [host for host, about in facts.items() if not about["shared"]]
    if apart and run.of_pipeline:
        raise UsageError(
            "does not see the run folder, where a pipeline's steps find each other's models",
            host=apart[0],
            hint="an --output that all hosts share",
        )
    engine = spec_of(recipe.engine.name)
    if engine.one_disk and recipe.checkpoint.every and apart and len(facts) > 1:
        raise UsageError(
            "does not see the run folder, and the first host alone writes checkpoints",
            host=apart[0],
            hint="an --output that all hosts share, engine.name=deepspeed, or checkpoint.every=null",
        )


def check_profile(recipe: Recipe, world_size: int) -> None:
    """Check that the ranks to be profiled exist. Raises RecipeError."""
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


def check_disk(recipe: Recipe, facts: Facts) -> None:
    """Raise UsageError where checkpoints and the model cannot fit on a host's disk."""
    count = parameters(recipe)
    if count is None or recipe.force:
        return
    for host, about in facts.items():
        need = disk_needed(count, recipe, present=len(about.get("checkpoints") or []))
        free = about.get("disk_free")
        if free is not None and free < need:
            raise UsageError(
                f"{format_bytes(free)} free where the run is kept, and checkpoints and model need about "
                f"{format_bytes(need)}",
                host=host,
                where=str(about.get("base")),
                hint="make room, lower checkpoint.keep, save less often, or choose another --output or "
                "launch.workdir",
            )


def disk_needed(count: int, recipe: Recipe, *, present: int = 0) -> int:
    """Return the bytes for the model and the checkpoints that exist at once, less those that are there
    already."""
    kept, steps = recipe.checkpoint, recipe.train.max_steps
    return bytes_needed(count, kept.every, kept.keep, steps, present=present, model=kept.model)
