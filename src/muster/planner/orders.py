"""The orders for every host: a job as plain data. A dry run prints it; the supervisor sends it."""

from __future__ import annotations

import base64
import io
import sys
import zipfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from muster.core.errors import UsageError
from muster.core.job import ENGINE_CONFIG, Facts, Placement
from muster.core.recipe import Recipe
from muster.core.workload import Spot
from muster.engines.base import spec_of
from muster.inputs.model import whole_config
from muster.inputs.read import Inputs
from muster.planner.decide import Decided
from muster.planner.remedies import hidden_size
from muster.store.runfolder import name_elsewhere

FREE_PORT = 0
# What provides a tracker: any one of its packages.
TRACKERS = {
    "mlflow": ("mlflow", "mlflow-skinny"),
    "tensorboard": ("tensorboard", "tensorboardX"),
    "trackio": ("trackio",),
    "wandb": ("wandb",),
}
WORKER = "muster.worker"  # the ranks' module
_SHIPPED = ("core", "dialogues", "engines", "failures", "store", "worker", "workloads")  # what a rank imports


def greeting(
    recipe: Recipe,
    places: tuple[Placement, ...],
    *,
    run_dir: Path,
    nonce: str,
    job_id: str,
    attempt: int,
    mark: str | None = None,
    env: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, dict[str, Any]]:
    """Return, per host, what its agent needs before it can report its facts. `mark`: the run's; None: its
    name is unique; `env`: of the ranks."""
    launch = recipe.launch
    workdir = (launch.workdir or "~/.cache/muster").rstrip("/")
    trackers = [name for each in recipe.measure.report_to for name in TRACKERS[each]]
    engine = spec_of(recipe.engine.name)
    packages = [*engine.packages, *engine.extras(recipe), *recipe.extras, *recipe.offered_by]
    return {
        place.host: {
            "run_root": str(run_dir.parent),
            "run_dir": str(run_dir),
            "nonce": nonce,
            "workdir": f"{workdir}/{name_elsewhere(run_dir.name, mark)}",
            "node_rank": index,
            "port": launch.port or FREE_PORT,
            "python": launch.python,
            "setup": launch.setup,
            "device": launch.device,
            "packages": [*trackers, *packages],
            "controller_python": sys.executable,
            "timeout": launch.timeout,
            "lease": launch.lease,
            "folder": place.host,
            "attempt": attempt,
            "token": f"{job_id}.{attempt}.{nonce}.{index}",  # per host: pretend hosts share a machine
            **_before_start(recipe, env),
        }
        for index, place in enumerate(places)
    }


def orders(inputs: Inputs, decided: Decided, facts: Facts) -> dict[str, dict[str, Any]]:
    """Return, per host, the start order of a job: the ranks' command, its environment, and what they read.
    `facts`: of each host, its interpreter and a free port. Raises UsageError."""
    job, recipe = decided.job, decided.recipe
    if recipe.foreign:
        return command_orders(inputs, decided, facts)
    engine = spec_of(recipe.engine.name)
    config = engine.config(recipe, job.batch, job.precision)
    if config is not None:
        config = engine.filled(config, recipe, hidden_size(whole_config(recipe) or {}))
    content = {"job": job.as_dict(), ENGINE_CONFIG: config}

    def one(index: int, place: Placement, address: str, port: int) -> tuple[dict[str, Any], list[str]]:
        return content, [facts[place.host]["python"], "-m", WORKER]

    return start_orders(inputs, decided, facts, one, recipe.measure.hardware_seconds)


def command_orders(inputs: Inputs, decided: Decided, facts: Facts) -> dict[str, dict[str, Any]]:
    """Return, per host, the start order of a program that is not Muster's own. Raises UsageError."""
    recipe, places = decided.recipe, decided.job.placements
    content = {"job": {"id": decided.job.id}, ENGINE_CONFIG: None}
    programs = {}

    def one(index: int, place: Placement, address: str, port: int) -> tuple[dict[str, Any], list[str]]:
        spot = Spot(facts[place.host]["python"], index, len(places), place.slots, address, port)
        made = programs[place.host] = recipe.program(spot)
        return content, list(made.argv)

    ordered = start_orders(inputs, decided, facts, one, recipe.measure.hardware_seconds)
    for host, order in ordered.items():
        made = programs[host]
        order["host"] |= _before_start(recipe, inputs.env, facts[host].get("base"))
        order["host"] |= {"each": made.each, "names": list(made.names), "torchrun": made.torchrun}
    return ordered


def _before_start(recipe: Recipe, env: Mapping[str, str], base: str | None = None) -> dict[str, Any]:
    """Return what must exist on a host; not a module, where ranks look for it in other places than their
    agent."""
    needs = recipe.before_start(base)
    return {**needs, "module": None} if needs.get("module") and _PLACES & env.keys() else needs


_PLACES = {"PATH", "PYTHONPATH", "PYTHONHOME"}


def start_orders(
    inputs: Inputs,
    decided: Decided,
    facts: Facts,
    one: Callable[[int, Placement, str, int], tuple[dict[str, Any], list[str]]],
    seconds: float,
    *,
    apart: bool = False,
) -> dict[str, dict[str, Any]]:
    """Return, per host, the start order of any ranks. `one`: returns what a host's ranks read, and the
    command of each, where they meet at this address and port; `seconds`: between two samples of its hardware;
    `apart`: a rank that fails does not end the others. Raises UsageError."""
    places = decided.job.placements
    about = facts[places[0].host]
    address, port = inputs.recipe.launch.address or rendezvous_address(inputs, about), int(about["port"])
    made = {}
    for index, where in enumerate(places):
        content, argv = one(index, where, address, port)
        made[where.host] = {
            "nodes": len(places),
            "address": address,
            "port": port,
            "job": content,
            "host": {
                "argv": argv,
                "ranks": list(where.ranks),
                "world_size": decided.job.world_size,
                "apart": apart,
                "watched": decided.recipe.hang.seconds != "off",
                "threads": decided.threads[index],
                "visible_gpus": decided.visible_gpus[index],
                "used_gpus": list(range(where.slots)),
                "device": decided.job.device,
                "env": dict(inputs.env),
                "hardware_seconds": seconds,
            },
        }
    return made


def with_code(by_host: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return start orders as they are sent: with the code, which a dry run does not show."""
    return {
        host: {
            **order,
            "host": {**order["host"], "code": progress_code() if "each" in order["host"] else code()},
        }
        for host, order in by_host.items()
    }


_ROOT = Path(__file__).resolve().parents[1]
# The interpreter runs it at the start of every Python program of a job.
_INSIDE = {"sitecustomize.py": _ROOT / "agent" / "inside.py"}


@cache
def code() -> str:
    """Return the part of Muster that ranks import, as a base64 zip: every host runs this very version."""
    paths = [path for part in _SHIPPED for path in sorted((_ROOT / part).rglob("*"))]
    files = [
        each for each in paths if each.suffix in (".py", ".json", ".gz") and "__pycache__" not in each.parts
    ]
    names = {f"muster/{path.relative_to(_ROOT).as_posix()}": path for path in files}
    own = {f"muster/{name}.py": _ROOT / f"{name}.py" for name in ("__init__", "progress")}
    return _zipped({**own, **names, **_INSIDE})


@cache
def progress_code() -> str:
    """Return what a program that is not Muster's own can import of it: muster.step and so on. As `code`."""
    return _zipped({"muster/__init__.py": _ROOT / "progress.py", **_INSIDE})


def _zipped(files: Mapping[str, Path]) -> str:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, path in files.items():
            # A fixed date: the same code is the same bytes.
            info = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))
            archive.writestr(info, path.read_bytes(), compress_type=zipfile.ZIP_DEFLATED)
    return base64.b64encode(buffer.getvalue()).decode()


def rendezvous_address(inputs: Inputs, about: Mapping[str, Any]) -> str:
    """Return where ranks meet: this machine, or the first host's address as it was reached. `about`: its
    facts."""
    if inputs.launcher.ONE_MACHINE:
        return "127.0.0.1"
    first = inputs.inventory.hosts[0].label
    address = str(about.get("address") or first)
    if len(inputs.inventory.hosts) > 1 and (address.startswith("127.") or address == "::1"):
        raise UsageError(
            f"it was reached at {address} (a forwarded port?), where the other hosts cannot meet it",
            host=first,
            hint="launch.address=ADDRESS of the first host as the others see it",
        )
    return address
