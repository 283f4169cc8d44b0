"""pdsh and mpirun, the real programs, on three hosts with disks of their own: the same promises as over
ssh."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.fixtures import need
from tests.cluster.scenarios import HOSTS, LEASE, PAIR, all_gone, cut_link, kill_host, left, over_ssh
from tests.jobs import ENDED, LONG, Job
from tests.support import needs_torch, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(280)]

LAUNCHERS = {"pdsh": "pdsh", "openmpi": "mpirun"}  # and the program that stays on this machine


@pytest.fixture(autouse=True)
def _programs(launcher: str) -> None:
    need(LAUNCHERS[launcher])


def over(launcher: str, cluster: Cluster) -> list[str]:
    return [*over_ssh(cluster), f"launch.launcher={launcher}"]


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_three_hosts_train(launcher: str, cluster: Cluster, tmp_path: Path) -> None:
    """Live events, logs of every rank, the model and its answers: as over ssh."""
    needs_torch()
    overrides = [
        "train.max_steps=8", "train.warmup=2", "measure.window=4", "checkpoint.every=4",
        "evaluate.after=true", "batch.micro=4", f"launch.workdir={cluster.private_dir}/muster",
        *over(launcher, cluster),
    ]  # fmt: skip
    with Job(cluster.private_dir / "runs" / f"{launcher}-three", HOSTS, *overrides) as job:
        code, result = job.finish(200)
        assert code == 0, result
        assert job.gone_within()
    assert result["samples"] == 8 * 4 * 3
    assert [host["facts"]["hostname"] for host in result["hosts"]] == ["node1", "node2", "node3"]
    assert result["quality"]["questions"] == 24
    assert (job.run.model / "model.safetensors").stat().st_size > 0
    assert {path.name for path in job.run.logs.iterdir()} >= {f"node{n}.rank{n - 1}.log" for n in (1, 2, 3)}
    assert all_gone(cluster, job)


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("disaster", [pytest.param(cut_link, marks=pytest.mark.real_start), kill_host])
def test_a_host_is_lost(disaster, launcher: str, whole: Cluster, tmp_path: Path) -> None:
    """The job ends on all hosts, soon, and names the lost one; the launcher's program does not stay."""
    needs_torch()
    overrides = [*LONG, *over(launcher, whole), f"launch.lease={LEASE}"]
    with Job(tmp_path / f"{launcher}-{disaster.__name__}", PAIR, *overrides) as job:
        job.wait_for_steps(3)
        assert len(left(whole, job)) >= 4  # an agent and a rank per host
        disaster(whole, job)
        assert all_gone(whole, job, within=ENDED), left(whole, job)
        code, result = job.finish()
        assert not job.local_processes()
    assert (code, result["status"]) == (1, "failed")
    assert result["failure"]["host"] == "node2"
    assert result["failure"]["id"] == ("ssh_unreachable" if "lost" in result["failure"]["what"] else None)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_controller_killed(launcher: str, whole: Cluster, tmp_path: Path) -> None:
    """kill -9 of the controller: the agents' connections close, and everything ends, here as well."""
    needs_torch()
    with Job(tmp_path / f"{launcher}-controller", PAIR, *LONG, *over(launcher, whole)) as job:
        job.wait_for_steps(3)
        job.process.send_signal(signal.SIGKILL)
        assert all_gone(whole, job), left(whole, job)
        assert job.gone_within()


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_the_launchers_program_is_killed(launcher: str, whole: Cluster, tmp_path: Path) -> None:
    """Without pdsh the job can go on, for its agents have connections of their own; without mpirun it ends.
    Either way `muster stop` or the end leaves nothing."""
    needs_torch()
    with Job(tmp_path / f"{launcher}-program", PAIR, *LONG, *over(launcher, whole)) as job:
        job.wait_for_steps(2)
        (program,) = [pid for pid in job.local_processes() if is_program(pid, LAUNCHERS[launcher])]
        os.kill(program, signal.SIGKILL)
        if launcher == "pdsh":
            before = job.windows()
            assert wait_until(lambda: job.windows() > before + 1, 60), job.said()
            job.process.send_signal(signal.SIGINT)
        code, _ = job.finish()
        assert code == 1
        assert all_gone(whole, job), left(whole, job)
        assert job.gone_within()


def is_program(pid: int, name: str) -> bool:
    return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode().rpartition("/")[2] == name


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_interrupt(launcher: str, whole: Cluster, tmp_path: Path) -> None:
    """Ctrl-C ends the job on every host."""
    needs_torch()
    with Job(tmp_path / f"{launcher}-interrupt", PAIR, *LONG, *over(launcher, whole)) as job:
        job.wait_for_steps(2)
        job.process.send_signal(signal.SIGINT)
        assert all_gone(whole, job), left(whole, job)
        code, result = job.finish()
        assert job.gone_within()
    assert (code, result["status"]) == (1, "stopped")


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_unreachable_host_is_named(launcher: str, whole: Cluster, tmp_path: Path) -> None:
    """Nothing starts, and the host to mend is named."""
    whole.kill("node3")
    overrides = [*LONG, *over(launcher, whole), "launch.connect_timeout=10"]
    with Job(tmp_path / f"{launcher}-unreachable", HOSTS, *overrides) as job:
        code, document = job.finish()
        assert job.gone_within()
    assert code == 2
    assert document["error"]["host"] == "node3", document
    assert document["error"]["id"] in ("ssh_unreachable", "dns_unresolved"), document
    assert "node1, node2" in document["error"]["hint"]
    assert not job.run.path.exists()
    assert not left(whole, job)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_setup_that_fails_on_one_host(launcher: str, cluster: Cluster, tmp_path: Path) -> None:
    """It is run on every host, and the one where it fails is named, with what it printed; nothing starts."""
    setup = 'launch.setup=[ "$(hostname)" != node2 ] || { echo no such module; exit 3; }'
    with Job(tmp_path / f"{launcher}-setup", HOSTS, *LONG, *over(launcher, cluster), setup) as job:
        code, document = job.finish()
        assert job.gone_within()
    assert code == 2
    assert document["error"]["host"] == "node2", document
    assert document["error"]["what"] == "launch.setup failed with exit code 3: no such module"
    assert not job.run.path.exists()
    assert all_gone(cluster, job)
