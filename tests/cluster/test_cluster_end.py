"""The test cluster leaves nothing behind, however it ends, and touches nobody else's."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from . import boot, fixtures, registry
from .cluster import Cluster, ClusterError, unavailable
from .helpers import PATIENCE, Trace, index_of, spaces_of, ssh, trace, wait_for

pytestmark = pytest.mark.cluster

PACKAGE = __package__ or ""
TOP = str(Path(__file__).parents[len(PACKAGE.split("."))])  # the folder that holds our package

OWNER = f"""
import ctypes, dataclasses, json, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: do not outlive the tests
sys.path.insert(0, {TOP!r})
from {PACKAGE}.cluster import Cluster
from {PACKAGE}.helpers import trace
signal.signal(signal.SIGINT, signal.default_int_handler)
with Cluster(size=2) as cluster:
    cluster.run("node1", ["sh", "-c", "sleep 4545 > /dev/null 2>&1 &"])
    print(json.dumps(dataclasses.asdict(trace(cluster))), flush=True)
    cluster.run("node2", ["sleep", "4545"], timeout=4545)
"""


@contextlib.contextmanager
def another_owner() -> Iterator[tuple[subprocess.Popen[str], Trace]]:
    """A process of its own that owns a cluster and is busy on it."""
    process = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process, Trace(**json.loads(process.stdout.readline()))
    finally:
        with process:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                try:
                    process.wait(PATIENCE)
                finally:
                    process.kill()


def children() -> set[str]:
    tasks = Path("/proc/self/task").iterdir()
    return {pid for task in tasks for pid in (task / "children").read_text(encoding="ascii").split()}


def is_registered(found: Trace) -> bool:
    """Whether the registry knows this very cluster, and not a later one of the same number."""
    number = min(found.links, key=len).removeprefix(registry.PREFIX)
    path = registry.REGISTRY / f"{number}.json"
    with registry.locked():
        inits = registry.read_entry(path).inits if path.exists() else []
    return any((init.pid, init.started) in found.processes for init in inits)


@pytest.mark.usefixtures("able")
def test_nothing_is_left_after_the_end(tmp_path: Path) -> None:
    before = children(), spaces_of("self")
    with Cluster(size=2, base=tmp_path) as cluster:
        ssh(cluster, "node1", "sh", "-c", "sleep 4646 > /dev/null 2>&1 &")
        found = trace(cluster)
        assert is_registered(found)
        cluster.kill("node2")
    assert found.left() == {} and not is_registered(found)
    assert (children(), spaces_of("self")) == before
    cluster.close()
    with pytest.raises(ClusterError):
        cluster.run("node1", ["true"])


@pytest.mark.usefixtures("able")
def test_nothing_is_left_after_an_exception() -> None:
    with pytest.raises(ZeroDivisionError), Cluster(size=1) as cluster:
        found = trace(cluster)
        raise ZeroDivisionError
    assert found.left() == {} and not cluster.base.exists()


@pytest.mark.usefixtures("able")
def test_nothing_is_left_of_a_boot_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    before = children()
    monkeypatch.setattr(boot, "BOOT_SECONDS", 1.0)
    monkeypatch.setattr(boot, "sshd_argv", lambda endpoint: ["echo", "no sshd today"])
    cluster = Cluster(size=2)
    with pytest.raises(ClusterError, match=r"sshd of node1 does not answer:\s+no sshd today"):
        cluster.start()
    assert children() == before and not cluster.base.exists()
    assert [index_of(node.link) for node in cluster.hosts] == [None, None]


@pytest.mark.usefixtures("able")
def test_nothing_is_left_after_an_interrupt() -> None:
    with another_owner() as (process, found):
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE)
        assert found.left() == {} and not Path(found.base).exists()


def test_a_killed_owner_leaves_no_process_and_the_next_start_sweeps_the_rest(cluster: Cluster) -> None:
    with another_owner() as (process, found):
        assert len(found.left()["processes"]) >= 8  # unshare, init, sshd and sleep, twice
        with registry.locked():  # so that no other run of these tests sweeps before we looked
            process.kill()
            process.wait(PATIENCE)
            wait_for("the end of the hosts", lambda: "processes" not in found.left())
            assert list(found.left()) == ["links"] and Path(found.base).exists()
        with Cluster(size=1) as next_one:
            assert found.left() == {} and not Path(found.base).exists() and not is_registered(found)
            assert ssh(next_one, "node1", "hostname") == "node1\n"
    for node in cluster.hosts:  # whose owner is alive
        assert ssh(cluster, node.name, "hostname") == f"{node.name}\n"


def test_clusters_live_side_by_side(cluster: Cluster) -> None:
    with another_owner() as (process, found), Cluster(size=2) as own:
        mine, shared = trace(own), trace(cluster)
        assert not set(mine.links) & set(found.links) and not set(mine.links) & set(shared.links)
        assert not set(mine.spaces) & set(found.spaces) and not set(mine.spaces) & set(shared.spaces)
        assert not {node.address for node in own.hosts} & {node.address for node in cluster.hosts}
        for each in (own, cluster):
            assert ssh(each, "node2", "hostname") == "node2\n"
        assert process.poll() is None and len(found.left()["processes"]) >= 8
    assert mine.left() == {}
    assert set(shared.left()) == {"processes", "links"}


def test_a_forked_child_does_not_take_the_cluster_down(cluster: Cluster) -> None:
    pid = os.fork()
    if pid == 0:
        cluster.close()
        os._exit(0)
    os.waitpid(pid, 0)
    assert ssh(cluster, "node1", "hostname") == "node1\n"


def test_where_there_can_be_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    reason = unavailable()
    assert reason == "a test cluster needs root"
    monkeypatch.delenv("MUSTER_REQUIRE_CLUSTER", raising=False)
    with pytest.raises(pytest.skip.Exception, match="needs root"):
        fixtures.refuse(reason)
    monkeypatch.setenv("MUSTER_REQUIRE_CLUSTER", "1")
    with pytest.raises(pytest.fail.Exception, match="needs root"):
        fixtures.refuse(reason)


def test_a_number_of_hosts_that_a_subnet_holds() -> None:
    for size in (0, 201):
        with pytest.raises(ValueError, match="1 to 200"):
            Cluster(size=size)
