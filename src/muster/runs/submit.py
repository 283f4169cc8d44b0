"""Submit a job for nodes that Slurm has yet to allocate."""

from __future__ import annotations

import secrets
import shutil
import sys
from dataclasses import replace
from pathlib import Path

from muster.core.errors import InventoryError, JobError, RecipeError
from muster.core.slurm import SlurmAsk
from muster.failures.table import id_of
from muster.fleet import shell
from muster.fleet.launchers.slurm import BatchJob, batch_script
from muster.fleet.shell import NotStarted
from muster.inputs.read import Inputs
from muster.planner.decide import FIELD
from muster.store.atomic import write_json, write_text
from muster.store.runfolder import RunFolder
from muster.store.secrets import masked_words
from muster.store.values import recipe_file

_PATIENCE = 60.0  # seconds for an answer of Slurm's controller


def script(inputs: Inputs, run: RunFolder, ticket: str) -> str:
    """Return the batch script of a run. Pure but for this process's interpreter and folder. Raises
    InventoryError."""
    ask = nodes_asked(inputs)
    if ask.nodes is None:
        example = SlurmAsk(ask.partition, 2, ask.slots)
        raise InventoryError(
            "is not inside an allocation, and does not say how many nodes it wants",
            where=inputs.inventory.source,
            hint=f"such as {example}, or salloc first",
        )
    batch = BatchJob(
        python=sys.executable,
        recipe=str(run.submitted_recipe),
        run=str(run.path),
        output=str(run.batch_output),
        folder=str(Path.cwd()),
        name=run.id,
        ticket=ticket,
    )
    return batch_script(ask, inputs.recipe.launch, batch)


def nodes_asked(inputs: Inputs) -> SlurmAsk:
    """Return what Slurm is asked for: as many nodes as HOSTS or `launch.hosts` says. Raises RecipeError where
    they disagree, or where the plan shall choose among nodes that are not allocated yet."""
    ask, wanted = inputs.inventory.ask, inputs.recipe.launch.hosts
    assert ask is not None
    if wanted == "auto":
        raise RecipeError(
            "is auto, but the nodes that Slurm will give are unknown",
            where=FIELD,
            hint="`muster plan RECIPE --on DEVICE:PER_HOSTxHOSTS,LINK launch.hosts=auto` says how many; or "
            "salloc first",
        )
    if wanted is not None and ask.nodes not in (None, wanted):
        raise RecipeError(
            f"is {wanted}, and {inputs.inventory.source} asks Slurm for {ask.nodes} nodes",
            where=FIELD,
            hint=f"--hosts {replace(ask, nodes=wanted)}, so that none stays idle",
        )
    return ask if wanted is None else replace(ask, nodes=wanted)


def submit(inputs: Inputs, run: RunFolder) -> str:
    """Submit the run to Slurm. Return its job id. A refusal leaves no folder behind; a missing answer does,
    since the job may be in the queue.

    Raises RunFolderError, InventoryError, RecipeError, and JobError with sbatch's message.
    """
    launch, ticket = inputs.recipe.launch, secrets.token_hex(8)
    waiting = {"--wait", "-W"} & set(launch.options)
    if waiting:
        raise RecipeError(
            f"{waiting.pop()}: muster waits by itself",
            where="launch.options",
            hint="leave it out; --detach does not wait",
        )
    text = script(inputs, run, ticket)
    try:
        run.path.mkdir(parents=True)
    except OSError:
        run.create()  # raises, in words
    recipe = inputs.recipe.as_dict()
    recipe["launch"]["options"] = []  # they are sbatch's, not srun's
    write_text(run.submitted_recipe, recipe_file(recipe))
    write_text(run.batch_script, text)
    note = {"scheduler": "slurm", "ticket": ticket, "job": None, "cluster": None}
    write_json(run.submission, note)
    argv = ["sbatch", "--parsable", *launch.options, str(run.batch_script)]
    try:
        code, out, err = shell.run(argv, timeout=_PATIENCE)
    except NotStarted:  # whatever else fails, Slurm may have taken the job all the same
        shutil.rmtree(run.path, ignore_errors=True)
        raise
    job, _, cluster = out.decode("utf-8", "replace").strip().partition(";")
    if code != 0 or not job.isdigit():
        shutil.rmtree(run.path, ignore_errors=True)
        words = err.decode("utf-8", "replace").strip().splitlines() or [f"ended with exit code {code}"]
        asked = " ".join(masked_words(argv[:-1]))
        raise JobError(
            words[-1],
            where="sbatch",
            hint=f"sinfo shows what there is; asked: {asked}",
            failure=id_of(words[-1]),
        )
    write_json(run.submission, {**note, "job": job, "cluster": cluster or None})
    return job
