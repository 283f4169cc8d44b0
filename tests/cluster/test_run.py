"""`muster run` on three hosts with disks of their own: code is brought, and nothing is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from muster.store.runfolder import RunFolder
from muster.store.tree import read_tree
from tests.cluster.cluster import Cluster
from tests.cluster.fixtures import need
from tests.cluster.scenarios import HOSTS, over_ssh
from tests.cluster.slurm import Slurm, clean_environment
from tests.jobs import PATIENCE
from tests.real.test_run import DDP
from tests.support import needs_torch, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.real_start, pytest.mark.timeout(280)]


def words(cluster: Cluster, runs: Path, *more: str) -> list[str]:
    """The command line up to the options."""
    launch = [f"launch.workdir={cluster.private_dir}/muster", *over_ssh(cluster)]
    return [sys.executable, "-m", "muster", "run", HOSTS, "--runs", str(runs), "--json", *launch, *more]


def test_torchrun_with_code_that_is_brought(cluster: Cluster, tmp_path: Path) -> None:
    """Torchrun's ranks of three hosts meet; the second time no content has to be sent again."""
    needs_torch()
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text(DDP)
    (code / "large.txt").write_bytes(os.urandom(3 << 20))  # of more than one message
    runs = cluster.private_dir / "runs"  # every host has its own disk in this place
    sent = []
    for name in ("first", "second"):
        argv = words(cluster, runs, "--name", name, "--sync", str(code), "--", "train.py")
        done = subprocess.run(argv, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        result = json.loads(done.stdout)
        assert result["command"]["code"]["digest"] == read_tree(code).digest
        assert (result["command"]["told_by"], result["steps"], result["world_size"]) == ("nanoGPT", 30, 3)
        assert "rank 2 of 3 has 6" in RunFolder(runs / name).rank_log("node3", 2).read_text()
        sent.append(result["command"]["code"]["sent"])
    assert sent[0] >= 3 * (3 << 20) and sent[1] == 0


SAYS = 'echo "rank $OMPI_COMM_WORLD_RANK of $WORLD_SIZE on $(hostname)"'


@pytest.mark.parametrize(("launcher", "program"), [("pdsh", "pdsh"), ("openmpi", "mpirun")])
def test_by_other_launchers(launcher: str, program: str, cluster: Cluster, tmp_path: Path) -> None:
    """A rank's variables are the job's, and not those of the mpirun that started the agents."""
    need(program)
    argv = words(cluster, tmp_path, f"launch.launcher={launcher}", "--workdir", "/", "--start", "rank")
    argv += ["--names", "ompi", "--name", launcher, "--", "bash", "-c", SAYS]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    for n in (1, 2, 3):
        log = RunFolder(tmp_path / launcher).rank_log(f"node{n}", n - 1).read_text()
        assert f"rank {n - 1} of 3 on node{n}" in log


def test_by_slurm(slurm: Slurm, tmp_path: Path) -> None:
    """A batch job: handed over, followed to its end, with srun's own names for a rank."""
    argv = [
        sys.executable,
        "-m",
        "muster",
        "run",
        "slurm:/2x1",
        "--name",
        "batch",
        "--json",
        "launch.threads=1",
    ]
    argv += ["--start", "rank", "--names", "slurm", "--workdir", "/", "--runs", str(tmp_path)]
    argv += ["--", "bash", "-c", 'echo "task $SLURM_PROCID of $SLURM_NTASKS"']
    env = {**clean_environment(), **slurm.env}
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE, env=env)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    result = json.loads(done.stdout)
    assert (result["status"], result["world_size"]) == ("succeeded", 2)
    for rank, host in enumerate(result["hosts"]):
        log = RunFolder(tmp_path / "batch").rank_log(host["host"], rank).read_text()
        assert f"task {rank} of 2" in log


def test_scancel_in_an_allocation(cluster: Cluster, whole_slurm: Slurm, tmp_path: Path) -> None:
    """Agents come by srun, and end with the allocation; so does what ignores SIGTERM, and has left its
    session, on every host. The cause is no rank's."""
    words = ["salloc", "--quiet", "--nodes=3", "--exclusive", sys.executable, "-m", "muster", "run", "slurm:"]
    words += ["--json", "--name", "salloc", "--workdir", "/", "--runs", str(tmp_path), "--start", "rank"]
    words += ["--names", "slurm", "--", "bash", "-c"]
    script = "setsid sleep 987653 & trap '' TERM; echo task $SLURM_PROCID of $SLURM_NTASKS; wait; wait"
    env, pipe = {**clean_environment(), **whole_slurm.env}, subprocess.PIPE
    job = subprocess.Popen([*words, script], env=env, stdout=pipe, stderr=subprocess.DEVNULL, text=True)
    logs = [RunFolder(tmp_path / "salloc").rank_log(f"node{n + 1}", n) for n in range(3)]

    def ready() -> bool:
        return all(log.exists() and f"task {n} of 3" in log.read_text() for n, log in enumerate(logs))

    def living() -> list[str]:
        each = [process for node in cluster.hosts for process in cluster.processes(node)]
        return [p.name for p in each if p.environ.get("MUSTER_TOKEN", "").startswith("salloc.")]

    try:
        assert wait_until(ready, PATIENCE)
        assert len(living()) >= 6
        whole_slurm.run(["scancel", *whole_slurm.jobs()])
        said, _ = job.communicate(timeout=PATIENCE)
        assert wait_until(lambda: not living(), 15), living()
        assert "ended by signal 15" in json.loads(said)["failure"]["what"]
    finally:
        job.kill()
        job.wait()


@pytest.mark.parametrize("ends", ["controller", "link", "host"])
def test_nothing_is_left(ends: str, whole: Cluster, tmp_path: Path) -> None:
    """However it ends, grandchildren on every host are gone, those that left their session among them; and a
    host that is lost is named."""
    cluster = whole
    script = "setsid sleep 987654 & echo ready; wait"
    argv = words(cluster, tmp_path, "--name", "job", "--workdir", "/", "--start", "host", "launch.lease=3")
    pipe = subprocess.PIPE
    job = subprocess.Popen([*argv, "--", "bash", "-c", script], stderr=subprocess.DEVNULL, stdout=pipe)
    run = RunFolder(tmp_path / "job")

    def sleeping() -> list[str]:
        living = [node for node in cluster.hosts if ends != "host" or node.name != "node2"]
        found = [cluster.run(node, ["pgrep", "-f", "^sleep 987654"]) for node in living]
        return [each.stdout for each in found if each.stdout.strip()]

    def ready() -> bool:
        logs = [run.host_log(f"node{n}") for n in (1, 2, 3)]
        return all(each.exists() and "ready" in each.read_text() for each in logs)

    try:
        assert wait_until(ready, 60)
        assert sleeping()
        if ends == "controller":
            job.send_signal(signal.SIGKILL)
        else:
            (cluster.cut if ends == "link" else cluster.kill)("node2")
        said, _ = job.communicate(timeout=60)
        assert wait_until(lambda: not sleeping(), 15)
        if ends != "controller":
            assert (job.returncode, json.loads(said)["failure"]["host"]) == (1, "node2")
    finally:
        job.kill()
        job.wait()
