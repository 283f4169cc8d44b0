"""The system's OpenSSH client: the user's ssh_config, ports, jump hosts, agents and known_hosts keep
working."""

from __future__ import annotations

from muster.core.job import Placement
from muster.core.launch import Launch
from muster.fleet.launchers.base import ControllerAddress, Request, agent_argv, interpreter, ssh_argv

ONE_MACHINE = False
DIALS = False
remote = ssh_argv


def requests(
    places: tuple[Placement, ...], launch: Launch, job_id: str, home: ControllerAddress | None
) -> list[Request]:
    """Return one ssh per host."""
    agent = agent_argv(interpreter(launch), job_id)
    return [Request((place.host,), tuple(ssh_argv(place, launch, agent))) for place in places]
