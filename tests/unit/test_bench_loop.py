"""A bench's jobs where this machine is the trouble: what cannot be started, a full disk, killed controllers.
`muster train` is played."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from muster.benches import bench as bench_loop
from muster.benches import folder as benchfolder
from muster.benches.bench import BenchWatcher, bench, continue_bench
from muster.benches.document import JobRecord
from muster.benches.folder import BenchFolder
from muster.benches.schedule import Task
from muster.core.errors import JobError, RunFolderError
from muster.judging.document import Gate
from tests.shell import FakeShell
from tests.unit.benches import diary_of, inputs_of, long_on, made, play, player, well

WHY = "cannot start python: Resource temporarily unavailable"


def failing(diary: Path, fails: Callable[[str], bool]) -> FakeShell:
    """A shell that cannot start the jobs of these names."""
    plays = player(diary, well).answer
    assert plays is not None

    def answer(argv: Sequence[str]) -> Any:
        if fails(Path(argv[list(argv).index("--output") + 1]).name):
            raise JobError(WHY, hint="ulimit -u")
        return plays(argv)

    return FakeShell(answer=answer)


@pytest.mark.parametrize("at_once", [1, 3])
def test_what_cannot_be_started_is_tried_again_when_the_bench_goes_on(at_once: int, tmp_path: Path) -> None:
    """Others begin all the same, also where nothing runs at that moment."""
    inputs = inputs_of(tmp_path, "local:3x1", {"groups": [1]}, at_once=at_once)
    folder = BenchFolder(tmp_path / "bench", mark="")
    shell = failing(tmp_path / "diary", lambda job: job == "digits-1x-001")
    shell.use()
    found = bench(inputs, folder)
    assert [job.job for job in found.jobs] == ["digits-1x-002", "digits-1x-003"]
    assert found.outcomes["succeeded"] == 2 and not found.complete and found.gate is Gate.OPEN
    assert f"digits-1x-001 could not be started: {WHY} (hint: ulimit -u)" in found.notes
    player(tmp_path / "again", well).use()
    again = continue_bench(folder)
    assert [name for name, *_ in diary_of(tmp_path / "again")] == ["digits-1x-001"]
    assert again.complete and again.gate is Gate.OPEN and len(again.jobs) == 3
    assert not any("could not be started" in note for note in again.notes)


def test_where_nothing_can_be_started_all_is_told_in_one_line(tmp_path: Path) -> None:
    inputs = inputs_of(tmp_path, "local:6x1", {"groups": [1]}, at_once=1)
    shell = failing(tmp_path / "diary", lambda job: True)
    shell.use()
    found = bench(inputs, BenchFolder(tmp_path / "bench"))
    assert not found.jobs and not found.complete and found.gate is Gate.OPEN
    (note,) = (each for each in found.notes if WHY in each)
    first = "digits-1x-001, digits-1x-002, digits-1x-003, digits-1x-004 and 2 more could not be started"
    assert note.startswith(first)


def test_a_warm_up_that_cannot_be_started_is_made_elsewhere(tmp_path: Path) -> None:
    """And when the bench goes on, still no two of them fill the caches at once."""
    inputs = inputs_of(tmp_path, "local:3x1", {"groups": [1], "warm_up": True})
    folder = BenchFolder(tmp_path / "bench", mark="")
    shell = failing(tmp_path / "diary", lambda job: job == "digits-warmup")
    shell.use()
    found = bench(inputs, folder)
    assert diary_of(tmp_path / "diary")[0][:2] == ("digits-warmup2", ["local1"])
    assert len(found.jobs) == 4 and not found.complete
    player(tmp_path / "again", well).use()
    assert continue_bench(folder).complete
    assert [name for name, *_ in diary_of(tmp_path / "again")] == ["digits-warmup"]


def test_the_last_job_of_a_wave_that_cannot_be_started_leaves_it_open(tmp_path: Path) -> None:
    inputs = inputs_of(tmp_path, "local:4x1", {"groups": "adaptive"}, at_once=1)
    folder = BenchFolder(tmp_path / "bench", mark="")
    shell = failing(tmp_path / "diary", lambda job: job == "digits-wave1-002")
    shell.use()
    found = bench(inputs, folder)
    assert [job.job for job in found.jobs] == ["digits-wave1-001"] and not found.complete
    player(tmp_path / "again", well).use()
    again = continue_bench(folder)
    assert again.complete and max(job.wave or 0 for job in again.jobs) > 1


def test_words_that_cannot_be_written_end_nothing(tmp_path: Path) -> None:
    """A full disk, as far as the log of a job goes."""
    inputs = inputs_of(tmp_path, "local:2x1", {"groups": [1]})
    _, folder = play(tmp_path, inputs, well)
    folder.record("digits-1x-001").unlink()
    folder.log("digits-1x-001").unlink()
    folder.log("digits-1x-001").symlink_to("/dev/full")
    shutil.rmtree(folder.runs / "digits-1x-001")
    player(tmp_path / "again", well).use()
    found = continue_bench(folder)
    assert found.complete and found.outcomes["succeeded"] == 2
    assert [name for name, *_ in diary_of(tmp_path / "again")] == ["digits-1x-001"]


class Blocker(BenchWatcher):
    """Lets a job's record be written nowhere."""

    def __init__(self, folder: BenchFolder, job: str) -> None:
        self.folder, self.job = folder, job

    def turn(self, children: Sequence[Any], tasks: Sequence[Task], done: Mapping[str, JobRecord]) -> None:
        if children and all(child.words for child in children):
            self.folder.record(self.job).mkdir(exist_ok=True)


def test_a_record_that_cannot_be_written_stops_the_others_cleanly(tmp_path: Path) -> None:
    folder = BenchFolder(tmp_path / "bench", mark="")
    inputs = inputs_of(tmp_path, "local:2x1", {"groups": [1]})
    shell = player(
        tmp_path / "diary", lambda job, hosts: (60.0 if job.endswith("2") else 3.0, 0, made(hosts))
    )
    with pytest.raises(JobError, match="cannot be written") as refused:
        shell.use()
        bench(inputs, folder, watcher=Blocker(folder, "digits-1x-001"))
    assert refused.value.where == str(folder.record("digits-1x-001"))
    assert f"`muster bench --continue {folder.path}`" in (refused.value.hint or "")
    stopped = (folder.runs / "digits-1x-002" / "result.json").read_text()
    assert '"status": "stopped"' in stopped  # it was asked to end, and not killed
    folder.record("digits-1x-001").rmdir()
    player(tmp_path / "again", well).use()
    again = continue_bench(folder)
    assert again.complete and [name for name, *_ in diary_of(tmp_path / "again")] == ["digits-1x-002.again1"]


@pytest.mark.parametrize("taken", ["log", "hosts"])
def test_a_job_whose_files_cannot_be_written_is_not_begun(taken: str, tmp_path: Path) -> None:
    _, folder = play(tmp_path, inputs_of(tmp_path, "local:1x1", {"groups": [1]}), well)
    path = {"log": folder.log, "hosts": folder.hosts}[taken]("digits-1x-001")
    folder.record("digits-1x-001").unlink()
    shutil.rmtree(folder.runs / "digits-1x-001")
    path.unlink()
    path.mkdir()
    with pytest.raises(JobError, match="cannot be written") as refused:
        FakeShell().use()
        continue_bench(folder)
    assert refused.value.where == str(path)


@pytest.mark.parametrize("begun", [False, True])
def test_a_full_disk_is_said_to_be_one(begun: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = BenchFolder(tmp_path / "bench")
    folder.create()
    if begun:
        folder.write_data(folder.schedule, {})

    def full(*given: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(benchfolder, "write_json", full)
    with pytest.raises(JobError) as refused:
        folder.write_data(folder.result, {})
    assert str(refused.value) == f"{folder.result}: cannot be written: No space left on device"
    again = f"`muster bench --continue {folder.path}`" if begun else "begin again with another --output"
    assert refused.value.hint == f"make room, then {again}"
    monkeypatch.setattr("muster.store.runlock.write_json", full)
    with pytest.raises(RunFolderError, match="cannot be written") as unheld:
        folder.claim()
    assert unheld.value.failure == "disk_full"


def test_hosts_of_a_killed_controller_get_no_other_job_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its agents need a moment to see that it is gone. Other hosts do not wait."""
    monkeypatch.setattr(bench_loop, "LINGER", 1.5)

    class Killer(BenchWatcher):
        killed = 0.0

        def turn(self, children: Sequence[Any], tasks: Sequence[Task], done: Mapping[str, JobRecord]) -> None:
            for child in children:
                if child.task.id == "digits-1x-001-r1" and child.words and not self.killed:
                    os.kill(child.process.pid, signal.SIGKILL)
                    self.killed = time.monotonic()

    killer = Killer()
    plays = long_on("local0")
    inputs = inputs_of(tmp_path, "local:2x1", {"groups": [1], "repeats": 2})
    found, _ = play(
        tmp_path,
        inputs,
        lambda job, hosts: plays(job, hosts) if job.endswith("r1") else well(job, hosts),
        watcher=killer,
    )
    begun = {job: at for job, _, at, _ in diary_of(tmp_path / "diary")}
    assert found.complete and (found.outcomes["succeeded"], found.outcomes["failed"]) == (3, 1)
    assert begun["digits-1x-001-r2"] >= killer.killed + 1.5
    assert begun["digits-1x-002-r2"] < killer.killed + 1.5
