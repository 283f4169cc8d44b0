"""Open MPI's mpirun: one process starts all agents, which then connect to the controller.

One application context per host, so that each agent gets its own name and no mapping has to be guessed. The
agents are no MPI programs: mpirun only starts them and carries their streams.
"""

from __future__ import annotations

import re

from muster.core.errors import InventoryError
from muster.core.job import Placement
from muster.core.launch import Launch
from muster.fleet.launchers.base import (
    CODE,
    SECRET,
    ControllerAddress,
    Request,
    dialling_argv,
    dialling_env,
    interpreter,
    ssh_argv,
    ssh_words,
)

ONE_MACHINE = False
DIALS = True

_NAME = re.compile(r"[A-Za-z0-9.-]+")  # its own parser crashes on others
remote = ssh_argv  # the output that mpirun forwards is not byte-exact


def requests(
    places: tuple[Placement, ...], launch: Launch, job_id: str, home: ControllerAddress | None
) -> list[Request]:
    """Return one mpirun for all hosts. Raises InventoryError and RecipeError for what mpirun cannot express.
    """
    assert home is not None
    argv = mpirun(
        launch,
        "--mca", "plm_rsh_num_concurrent", str(min(launch.fanout, len(places))),
        "--mca", "orte_abort_on_non_zero_status", "0",  # each agent reports for itself
        "--mca", "odls_base_sigkill_timeout", "5",  # an agent that is told to end ends its ranks first
    )  # fmt: skip
    for index, place in enumerate(places):
        if not _NAME.fullmatch(place.address):
            raise InventoryError(
                "mpirun takes names of letters, digits, dots and hyphens, and IPv4 addresses",
                host=place.host,
                hint="put the user or another name into ~/.ssh/config, or launch.launcher=ssh",
            )
        agent = dialling_argv(interpreter(launch), job_id, place.host, home, launch, with_secret=False)
        options = ["-np", "1", "--host", place.address, "-x", SECRET, "-x", CODE]  # -x holds for one context
        argv += [*([":"] if index else []), *options, *agent]
    hosts = tuple(place.host for place in places)
    return [Request(hosts, tuple(argv), dialling_env(home), dials=True)]


def mpirun(launch: Launch, *more: str) -> list[str]:
    """Return the begin of a command: how mpirun reaches hosts. `more`: further words of mpirun's own."""
    return [
        "mpirun",
        "--allow-run-as-root",  # as every other launcher does
        "--bind-to", "none",  # an agent's ranks are not to share the one core that MPI would bind it to
        "--wdir", "/",
        "--mca", "plm_rsh_agent", "ssh",
        "--mca", "plm_rsh_args", ssh_words(launch, "mpirun"),
        "--mca", "plm_rsh_no_tree_spawn", "1",  # hosts need not reach each other by ssh
        "--mca", "orte_keep_fqdn_hostnames", "1",
        *more,
        *launch.options,
    ]  # fmt: skip
