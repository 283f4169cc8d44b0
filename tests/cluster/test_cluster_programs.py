"""pdsh and mpirun reach the test cluster, from this machine and from one of its hosts, one process each."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .cluster import Cluster
from .fixtures import need
from .helpers import PATIENCE

pytestmark = pytest.mark.cluster

HOSTS = "node1,node2,node3"
# Host, launcher's rank, and an argument as it arrived.
# A line in one piece: mpirun forwards what comes, and unbuffered output comes word by word. Without quotes,
# for shells.
SAY = (
    "import os, socket, sys; words = [socket.gethostname(), *map(os.environ.get, sys.argv[2:]), sys.argv[1]];"
    " os.write(1, (chr(32).join(words) + chr(10)).encode())"
)
WORDS = "a  b 'c' \"d\" $HOME `id` %h"
OUTSIDE_AND_INSIDE = pytest.mark.parametrize("on", [None, "node1"])


def run(
    cluster: Cluster, on: str | None, argv: list[str], **variables: str
) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **variables}
    if on is not None:
        return cluster.run(on, argv, env=env, timeout=PATIENCE)
    return subprocess.run(
        argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE, cwd="/"
    )


def arguments(cluster: Cluster, on: str | None) -> str:
    """What ssh has to be told: inside, the hosts' own ssh_config knows the way."""
    return f"-F {cluster.ssh_config}" if on is None else "-o BatchMode=yes"


def pdsh(
    cluster: Cluster, on: str | None, command: str, *options: str, hosts: str = HOSTS
) -> subprocess.CompletedProcess[str]:
    need("pdsh")
    argv = ["pdsh", "-S", "-R", "ssh", "-w", hosts, *options, command]
    return run(cluster, on, argv, PDSH_SSH_ARGS_APPEND=arguments(cluster, on))


def mpirun(cluster: Cluster, on: str | None, *argv: str) -> subprocess.CompletedProcess[str]:
    need("mpirun")
    subnet = f"{cluster.address}/24"
    options = ["--allow-run-as-root", "--bind-to", "none", "--wdir", "/", "--mca", "plm_rsh_agent", "ssh"]
    options += ["--mca", "plm_rsh_args", arguments(cluster, on), "--mca", "oob_tcp_if_include", subnet]
    return run(cluster, on, ["mpirun", *options, "--mca", "btl_tcp_if_include", subnet, *argv])


@OUTSIDE_AND_INSIDE
def test_pdsh_starts_one_process_per_host(cluster: Cluster, on: str | None) -> None:
    quoted = WORDS.replace("'", "'\\''").replace("%", "%%")
    done = pdsh(cluster, on, f"RANK=%n NAME=%h {sys.executable} -c '{SAY}' '{quoted}' RANK NAME")
    expected = [f"node{n}: node{n} {n - 1} node{n} {WORDS}" for n in (1, 2, 3)]
    assert (done.returncode, sorted(done.stdout.splitlines())) == (0, expected), done


def test_pdsh_says_which_host_failed(cluster: Cluster) -> None:
    done = pdsh(cluster, None, "echo alive; [ %h != node2 ] || exit 7")
    assert done.returncode == 7
    assert sorted(done.stdout.splitlines()) == ["node1: alive", "node2: alive", "node3: alive"]
    assert "node2: ssh exited with exit code 7" in done.stderr


def test_pdsh_keeps_the_input_of_its_commands_open(cluster: Cluster) -> None:
    """An agent may take the end of its input for the end of its controller."""
    done = pdsh(cluster, None, "timeout 1 cat; echo $?", hosts="node1")
    assert done.stdout == "node1: 124\n", done


@OUTSIDE_AND_INSIDE
def test_mpirun_starts_one_process_per_host(cluster: Cluster, on: str | None) -> None:
    process = [sys.executable, "-c", SAY, WORDS, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"]
    done = mpirun(cluster, on, "--host", HOSTS, "-np", "3", *process)
    expected = [f"node{n} {n - 1} 3 {WORDS}" for n in (1, 2, 3)]
    assert (done.returncode, sorted(done.stdout.splitlines())) == (0, expected), done


@OUTSIDE_AND_INSIDE
def test_mpirun_starts_a_context_per_host(cluster: Cluster, on: str | None) -> None:
    """Each in the order given; without contexts, mpirun's own host would come first."""
    argv: list[str] = []
    for name in ("node2", "node1", "node3"):
        process = [sys.executable, "-c", SAY, name, "OMPI_COMM_WORLD_RANK", "MARK"]
        argv += [*([":"] if argv else []), "-np", "1", "--host", name, "-x", f"MARK=m-{name}", *process]
    done = mpirun(cluster, on, *argv)
    expected = ["node1 1 m-node1 node1", "node2 0 m-node2 node2", "node3 2 m-node3 node3"]
    assert (done.returncode, sorted(done.stdout.splitlines())) == (0, expected), done


def test_mpirun_lets_the_others_go_on(cluster: Cluster) -> None:
    text = "[ $(hostname) != node2 ] || exit 7; sleep 1; hostname"
    options = ["--mca", "orte_abort_on_non_zero_status", "0", "--host", HOSTS, "-np", "3"]
    done = mpirun(cluster, None, *options, "sh", "-c", text)
    assert sorted(done.stdout.splitlines()) == ["node1", "node3"], done


def test_mpi_adds_over_the_network(cluster: Cluster, tmp_path: Path) -> None:
    """A real MPI_Allreduce, by way of the library that mpirun belongs to."""
    script = tmp_path / "sum.py"
    script.write_text(
        "import ctypes\n"
        "mpi = ctypes.CDLL('libmpi.so.40', mode=ctypes.RTLD_GLOBAL)\n"
        "handle = lambda name: ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(mpi, name)))\n"
        "mpi.MPI_Init(None, None)\n"
        "world, rank, total = handle('ompi_mpi_comm_world'), ctypes.c_int(), ctypes.c_int()\n"
        "mpi.MPI_Comm_rank(world, ctypes.byref(rank))\n"
        "mine = ctypes.c_int(10 ** rank.value)\n"
        "mpi.MPI_Allreduce(ctypes.byref(mine), ctypes.byref(total), 1,\n"
        "                  handle('ompi_mpi_int'), handle('ompi_mpi_op_sum'), world)\n"
        "print(total.value)\n"
        "mpi.MPI_Finalize()\n"
    )
    done = mpirun(cluster, None, "--host", HOSTS, "-np", "3", sys.executable, str(script))
    assert (done.returncode, done.stdout.split()) == (0, ["111"] * 3), done
