"""The exact commands that are run, against text files beside this one. MUSTER_UPDATE_GOLDEN=1 rewrites
those."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from muster.core.batch import Batch
from muster.core.inventory import parse_hosts
from muster.core.job import Job, Placement, place
from muster.core.recipe import Launch, Recipe
from muster.launchers import local, ssh
from muster.launchers.base import agent_source
from muster.planner.decide import Decided
from muster.shell import FakeShell, Process
from muster.stages.orders import greeting, orders, torchrun_argv

FOLDER = Path(__file__).parent


def same_as_golden(name: str, text: str) -> None:
    text = text.replace(sys.executable, "{python}").rstrip("\n") + "\n"
    path = FOLDER / name
    if os.environ.get("MUSTER_UPDATE_GOLDEN") == "1":
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text


def places(hosts: str, slots: int = 1) -> tuple[Placement, ...]:
    return place([(host, host.slots or slots) for host in parse_hosts(hosts).hosts])


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
]


@pytest.mark.parametrize(
    ("name", "launcher", "hosts", "launch"), LAUNCHES, ids=[each[0] for each in LAUNCHES]
)
def test_the_command_that_starts_an_agent(
    name: str, launcher: ModuleType, hosts: str, launch: dict[str, Any]
) -> None:
    settings = Launch.model_validate(launch)
    same_as_golden(name, lines(*(launcher.describe(place, settings, "job-1") for place in places(hosts))))


@pytest.mark.parametrize(("launcher", "hosts"), [(local, "local:1"), (ssh, "node1")], ids=["local", "ssh"])
def test_what_is_described_is_what_is_started(launcher: ModuleType, hosts: str) -> None:
    class Started:
        pid = 1

    process: Process = Started()  # type: ignore[assignment]
    shell = FakeShell(answer=lambda argv: process)
    (only,) = places(hosts)
    assert launcher.connect(only, Launch(), "job-1", shell) is process
    assert shell.started == [launcher.describe(only, Launch(), "job-1")]


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


def test_torchrun() -> None:
    made = job("node1:2,node2:3")
    same_as_golden(
        "torchrun.txt", lines(*(torchrun_argv(made, index, "10.0.0.1", 29500) for index in (0, 1)))
    )


def test_the_orders_of_a_job() -> None:
    made = job("node1:2,node2:3")
    recipe = Recipe.model_validate({"engine": {"name": "deepspeed", "zero": 3, "offload": "optimizer+param"}})
    decided = Decided((2, 3), "cuda", "fp32", made.batch, (8, 4), ((0, 1), None), ())
    told = orders(made, recipe, decided, {"NCCL_DEBUG": "INFO"}, address="10.0.0.1", port=29500)
    for order in told.values():
        order["job"] = {"deepspeed": order["job"]["deepspeed"]}  # the recipe's defaults have their own tests
    same_as_golden("orders.json", json.dumps(told, indent=1))


def test_the_greeting_of_a_job() -> None:
    recipe = Recipe.model_validate({"launch": {"workdir": "/scratch/", "port": 4711, "timeout": 60}})
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


def test_the_agents_text_has_its_length_before_it() -> None:
    source = agent_source()
    assert int(source[:10]) == len(source) - 10
    compile(source[10:], "muster-agent", "exec")
