"""Dry run: exactly what would run, as data; nothing is started and no host is asked."""

from __future__ import annotations

import shlex
from typing import Any

from muster.core.hostlist import fold_hosts
from muster.core.recipes import dump_yaml
from muster.core.secrets import masked, masked_words, shareable
from muster.launchers.base import Home
from muster.planner.decide import decide
from muster.stages.inputs import Inputs
from muster.stages.orders import job_of, orders
from muster.stages.settle import AUTO, first_hosts

FREE_PORT = "<a free port of the first host>"


def dry_run(inputs: Inputs) -> dict[str, Any]:
    """Commands, environment and files per host. What only the hosts can tell is assumed, and listed."""
    inputs, _ = first_hosts(inputs)
    assumed: dict[str, dict[str, Any]] = {
        host.label: {"gpus": [], "cores": None} for host in inputs.inventory.hosts
    }
    recipe, shown = inputs.recipe, inputs.recipe.env_show
    decided = decide(recipe, inputs.inventory, assumed, one_machine=inputs.launcher.ONE_MACHINE)
    job = job_of("<run id>", inputs, decided)
    first = job.placements[0]
    address = recipe.launch.address or ("127.0.0.1" if inputs.launcher.ONE_MACHINE else first.host)
    port = recipe.launch.port or FREE_PORT
    told = orders(job, decided.recipe, decided, inputs.env, address=address, port=port)
    addresses = (recipe.launch.home or "<this machine>",)
    home = Home(addresses, "<a free port>", "<a one-time secret>")
    open_fields = {d.field for d in decided.decisions}
    depends = [
        f"{name} = {value} (assumed: no GPU; decided when the hosts have answered)"
        for name, value in (
            ("launch.device", job.device),
            ("precision", job.precision),
            ("batch.micro", job.batch.micro),
        )
        if name in open_fields and (recipe.trains or name != "precision")
    ]
    if recipe.launch.hosts == AUTO:
        depends.insert(0, f"launch.hosts = {len(job.placements)} (assumed: all; decided as the rest)")
    if recipe.batch.split == "measured":
        depends.append("each rank's share of a micro-step: by its measured speed, just before the training")
    if not recipe.launch.threads:
        depends.append("OMP_NUM_THREADS = the host's cores / its ranks")
    return {
        "launch": [
            {
                "hosts": list(each.hosts),
                "command": masked_words(each.argv, shown),
                "environment": dict(each.env),
            }
            for each in inputs.launcher.requests(job.placements, recipe.launch, job.id, home)
        ],
        "hosts": [
            {
                "host": p.host,
                "ranks": list(p.ranks),
                "start": told[p.host]["host"]["argv"],
                "environment": masked(told[p.host]["host"]["env"], shown),
            }
            for p in job.placements
        ],
        "batch": job.as_dict()["batch"] if recipe.trains else None,
        "precision": job.precision if recipe.trains else None,
        "device": job.device,
        "world_size": job.world_size,
        "deepspeed": told[first.host]["job"]["deepspeed"],
        "decisions": job.as_dict()["decisions"],
        "depends_on_hosts": depends,
        "recipe": shareable(recipe.as_dict())[0],
    }


def format_dry_run(plan: dict[str, Any]) -> str:
    """The plan for a person."""
    import json

    lines = []
    for each in plan["launch"]:
        lines += [f"# starts the agent of {fold_hosts(each['hosts'])}, which then gets its source from here"]
        lines += [_command(each["environment"], each["command"]), ""]
    for host in plan["hosts"]:
        lines.append(f"# {host['host']}, ranks {host['ranks'][0]} to {host['ranks'][-1]}: the agent starts")
        lines += [_command(host["environment"], host["start"]), ""]
    batch = plan["batch"]
    if batch is None:
        lines.append(f"# {plan['world_size']} ranks on {plan['device']}; nothing is trained")
    else:
        lines.append(
            f"# {plan['world_size']} ranks, {plan['precision']} on {plan['device']}, "
            f"global batch {batch['global']} = micro-batch {batch['micro']} "
            f"x accumulation {batch['accumulation']} x {plan['world_size']} ranks"
        )
    lines += [f"# {text}" for text in plan["depends_on_hosts"]]
    if plan["deepspeed"]:
        lines += ["", "# DeepSpeed's configuration", json.dumps(plan["deepspeed"], indent=2)]
    lines += ["", "# recipe.yaml", dump_yaml(plan["recipe"])]
    return "\n".join(lines)


def _command(environment: dict[str, str], argv: list[str]) -> str:
    variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in environment.items())
    return f"{variables} {shlex.join(argv)}".strip()
