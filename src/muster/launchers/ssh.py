"""The system's OpenSSH client: the user's ssh_config, ports, jump hosts, agents and known_hosts keep
working."""

from __future__ import annotations

import shlex

from muster.core.job import Placement
from muster.core.recipe import Launch
from muster.launchers.base import agent_argv
from muster.shell import Process, Shell

ONE_MACHINE = False


def remote(place: Placement, launch: Launch, argv: list[str]) -> list[str]:
    """The ssh command that runs `argv` on the host. BatchMode: never a prompt; host keys are checked as the
    user's configuration says."""
    interval = max(1, int(launch.lease // 3))
    return [
        "ssh",
        "-T",
        "-o", "BatchMode=yes",
        "-o", f"ConnectTimeout={max(1, int(launch.connect_timeout))}",
        "-o", f"ServerAliveInterval={interval}",
        "-o", "ServerAliveCountMax=3",
        "-o", "ControlPath=none",
        "-o", "ClearAllForwardings=yes",
        *launch.ssh_options,
        place.address,
        shlex.join(argv),
    ]  # fmt: skip


def describe(place: Placement, launch: Launch, job_id: str) -> list[str]:
    """The command that starts the agent."""
    return remote(place, launch, agent_argv(launch.python or "python3", job_id))


def connect(place: Placement, launch: Launch, job_id: str, shell: Shell) -> Process:
    """Start ssh. Raises JobError where there is no ssh client."""
    return shell.start(describe(place, launch, job_id))
