"""Jobs over ssh on three hosts with disks of their own: trained, cut, killed, dropped; nothing is left."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from muster.core.errors import UsageError
from muster.runs.checkpoints import WantedCheckpoint
from muster.runs.resume import resume
from tests.cluster.cluster import Cluster
from tests.cluster.scenarios import HOSTS, LEASE, all_gone, cut_link, drop_ssh, kill_host, left, over_ssh
from tests.jobs import ENDED, LONG, Job
from tests.support import needs_torch, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(280)]


@pytest.fixture(scope="module")
def bystander(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """Another job on one of the hosts, which nothing in this file may touch."""
    needs_torch()
    folder = tmp_path_factory.mktemp("bystander") / "bystander-run"
    with Job(folder, "node1:1", *LONG, *over_ssh(cluster), "hang.seconds=off") as job:
        job.wait_for_steps()
        with job.standing():
            yield job
        assert job.goes_on(), "the other job no longer trains"


def test_three_hosts_train_with_zero1(cluster: Cluster, tmp_path: Path) -> None:
    """Hosts that share no run folder: the model, its answers and every rank's events come back."""
    needs_torch()
    overrides = [
        "train.max_steps=12", "train.warmup=2", "measure.window=4", "checkpoint.every=6",
        "evaluate.after=true", "batch.micro=4", f"launch.workdir={cluster.private_dir}/muster",
        *over_ssh(cluster),
    ]  # fmt: skip
    run = cluster.private_dir / "runs" / "three-hosts"  # every host has its own disk in this place
    with Job(run, HOSTS, *overrides) as job:
        code, result = job.finish(200)
        assert code == 0, result
    assert result["status"] == "succeeded"
    assert result["samples"] == 12 * 4 * 3
    assert [host["host"] for host in result["hosts"]] == ["node1", "node2", "node3"]
    assert {host["facts"]["hostname"] for host in result["hosts"]} == {"node1", "node2", "node3"}
    assert not any(host["facts"]["shared"] for host in result["hosts"])
    assert result["quality"]["questions"] == 24
    assert (job.run.model / "model.safetensors").stat().st_size > 0
    assert {path.name for path in job.run.logs.iterdir()} >= {f"node{n}.rank{n - 1}.log" for n in (1, 2, 3)}
    for node in cluster.hosts:  # each host keeps its part of the checkpoints, complete
        place = f"{cluster.private_dir}/muster/{job.run.elsewhere}/checkpoints"
        listed = cluster.run(node, ["ls", place]).stdout.split()
        assert listed == ["checkpoint-12", "checkpoint-6"]
    assert all_gone(cluster, job)


DISASTERS = {"link-cut": cut_link, "ssh-dropped": drop_ssh, "host-killed": kill_host}


@pytest.mark.parametrize(
    "disaster", ["link-cut", "ssh-dropped", pytest.param("host-killed", marks=pytest.mark.real_start)]
)
def test_a_host_is_lost(disaster: str, bystander: Job, whole: Cluster, tmp_path: Path) -> None:
    """The job ends on all hosts, names the lost one, and leaves the other job alone."""
    happen: Callable[[Cluster, Job], None] = DISASTERS[disaster]
    with Job(tmp_path / f"{disaster}-run", HOSTS, *LONG, *over_ssh(whole), f"launch.lease={LEASE}") as job:
        job.wait_for_steps(3)
        assert len(left(whole, job)) >= 6  # an agent and a rank per host
        happen(whole, job)
        assert all_gone(whole, job, within=ENDED), left(whole, job)
        code, result = job.finish()
    assert code == 1
    assert result["status"] == "failed"
    assert result["failure"]["host"] == "node2"
    assert bystander.process.poll() is None


def test_controller_killed(bystander: Job, whole: Cluster, tmp_path: Path) -> None:
    """kill -9 of the controller: no process of the job is left on any host, and the other job goes on."""
    with Job(tmp_path / "controller-run", HOSTS, *LONG, *over_ssh(whole)) as job:
        job.wait_for_steps(3)
        job.process.send_signal(signal.SIGKILL)
        assert all_gone(whole, job), left(whole, job)
        assert job.gone_within()  # ssh clients as well
    assert left(whole, bystander)


def test_interrupt(bystander: Job, whole: Cluster, tmp_path: Path) -> None:
    """Ctrl-C ends the job on every host."""
    with Job(tmp_path / "interrupt-run", HOSTS, *LONG, *over_ssh(whole)) as job:
        job.wait_for_steps(3)
        job.process.send_signal(signal.SIGINT)
        assert all_gone(whole, job), left(whole, job)
        code, result = job.finish()
    assert (code, result["status"]) == (1, "stopped")


def test_unreachable_host_is_named(whole: Cluster, tmp_path: Path) -> None:
    """Nothing starts; the unreachable host is named, and those that answered are listed."""
    whole.kill("node3")
    overrides = [*LONG, *over_ssh(whole), "launch.connect_timeout=4"]
    with Job(tmp_path / "unreachable-run", HOSTS, *overrides) as job:
        code, document = job.finish()
    assert code == 2
    assert document["error"]["host"] == "node3"
    assert "node1, node2" in document["error"]["hint"]
    assert not job.run.path.exists()
    assert not left(whole, job)


@pytest.mark.parametrize("engine", ["ddp", "zero1"])
def test_resume_on_disks_of_their_own(engine: str, cluster: Cluster, tmp_path: Path) -> None:
    """Every host has what its ranks need: a run goes on from checkpoints that no host shares."""
    needs_torch()
    chosen = {
        "ddp": ["engine.name=ddp", "engine.zero=0"],
        "zero1": ["engine.name=deepspeed", "engine.zero=1"],
    }
    folder, own = cluster.private_dir / "runs" / f"resumed-{engine}", f"{cluster.private_dir}/muster"
    overrides = [
        "train.max_steps=80", "measure.window=5", "checkpoint.every=10", "checkpoint.keep=20",
        "batch.micro=4", *chosen[engine],
        f"launch.workdir={own}", *over_ssh(cluster),
    ]  # fmt: skip
    with Job(folder, "node1:1,node2:1", *overrides) as job:
        # Its name there is known once the run folder is made.
        saved = "checkpoints/checkpoint-20/complete.json"
        reached = wait_until(
            lambda: all(
                cluster.run(node, ["test", "-e", f"{own}/{job.run.elsewhere}/{saved}"]).returncode == 0
                for node in ("node1", "node2")
            ),
            120,
        )
        assert reached, job.said()
        alive = cluster.processes("node2")
        rank = next(p for p in alive if "muster.worker" in p.argv)
        cluster.signal("node2", rank.pid, signal.SIGKILL)
        code, document = job.finish()
    assert code == 1
    assert document["failure"]["host"] == "node2"
    if engine == "zero1":
        again = resume(job.run)
    else:  # node2 is gone for good: another host takes its place
        with pytest.raises(UsageError, match=r"is not on node3 \(copy node1:"):
            resume(job.run, hosts="node1:1,node3:1")
        again = resume(job.run, hosts="node1:1,node3:1", wanted=WantedCheckpoint(copy=True))
    assert again.status == "succeeded", again.failure
    resumed_from = job.run.read_json(job.run.job)["resume_step"]
    assert resumed_from is not None and resumed_from >= 20
    assert (again.steps, again.samples) == (80, 80 * 8)
    assert (job.run.model / "model.safetensors").stat().st_size > 0
