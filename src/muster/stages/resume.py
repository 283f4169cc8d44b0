"""Resume: go on with a run from the newest checkpoint that is complete on every host."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from muster.core.errors import RunFolderError
from muster.core.inventory import Host, Inventory, read_inventory
from muster.core.job import Job
from muster.core.recipe import Recipe
from muster.core.recipes import load_recipe
from muster.core.result import Result
from muster.shell import Shell
from muster.stages.agree import Attempt
from muster.stages.inputs import check
from muster.stages.recorder import Watcher
from muster.stages.train import nobody, train
from muster.store.runfolder import RunFolder


def resume(
    run: RunFolder,
    *,
    watch: Watcher = nobody,
    announce: Callable[[Job], None] = nobody,
    shell: Shell | None = None,
) -> Result:
    """Continue with the frozen recipe on the same hosts. Raises RunFolderError where it cannot be."""
    state = run.state()
    if state == "succeeded":
        raise RunFolderError("is finished: there is nothing to resume", where=run.id)
    if not run.job.exists():
        raise RunFolderError("has not begun: there is nothing to resume", where=run.id)
    controller = run.read_json(run.controller) if state in ("running", "elsewhere") else {}
    # Slurm starts a job again only when its first start is over: what looks alive on a dead node is not.
    own = os.environ.get("SLURM_JOB_ID")
    again = state == "elsewhere" and own is not None and controller.get("batch_job") == own
    if controller and not again:
        raise RunFolderError(
            f"is being run by process {controller.get('pid')} on {controller.get('machine')}",
            where=run.id,
            hint=f"`muster stop {run.id}` first",
        )
    with run.claim(own) as claim:  # before any host is asked: two resumes at once must not both start
        job = run.read_json(run.job)
        inputs = check(frozen_recipe(run), frozen_inventory(job))
        attempt = Attempt(int(job["attempt"]) + 1, resume=True)
        return train(inputs, run, attempt=attempt, claim=claim, watch=watch, announce=announce, shell=shell)


def frozen_inventory(job: dict[str, Any]) -> Inventory:
    """The hosts of a run as they were given; those of Slurm as they are given now."""
    data = job["inventory"]
    if data["source"].startswith("slurm:"):
        return read_inventory(data["source"])
    hosts = tuple(Host(host["name"], host["slots"]) for host in data["hosts"])
    return Inventory(hosts, data["launcher"], data["source"])


def frozen_recipe(run: RunFolder) -> Recipe:
    """The recipe of a run as it was resolved."""
    return load_recipe(str(run.recipe))
