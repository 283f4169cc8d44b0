"""Jobs by the real Slurm: srun inside an allocation, batch jobs, their ends, and the way back to them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.store import events
from muster.store.runfolder import RunFolder
from tests.cluster.cluster import Cluster
from tests.cluster.scenarios import LEASE, all_gone, cut_link, kill_host, left
from tests.cluster.slurm import Slurm, clean_environment
from tests.jobs import ENDED, LONG, PATIENCE, Job
from tests.support import TINY, needs_torch, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(280)]

SHORT = ["train.max_steps=8", "train.warmup=2", "measure.window=4", "batch.micro=4", "launch.threads=1"]


def environment(slurm: Slurm) -> dict[str, str]:
    return {**clean_environment(), **slurm.env}


def in_allocation(slurm: Slurm, folder: Path, *overrides: str, nodes: int = 2) -> Job:
    """`muster train` inside nodes that salloc holds: its controller runs on this machine."""
    needs_torch()
    before = ["salloc", "--quiet", f"--nodes={nodes}", "--exclusive"]
    more = ["launch.threads=1", *overrides]
    return Job(folder, f"slurm:/{nodes}x1", *more, before=before, env=environment(slurm))


def command(*words: str) -> list[str]:
    """`muster`, by the Python of the test that runs: see tests/warm."""
    return [sys.executable, "-m", "muster", *words]


def muster(slurm: Slurm, *arguments: str, code: int = 0) -> Any:
    """A verb with --json -> its document."""
    argv = command(*arguments, "--json")
    done = subprocess.run(
        argv, env=environment(slurm), capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == code, (arguments, done.stdout[-2000:], done.stderr[-2000:])
    return json.loads(done.stdout)


def controller(job: Job) -> int:
    """The process that supervises: salloc's child."""
    return int(job.run.read_json(job.run.controller)["pid"])


@pytest.fixture
def submitted(whole_slurm: Slurm, tmp_path: Path) -> Iterator[tuple[Slurm, RunFolder]]:
    """A long run that is in Slurm's hands, and began, while its submitter has left."""
    needs_torch()
    run = RunFolder(tmp_path / "runs" / "batch")
    more = ["checkpoint.every=5", "checkpoint.keep=3", "launch.slurm.requeue=true", "launch.threads=1"]
    said = muster(
        whole_slurm, "train", "demo", "--hosts", "slurm:main/2x1", "--output", str(run.path), "--detach",
        *TINY, *LONG, *more,
    )  # fmt: skip
    assert said["path"] == str(run.path) and said["slurm_job"].isdigit()
    assert wait_until(lambda: steps(run) >= 7, PATIENCE), run.batch_output.read_text()
    yield whole_slurm, run


def steps(run: RunFolder) -> int:
    """The last measured optimizer step."""
    windows = [each for each in events.read_events(run.events) if isinstance(each, events.Window)]
    return max((window.step for window in windows), default=0)


def test_three_nodes_train_with_srun(cluster: Cluster, slurm: Slurm) -> None:
    """Live events, logs of every rank, the model and its answers, on disks of their own."""
    more = ["checkpoint.every=4", "evaluate.after=true", f"launch.workdir={cluster.private_dir}/muster"]
    folder = cluster.private_dir / "runs" / "slurm-three"
    with in_allocation(slurm, folder, *SHORT, *more, nodes=3) as job:
        code, result = job.finish(200)
        assert code == 0, result
    assert result["samples"] == 8 * 4 * 3
    assert [host["facts"]["hostname"] for host in result["hosts"]] == ["node1", "node2", "node3"]
    assert not any(host["facts"]["shared"] for host in result["hosts"])
    assert result["quality"]["questions"] == 24
    assert (job.run.model / "model.safetensors").stat().st_size > 0
    assert {path.name for path in job.run.logs.iterdir()} >= {f"node{n}.rank{n - 1}.log" for n in (1, 2, 3)}
    assert all_gone(cluster, job)


@pytest.mark.parametrize("disaster", [cut_link, pytest.param(kill_host, marks=pytest.mark.real_start)])
def test_a_node_is_lost(disaster, cluster: Cluster, whole_slurm: Slurm, tmp_path: Path) -> None:
    """The job ends on all nodes, soon, and names the lost one."""
    folder = tmp_path / f"slurm-{disaster.__name__}"
    with in_allocation(whole_slurm, folder, *LONG, f"launch.lease={LEASE}") as job:
        job.wait_for_steps(3)
        assert len(left(cluster, job)) >= 4  # an agent and a rank per node
        disaster(cluster, job)
        assert all_gone(cluster, job, within=ENDED), left(cluster, job)
        code, result = job.finish()
    assert (code, result["status"]) == (1, "failed")
    assert result["failure"]["host"] == "node2"


def test_controller_killed(cluster: Cluster, whole_slurm: Slurm, tmp_path: Path) -> None:
    with in_allocation(whole_slurm, tmp_path / "slurm-controller", *LONG) as job:
        job.wait_for_steps(3)
        os.kill(controller(job), signal.SIGKILL)
        assert all_gone(cluster, job), left(cluster, job)
        assert wait_until(lambda: job.process.poll() is not None, 30)  # salloc
        assert job.gone_within()  # srun as well


def test_interrupt(cluster: Cluster, whole_slurm: Slurm, tmp_path: Path) -> None:
    with in_allocation(whole_slurm, tmp_path / "slurm-interrupt", *LONG) as job:
        job.wait_for_steps(2)
        os.kill(controller(job), signal.SIGINT)
        assert all_gone(cluster, job), left(cluster, job)
        code, result = job.finish()
    assert (code, result["status"]) == (1, "stopped")


def test_a_batch_job_is_followed_to_its_end(slurm: Slurm, tmp_path: Path) -> None:
    """Outside an allocation the same command submits, waits, shows, and has the job's own result."""
    needs_torch()
    more = [*SHORT, "launch.slurm.gres=gpu:1", "launch.slurm.minutes=10", "launch.options=[--comment=ours]"]
    with Job(tmp_path / "followed", "slurm:main/3x1", *more, env=environment(slurm)) as job:
        code, result = job.finish(200)
    assert code == 0, result
    assert (result["status"], result["samples"]) == ("succeeded", 8 * 4 * 3)
    told = slurm.wait_job(job.run.read_json(job.run.submission)["job"], ["COMPLETED"])
    assert told["TimeLimit"] == "00:10:00" and told["Comment"].strip() == "ours"
    assert "gpu:1" in told["TresPerNode"]


def test_a_submitted_run_is_found_again(submitted: tuple[Slurm, RunFolder], cluster: Cluster) -> None:
    """Its submitter is gone: ls, show and stop find it, and another can watch it."""
    slurm, run = submitted
    root = ["--runs", str(run.path.parent)]
    assert [(row["id"], row["status"]) for row in muster(slurm, "ls", *root)] == [("batch", "elsewhere")]
    assert muster(slurm, "show", "last", *root)["step"] >= 2
    argv = command("show", "last", *root, "--follow")
    watching = subprocess.Popen(argv, env=environment(slurm), stderr=subprocess.PIPE, text=True)
    try:
        assert watching.stderr is not None
        assert any("samples/s" in line for line in watching.stderr)
        watching.send_signal(signal.SIGINT)  # ends the watching alone
        watching.communicate(timeout=PATIENCE)
    finally:
        if watching.poll() is None:
            watching.kill()
            watching.communicate()
    assert run.read_result() is None
    assert muster(slurm, "stop", "last", *root)["status"] == "stopped"
    assert wait_until(lambda: not slurm.jobs(), PATIENCE)
    assert not ranks_left(cluster, run)


def test_scancel_leaves_nothing(submitted: tuple[Slurm, RunFolder], cluster: Cluster) -> None:
    slurm, run = submitted
    slurm.run(["scancel", run.read_json(run.submission)["job"]])
    assert wait_until(lambda: not slurm.jobs(), PATIENCE)
    assert wait_until(lambda: not ranks_left(cluster, run), ENDED), ranks_left(cluster, run)


def test_a_requeued_job_goes_on(submitted: tuple[Slurm, RunFolder]) -> None:
    """Slurm starts it again: from the newest checkpoint, as the next attempt of the same run. Where it waits
    for that, its last start has left a result, and nobody supervises it: stop takes it out of the queue."""
    slurm, run = submitted
    job = run.read_json(run.submission)["job"]
    slurm.requeue(job)

    def second() -> bool:
        return run.job.exists() and run.read_json(run.job)["attempt"] == 2

    assert wait_until(second, 3 * PATIENCE), run.batch_output.read_text()[-3000:]
    assert run.read_json(run.job)["resume_step"] >= 5
    slurm.run(["scontrol", "requeue", job])
    slurm.wait_job(job, ["PENDING"])
    assert wait_until(lambda: run.controller_alive() is False, 2 * PATIENCE)
    assert muster(slurm, "stop", str(run.path))["status"] == "cancelled"
    assert wait_until(lambda: not slurm.jobs(), PATIENCE)


def test_a_waiting_job_is_cancelled(slurm: Slurm, whole_slurm: Slurm, tmp_path: Path) -> None:
    """More nodes than there are free: it waits; show says so, and stop takes it back."""
    wait = ["sbatch", "--parsable", "--exclusive", "--nodes=3", "--wrap=sleep 300"]
    blocker = slurm.run(wait).stdout.strip()
    slurm.wait_job(blocker, ["RUNNING"])
    folder = tmp_path / "waiting"
    muster(slurm, "train", "demo", "--hosts", "slurm:/3x1", "--output", str(folder), "--detach", *TINY)
    said = subprocess.run(
        command("show", str(folder)), env=environment(slurm), capture_output=True, text=True, check=True
    ).stdout
    assert "submitted: Slurm job" in said and "pending" in said
    assert muster(slurm, "stop", str(folder))["status"] == "cancelled"
    assert muster(slurm, "show", str(folder))["state"] == "cancelled"


def test_what_slurm_refuses_leaves_nothing(slurm: Slurm, tmp_path: Path) -> None:
    folder = tmp_path / "refused"
    document = muster(
        slurm, "train", "demo", "--hosts", "slurm:nowhere/3", "--output", str(folder), *TINY, code=1
    )
    assert "Invalid partition" in document["error"]["message"]
    assert not folder.exists()


def ranks_left(cluster: Cluster, run: RunFolder) -> list[str]:
    found = []
    for node in cluster.hosts:
        for process in cluster.processes(node):
            if process.environ.get("MUSTER_TOKEN", "").startswith(f"{run.id}."):
                found.append(f"{node.name}: {process.pid} {process.argv[:4]}")
    return found
