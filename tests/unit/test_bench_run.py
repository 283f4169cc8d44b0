"""A bench's jobs as processes: at once, each for itself, stopped, and gone on with. `muster train` is played
by a process of a few lines; tests/real/test_bench.py has the real one."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from muster.benches import bench as bench_loop
from muster.benches import child as bench_child
from muster.benches.bench import BenchWatcher, bench, continue_bench
from muster.benches.document import Bench, JobRecord
from muster.benches.folder import BenchFolder
from muster.benches.inputs import read_bench
from muster.benches.listing import benches
from muster.benches.schedule import Task
from muster.checks.inspection import Inspection, lately_left_out, remember
from muster.cli.app import app
from muster.core.errors import RunFolderError, UsageError
from muster.core.result import Failure
from muster.core.state import State
from muster.inputs.read import read_inputs
from muster.judging.document import Gate
from tests.shell import FakeShell
from tests.support import wait_until
from tests.unit.benches import diary_of, inputs_of, long_on, made, play, player, well, write_suite

ANY_SIZE = {"set": {"batch": {"global": None, "micro": 8}}}  # digits' global batch of 64 is not for 5 ranks


def test_every_job_runs_and_no_host_is_in_two(tmp_path: Path) -> None:
    inputs = inputs_of(
        tmp_path, "local:7x1", {"groups": [1, 2, "all"], "warm_up": True, **ANY_SIZE}, at_once=3
    )
    found, folder = play(tmp_path, inputs, well)
    played = diary_of(tmp_path / "diary")
    assert len(played) == len(inputs.schedule.tasks) == 1 + 7 + 4 + 1
    for number, (_, hosts, begun, over) in enumerate(played):
        for _, others, begun_too, over_too in played[number + 1 :]:
            assert not set(hosts) & set(others) or begun_too >= over or begun >= over_too
    for moment in (begun for _, _, begun, _ in played):
        assert sum(begun <= moment < over for _, _, begun, over in played) <= 3
    assert played[0][0] == "digits-warmup"
    assert found.complete and found.outcomes["succeeded"] == 13
    assert Bench.model_validate(json.loads(folder.result.read_text())) == found
    lines = folder.table.read_text().splitlines()
    assert lines[0].startswith(
        "Hostnames,Throughput (samples/sec),Status,job,recipe,group,seconds,reason,memory"
    )
    assert len(lines) == 14
    assert any("local6 left over" in note for note in found.notes)
    assert [job.leftover for job in found.jobs if job.leftover] == [("local6",)]


def test_a_failure_is_that_jobs_alone(tmp_path: Path) -> None:
    def plays(job: str, hosts: Sequence[str]) -> tuple[float, int, Any]:
        if hosts == ["local1"]:
            failure = Failure(what="full", host="local1", where="rank 0", hint="less", id="cuda_oom")
            return 0.02, 1, made(hosts, status=State.FAILED, failure=failure)
        if hosts == ["local2"]:
            said = {"message": "x: batch.micro: no", "hint": "yes", "host": None}
            return 0.02, 2, {"error": said}
        return well(job, hosts)

    found, _ = play(tmp_path, inputs_of(tmp_path, "local:4x1", {"groups": [1]}), plays)
    by_host = {job.hosts[0]: job for job in found.jobs}
    assert [by_host[f"local{i}"].outcome for i in range(4)] == ["succeeded", "failed", "failed", "succeeded"]
    assert by_host["local1"].reason == "rank 0: full"
    assert (by_host["local1"].failed_host, by_host["local1"].hint) == ("local1", "less")
    assert (by_host["local1"].failure, by_host["local1"].judged) == ("cuda_oom", True)
    assert (by_host["local2"].reason, by_host["local2"].judged) == ("x: batch.micro: no", False)
    assert found.complete and found.gate is Gate.BAD


def test_a_killed_job_says_by_what(tmp_path: Path) -> None:
    class Killer(BenchWatcher):
        def turn(self, children: Sequence[Any], tasks: Sequence[Task], done: Mapping[str, JobRecord]) -> None:
            for child in children:
                if child.task.hosts == ("local0",) and child.words:
                    os.kill(child.process.pid, signal.SIGKILL)

    inputs = inputs_of(tmp_path, "local:2x1", {"groups": [1]})
    found, _ = play(tmp_path, inputs, long_on("local0"), watcher=Killer())
    assert [job.outcome for job in found.jobs] == ["failed", "succeeded"]
    assert found.jobs[0].reason == "muster train was ended by SIGKILL"


@pytest.mark.parametrize("heeds", [True, False])
def test_a_timeout_ends_that_job_alone(tmp_path: Path, heeds: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that heeds SIGINT, and one that heeds nothing but SIGKILL."""
    monkeypatch.setattr(bench_loop, "LINGER", 0.3)
    monkeypatch.setattr(bench_child, "ASKED", 0.3)
    monkeypatch.setattr(bench_child, "TOLD", 0.3)
    inputs = inputs_of(
        tmp_path,
        "local:2x1",
        {"name": "long", "cover": "first", "timeout": 1.0},
        {"name": "short"},
        groups=[1],
    )

    def plays(job: str, hosts: Sequence[str]) -> tuple[float, int, Any]:
        return (120.0, 0 if heeds else -1, made(hosts)) if "long" in job else well(job, hosts)

    found, folder = play(tmp_path, inputs, plays)
    long = next(job for job in found.jobs if job.entry == "long")
    assert (long.outcome, long.reason) == ("timeout", "timeout: not over after 1 s; " + (
        "after 60 steps" if heeds else "it had said: step 1/9: loss 1.0"
    ))  # fmt: skip
    record = folder.records(["long-1x-001"])["long-1x-001"]
    assert record.exit_code == (1 if heeds else -signal.SIGKILL)
    assert record.machine and record.controller_use[0] == (record.started, 0.0)
    times, used = zip(*record.controller_use, strict=True)
    assert list(times) == sorted(times) and list(used) == sorted(used)
    assert (bench_child.processor_seconds(os.getpid()) or 0.0) > 0.1
    assert all(job.outcome == "succeeded" for job in found.jobs if job.entry == "short")
    assert found.complete


class Stopper(BenchWatcher):
    """`muster show`, then `muster stop`, while the first job runs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.told: list[str] = []

    def began(self, task: Task, run: Path) -> None:
        if not self.told:
            self.told.append(verb("show", "bench", self.root))
            threading.Thread(target=lambda: self.told.append(verb("stop", "bench", self.root))).start()


def verb(name: str, what: str, root: Path, *more: str) -> str:
    """What a verb prints, in a process of its own."""
    argv = [sys.executable, "-m", "muster", name, what, "--runs", str(root), *more]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def test_a_bench_is_shown_stopped_and_reported(tmp_path: Path) -> None:
    """By the name that `muster ls` lists it under, as a run is."""
    stopper = Stopper(tmp_path)
    inputs = inputs_of(tmp_path, "local:2x1", {"groups": [1]})
    found, folder = play(tmp_path, inputs, long_on("local0"), watcher=stopper)
    assert "stopped by `muster stop`" in found.notes and not found.complete
    assert wait_until(lambda: len(stopper.told) == 2, 60)
    assert "running: 0/2 finished" in stopper.told[0]
    assert "stopped" in stopper.told[1] and f"muster bench --continue {folder.path}" in stopper.told[1]
    player(tmp_path / "diary", well).use()
    again = continue_bench(folder)
    assert again.complete  # the request to stop was of before
    shown = verb("show", str(folder.path), tmp_path / "elsewhere")
    assert "ended: 2/2 finished" in shown and "digits-1x-001" in shown
    assert json.loads(verb("show", "bench", tmp_path, "--json"))["result"]["complete"]
    assert str(folder.report) in verb("show", "bench", tmp_path, "--html")
    assert "digits-1x-001" in folder.report.read_text()
    assert "is not running" in verb("stop", "bench", tmp_path)
    assert "muster bench --continue" in verb("resume", str(folder.path), tmp_path)


class Interrupter(BenchWatcher):
    """Ctrl-C, once so many jobs have ended."""

    def __init__(self, after: int) -> None:
        self.after = after

    def ended(self, task: Task, record: JobRecord | None) -> None:
        self.after -= record is not None
        if self.after == 0:
            self.after = -1
            os.kill(os.getpid(), signal.SIGINT)


def test_interrupted_and_gone_on_with(tmp_path: Path) -> None:
    """What is over is not run again; what was stopped is, in a run folder of its own."""
    inputs = inputs_of(tmp_path, "local:3x1", {"groups": [1], "repeats": 2})
    found, folder = play(tmp_path, inputs, long_on("local2"), watcher=Interrupter(3))
    assert not found.complete and found.gate is Gate.OPEN
    assert "stopped by Ctrl-C" in found.notes
    over = {job.job for job in found.jobs}
    assert 3 <= len(over) < 6 and "digits-1x-003-r1" not in over
    (listed,) = benches(tmp_path)
    assert (listed.jobs, listed.done, listed.complete) == (6, len(over), False)
    told = CliRunner().invoke(app, ["ls", "--runs", str(tmp_path)])
    assert f"{len(over)}/6 finished; muster bench --continue {folder.path}" in told.output
    before = diary_of(tmp_path / "diary")

    with folder.claim():
        told = CliRunner().invoke(app, ["ls", "--runs", str(tmp_path)])
        assert f"{len(over)}/6 finished; running" in told.output

    shell = player(tmp_path / "diary", well)
    shell.use()
    again = continue_bench(folder)
    assert again.complete and len(again.jobs) == 6
    (listed,) = benches(tmp_path)
    assert (listed.done, listed.complete, sum(listed.verdicts.values())) == (6, True, 3)
    assert {name.partition(".")[0] for name, *_ in diary_of(tmp_path / "diary")[len(before) :]} == {
        task.id for task in inputs.schedule.tasks
    } - over
    record = folder.records(["digits-1x-003-r1"])["digits-1x-003-r1"]
    assert record.run == "runs/digits-1x-003-r1.again1"
    assert again.started == found.started

    FakeShell().use()

    nothing = continue_bench(folder)  # which starts nothing
    assert nothing.jobs == again.jobs


def test_secrets_stay_in_private_files(tmp_path: Path) -> None:
    """Those that the user typed, and those of the suite; a bench that goes on has them still."""
    entries = [{"recipe": "digits", "groups": [1], "set": {"env.API_KEY": "of-the-suite"}}]
    suite = write_suite(tmp_path, {"jobs": entries, "warm_up": False})
    typed = ["digits:env.HF_TOKEN=hf_typed", 'env={"WANDB_PASSWORD": "pw_typed"}', "train.seed=3"]
    inputs = read_bench(str(suite), "local:1", typed)
    found, folder = play(tmp_path, inputs, well)
    told = ["digits:env.HF_TOKEN=(hidden)", 'env={"WANDB_PASSWORD": "(hidden)"}', "train.seed=3"]
    assert found.overrides == told
    secrets = ("of-the-suite", "hf_typed", "pw_typed")
    modes = {
        path.relative_to(folder.path).as_posix(): path.stat().st_mode & 0o777
        for path in folder.path.rglob("*")
        if path.is_file() and any(each in path.read_text() for each in secrets)
    }
    assert modes == {}
    child = read_inputs(str(folder.recipe("digits")), "local:1", [])  # what each job reads
    assert child.env == dict(zip(("API_KEY", "HF_TOKEN", "WANDB_PASSWORD"), secrets, strict=True))
    FakeShell().use()
    assert continue_bench(folder).overrides == told


def test_what_is_normal_is_kept_for_a_bench_that_goes_on(tmp_path: Path) -> None:
    """One host beside an earlier bench of eight, whose file is gone by then."""
    (earlier := tmp_path / "earlier").mkdir()
    jitter = {f"local{number}": 1 + 0.0005 * number for number in range(8)}
    speeds = lambda job, hosts: (0.0, 0, made(hosts, 100.0 * jitter[hosts[0]]))  # noqa: E731
    _, before = play(earlier, inputs_of(earlier, "local:8x1", {"groups": [1]}), speeds)
    inputs = inputs_of(tmp_path, "local:1x1", {"groups": [1], "repeats": 3})
    slow = lambda job, hosts: (0.0, 0, made(hosts, 90.0))  # noqa: E731
    found, folder = play(tmp_path, inputs, slow, baseline=before.result)
    assert [each.condition for each in found.hosts] == ["slow"]
    shutil.rmtree(earlier)
    FakeShell().use()
    again = continue_bench(folder)
    assert [each.condition for each in again.hosts] == ["slow"]
    other = found.model_copy(update={"peers": [each.model_copy(update={"step_seconds": each.step_seconds * 2})
                                               for each in found.peers]})  # fmt: skip
    (tmp_path / "other.json").write_text(other.model_dump_json())
    FakeShell().use()
    told = continue_bench(folder, baseline=tmp_path / "other.json")
    (tmp_path / "other.json").unlink()
    assert [each.condition for each in told.hosts] != ["slow"]
    FakeShell().use()
    assert continue_bench(folder).hosts == told.hosts


def test_a_job_that_ended_well_while_nobody_watched_counts(tmp_path: Path) -> None:
    inputs = inputs_of(tmp_path, "local:2x1", {"groups": [1]})
    _, folder = play(tmp_path, inputs, well)
    for job in ("digits-1x-001", "digits-1x-002"):
        folder.record(job).unlink()
    failed = made(["local1"], status=State.FAILED, failure=Failure(what="x"))
    (folder.runs / "digits-1x-002" / "result.json").write_text(failed.model_dump_json())
    diary = tmp_path / "again"
    player(diary, well).use()
    again = continue_bench(folder)
    assert again.complete
    assert [name for name, *_ in diary_of(diary)] == ["digits-1x-002.again1"]


HOLDER = """
import sys, time
from pathlib import Path
from muster.store.runfolder import RunFolder
time.sleep(float(sys.argv[1]))
run = RunFolder(Path(sys.argv[3]))
run.path.mkdir()
run.job.write_text("{}")
with run.claim():
    print("held", flush=True)
    while not run.stop_request.exists():
        time.sleep(0.05)
"""


class Announced(BenchWatcher):
    def __init__(self) -> None:
        self.announced: list[str] = []

    def announce(self, text: str) -> None:
        self.announced.append(text)


@pytest.mark.parametrize("begun", [True, False], ids=["begun", "not begun yet"])
def test_a_job_that_still_runs_is_stopped_before_its_hosts_get_others(begun: bool, tmp_path: Path) -> None:
    """As after `kill -9` of the bench: its `muster train` holds the run until it is asked to end. Or it
    will soon, just started: the process is there, and its run folder is not."""
    inputs = inputs_of(tmp_path, "local:2x1", {"groups": [1]})
    _, folder = play(tmp_path, inputs, well)
    run = folder.runs / "digits-1x-002"
    folder.record("digits-1x-002").unlink()
    shutil.rmtree(run)
    command = [sys.executable, "-c", HOLDER, "0" if begun else "1.5", "--output", str(run)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as orphan:
        try:
            assert orphan.stdout is not None
            if begun:
                assert orphan.stdout.readline() == "held\n"
            watcher = Announced()
            player(tmp_path / "again", well).use()
            assert continue_bench(folder, watcher).complete
            assert orphan.wait(10) == 0
        finally:
            orphan.kill()
    assert "digits-1x-002 was still running, and was stopped" in watcher.announced
    assert [name for name, *_ in diary_of(tmp_path / "again")] == ["digits-1x-002.again1"]


def test_folders(tmp_path: Path) -> None:
    inputs = inputs_of(tmp_path, "local:2x1", {"groups": [1]})
    (tmp_path / "bench").mkdir()
    with pytest.raises(RunFolderError, match="already there"):
        bench(inputs, BenchFolder(tmp_path / "bench"))
    with pytest.raises(UsageError, match="comma"):
        bench(inputs, BenchFolder(tmp_path / "a,b"))
    with pytest.raises(RunFolderError, match="not the folder of a bench"):
        continue_bench(BenchFolder(tmp_path / "bench"))
    (tmp_path / "bench" / "schedule.json").write_text('{"jobs": 1}')
    (tmp_path / "bench" / "suite.yaml").write_text("jobs: [{recipe: digits}]")
    with pytest.raises(UsageError, match="is damaged"):
        continue_bench(BenchFolder(tmp_path / "bench"))


@pytest.mark.parametrize("lost", ["started", "ended", "run", "outcome"])
def test_a_record_that_lacks_its_end_is_damaged(lost: str, tmp_path: Path) -> None:
    """It is not taken for a job that took no time."""
    folder = BenchFolder(tmp_path / "bench")
    folder.create()
    whole = {"job": "a", "outcome": "failed", "run": "runs/a", "started": 1.0, "ended": 2.0}
    folder.write_data(folder.record("a"), whole)
    assert folder.records(["a"])["a"].took == 1.0
    folder.write_data(folder.record("a"), {name: each for name, each in whole.items() if name != lost})
    with pytest.raises(RunFolderError, match="cannot be read"):
        folder.records(["a"])


def test_two_at_the_same_bench(tmp_path: Path) -> None:
    folder = BenchFolder(tmp_path / "bench")
    folder.create()
    assert folder.controller_alive() is False
    with folder.claim():
        assert folder.controller_alive()
        with pytest.raises(RunFolderError, match="another process supervises"), folder.claim():
            pass
        folder.write_data(folder.controller, {**folder.read_json(folder.controller), "machine": "elsewhere"})
        assert folder.controller_alive() is None  # to another machine, as a run's
    assert folder.controller_alive() is False


def test_hosts_that_an_inspection_left_out_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the last day, and of this fleet."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made_of = {"host": "local1", "name": "local1", "slots": 1, "verdict": "unfit", "checks": [SWAP]}
    hosts = [made_of, {**made_of, "host": "elsewhere"}, {**made_of, "host": "local0", "verdict": "warning"}]
    summary = {"fit": 0, "warning": 1, "unfit": 2, "unreachable": 0}
    found = Inspection.model_validate(
        {
            "source": "x",
            "world_size": 1,
            "summary": summary,
            "troubles": [],
            "hosts": hosts,
            "ended": time.time(),
        }
    )
    remember(found)
    inputs = inputs_of(tmp_path, "local:2x1", {"groups": [1]})
    played, _ = play(tmp_path, inputs, well)
    noted = [note for note in played.notes if "muster check" in note]
    assert len(noted) == 1 and noted[0].startswith("local1 ") and "memory.swap: swaps" in noted[0]
    assert not lately_left_out(["local1"], time.time() + 2 * 24 * 3600)


SWAP = {"check": "memory.swap", "level": "fail", "problem": "swaps"}
