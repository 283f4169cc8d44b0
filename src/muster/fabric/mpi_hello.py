"""MPI hello: one MPI program over all hosts, by mpirun. Each rank says who it is and takes part in a sum."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from muster.core.errors import JobError
from muster.core.fabric.result import MpiHello
from muster.core.inventory import Host
from muster.core.launch import Launch
from muster.fleet.launchers.base import ssh_arguments
from muster.fleet.shell import Shell

# Plain python with the MPI library itself by ctypes: nothing needs compiling, and mpi4py need not be there.
# Open MPI's handles are addresses of its global objects.
_PROGRAM = """
import ctypes, json, os, socket
said = {"rank": int(os.environ.get("OMPI_COMM_WORLD_RANK", "-1")),
        "size": int(os.environ.get("OMPI_COMM_WORLD_SIZE", "-1")), "host": socket.gethostname(), "sum": None}
mpi = None
for name in ("libmpi.so.40", "libmpi.so"):
    try:
        mpi = ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
        break
    except OSError:
        pass
if mpi is not None:
    at = lambda name: ctypes.byref(ctypes.c_char.in_dll(mpi, name))
    mpi.MPI_Init(None, None)
    mine, total = ctypes.c_int(said["rank"] + 1), ctypes.c_int(0)
    failed = mpi.MPI_Allreduce(ctypes.byref(mine), ctypes.byref(total), 1, at("ompi_mpi_int"),
                               at("ompi_mpi_op_sum"), at("ompi_mpi_comm_world"))
    mpi.MPI_Finalize()
    said["sum"] = None if failed else total.value
print("muster-mpi " + json.dumps(said), flush=True)
"""
_MARK = "muster-mpi "


def mpi_hello_argv(hosts: Sequence[Host], launch: Launch, python: str) -> list[str]:
    """The mpirun command: one rank per host, reached as the launcher `openmpi` reaches it. Pure."""
    return [
        "mpirun",
        "--allow-run-as-root",
        "--bind-to", "none",
        "--wdir", "/",
        "--mca", "plm_rsh_agent", "ssh",
        "--mca", "plm_rsh_args", " ".join(ssh_arguments(launch)),
        "--mca", "plm_rsh_no_tree_spawn", "1",
        "--mca", "orte_keep_fqdn_hostnames", "1",
        *launch.options,
        "-np", str(len(hosts)),
        "--host", ",".join(f"{host.address}:1" for host in hosts),
        "--map-by", "node",
        python, "-c", _PROGRAM,
    ]  # fmt: skip


def mpi_hello(
    hosts: Sequence[Host],
    launch: Launch,
    facts: Mapping[str, Mapping[str, Any]],
    patience: float,
    shell: Shell,
) -> MpiHello:
    """Run it. What fails stands in the result's `problem`."""
    python = str(facts[hosts[0].label]["python"]) if hosts[0].label in facts else "python3"
    argv = mpi_hello_argv(hosts, launch, python)
    shown = [word if word != _PROGRAM else "PROGRAM" for word in argv]
    began = time.monotonic()
    try:
        code, out, err = shell.run(argv, timeout=patience)
    except JobError as error:
        return _failed(shown, hosts, time.monotonic() - began, str(error))
    seconds = time.monotonic() - began
    said = read_hello(out.decode("utf-8", "replace"))
    problem = None
    if code != 0:
        words = [line for line in err.decode("utf-8", "replace").splitlines() if line.strip(" -*")]
        problem = f"mpirun ended with exit code {code}: {' '.join(words[:3])[:400]}"
    elif len(said) != len(hosts):
        problem = f"{len(said)} of {len(hosts)} ranks answered"
    sums = [each["sum"] for each in said]
    right = len(hosts) * (len(hosts) + 1) // 2
    return MpiHello(
        command=shown,
        hosts=[str(each["host"]) for each in said],
        asked=len(hosts),
        summed=None if not sums or None in sums else all(each == right for each in sums),
        seconds=seconds,
        problem=problem,
    )


def _failed(argv: list[str], hosts: Sequence[Host], seconds: float, problem: str) -> MpiHello:
    return MpiHello(command=argv, hosts=[], asked=len(hosts), summed=None, seconds=seconds, problem=problem)


def read_hello(text: str) -> list[dict[str, Any]]:
    """The ranks' lines among whatever else was printed, in the order of the ranks."""
    found = []
    for line in text.splitlines():
        if line.startswith(_MARK):
            try:
                found.append(dict(json.loads(line[len(_MARK) :])))
            except ValueError:
                continue
    return sorted(found, key=lambda each: each["rank"])
