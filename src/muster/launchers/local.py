"""This machine: one agent per host of the inventory, as a child process."""

from __future__ import annotations

import sys

from muster.core.job import Placement
from muster.core.recipe import Launch
from muster.launchers.base import agent_argv
from muster.shell import Process, Shell

ONE_MACHINE = True


def remote(place: Placement, launch: Launch, argv: list[str]) -> list[str]:
    """This machine runs `argv` as it is."""
    return argv


def describe(place: Placement, launch: Launch, job_id: str) -> list[str]:
    """The agent's command."""
    return agent_argv(sys.executable, job_id)


def connect(place: Placement, launch: Launch, job_id: str, shell: Shell) -> Process:
    """Start the agent's interpreter. Raises JobError."""
    return shell.start(describe(place, launch, job_id))
