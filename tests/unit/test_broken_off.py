"""A controller that cannot hold a job to its end (a full disk, an error of its own): the run says so."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.cli.train import finish
from muster.core.job import Placement
from muster.core.result import Result
from muster.fleet.supervisor import Listener, Outcome
from muster.inputs.read import read_inputs
from muster.runs import train as stage
from muster.store import events
from muster.store.runfolder import RunFolder
from tests.support import TINY
from tests.unit.test_resume import about

SETTINGS = [*TINY, "engine.name=ddp", "engine.zero=0", "model.config.num_layers=1"]


class Hosts:
    """Stands in for the hosts. `said`: what they say once the job has been started."""

    said: Callable[[Listener], Outcome | None]
    left: list[bool]  # whether hosts were told to keep their files, each time that they were told to stop

    def __init__(self, *_: object) -> None:
        type(self).left = []

    def __enter__(self) -> Hosts:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def greet(self, specs: dict[str, Any]) -> dict[str, Any]:
        return {host: {**about([]), "base": spec["run_dir"]} for host, spec in specs.items()}

    def remote(self, place: Placement, argv: list[str]) -> list[str]:
        return argv

    def meanwhile(self, work: Callable[[], Any]) -> Any:
        return work()

    def quiet(self, host: str) -> float:
        return 0.0

    def look(self, number: int) -> list[str]:
        return []

    def leave(self, *, keep: bool) -> None:
        self.left.append(keep)

    def run(self, orders: object, listener: Listener) -> Outcome:
        outcome = type(self).said(listener)
        assert not self.left
        return outcome or Outcome(exits={"local": (0, None)})


def train(
    run: RunFolder,
    monkeypatch: pytest.MonkeyPatch,
    said: Callable[[Listener], Outcome | None],
    hosts: str = "local:1",
) -> Result:
    monkeypatch.setattr(stage, "Supervisor", Hosts)
    monkeypatch.setattr(Hosts, "said", staticmethod(said), raising=False)
    return stage.train(read_inputs("demo", hosts, SETTINGS), run)


def step(listener: Listener, number: int) -> None:
    window = events.Window(
        time=1.0,
        rank=0,
        step=number,
        steps=1,
        seconds=1,
        samples=8,
        tokens=9,
        padded_tokens=9,
        step_seconds=[1],
    )
    listener.event("local", events.to_line(window))


def saved(listener: Listener, number: int) -> None:
    event = events.Saved(time=1.0, rank=0, step=number, path="p", bytes=1, seconds=1)
    listener.event("local", events.to_line(event))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB."""
    place = tmp_path / "small"
    place.mkdir()
    if os.geteuid() or not shutil.which("mount"):
        pytest.skip("only root can mount a small file system")
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "muster-test", str(place)], check=False)
    if done.returncode:
        pytest.skip("this machine does not let root mount")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_a_disk_that_runs_full(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job is stopped on its hosts, and there is room for its result."""

    def chatter(listener: Listener) -> None:
        step(listener, 1)
        saved(listener, 1)
        for _ in range(40):
            listener.log("local", 0, ["x" * 100_000])
        raise AssertionError("the disk was not full")

    run = RunFolder(small_disk / "run")
    result = train(run, monkeypatch, chatter)
    assert (result.status, result.steps) == ("failed", 1)
    assert result.failure and "the disk is full" in result.failure.what
    assert result.failure.where == str(run.path)
    hint = result.failure.hint or ""
    assert "make room" in hint and f"`muster resume {run.word}`" in hint
    assert run.read_result() == result and run.state() == "failed"
    assert finish(result, run, json=False) == 1
    assert Hosts.left == [True]


def test_an_error_of_musters_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def malformed(listener: Listener) -> None:
        step(listener, 1)
        {}["lines"]

    run = RunFolder(tmp_path / "run")
    with pytest.raises(KeyError):
        train(run, monkeypatch, malformed)
    result = run.read_result()
    assert result and (result.status, result.steps) == ("failed", 1)
    assert result.failure and result.failure.what == "an error in muster itself: KeyError: 'lines'"
    assert not run.room.exists() and run.controller_alive() is False


@pytest.mark.parametrize(("hosts", "lost"), [("local:1", "local"), ("local:2x1", "local1")])
def test_a_run_goes_on_without_a_lost_host_where_others_are_left(
    hosts: str, lost: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a checkpoint that could be loaded."""

    def gone(listener: Listener) -> Outcome:
        saved(listener, 10)
        saved(listener, 20)
        bad = events.Failed(time=1.0, rank=0, what="checkpoint-20 cannot be loaded", checkpoint=20)
        listener.event("local", events.to_line(bad))
        return Outcome(lost={lost: "silent for 15 s"})

    result = train(RunFolder(tmp_path / "run"), monkeypatch, gone, hosts)
    assert result.failure and result.failure.host == lost
    assert "step 10" in (result.failure.hint or "")
    assert ("--without" in (result.failure.hint or "")) is (hosts == "local:2x1")


def test_what_is_held_for_the_result_is_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunFolder(tmp_path / "run")
    sizes = []
    result = train(run, monkeypatch, lambda listener: sizes.append(run.room.stat().st_size))
    assert sizes == [stage.ROOM] and not run.room.exists()
    assert result.status == "failed"  # nobody said that it was done
