"""Writes down what is fixed, before anything starts: recipe.yaml, plan.json, env.json, job.json."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from muster import __version__
from muster.core.printable import scrubbed_data
from muster.core.secrets import masked, masked_override
from muster.core.zero import read_user_config
from muster.stages.agree import Ready
from muster.stages.inputs import Inputs
from muster.store.atomic import write_json, write_text
from muster.store.runfolder import RunFolder
from muster.store.values import recipe_file


def freeze(run: RunFolder, ready: Ready, inputs: Inputs) -> None:
    """Everything that hosts have agreed to."""
    job, orders = ready.job, ready.orders
    recipe = inputs.recipe.as_dict()
    shown = inputs.recipe.env_show
    if inputs.recipe.engine.config and not run.deepspeed_given.exists():
        write_json(run.deepspeed_given, read_user_config(inputs.recipe.engine.config))
        recipe["engine"]["config"] = str(run.deepspeed_given)  # a resumed run reads what this one read
    told = next(iter(orders.values()))["job"]
    if told["deepspeed"]:
        write_json(run.deepspeed, told["deepspeed"])
    if job.peaks and not run.peaks.exists():
        write_json(run.peaks, asdict(job.peaks))
        recipe["measure"]["peaks"] = str(run.peaks)
    # What the plan chose stays chosen: a resumed run has to find its checkpoints' shards as they were cut.
    recipe["engine"]["zero"] = job.recipe["engine"]["zero"]
    recipe["train"]["gradient_checkpointing"] = job.recipe["train"]["gradient_checkpointing"]
    key = inputs.recipe.env_kept if run.recipe.exists() else None  # a resumed run's own, or a new one
    write_text(run.recipe, recipe_file(recipe, key))
    decisions = [{"field": d.field, "value": d.value, "why": d.why} for d in job.decisions]
    plan = ready.plan.model_dump(mode="json") if ready.plan else {}
    write_json(run.plan, scrubbed_data({**plan, "decisions": decisions}))
    write_json(
        run.env,
        {
            "muster": __version__,
            "python": platform.python_version(),
            "system": platform.platform(),
            "controller": platform.node(),
            "argv": [masked_override(word, shown) for word in sys.argv],
            "versions": _versions(),
            "rank_environment": masked(inputs.env, shown),
        },
    )
    hosts = {host: _recorded(order, shown) for host, order in orders.items()}
    inventory = inputs.inventory
    source = {
        "launcher": inventory.launcher,
        "source": inventory.source,
        "hosts": [{"name": host.name, "slots": host.slots} for host in inventory.hosts],
    }
    written = {**job.as_dict(), "inventory": source, "orders": hosts, "deepspeed": told["deepspeed"]}
    write_json(run.job, scrubbed_data(written))


def _recorded(order: Mapping[str, Any], shown: Sequence[str]) -> dict[str, Any]:
    """A start order for job.json: without the job, which stands there once, and without values."""
    own = {**order["host"], "env": masked(order["host"]["env"], shown)}
    return {**{key: value for key, value in order.items() if key != "job"}, "host": own}


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name in ("torch", "transformers", "deepspeed", "accelerate", "pydantic", "duckdb"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found
