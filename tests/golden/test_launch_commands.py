"""The exact commands that are run, against text files beside this one. MUSTER_UPDATE_GOLDEN=1 rewrites
those (python -m tests.golden.renew commands)."""

from __future__ import annotations

import io
import json
import os
import shlex
import subprocess
import sys
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from muster.core.batch import Batch
from muster.core.errors import InventoryError, RecipeError
from muster.core.inventory import parse_hosts
from muster.core.job import Job, Placement, place
from muster.core.launch import Launch
from muster.core.recipe import Recipe, recipe_from
from muster.core.registry import load_plugin
from muster.core.slurm import parse_ask
from muster.fleet.launchers import local, openmpi, pdsh, slurm, ssh
from muster.fleet.launchers.base import ControllerAddress, Request, agent_source
from muster.inputs.read import Inputs
from muster.planner.decide import Decided
from muster.planner.orders import greeting, orders
from muster.planner.ways import TrainingWay

FOLDER = Path(__file__).parent


def same_as_golden(name: str, text: str) -> None:
    text = text.replace(sys.executable, "{python}").rstrip("\n") + "\n"
    path = FOLDER / name
    if os.environ.get("MUSTER_UPDATE_GOLDEN") == "1":
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text


def places(hosts: str, slots: int = 1) -> tuple[Placement, ...]:
    return place([(host, host.slots or slots) for host in parse_hosts(hosts).hosts])


HERE = {"python": sys.executable}
HOME = ControllerAddress(("10.0.0.9", "fd00::9"), 40000, "5ec4e7")


def told(request: Request) -> list[str]:
    """A request's environment, then its words."""
    return [*(f"{name}={shlex.quote(value)}" for name, value in request.env.items()), *request.argv]


def lines(*commands: list[str]) -> str:
    """One word a line, so that a difference is one line; a blank line between commands."""
    return "\n\n".join("\n".join(command) for command in commands)


LAUNCHES: list[tuple[str, ModuleType, str, dict[str, Any]]] = [
    ("local.txt", local, "local:2x1", {}),
    ("ssh.txt", ssh, "node1:2,me@node2.example.org,me@[fe80::1%eth0]", {}),
    (
        "ssh_options.txt",
        ssh,
        "node1",
        {"ssh_options": ["-F", "/x/ssh config", "-p", "2222"], "lease": 60, "connect_timeout": 0.5},
    ),
    ("pdsh.txt", pdsh, "node1:2,me@node2.example.org", {"ssh_options": ["-F", "/x/%d"], "options": ["-b"]}),
    (
        "openmpi.txt",
        openmpi,
        "node1:2,node2.example.org",
        {"python": "/opt/python", "options": ["--mca", "a", "b"]},
    ),
    ("slurm.txt", slurm, "node[01-03]:8,gpu7", {"options": ["--gres=gpu:8"]}),
]


@pytest.mark.parametrize(
    ("name", "launcher", "hosts", "launch"), LAUNCHES, ids=[each[0] for each in LAUNCHES]
)
def test_the_command_that_starts_an_agent(
    name: str, launcher: ModuleType, hosts: str, launch: dict[str, Any]
) -> None:
    settings = Launch.model_validate(launch)
    made = launcher.requests(places(hosts), settings, "job-1", HOME if launcher.DIALS else None)
    assert [host for request in made for host in request.hosts] == [place.host for place in places(hosts)]
    assert {request.dials for request in made} == {launcher.DIALS}
    same_as_golden(name, lines(*map(told, made)))


@pytest.mark.parametrize(
    ("launcher", "hosts"), [(pdsh, "[fe80::1]"), (openmpi, "me@node1"), (openmpi, "node_1")]
)
def test_hosts_that_a_program_cannot_name(launcher: ModuleType, hosts: str) -> None:
    with pytest.raises(InventoryError) as caught:
        launcher.requests(places(hosts), Launch(), "job-1", HOME)
    assert caught.value.hint


@pytest.mark.parametrize("launcher", [pdsh, openmpi])
def test_a_space_would_be_two_options(launcher: ModuleType) -> None:
    with pytest.raises(RecipeError, match="splits at spaces"):
        launcher.requests(places("node1"), Launch(ssh_options=["-F", "/x/ssh config"]), "job-1", HOME)


def test_the_secret_is_no_argument_where_the_environment_can_bring_it() -> None:
    for launcher in (openmpi, slurm):
        for request in launcher.requests(places("node1,node2"), Launch(), "job-1", HOME):
            assert HOME.secret not in " ".join(request.argv)
            assert HOME.secret in request.env.values()


BATCH = slurm.BatchJob(
    python="/opt/venv/bin/python",
    recipe="/runs/it's one/submitted.yaml",
    run="/runs/it's one",
    output="/runs/50%/job.log",
    folder="/home/me and you",
    name="it's one",
    ticket="7ea",
)


@pytest.mark.parametrize(
    ("name", "ask", "launch"),
    [
        ("batch.sh", "slurm:/3", {}),
        (
            "batch_all.sh",
            "slurm:gpu/4x8",
            {
                "slurm": {
                    "minutes": 90, "gres": "gpu:h100:8", "account": "a", "qos": "high",
                    "constraint": "[r1|r2]",
                    "whole_nodes": False, "requeue": True, "grace": 120,
                }
            },
        ),
    ],
)  # fmt: skip
def test_the_batch_script(name: str, ask: str, launch: dict[str, Any]) -> None:
    text = slurm.batch_script(parse_ask(ask), Launch.model_validate(launch), BATCH)
    same_as_golden(name, text)
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0


def test_a_plain_command_on_a_host() -> None:
    argv = ["tar", "-C", "/a b", "-cf", "-", "it's"]
    (only,) = places("node1")
    assert local.remote(only, Launch(), argv) == argv
    command = ssh.remote(only, Launch(), argv)
    assert command[-2] == "node1"
    assert shlex.split(command[-1]) == argv  # the remote shell splits it again


def job(hosts: str) -> Job:
    return Job(
        id="job-1",
        launcher="ssh",
        placements=places(hosts),
        batch=Batch(8, 1, 40),
        precision="fp32",
        device="cuda",
        recipe=Recipe().as_dict(),
    )


def test_the_orders_of_a_job() -> None:
    made = job("node1:2,node2:3")
    recipe = recipe_from({"engine": {"name": "deepspeed", "zero": 3, "offload": "optimizer+param"}})
    decided = Decided(made, TrainingWay(recipe, made.batch), (8, 4), ((0, 1), None))
    here = {**HERE, "address": "10.0.0.1", "port": 29500}
    env = {"NCCL_DEBUG": "INFO"}
    inputs = Inputs(
        recipe, parse_hosts("node1:2,node2:3"), load_plugin("muster.launchers", "ssh"), "ssh", env
    )
    told = orders(inputs, decided, {"node1": here, "node2": here})
    for order in told.values():
        order["job"] = {"deepspeed": order["job"]["deepspeed"]}  # the recipe's defaults have their own tests
    same_as_golden("orders.json", json.dumps(told, indent=1))


def test_the_greeting_of_a_job() -> None:
    recipe = recipe_from({"launch": {"workdir": "/scratch/", "port": 4711, "timeout": 60}})
    told = greeting(
        recipe,
        places("node1:2,node2"),
        run_dir=Path("/runs/one"),
        nonce=".muster-0",
        job_id="job-1",
        attempt=2,
    )
    same_as_golden("greeting.json", json.dumps(told, indent=1))
    assert len({spec["token"] for spec in told.values()}) == 2  # pretend hosts share a machine


def test_hosts_with_disks_of_their_own_keep_runs_of_one_name_apart() -> None:
    hosts, told = places("node1"), []
    for mark in (None, "01ab", "23cd"):
        about = {"run_dir": Path("/runs/final"), "nonce": ".n", "job_id": "final", "attempt": 1}
        told.append(greeting(Recipe(), hosts, mark=mark, **about)["node1"]["workdir"])
    cache = "~/.cache/muster/final"
    assert told == [cache, f"{cache}-01ab", f"{cache}-23cd"]


@pytest.mark.parametrize("magic", [MAGIC_NUMBER, b"of an older Python"])
def test_the_agents_text_comes_compiled_and_as_it_is(magic: bytes) -> None:
    """Each part has its length before it; a Python of another version takes the text."""
    left = io.BytesIO(agent_source())
    with patch.dict(sys.modules, {"_frozen_importlib_external": SimpleNamespace(MAGIC_NUMBER=magic)}):
        made: dict[str, Any] = {"r": left.read, "sys": sys, "__name__": "not the main program"}
        exec(left.read(int(left.read(10))), made)
    sent = made["package"].agent
    assert callable(sent.main) and left.read() == b""
    assert bool(sent.__doc__) == (magic != MAGIC_NUMBER)
