"""A job that hangs ends within its time, and names the rank that the others wait for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from muster.store.runfolder import RunFolder
from tests.jobs import LONG, PATIENCE, Job
from tests.support import needs_torch

pytestmark = [pytest.mark.real, pytest.mark.real_start, pytest.mark.timeout(280)]


def rank_of(pid: int) -> str | None:
    """The rank that a process is, as its environment says."""
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    return next((each[5:].decode() for each in words if each.startswith(b"RANK=")), None)


def test_a_rank_that_is_stopped(tmp_path: Path) -> None:
    """A training of Muster's own, whose second rank gets SIGSTOP."""
    needs_torch()
    with Job(tmp_path / "stopped-run", "local:2x1", *LONG, "hang.seconds=3") as job:
        job.wait_for_steps(3)
        (victim,) = [pid for pid in job.local_processes() if rank_of(pid) == "1"]
        os.kill(victim, signal.SIGSTOP)
        code, result = job.finish(PATIENCE)
        assert code == 1 and result["status"] == "failed", result
        hung, seen = result["hang"], json.loads(job.run.hang.read_text())["hosts"]
        assert (hung["ranks"], hung["certain"], hung["waiting"]) == ([1], True, [0]), seen
        assert hung["step"] >= 2
        assert (result["failure"]["host"], result["failure"]["where"]) == ("local1", "rank 1")
        assert set(seen["local1"]["ranks"][0]["states"]) == {"T"}
        assert seen["local0"]["ranks"][0]["after"], "the flight recorder of the rank that waits"
        assert job.gone_within()


DIFFERENT = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
for step in range(12):
    dist.all_reduce(torch.ones(4))
    if dist.get_rank() == 0:
        print(f"iter {step}: loss 1.0000, time 20.50ms, mfu 1.00%", flush=True)
if dist.get_rank() == 0:
    dist.broadcast(torch.ones(4), 0)
    dist.barrier()
else:
    dist.all_reduce(torch.ones(4))
"""


def command(folder: Path, *words: str, hosts: str = "local:1x1") -> tuple[int, dict[str, Any], RunFolder]:
    """-> exit code, result, run folder of `muster run`."""
    argv = [sys.executable, "-m", "muster", "run", hosts, "--name", "job", "--json", *words]
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=PATIENCE)
    assert done.stdout.strip(), done.stderr
    return done.returncode, json.loads(done.stdout), RunFolder(folder / "runs/job")


def test_ranks_in_different_collectives(tmp_path: Path) -> None:
    """A bug of the program, under torchrun: both lines are told, and neither of two ranks is accused."""
    needs_torch()
    (tmp_path / "train.py").write_text(DIFFERENT)
    code, result, _ = command(tmp_path, "hang.seconds=3", "--", "train.py", hosts="local:2x1")
    assert code == 1 and result["hang"] is not None, result
    assert result["hang"]["ranks"] == [] and not result["hang"]["certain"]
    assert "train.py:9" in result["hang"]["what"] or "train.py:10" in result["hang"]["what"], result["hang"]
    assert "train.py:12" in result["hang"]["what"]


STEPS = """
import sys, time
import muster
for step in range(20):
    time.sleep(0.02)
    muster.step(loss=1.0, samples=4)
if sys.argv[1] == "announced":
    with muster.phase("evaluate"):
        time.sleep(7)
else:
    time.sleep(9)
muster.step(loss=1.0, samples=4)
"""


def test_only_reported(tmp_path: Path) -> None:
    """With `hang.action=report` the job goes on, and ends well where it was only slow."""
    (tmp_path / "train.py").write_text(STEPS)
    words = ["--start", "rank", "hang.seconds=2", "hang.action=report", "--", sys.executable, "train.py", "x"]
    code, result, run = command(tmp_path, *words)
    assert code == 0 and result["status"] == "succeeded", result
    assert result["hang"]["ranks"] == [0] and result["steps"] == 21
    assert any(result["hang"]["what"] in note for note in result["notes"])
    assert run.hang.exists()


def test_what_is_announced_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(STEPS)
    words = ["--start", "rank", "hang.seconds=2", "--", sys.executable, "train.py", "announced"]
    code, result, _ = command(tmp_path, *words)
    assert code == 0 and result["hang"] is None, result


def test_a_program_that_waits_for_nobody_is_let_alone(tmp_path: Path) -> None:
    """No steps, no collectives: a server."""
    code, result, _ = command(tmp_path, "--start", "host", "hang.seconds=2", "--", "sleep", "8")
    assert code == 0 and result["hang"] is None, result
