"""The group checks on three hosts over ssh: healthy, with a slow link, a killed rank, a missing route;
and MPI. Nothing is left behind."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from muster.checks.base import Context, Finding, Level
from muster.checks.families.fabric import CHECKS, judge_group
from muster.checks.group import measure, mpi_hello
from muster.core.fabric import GroupFabric
from muster.core.inventory import parse_hosts
from muster.core.launch import Launch
from muster.core.recipe import Recipe
from muster.core.registry import load_plugin
from muster.inputs.read import Inputs, read_inputs
from muster.reports.page import report
from muster.runs.train import train
from muster.store.runfolder import RunFolder
from muster.workloads.fabric.request import FabricRequest
from tests.cluster.cluster import Cluster, Node
from tests.cluster.fixtures import need
from tests.cluster.namespaces import tool
from tests.cluster.scenarios import over_ssh
from tests.support import needs_torch, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(200)]

HOSTS = parse_hosts("node1:1,node2:1,node3:1")
MIB = 1 << 20
Watch = Callable[[str, Mapping[str, Any]], None]


def launch(cluster: Cluster) -> Launch:
    work = f"{cluster.private_dir}/muster"  # every host has its own disk in this place
    return Launch(ssh_options=["-F", str(cluster.ssh_config)], workdir=work, threads=1, device="cpu")


def measured(cluster: Cluster, watch: Watch | None = None, **asked: Any) -> GroupFabric:
    """The group checks; afterwards neither a process nor a file of them is on any host."""
    needs_torch()
    inputs = Inputs(Recipe(launch=launch(cluster)), HOSTS, load_plugin("muster.launchers", "ssh"), "ssh", {})
    watching = {"watch": watch} if watch else {}
    before = {node.name: files(cluster, node) for node in cluster.hosts}  # other tests' jobs
    found = measure(inputs, asked=FabricRequest(**asked), **watching)
    assert wait_until(lambda: not left(cluster), 10), left(cluster)
    assert {node.name: files(cluster, node) for node in cluster.hosts} == before
    return found


def files(cluster: Cluster, node: Node) -> str:
    return cluster.run(node, ["ls", "-A", f"{cluster.private_dir}/muster"]).stdout


def left(cluster: Cluster, job: str = "fabric-") -> list[str]:
    """Processes of the group checks, or of a job, on any host."""
    return [
        f"{node.name}: {process.pid} {process.argv[:5]}"
        for node in cluster.hosts
        for process in cluster.processes(node)
        if process.environ.get("MUSTER_TOKEN", "").startswith(job)
    ]


def levels(found: GroupFabric, least: Level = Level.WARN, **expects: Any) -> dict[tuple[str, str], Finding]:
    """Findings of at least that level. Expectations are given as bandwidth={"at_least_gbit": 1}."""
    known = {check.name: dict(check.expects) for check in CHECKS}
    for name, values in expects.items():
        known[f"fabric.{name}"].update(values)
    context = Context(
        expects=known, slots={}, world_size=3, gpus_expected=None, transport={}, recipe={}, launcher="ssh"
    )
    order = [Level.PASS, Level.NOT_APPLICABLE, Level.UNKNOWN, Level.WARN, Level.FAIL]
    findings = judge_group(found, context)
    return {(f.check, f.host): f for f in findings if order.index(f.level) >= order.index(least)}


@pytest.mark.alone
def test_a_healthy_group(cluster: Cluster) -> None:
    """Everything is answered, by three hosts that share no folder, and nothing is complained of."""
    found = measured(cluster, seconds=6, largest=4 * MIB, disk_bytes=16 * MIB)
    assert (found.failures, found.wrong, found.stopped) == ([], [], None)
    assert found.rendezvous.address == cluster.node("node1").address
    assert len(found.pairs) == 6 and len(found.disks) == 3
    for precision in {each.precision for each in found.matmul} | {"fp32"}:  # bf16 where CPUs have it
        assert sorted(each.host for each in found.matmul if each.precision == precision) == list(HOSTS.names)
    assert {each.operation for each in found.sweeps} == {
        "all-reduce", "all-gather", "reduce-scatter", "broadcast",
    }  # fmt: skip
    assert all(each.cached for each in found.disks)  # a tmpfs here: said, not hidden
    assert levels(found, Level.UNKNOWN) == {}
    wanting = levels(found, bandwidth={"at_least_gbit": 100_000})
    assert {(check, host) for check, host in wanting} == {
        ("fabric.bandwidth", f"node{number}") for number in (1, 2, 3)
    }


def test_a_killed_rank(cluster: Cluster) -> None:
    """kill -9 in the middle: the host is named, others are not, and what was measured before is kept."""

    def watch(host: str, event: Mapping[str, Any]) -> None:
        if event["kind"] == "sweep" and not killed:
            ranks = [
                process
                for process in cluster.processes("node2")
                if "LOCAL_RANK" in process.environ and not any("warm/client" in word for word in process.argv)
            ]
            killed.extend(process.pid for process in ranks)
            cluster.signal("node2", ranks[0].pid, signal.SIGKILL)

    killed: list[int] = []
    asked = {"questions": ("values", "all-reduce", "broadcast", "disk"), "seconds": 20, "patience": 3}
    found = measured(cluster, watch, **asked, disk_bytes=8 * MIB)
    assert len(killed) == 1
    failed = levels(found)
    assert set(failed) == {("fabric.ranks", "node2")}
    killed_by = "rank 1 was killed by SIGKILL, not by the kernel's out-of-memory killer"
    evidence = failed["fabric.ranks", "node2"].evidence
    assert f"{killed_by} (at all-reduce)" in evidence or f"{killed_by} (at broadcast)" in evidence
    assert len(found.values) == 4 and found.sweeps
    assert {each.host for each in found.disks} == {"node1", "node3"}


def test_a_host_that_cannot_reach_the_first(whole: Cluster) -> None:
    """The controller reaches it, its ranks do not reach the rendezvous: named, with the reason."""
    route = [tool("ip"), "route", "add", "prohibit", f"{whole.node('node1').address}/32"]
    assert whole.run("node3", route).returncode == 0
    try:
        found = measured(whole, questions=("values", "disk"), seconds=2, arrival=20, disk_bytes=8 * MIB)
    finally:
        route[2] = "del"
        assert whole.run("node3", route).returncode == 0
    assert found.rendezvous.missing == ["node3"]
    failed = levels(found)
    assert {key for key in failed if key[0] != "fabric.disk"} == {("fabric.rendezvous", "node3")}
    assert "Permission denied" in failed["fabric.rendezvous", "node3"].evidence
    assert {each.host for each in found.disks} == {"node1", "node2", "node3"}


def test_mpi_hello(cluster: Cluster) -> None:
    """One MPI program on three hosts, with a right sum."""
    need("mpirun")
    hello = mpi_hello(HOSTS.hosts, launch(cluster), "python3", 60)
    assert hello.problem is None
    assert (hello.hosts, hello.summed) == (["node1", "node2", "node3"], True)
    broken = mpi_hello(parse_hosts("node1,nowhere").hosts, launch(cluster), "python3", 30)
    assert broken.problem is not None and broken.hosts == []


@pytest.mark.alone
def test_the_workload_shows_a_slow_link(whole: Cluster) -> None:
    """`muster train fabric` over ssh, hosts without a shared disk: the slow host's four directions are the
    matrix's slowest, in the result, in the file and on the page; nothing is left on the hosts."""
    needs_torch()
    for node in whole.hosts:
        whole.shape(node, "200mbit")
    whole.shape("node2", "20mbit")
    run = RunFolder(whole.private_dir / "runs" / "slow-link")  # every host has its own disk in this place
    options = ["fabric.seconds=24", "fabric.largest=1MiB", "fabric.matmul=false", *over_ssh(whole)]
    options += [f"launch.workdir={whole.private_dir}/muster", "launch.device=cpu"]
    result = train(read_inputs("fabric", "node1:1,node2:1,node3:1", options), run)
    assert (result.status, result.failure) == ("succeeded", None)
    assert result.fabric is not None and result.fabric.pairs is not None
    link, host = result.fabric.slowest
    assert "node2" in (link.host, link.other)  # four of six directions are slow, and so is the median
    assert host.name == "node2" and host.ratio < 0.5
    rates = {
        (source, target): rate
        for source, row in zip(result.fabric.pairs.names, result.fabric.pairs.bandwidth, strict=True)
        for target, rate in zip(result.fabric.pairs.names, row, strict=True)
        if rate is not None
    }
    assert len(rates) == 6
    slow = sorted(rates, key=lambda pair: rates[pair])[:4]
    assert all("node2" in pair for pair in slow)
    assert rates["node1", "node2"] * 8 / 1e6 < 40  # what was set, bursts included
    assert run.fabric.joinpath("bandwidth.csv").read_text().splitlines()[0].endswith(",node1,node2,node3")
    heat = (
        report(run).read_text(encoding="utf-8").partition('<table class="heat"')[2].partition("</table>")[0]
    )
    assert heat.count("title=") == 6 and heat.count('class="slow"') == 4
    assert wait_until(lambda: not left(whole, "slow-link"), 10), left(whole, "slow-link")
