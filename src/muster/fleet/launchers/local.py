"""This machine: one agent per host of the inventory, as a child process."""

from __future__ import annotations

import sys

from muster.core.job import Placement
from muster.core.launch import Launch
from muster.fleet.launchers.base import ControllerAddress, Request, agent_argv

ONE_MACHINE = True
DIALS = False


def remote(place: Placement, launch: Launch, argv: list[str]) -> list[str]:
    """Return `argv` itself, which runs on this machine."""
    return argv


def requests(
    places: tuple[Placement, ...], launch: Launch, job_id: str, home: ControllerAddress | None
) -> list[Request]:
    """Return one interpreter per pretend host."""
    return [Request((place.host,), tuple(agent_argv(sys.executable, job_id))) for place in places]
