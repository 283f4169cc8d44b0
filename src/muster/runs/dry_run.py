"""Dry run: what `train` would do, decided and ordered by the same code; no rank is started.

Pretend hosts are this machine, which is asked for its facts. No other host is asked: they are assumed to be
as the recipe needs them, and the assumptions are listed.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from muster.agent.ranks import ON_CPU
from muster.core.errors import ReaderMissingError
from muster.core.hardware.devices import largest_memory
from muster.core.hostlist import fold_hosts
from muster.core.job import ENGINE_CONFIG, WARNINGS, Facts
from muster.core.recipe import Recipe
from muster.core.recipes import dump_yaml, leaves_of
from muster.core.units import counted
from muster.engines.base import spec_of
from muster.fleet.launchers.base import ControllerAddress
from muster.inputs.hub import check_names
from muster.inputs.read import INHERITED, Inputs
from muster.planner.decide import Decided
from muster.planner.document import Plan
from muster.planner.hosts import AUTO
from muster.planner.memory.fit import MemoryLimit, fits
from muster.planner.orders import TRACKERS
from muster.planner.plan import ask, hosts_first
from muster.results.plan_figures import CHIEF, plan_figures
from muster.runs.requirements import needed
from muster.runs.train import Attempt, agree
from muster.store.runfolder import RunFolder
from muster.store.secrets import masked, masked_program, masked_words, shareable

PORT = 29500  # torch's own default: which port will be free is not known yet
MOST_HOST = 64 * 2**40  # bytes of memory that x86-64 addresses with four levels of page tables


def dry_run(inputs: Inputs, run: RunFolder) -> dict[str, Any]:
    """Return what would run where, what fits, and the complete order of each host.

    Raises UsageError as `train` does, and for a job that no device in the table could hold.
    """
    here = inputs.launcher.ONE_MACHINE
    if here:
        check_names(inputs.recipe, inputs.env, hub=False)
    asking = partial(ask, into=run.path) if here else partial(_assumed, run=run)
    listed = [] if here else _assumptions(inputs, run)
    if not here and inputs.recipe.measure.peaks:  # whether they are these hosts' is not known
        measure = inputs.recipe.measure.model_copy(update={"peaks": None})
        inputs = replace(inputs, recipe=inputs.recipe.model_copy(update={"measure": measure}))
    inputs, chosen = hosts_first(inputs, asking)
    facts = {host: {**about, "shared": True} for host, about in asking(inputs).items()}
    decided = agree(inputs, run, facts, Attempt(), chosen)
    if not here and _fits_nowhere(decided):  # as it is; what the recipe leaves open may change that
        decided = agree(inputs, run, _with_most(facts), Attempt(), chosen)
        listed.append("as much memory as any host has: with less, it fits in no way")
    document = _document(inputs, run, decided)
    left = [key for key, value in leaves_of(document[ENGINE_CONFIG] or {}).items() if value == "auto"]
    if left:
        called = spec_of(inputs.recipe.engine.name).called
        listed.append(f"{called}'s {', '.join(left)}: filled in by the ranks")
    return {**document, "assumed": listed}


def _assumed(inputs: Inputs, run: RunFolder) -> Facts:
    """Return the facts that are assumed of hosts that were not asked."""
    recipe = inputs.recipe
    trackers = [name for each in recipe.measure.report_to for name in TRACKERS[each]]
    packages = [*needed(recipe), *trackers]
    gpu: dict[str, Any] = {"name": None, "memory_total": None, "capability": None}
    return {
        host.label: {
            "gpus": [gpu] * (host.slots or 1) if _gpu_reason(inputs) else [],
            "cores": None,
            "network": {},
            "versions": dict.fromkeys(packages, "not known"),
            "python": recipe.launch.python or sys.executable,
            "port": recipe.launch.port or PORT,
        }
        for host in inputs.inventory.hosts
    }


def _gpu_reason(inputs: Inputs) -> str | None:
    """Return why the recipe needs GPUs; None: it does not."""
    recipe = inputs.recipe
    if recipe.launch.device != "auto":
        return "launch.device=cuda" if recipe.launch.device == "cuda" else None
    needs = recipe.trains and recipe.precision in ("fp16", "tf32")
    return f"{recipe.precision} needs them" if needs else None


def _assumptions(inputs: Inputs, run: RunFolder) -> list[str]:
    """Return the assumptions about hosts that were not asked, in words."""
    recipe, launch = inputs.recipe, inputs.recipe.launch
    why = _gpu_reason(inputs)
    device = f"GPUs ({why}), of a kind that is not known" if why else "no GPU"
    if why is None and launch.device == "cpu":
        device = "CPUs (launch.device=cpu)"
    slots = "" if all(host.slots for host in inputs.inventory.hosts) else ", one rank each"
    assumed = [f"the hosts were not asked; assumed: {device}{slots}"]
    opened = [("precision", recipe.precision == "auto"), ("batch.micro", recipe.batch.micro is None)]
    names = [name for name, is_open in opened if is_open and recipe.trains]
    names = [*(["launch.device"] if launch.device == "auto" and not why else []), *names]
    if launch.hosts == AUTO:
        names.insert(0, "launch.hosts")
    if names:
        assumed.append(f"decided when they have answered: {', '.join(names)}")
    if launch.port is None:
        assumed.append(f"MASTER_PORT={PORT}: a free port of the first host is taken")
    if not launch.threads:
        assumed.append("OMP_NUM_THREADS=1: the host's cores / its ranks are taken")
    elsewhere = launch.workdir or "~/.cache/muster"
    assumed.append(f"files are in {run.path}; on hosts that do not share it, below {elsewhere}")
    if recipe.measure.peaks:
        assumed.append("measure.peaks: whether its figures are of these hosts was not checked")
    return assumed


def _fits_nowhere(decided: Decided) -> bool:
    """Return whether a rank needs more than the largest device in the table, or the largest possible host,
    has."""
    if decided.setting is None:
        return False
    share, (_, memory) = MOST_HOST // decided.setting.ranks_per_host, largest_memory()
    room = MemoryLimit(memory, share) if decided.job.device == "cuda" else MemoryLimit(share, None)
    return not fits(decided.setting, room)


def _with_most(facts: Facts) -> Facts:
    """Return the facts with as much memory on each host as any host has."""
    name, memory = largest_memory()
    gpu = {"name": f"a GPU as large as {name}, the largest known", "memory_total": memory, "capability": None}
    return {
        host: {**about, "gpus": [gpu] * len(about["gpus"]), "memory_total": MOST_HOST}
        for host, about in facts.items()
    }


def _document(inputs: Inputs, run: RunFolder, decided: Decided) -> dict[str, Any]:
    """Return the whole document as plain data; secrets are masked."""
    job, orders, plan = decided.job, decided.orders, decided.plan
    recipe, first = decided.recipe, job.placements[0]
    home = ControllerAddress((recipe.launch.home or "this-machine",), "PORT", "SECRET")  # made at the start
    data = job.as_dict()
    shown = recipe.env_show
    warnings = [f"{d.field} {d.value}: {d.why}" for d in job.decisions if d.value in WARNINGS]
    return {
        "run": str(run.path),
        "launcher": inputs.launcher_name,
        "launch": [
            {
                "hosts": list(each.hosts),
                "command": masked_program(masked_words(each.argv, shown)),
                "environment": dict(each.env),
            }
            for each in inputs.launcher.requests(job.placements, recipe.launch, job.id, home)
        ],
        "hosts": [
            {
                "host": p.host,
                "ranks": list(p.ranks),
                "start": masked_program(orders[p.host]["host"]["argv"]),
                "environment": _environment(orders[p.host], index, shown),
            }
            for index, p in enumerate(job.placements)
        ],
        "data": _data(recipe),
        "batch": data["batch"] if recipe.trains else None,
        "precision": job.precision if recipe.trains else None,
        "device": job.device,
        "world_size": job.world_size,
        "plan": plan.model_dump(mode="json") if plan else None,
        ENGINE_CONFIG: orders[first.host]["job"][ENGINE_CONFIG],
        "decisions": data["decisions"],
        "warnings": warnings,
        "recipe": shareable(recipe.as_dict())[0],
    }


def _environment(order: Mapping[str, Any], index: int, shown: Sequence[str]) -> dict[str, str]:
    """Return what a rank's environment has beyond the host's own, as the agent sets it; RANK and LOCAL_RANK
    differ by rank."""
    host = order["host"]
    env = {
        "WORLD_SIZE": str(host["world_size"]),
        "LOCAL_WORLD_SIZE": str(len(host["ranks"])),
        "NODE_RANK": str(index),
        "MASTER_ADDR": str(order["address"]),
        "MASTER_PORT": str(order["port"]),
        "OMP_NUM_THREADS": str(host["threads"]),
    }
    if host["visible_gpus"] is not None:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, host["visible_gpus"]))
    if host["device"] == "cpu":
        env |= ON_CPU
    return env | masked(host["env"], shown)


def _data(recipe: Recipe) -> str | None:
    """Return which data are used, and what is held out of them, as far as this machine can see."""
    data = recipe.data
    if not recipe.trains or data.source is None:
        return None
    if data.path is None:
        if data.name:
            return f"{data.name} of the Hugging Face hub"
        mixed = ", ".join(str(source.path or source.name) for source in data.sources())
        return mixed or f"built in: {data.source}"
    path = Path(data.path).expanduser()
    if not path.exists():
        return f"{path}: not on this machine, not looked at"
    try:
        return recipe.describe_data(path)
    except ReaderMissingError as error:
        return str(error)


def format_dry_run(document: Mapping[str, Any], *, verbose: bool = False) -> str:
    """Format the document for a person: in about ten lines, or with the complete order."""
    rows = [("would run", _what(document)), ("on", _where(document))]
    plan = Plan.model_validate(document["plan"]) if document["plan"] else None
    if document["data"]:
        rows += [("data", document["data"]), *(("", text) for text in (plan.data if plan else ()))]
    chief = [each for each in (plan_figures(plan) if plan else ()) if each.name in CHIEF]
    rows += [(each.name.lower(), each.words) for each in chief]
    rows += [
        (f"from {each['value']}" if each["field"] == INHERITED else "", each["why"])
        for each in document["decisions"]
        if each["field"] == INHERITED
    ]
    rows.append(("run folder", document["run"]))
    notes = document["plan"]["notes"] if document["plan"] else []
    if document["assumed"] and not verbose:  # they would be answers that no host gave
        notes = []
    files = [f"{each['value']}: {each['why']}" for each in document["decisions"] if each["field"] == "env"]
    rows += [
        ("hosts", f"{each['value']}: {each['why']}")
        for each in document["decisions"]
        if each["field"] == "hosts"
    ]
    rows += [("environment" if index == 0 else "", text) for index, text in enumerate(files)]
    for name, texts in (
        ("assumed", document["assumed"][:3]),
        ("warning", document["warnings"]),
        ("note", notes),
    ):
        rows += [(name if index == 0 else "", text) for index, text in enumerate(texts)]
    lines = [f"{name:<11} {text}" for name, text in rows]
    if not verbose:
        return "\n".join([*lines, "nothing was started; --verbose shows the whole order, --json as data"])
    return "\n".join([*lines, "", *_order(document)])


def _what(document: Mapping[str, Any]) -> str:
    recipe, plan = document["recipe"], document["plan"]
    if "command" in recipe:
        return f"{shlex.join(masked_program(recipe['command']))}, by {recipe['run']['start']}"
    if plan is None:
        return f"{recipe['workload']}, {counted(document['world_size'], 'rank')} on {document['device']}"
    name = recipe["model"]["name"] or "a model of its own configuration"
    if recipe["model"].get("init") == "random":
        name += ", weights drawn anew,"
    return (
        f"{recipe['workload']}: {name} with {plan['engine']}, {document['precision']} on {document['device']}"
    )


def _where(document: Mapping[str, Any]) -> str:
    """Return the hosts in words, those with the same number of ranks together."""
    by_count: dict[int, list[str]] = {}
    for host in document["hosts"]:
        by_count.setdefault(len(host["ranks"]), []).append(host["host"])
    groups = ", ".join(
        f"{fold_hosts(names)} ({count}{' each' if len(names) > 1 else ''})"
        for count, names in by_count.items()
    )
    counts = f"{counted(document['world_size'], 'rank')} on {counted(len(document['hosts']), 'host')}"
    return f"{counts} ({document['launcher']}): {groups}"


def _order(document: Mapping[str, Any]) -> list[str]:
    """Return all commands, environments, the engine's configuration and the recipe."""
    lines = [f"# assumed: {text}" for text in document["assumed"]]
    for each in document["launch"]:
        lines += [f"# starts the agent of {fold_hosts(each['hosts'])}, which then gets its source from here"]
        lines += [_command(each["environment"], each["command"]), ""]
    for host in document["hosts"]:
        ranks = f"{host['ranks'][0]} to {host['ranks'][-1]}"
        lines.append(f"# {host['host']}, ranks {ranks}: the agent starts each with its RANK and LOCAL_RANK")
        lines += [_command(host["environment"], host["start"]), ""]
    lines += [f"# {each['field']} = {each['value']}: {each['why']}" for each in document["decisions"]]
    if document[ENGINE_CONFIG]:
        called = spec_of(document["recipe"]["engine"]["name"]).called
        lines += ["", f"# {called}'s configuration", json.dumps(document[ENGINE_CONFIG], indent=2)]
    return [*lines, "", "# recipe.yaml", dump_yaml(document["recipe"])]


def _command(environment: Mapping[str, str], argv: list[str]) -> str:
    variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in environment.items())
    return f"{variables} {shlex.join(argv)}".strip()
