"""Jobs of these tests are forks of a process that has imported already (tests/warm): they are what new
processes would be, to themselves and to who watches them, and compute the same."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import warm
from tests.jobs import LONG, Job
from tests.support import gradient_norms, losses, needs_torch, run, wait_until

pytestmark = [pytest.mark.real, pytest.mark.timeout(280)]


@pytest.fixture
def interpreter() -> warm.Interpreter:
    """The program that tests start in place of Python."""
    needs_torch()
    found = warm.use()
    if found is None:
        pytest.skip("tests run in no virtual environment, or without bash")
    return found


def started(program: str, folder: Path, *what: str, **env: str) -> subprocess.Popen[str]:
    """A rank of tests/warm/rank.py, all alone."""
    return subprocess.Popen(
        [program, "-m", "tests.warm.rank", str(folder), *what],
        env={**os.environ, "MUSTER_TOKEN": "mine", "RANK": "0", "WORLD_SIZE": "1", **env},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def seen(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "rank0.json").read_text()))


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_fork_is_what_a_new_process_would_be(interpreter: warm.Interpreter, tmp_path: Path) -> None:
    """Its arguments, folder and environment, seen from inside and in /proc; its exit code and output."""
    found = {}
    for name, program in (("fork", str(interpreter.path)), ("new", warm.REAL)):
        (folder := tmp_path / name).mkdir()
        process = started(program, folder, "exit", "3", SAID="a b\n\u00e9")
        out, _ = process.communicate(timeout=120)
        assert process.returncode == 3 and "rank 0 is here" in out, out
        found[name] = seen(folder)
    fork, new = found["fork"], found["new"]
    assert (fork["forked"], new["forked"]) == (True, False)
    assert fork["argv"][1:] == new["argv"][1:] == ["exit", "3"] and fork["cwd"] == new["cwd"]
    assert fork["command"][1:3] == new["command"][1:3] == ["-m", "tests.warm.rank"]
    own = ("_", "SHLVL", "PWD", "OLDPWD")  # a shell was on the way
    both = [{k: v for k, v in each["environ"].items() if k not in own} for each in (fork, new)]
    assert {name: both[0].get(name) for name in both[1]} == both[1]
    assert {"MUSTER_TOKEN=mine", "RANK=0", "SAID=a b\n\u00e9"} <= set(fork["shown"])


def test_what_it_cannot_be_is_started_anew(interpreter: warm.Interpreter, tmp_path: Path) -> None:
    """An environment that decides what an import does."""
    process = started(str(interpreter.path), tmp_path, "exit", "0", HF_HUB_OFFLINE="1")
    assert process.communicate(timeout=120)[0].count("is here") == 1 and process.returncode == 0
    assert not seen(tmp_path)["forked"]
    assert any(line.startswith("refused: HF_HUB_OFFLINE") for line in interpreter.said())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_ends_with_who_asked(
    number: signal.Signals, interpreter: warm.Interpreter, tmp_path: Path
) -> None:
    """SIGKILL of the program that was started ends what runs for it; SIGTERM is for the fork as well, as
    agents send it to all that carry the token."""
    process = started(str(interpreter.path), tmp_path, "wait")
    try:
        assert wait_until((tmp_path / "rank0.json").exists, 60)
        fork = seen(tmp_path)["pid"]
        process.send_signal(number)
        if number == signal.SIGTERM:
            os.kill(fork, number)
        assert process.wait(20) == -number
        assert wait_until(lambda: not alive(fork), 20)
    finally:
        process.kill()
        process.communicate(timeout=20)


def test_it_computes_the_same(
    interpreter: warm.Interpreter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Losses and gradients are equal to the last bit."""
    settings = ["engine.name=deepspeed", "engine.zero=1", "train.max_steps=6", "measure.window=1"]
    settings += ["batch.micro=4"]
    found = []
    for name, program in (("fork", str(interpreter.path)), ("new", warm.REAL)):
        monkeypatch.setattr(sys, "executable", program)
        done, result = run(tmp_path / name, "local:2", *settings)
        assert result.status == "succeeded", result.failure
        found.append((losses(done), gradient_norms(done)))
    assert any("muster.worker" in line and line.startswith("forked:") for line in interpreter.said())
    assert found[0] == found[1] and len(found[0][0]) == 6


def test_an_agent_finds_its_forks(interpreter: warm.Interpreter, tmp_path: Path) -> None:
    """Agents end them by the job's token; without the agent they end by themselves."""
    for what in ("interrupt", "agent"):
        with Job(tmp_path / what, "local:2x1", *LONG) as job:
            job.wait_for_steps()
            assert len(job.local_processes()) >= 6  # an agent, a rank's shadow and a rank for each host
            if what == "interrupt":
                job.process.send_signal(signal.SIGINT)
            else:
                agents = [
                    pid for pid in job.local_processes()
                    if b"muster-agent" in Path(f"/proc/{pid}/cmdline").read_bytes()
                ]  # fmt: skip
                os.kill(agents[0], signal.SIGKILL)
            job.finish()
            assert wait_until(lambda: not job.local_processes(), 20)
