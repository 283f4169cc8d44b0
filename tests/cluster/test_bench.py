"""`muster bench` over ssh: a job that is too late is ended on all of its hosts, and no other job is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from muster.benches.bench import BenchWatcher, bench
from muster.benches.document import JobRecord
from muster.benches.folder import BenchFolder
from muster.benches.inputs import read_bench
from muster.benches.schedule import Task
from tests.cluster.cluster import Cluster
from tests.cluster.scenarios import HOSTS, over_ssh
from tests.support import needs_torch, wait_until
from tests.unit.benches import write_suite

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(280)]

SUITE = {
    "warm_up": False,
    "jobs": [
        {"name": "late", "recipe": "digits", "groups": [2], "cover": "first", "timeout": 20,
         "set": {"train": {"max_steps": 1_000_000}, "batch": {"global": None, "micro": 8}}},
        {"name": "fabric", "recipe": "fabric", "groups": [1], "timeout": 200,
         "set": {"fabric": {"seconds": 2, "largest": "1MiB"}}},
    ],
}  # fmt: skip


def processes(cluster: Cluster, job: str, hosts: Sequence[str]) -> list[str]:
    """What is there of a job on these hosts."""
    return [
        f"{host}: {process.pid} {process.argv[:5]}"
        for host in hosts
        for process in cluster.processes(host)
        if process.environ.get("MUSTER_TOKEN", "").startswith(job)
    ]


class Looker(BenchWatcher):
    """Looks, when a job begins, what is there on its hosts of jobs that are over. It does not wait: the next
    job would then begin later than it does."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.over: list[Task] = []
        self.looked = 0
        self.left: list[str] = []

    def began(self, task: Task, run: Path) -> None:
        for other in self.over:
            shared = sorted(set(other.hosts) & set(task.hosts))
            self.looked += len(shared)
            self.left += processes(self.cluster, other.id, shared)

    def ended(self, task: Task, record: JobRecord | None) -> None:
        self.over.append(task)


def test_a_late_job_is_ended_on_its_hosts_alone(cluster: Cluster, tmp_path: Path) -> None:
    needs_torch()
    inputs = read_bench(str(write_suite(tmp_path, SUITE)), HOSTS, over_ssh(cluster))
    looker = Looker(cluster)
    found = bench(inputs, BenchFolder(tmp_path / "bench"), looker)
    jobs = {job.job: job for job in found.jobs}
    assert found.complete
    assert jobs["late-2x-001"].outcome == "timeout"
    assert looker.looked == 2 and not looker.left
    every = [(task.id, task.hosts) for task in looker.over]
    assert wait_until(lambda: not any(processes(cluster, *each) for each in every), 10)
    alone = [jobs[f"fabric-1x-00{number}"] for number in (1, 2, 3)]
    assert [job.outcome for job in alone] == ["succeeded"] * 3, [job.reason for job in alone]
    assert [job.hosts for job in alone] == [("node1",), ("node2",), ("node3",)]
    began = {job.job: job.started or 0 for job in found.jobs}
    late = jobs["late-2x-001"]
    assert began["fabric-1x-003"] < (late.ended or 0)  # its host was free: it ran beside the late one
    assert min(began["fabric-1x-001"], began["fabric-1x-002"]) >= (late.ended or 0)  # theirs were not
    assert all(job.figures["matmul"] > 0 for job in alone)
