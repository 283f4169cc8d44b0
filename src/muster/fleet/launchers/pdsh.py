"""pdsh over ssh: one process starts all agents, which then connect to the controller.

pdsh replaces %h in the command by the host's name, and ssh passes it to the remote shell as one line.
"""

from __future__ import annotations

import shlex

from muster.core.errors import InventoryError
from muster.core.job import Placement
from muster.core.launch import Launch
from muster.fleet.launchers.base import (
    ControllerAddress,
    Request,
    dialling_argv,
    interpreter,
    ssh_argv,
    ssh_words,
)

ONE_MACHINE = False
DIALS = True

_HOST = "MUSTER-HOST"  # stands where pdsh shall put a host's name
remote = ssh_argv  # pdsh puts the host's name before every line of output


def requests(
    places: tuple[Placement, ...], launch: Launch, job_id: str, home: ControllerAddress | None
) -> list[Request]:
    """Return one pdsh for all hosts. Raises InventoryError and RecipeError for what pdsh cannot express."""
    assert home is not None
    for place in places:
        if ":" in place.address:
            raise InventoryError(
                "pdsh takes no IPv6 addresses",
                host=place.host,
                hint="a name of the host, or launch.launcher=ssh",
            )
    arguments = ssh_words(launch, "pdsh")
    agent = dialling_argv(interpreter(launch), job_id, _HOST, home, launch, with_secret=True)
    argv = [
        "pdsh",
        "-R", "ssh",
        "-f", str(len(places)),  # agents stay: fewer at once would leave the others waiting
        "-t", str(max(1, int(launch.connect_timeout))),
        "-w", ",".join(place.address for place in places),
        *launch.options,
        shlex.join(agent).replace("%", "%%").replace(_HOST, "%h"),
    ]  # fmt: skip
    env = {"PDSH_SSH_ARGS_APPEND": arguments}
    return [Request(tuple(place.host for place in places), tuple(argv), env, dials=True)]
