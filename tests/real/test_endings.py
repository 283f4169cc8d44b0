"""However a job on this machine ends, nothing of it is left, after five seconds where
nothing runs beside it; no other job is touched."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.runs.listing import stop
from tests.jobs import LONG, Job
from tests.support import needs_torch, wait_until

pytestmark = [pytest.mark.real, pytest.mark.timeout(280)]


@pytest.fixture(scope="module")
def bystander(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """Another job on the same pretend hosts, which nothing in this file may touch."""
    needs_torch()
    folder = tmp_path_factory.mktemp("bystander") / "bystander-run"
    with Job(folder, "local:1", *LONG, "hang.seconds=off") as job:
        job.wait_for_steps()
        with job.standing():
            yield job
        assert job.goes_on(), "the other job no longer trains"
        assert job.process.poll() is None, job.said()
        job.process.send_signal(signal.SIGINT)
        job.finish()
        assert job.gone_within()


def children(job: Job, mark: bytes) -> list[int]:
    """The job's processes whose command line contains `mark`."""
    return [pid for pid in job.local_processes() if mark in Path(f"/proc/{pid}/cmdline").read_bytes()]


def ranks_of(job: Job) -> list[int]:
    """The job's ranks."""
    return children(job, b"muster.worker")


def test_controller_killed(bystander: Job, tmp_path: Path) -> None:
    """kill -9 of the controller: the agents' input closes, and they end their ranks."""
    with Job(tmp_path / "killed-run", "local:2x1", *LONG) as job:
        job.wait_for_steps()
        assert len(job.local_processes()) >= 4  # two agents, two ranks
        job.process.kill()
        assert job.gone_within()
        assert not job.run.result.exists()  # not finished, and nothing pretends that it is
        assert job.run.state() == "interrupted"


@pytest.mark.real_start
def test_agent_killed(bystander: Job, tmp_path: Path) -> None:
    """kill -9 of an agent: its ranks die with it, and the job ends with the host named."""
    with Job(tmp_path / "agent-run", "local:2x1", *LONG) as job:
        job.wait_for_steps()
        os.kill(children(job, b"muster-agent")[0], signal.SIGKILL)
        assert wait_until(lambda: job.process.poll() is not None, 30)
        code, result = job.finish()
        assert code == 1
        assert result["status"] == "failed"
        assert result["failure"]["host"] in ("local0", "local1")
        assert job.gone_within()


@pytest.mark.real_start
def test_rank_killed(bystander: Job, tmp_path: Path) -> None:
    """kill -9 of a rank: the job fails, and the rank, its host and the signal are named."""
    with Job(tmp_path / "rank-run", "local:2x1", *LONG) as job:
        job.wait_for_steps()
        ranks = ranks_of(job)
        assert len(ranks) == 2
        os.kill(ranks[0], signal.SIGKILL)
        code, result = job.finish()
        assert code == 1
        assert "killed by SIGKILL, not by the kernel's out-of-memory killer" in result["failure"]["what"]
        assert result["failure"]["host"] in ("local0", "local1")
        assert job.gone_within()


def test_interrupt(bystander: Job, tmp_path: Path) -> None:
    """Ctrl-C: the job is stopped, says so, and leaves nothing lying about."""
    with Job(tmp_path / "interrupt-run", "local:2x1", *LONG, "env.MUSTER_PROOF=of the recipe") as job:
        job.wait_for_steps()
        for rank in ranks_of(job):
            assert b"MUSTER_PROOF=of the recipe" in Path(f"/proc/{rank}/environ").read_bytes().split(b"\0")
        job.process.send_signal(signal.SIGINT)
        code, result = job.finish()
        assert (code, result["status"]) == (1, "stopped")
        assert result["steps"] > 0  # what was measured until then is there
        assert job.gone_within()
        left = sorted(path.name for path in job.run.path.glob("hosts/*/*"))
        assert left == ["code.zip"] * 2 + ["spec.json"] * 2  # raw logs of ranks may hold secrets


def test_stop_from_elsewhere(bystander: Job, tmp_path: Path) -> None:
    """`muster stop` in another process ends the job and hears its result."""
    with Job(tmp_path / "stop-run", "local:2", *LONG) as job:
        job.wait_for_steps()
        assert job.run.state() == "running"
        assert stop(job.run) == "stopped"
        code, document = job.finish()
        assert (code, document["failure"]["what"]) == (1, "stopped by `muster stop`")
        assert job.gone_within()


def test_timeout(bystander: Job, tmp_path: Path) -> None:
    """launch.timeout: the job is ended by the clock, and says so."""
    with Job(tmp_path / "timeout-run", "local:2", *LONG, "launch.timeout=6") as job:
        code, result = job.finish()
        assert (code, result["status"]) == (1, "timeout")
        assert result["failure"]["host"] is None
        assert job.gone_within()


def test_terminate(bystander: Job, tmp_path: Path) -> None:
    """SIGTERM to the controller, as a batch system sends it, is a stop."""
    with Job(tmp_path / "terminate-run", "local:2", *LONG) as job:
        job.wait_for_steps()
        job.process.send_signal(signal.SIGTERM)
        code, result = job.finish()
        assert (code, result["status"]) == (1, "stopped")
        assert job.gone_within()
