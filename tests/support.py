"""What tests of several tiers share."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import fields as fields_of
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from muster.core.hardware.devices import WIDE
from muster.core.hardware.machines import Machines, parse_parts
from muster.core.inventory import Inventory
from muster.core.job import Facts
from muster.core.recipe import Recipe
from muster.core.recipes import load_recipe
from muster.core.registry import load_plugin
from muster.core.result import Result
from muster.engines.spread import ModelSpread
from muster.inputs.read import Inputs, read_inputs, read_recipe
from muster.planner import orders
from muster.planner.decide import Decided, decide
from muster.planner.document import Plan
from muster.planner.machines import UserFigures
from muster.planner.memory.fit import Setting
from muster.planner.plan import plan_on
from muster.runs.afterwards import loading_lines
from muster.runs.resume import resume
from muster.runs.train import train
from muster.store import events
from muster.store.runfolder import RunFolder

# A model and a data set that are small enough for tests and large enough to have every part.
TINY = [
    "data.generated.train=400",
    "data.generated.validation=24",
    "model.vocab_size=400",
    "model.config.d_model=32",
    "model.config.d_ff=64",
    "model.config.d_kv=16",
    "model.config.num_heads=2",
    "model.config.num_layers=2",
    "model.config.num_decoder_layers=2",
    "model.config.dropout_rate=0.0",
    "evaluate.after=false",
    "measure.hardware_seconds=1",
    "measure.flops=false",  # half of a short job's work: tests/real/test_flops.py and others count them
]


def tiny_of(recipe: str) -> list[str]:
    """TINY, without the fields of a T5 where the recipe's model is none."""
    kind = (load_recipe(recipe, []).model.config or {}).get("model_type", "t5")
    return [word for word in TINY if kind == "t5" or not word.startswith("model.config.")]


def on_hosts(
    recipe: Recipe, inventory: Inventory, facts: Facts, *, one_machine: bool = False, **how: Any
) -> Decided:
    """A recipe as it is decided on these hosts. Raises UsageError where it does not fit."""
    name = "local" if one_machine else "ssh"
    inputs = Inputs(recipe, inventory, load_plugin("muster.launchers", name), name, {})
    made = decide(inputs, facts, **how)
    if made.refused is not None:
        raise made.refused
    return made


def parse_machines(text: str) -> Machines:
    """Hosts that are all alike, as a user gives them as --on."""
    (machines,) = parse_parts(text)
    return machines


def plan(
    machines: str, *overrides: str, recipe: str = "opt-benchmark", told: UserFigures | None = None
) -> Plan:
    """A recipe as it is planned by formulas on machines that are not there."""
    return plan_on(read_recipe(recipe, list(overrides)), machines, told or UserFigures(), traced=False).plan


def needs_torch() -> None:
    """Skip where the train extra is not installed. Nothing is imported: that takes seconds, and not every
    test's own process needs it."""
    for name in ("torch", "deepspeed"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")


def run(folder: Path, hosts: str, *overrides: str, recipe: str = "demo") -> tuple[RunFolder, Result]:
    """Train the tiny model."""
    target = RunFolder(folder)
    result = train(read_inputs(recipe, hosts, [*tiny_of(recipe), *overrides]), target)
    return target, result


def train_here(
    folder: Path, recipe: dict[str, Any], micro: int = 4, accumulation: int = 1, precision: str = "fp32"
) -> list[events.Event]:
    """What the one rank of a job says, which trains in this process on the CPU, without an agent."""
    from accelerate.state import AcceleratorState

    from muster.worker.main import run

    recipe["launch"]["workdir"] = str(folder / "work")
    job = {
        "recipe": recipe, "precision": precision, "device": "cpu", "attempt": 1, "resume_step": None,
        "batch": {"micro": micro, "accumulation": accumulation, "global": micro * accumulation},
    }  # fmt: skip
    port = socket.create_server(("127.0.0.1", 0))
    alone = {
        "OMP_NUM_THREADS": 1,
        "RANK": 0,
        "LOCAL_RANK": 0,
        "WORLD_SIZE": 1,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port.getsockname()[1],
        "MUSTER_RENDEZVOUS": port.detach(),  # open, as from an agent; the store closes it
    }
    # All of the environment comes back: a rank sets variables that ranks of later tests would inherit.
    with mock.patch.dict(os.environ, {variable: str(value) for variable, value in alone.items()}):
        try:
            assert run({"job": job, "place": str(folder), "base": str(folder), "shared": True}) == 0
        finally:
            AcceleratorState._reset_state(reset_partial_state=True)  # this process's: the next begins anew
    return list(events.read_events(folder / "rank0.events.jsonl"))


def ranks(count: int, module: str, *arguments: str) -> list[str]:
    """The command that starts so many ranks of a module by themselves."""
    return [sys.executable, "-m", "tests.ranks", str(count), module, *arguments]


def with_ranks(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    """Jobs' ranks are this module's from now on, in place of Muster's own."""
    monkeypatch.setattr(orders, "WORKER", module)


def resumed_at_the_end(whole: RunFolder, folder: Path, steps: int) -> tuple[RunFolder, Result]:
    """A copy of a finished run without its last checkpoint, model and result, resumed."""
    shutil.copytree(whole.path, folder)
    again = RunFolder(folder)
    again.result.unlink()
    shutil.rmtree(again.model)
    shutil.rmtree(again.checkpoints / f"checkpoint-{steps}")
    result = resume(again)
    assert (result.status, result.attempt, result.steps) == ("succeeded", 2, steps), result.failure
    return again, result


def losses(run_folder: RunFolder) -> list[float]:
    """The logged losses in the order of steps."""
    logs = {event.step: event.loss for event in said(run_folder, events.Log)}
    return [loss for _, loss in sorted(logs.items()) if loss is not None]


def gradient_norms(run_folder: RunFolder) -> list[float]:
    """The logged norms of all gradients, before clipping, in the order of steps; empty if there is none."""
    logs = {event.step: event.gradient_norm for event in said(run_folder, events.Log)}
    return [norm for _, norm in sorted(logs.items()) if norm is not None]


def said(run_folder: RunFolder, kind: type) -> list[Any]:
    """The events of a kind, in their order."""
    return [event for event in events.read_events(run_folder.events) if isinstance(event, kind)]


def wait_until(what: Callable[[], object], seconds: float, every: float = 0.1) -> bool:
    """Whether `what` becomes true within `seconds`."""
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        if what():
            return True
        time.sleep(every)
    return bool(what())


def by_the_lines(done: RunFolder) -> str:
    """What the lines print that say how to load a run's model without Muster, in the folder of its runs."""
    lines = loading_lines(done)
    assert "muster" not in lines.replace(str(done.path), "")
    where = done.path.parent.parent
    argv = [sys.executable, "-m", "tests.real.lines", str(where), lines]
    root = Path(__file__).resolve().parents[1]
    ran = subprocess.run(argv, cwd=root, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


SPREAD = {each.name for each in fields_of(ModelSpread)}


def setting_with(*, precision: str, **fields: Any) -> Setting:
    """A setting by its own fields and by those of its spread."""
    spread = {name: fields.pop(name) for name in SPREAD & fields.keys()}
    element = 4 if precision in WIDE else 2
    return Setting(
        precision=precision, spread=ModelSpread(**{"element": element, "bucket": 0, **spread}), **fields
    )


def with_fields(setting: Setting, **fields: Any) -> Setting:
    """A setting with other fields of its own and of its spread."""
    spread = {name: fields.pop(name) for name in SPREAD & fields.keys()}
    return replace(setting, **fields).spreading(**spread)
