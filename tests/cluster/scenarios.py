"""What tests of jobs on the cluster share: how a job is started there, what befalls it, and what is left of
it."""

from __future__ import annotations

import time

from tests.cluster.cluster import Cluster
from tests.jobs import ENDED, Job
from tests.support import wait_until

HOSTS = "node1:1,node2:1,node3:1"
PAIR = "node1:1,node2:1"  # enough to lose one of
LEASE = 2.5


def over_ssh(cluster: Cluster) -> list[str]:
    """The options that reach the cluster's hosts, as a user's own ssh_config would."""
    return [f"launch.ssh_options=[-F, {cluster.ssh_config}]", "launch.connect_timeout=20", "launch.threads=1"]


def left(cluster: Cluster, job: Job) -> list[str]:
    """Processes of the job on any host."""
    found = []
    for node in cluster.hosts:
        for process in cluster.processes(node):
            token = process.environ.get("MUSTER_TOKEN", "")
            if token.startswith(job.run.id) or job.run.id in process.argv:
                found.append(f"{node.name}: {process.pid} {process.argv[:5]}")
    return found


def all_gone(cluster: Cluster, job: Job, within: float = ENDED) -> bool:
    """Whether nothing of the job is left on any host, and on this machine, soon enough."""
    began = time.monotonic()
    gone = wait_until(lambda: not left(cluster, job), within + 10)
    return gone and time.monotonic() - began <= within


def cut_link(cluster: Cluster, job: Job) -> None:
    cluster.cut("node2")


def drop_ssh(cluster: Cluster, job: Job) -> None:
    cluster.drop_ssh("node2")


def kill_host(cluster: Cluster, job: Job) -> None:
    cluster.kill("node2")
