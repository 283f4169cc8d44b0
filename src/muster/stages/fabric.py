"""Measure a group of hosts with real ranks: one process per host through the agent, one rank per slot."""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from muster.core.errors import UsageError
from muster.core.fabric import Asked
from muster.core.fabric_result import Fabric
from muster.core.inventory import Inventory
from muster.core.job import Placement, place
from muster.core.recipe import FabricRecipe, Recipe
from muster.planner.decide import Decided, decide
from muster.shell import RealShell, Shell
from muster.stages.agree import Facts, rendezvous_address
from muster.stages.fabric_collect import Collector
from muster.stages.inputs import Inputs
from muster.stages.mpi_hello import mpi_hello
from muster.stages.orders import code, greeting
from muster.supervise.supervisor import Listener, Supervisor

WORKER = "muster.worker.fabric"  # the ranks' module
_MOST_SLOTS = 16  # GPUs of one host

Watcher = Callable[[str, Mapping[str, Any]], None]  # host, one event of a rank as it comes


def nobody(host: str, event: Mapping[str, Any]) -> None:
    """A watcher that does not look."""


def never() -> None:
    """Nothing stops it before its time."""


def measure(
    inventory: Inventory,
    recipe: Recipe,
    launcher: ModuleType,
    *,
    asked: Asked | None = None,
    env: Mapping[str, str] | None = None,
    watch: Watcher = nobody,
    stop: Callable[[], str | None] = never,
    shell: Shell | None = None,
) -> Fabric:
    """Ask all questions of all hosts at once. Of the recipe only `launch` counts.

    What fails on the way stands in the result's `failures`, beside everything that was measured until then.
    `stop` is asked a few times a second; a text ends it early. Nothing is left on the hosts.
    Raises InventoryError where a host cannot be reached, and UsageError where one lacks torch.
    """
    asked, shell = asked or Asked(), shell or RealShell()
    name = launcher.__name__.rpartition(".")[2].replace("_", "-")
    most = sum(host.slots or _MOST_SLOTS for host in inventory.hosts)  # how many it will be is not known yet
    launch = recipe.launch.model_copy(update={"timeout": asked.grown(most).limit})
    bare = FabricRecipe(launch=launch)
    inputs = Inputs(bare, inventory, launcher, name, dict(env or {}))
    job_id = f"fabric-{secrets.token_hex(4)}"
    places = place([(host, host.slots or 1) for host in inventory.hosts])
    began = time.monotonic()
    with Supervisor(places, launcher, launch, job_id, shell) as supervisor:
        facts = supervisor.greet(_greeting(bare, places, job_id))
        _check_torch(facts)
        decided = decide(bare, inventory, facts, one_machine=launcher.ONE_MACHINE)
        places = place(list(zip(inventory.hosts, decided.slots, strict=True)))
        address = launch.address or rendezvous_address(inputs, facts[places[0].host], places[0])
        port = int(facts[places[0].host]["port"])
        patient = asked.grown(sum(decided.slots)) if decided.device == "cuda" else asked
        told = _orders(places, decided, inputs.env, patient, facts, address=address, port=port)
        collector = Collector(places, patient, decided.device, name, address, port, watch)

        def tick() -> str | None:
            if time.monotonic() - began > patient.limit + launch.connect_timeout:
                return f"timeout: the group checks took longer than {patient.limit:g} s"
            return collector.in_vain() or stop()

        listener = Listener(collector.event, collector.log, lambda host, sample: None, tick)
        outcome = supervisor.run(told, listener)
    hello = None
    if name == "openmpi" and "mpi" in asked.questions and not outcome.stopped:
        hello = mpi_hello(inventory.hosts, launch, facts, asked.patience, shell)
    return collector.result(outcome, time.monotonic() - began, hello)


def _greeting(recipe: Recipe, places: tuple[Placement, ...], job_id: str) -> dict[str, dict[str, Any]]:
    """As for a training, but each host works in a folder of its own that its agent removes at the end."""
    folder = Path(tempfile.gettempdir()) / job_id  # never made: no host shares it
    told = greeting(
        recipe, places, run_dir=folder, nonce=f".{job_id}-{secrets.token_hex(8)}", job_id=job_id, attempt=1
    )
    return {
        host: {**spec, "workdir": f"{spec['workdir']}-{host}", "scratch": True} for host, spec in told.items()
    }


def _check_torch(facts: Facts) -> None:
    for host, about in facts.items():
        if not about["versions"].get("torch"):
            raise UsageError(
                f"torch is not installed for {about['python']}",
                host=host,
                hint="pip install torch there, or launch.python=PATH of one that has it",
            )


def _orders(
    places: tuple[Placement, ...],
    decided: Decided,
    env: Mapping[str, str],
    asked: Asked,
    facts: Facts,
    *,
    address: str,
    port: int,
) -> dict[str, dict[str, Any]]:
    """Per host, the start order; the same shape as a training's."""
    hosts = [[each.host, each.first_rank, each.slots] for each in places]
    return {
        each.host: {
            "nodes": len(places),
            "address": address,
            "port": port,
            "job": {
                "asked": asked.as_dict(),
                "hosts": hosts,
                "host": index,
                "device": decided.device,
                "address": address,
                "port": port,
            },
            "host": {
                "argv": [facts[each.host]["python"], "-m", WORKER],
                "ranks": list(each.ranks),
                "threads": decided.threads[index],
                "visible_gpus": decided.visible_gpus[index],
                "used_gpus": list(range(each.slots)),
                "device": decided.device,
                "env": dict(env),
                "hardware_seconds": 60,
                "code": code(),
            },
        }
        for index, each in enumerate(places)
    }
