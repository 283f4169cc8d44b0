"""A run continues as the job that it was started as: the same global batch, on whatever ranks there are now.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from muster.core.batch import Batch
from muster.core.errors import InventoryError, UsageError
from muster.core.inventory import Inventory
from muster.core.job import Decision, Facts, Job, place, read_job
from muster.core.recipe import BatchSpec, Recipe
from muster.engines.base import merged, spec_of
from muster.inputs.read import Inputs
from muster.planner.placing import device_and_slots
from muster.store.runfolder import RunFolder


def without(inventory: Inventory, hosts: Sequence[str]) -> Inventory:
    """Return the inventory without these hosts. Raises InventoryError for a host that is not in it, or where
    none is left."""
    names = inventory.names
    for host in hosts:
        if host not in names:
            raise InventoryError(f"is none of the run's hosts ({', '.join(names)})", host=host)
    left = tuple(host for host in inventory.hosts if host.label not in hosts)
    if not left:
        raise InventoryError("no host is left", where="--without", hint="--hosts HOSTS gives others")
    return replace(inventory, hosts=left)


def on_other_hosts(recipe: Recipe, before: Inventory, inventory: Inventory) -> Recipe:
    """Return the recipe without what concerns the hosts that the run had: their number, the first one's
    address where another is first now, and the launcher where the new hosts are reached in another way."""
    update: dict[str, Any] = {"hosts": None}
    if before.names[:1] != inventory.names[:1]:
        update["address"] = None
    if before.launcher != inventory.launcher:
        update["launcher"] = "auto"
    return recipe.model_copy(update={"launch": recipe.launch.model_copy(update=update)})


def same_batch(run: RunFolder, inputs: Inputs, facts: Facts) -> Inputs:
    """Return the inputs with the run's original global batch, divided among the present ranks. Raises
    UsageError where these ranks cannot read its checkpoints."""
    before = read_job(run.read_json(run.job))
    if before is None or not inputs.recipe.trains:
        return inputs
    recipe, inventory = inputs.recipe, inputs.inventory
    device, slots = device_and_slots(recipe, inventory, facts, inputs.launcher.ONE_MACHINE, [])
    ranks = sum(slots)
    refusal = _refusal(before, inputs, slots, facts)
    if refusal:
        raise UsageError(refusal[0], where=run.id, hint=refusal[1])
    batch = before.batch if ranks == before.world_size else divided(before.batch, ranks, run.id)
    given: dict[str, Any] = {"global": batch.global_, "tokens": None, "split": recipe.batch.split}
    # Where memory decided the micro-batch, it does so again: a rank may hold more of the model now.
    if ranks == before.world_size or device == "cpu" or recipe.batch.micro is not None:
        given |= {"micro": batch.micro, "accumulation": batch.accumulation}
    spec = BatchSpec.model_validate(given)
    return replace(inputs, recipe=merged(recipe.model_copy(update={"batch": spec})))


def divided(batch: Batch, ranks: int, run: str) -> Batch:
    """Return the same global batch on so many ranks, with the largest micro-batch up to the one before."""
    share, rest = divmod(batch.global_, ranks)
    if rest:
        fits = [number for number in range(1, 2 * ranks + 1) if batch.global_ % number == 0]
        near = ", ".join(map(str, sorted(sorted(fits, key=lambda n: abs(n - ranks))[:4])))
        raise UsageError(
            f"has a global batch of {batch.global_}, which cannot be divided among {ranks} ranks",
            where=run,
            hint=f"hosts and slots (node1:4,node2:4) that make another number of ranks, such as {near}",
        )
    micro = next(size for size in range(batch.micro, 0, -1) if share % size == 0)
    return Batch(micro, share // micro, batch.global_)


def _refusal(before: Job, inputs: Inputs, slots: Sequence[int], facts: Facts) -> tuple[str, str] | None:
    """Return why these ranks cannot read the job's checkpoints, and a hint."""
    ranks, recipe = sum(slots), inputs.recipe
    if isinstance(recipe.batch.split, list) and len(recipe.batch.split) != ranks:
        words = f"batch.split has shares for {len(recipe.batch.split)} ranks, and there are {ranks} now"
        return words, "as many slots as before"
    places = place(list(zip(inputs.inventory.hosts, slots, strict=True)))
    refusal = spec_of(recipe.engine.name).cannot_resume(recipe, before, places, facts)
    if refusal is None or ranks == before.world_size:
        return refusal
    return f"was begun on {before.world_size} ranks, and there are {ranks} now: {refusal[0]}", refusal[1]


def continued(run: RunFolder, job: Job) -> Job:
    """Return the job that continues from a checkpoint, with a note where the number of ranks has changed.

    What was open is decided anew, by hosts that may have changed. Raises UsageError where precision, device
    or the global batch, in which samples are counted, would change.
    """
    before = read_job(run.read_json(run.job))
    if before is None:
        return job
    if _manner(before) != _manner(job):
        raise UsageError(
            f"was begun {_words(before)}, and would go on {_words(job)}",
            where=run.id,
            hint="as many slots on the same kind of hosts; or `muster train` anew",
        )
    if before.world_size == job.world_size:
        return job
    why = f"begun on {before.world_size}: the same global batches, but other random numbers, as for dropout"
    return replace(job, decisions=(*job.decisions, Decision("ranks", job.world_size, why)))


def _manner(job: Job) -> tuple[int, str, str]:
    return job.batch.global_, job.precision, job.device


def _words(job: Job) -> str:
    size, precision, device = _manner(job)
    return f"on {job.world_size} ranks with a global batch of {size} in {precision} on {device}"
