"""A bench has a time: jobs that are late are cut, `--minutes` is kept, the rest is estimated."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from muster.benches import clock
from muster.benches.bench import MANY_WAVES, SURE, BenchWatcher, Jobs, continue_bench, more_waves
from muster.benches.document import JobRecord
from muster.benches.schedule import Task
from muster.cli.views.bench import BenchView
from muster.core.state import State
from muster.judging import JobClass, Observation, Settings, Topology, localise
from muster.judging.document import Gate
from tests.unit.benches import diary_of, inputs_of, made, play, player, well


def task(name: str, entry: str = "gpt", hosts: int = 1, **more: Any) -> Task:
    return Task(name, entry, tuple(f"{name}-{number}" for number in range(hosts)), 3600.0, **more)


def took(job: Task, seconds: float, outcome: Any = "succeeded") -> JobRecord:
    return JobRecord(**job.row, outcome=outcome, run="", started=100.0, ended=100.0 + seconds)


def test_a_job_is_late_beside_three_that_are_alike() -> None:
    tasks = [task(f"j{number}") for number in range(4)]
    pair, other, warm = task("p", hosts=2), task("o", entry="vit"), task("w", warm_up=True)
    records = {each.id: took(each, seconds) for each, seconds in zip(tasks, (90, 100, 500), strict=False)}
    records |= {each.id: took(each, 5000.0) for each in (pair, warm)}
    records["j3"] = took(tasks[3], 1.0, "failed")
    seconds = clock.durations(records.values())
    assert seconds == {("gpt", 1): [90, 100, 500], ("gpt", 2): [5000]}
    assert clock.late_after(task("new"), seconds) == 400
    assert clock.late_after(task("new"), {("gpt", 1): [5.0, 6.0, 7.0]}) == 6 + clock.LEAST
    for few in (task("new", hosts=2), task("new", entry="vit"), task("new", warm_up=True)):
        assert clock.late_after(few, seconds) is None
    usual = clock.expected([*tasks, task("new", hosts=3), other], seconds)
    # Of three hosts none has succeeded: the median of the entry's, 90, 100, 500, 5000.
    assert usual == {("gpt", 1): 100, ("gpt", 3): 300, ("vit", 1): None}


def test_what_is_left() -> None:
    """Two at once: 100 s in each of two rounds; one job of which nothing is known."""
    tasks = [task(f"j{number}") for number in range(4)]
    seconds = {("gpt", 1): [100.0]}
    assert clock.remaining(tasks, {}, seconds, 2) == (200, 0)
    assert clock.remaining(tasks, {"j0", "j1"}, seconds, 2) == (100, 0)
    assert clock.remaining([*tasks, task("o", entry="vit")], {}, seconds, None) == (100, 1)
    assert clock.remaining(tasks, {each.id for each in tasks}, seconds, 2) == (0, 0)
    assert clock.remaining([*tasks, task("o", entry="vit")], {"o"}, seconds, 2) == (200, 0)
    again = [*tasks, Task("again", "gpt", tasks[0].hosts, 3600.0, repeat=2)]  # a host is in one job at a time
    assert clock.remaining(again, {}, seconds, None) == (200, 0)


def test_a_short_job_behind_a_long_one_uses_the_time_that_is_left(tmp_path: Path) -> None:
    """The long one is of the same host and would not end; its first job tells so."""
    jobs = [{"name": "long", "repeats": 2}, {"name": "short", "repeats": 1}]
    inputs = inputs_of(tmp_path, "local:1x1", *jobs, groups=[1])

    def plays(job: str, hosts: Sequence[str]) -> tuple[float, int, Any]:
        return (4.0 if job.startswith("long") else 0.1), 0, made(hosts)

    found, _ = play(tmp_path, inputs, plays, minutes=0.1)
    assert [name for name, *_ in diary_of(tmp_path / "diary")] == ["long-1x-001-r1", "short-1x-001"]
    assert not found.complete


def test_the_view_estimates_by_the_jobs_at_a_time() -> None:
    view = BenchView(Console())
    view.begins(2)
    tasks = [task(f"j{number}") for number in range(5)]
    assert "about 3 min 20 s for the rest" in view._counted(tasks, {"j0": took(tasks[0], 100.0)})


def test_a_late_job_is_cut_and_counts_against_its_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "LEAST", 1.0)

    def plays(job: str, hosts: Sequence[str]) -> tuple[float, int, Any]:
        if "local4" in hosts:  # by the speed that it had when it was cut
            return 120.0, 0, made(hosts, 20.0)
        return 0.05, 0, made(hosts, 100.0 + len(job) * 1e-3)

    found, _ = play(tmp_path, inputs_of(tmp_path, "local:5x1", {"groups": [1], "repeats": 2}), plays)
    jobs = {job.hosts[0]: job for job in found.jobs}
    assert found.complete and [job.outcome for job in found.jobs].count("timeout") == 2
    late = jobs["local4"]
    assert late.outcome == "timeout" and "jobs alike took" in (late.reason or "")
    assert late.started and late.ended and late.ended - late.started < 60
    verdicts = {each.host: each.condition for each in found.hosts}
    assert verdicts == {**dict.fromkeys(("local0", "local1", "local2", "local3"), "fit"), "local4": "slow"}
    assert found.gate is Gate.BAD


def test_no_job_starts_that_would_not_end_in_the_time_given(tmp_path: Path) -> None:
    """The first tells what one takes; what was left is done when the bench goes on."""
    inputs = inputs_of(tmp_path, "local:2x1", {"groups": [1], "repeats": 4}, at_once=1)

    def plays(job: str, hosts: Sequence[str]) -> tuple[float, int, Any]:
        return 1.5, 0, made(hosts)

    found, folder = play(tmp_path, inputs, plays, minutes=0.1)
    ran = diary_of(tmp_path / "diary")
    assert 1 <= len(ran) <= 4 and not found.complete and found.gate is Gate.OPEN
    assert all(job.outcome == "succeeded" for job in found.jobs)
    assert any("0.1 minutes given are over" in note for note in found.notes)
    player(tmp_path / "again", well).use()
    again = continue_bench(folder)
    assert again.complete and len(diary_of(tmp_path / "again")) == 8 - len(ran)


def test_a_job_that_runs_at_the_end_of_the_time_is_stopped(tmp_path: Path) -> None:
    """It is no evidence: it was not late, and runs again."""
    inputs = inputs_of(tmp_path, "local:1x1", {"groups": [1]})

    def plays(job: str, hosts: Sequence[str]) -> tuple[float, int, Any]:
        return 60.0, 0, made(hosts)

    found, folder = play(tmp_path, inputs, plays, minutes=0.03)
    assert not found.jobs and not found.complete
    assert json.loads((folder.runs / "digits-1x-001" / "result.json").read_text())["status"] == "stopped"


def test_adaptive_groups_use_the_time_that_is_given(tmp_path: Path) -> None:
    """Two hosts that nobody can be compared with ask without end."""

    def plays(job: str, hosts: Sequence[str]) -> tuple[float, int, Any]:
        return 0.05, 0, made(hosts, 100.0 * (1.0 + 0.2 * (hash_of(job) % 5)))

    inputs = inputs_of(tmp_path, "local:8x1", {"groups": "adaptive"}, waves=1)
    found, _ = play(tmp_path, inputs, plays)
    assert max(job.wave or 0 for job in found.jobs) == 1
    (note,) = (each for each in found.notes if "more was left to ask" in each)
    assert "jobs alike differ by" in note
    longer, _ = play(tmp_path / "more", inputs, plays, minutes=0.05)
    assert max(job.wave or 0 for job in longer.jobs) > 1


def hash_of(job: str) -> int:
    return sum(map(ord, job)) * 7919


@pytest.mark.parametrize(("sigma", "slow", "waves"), [(0.02, 0.05, 4), (0.01, 0.01, 25), (0.05, 0.001, None)])
def test_how_many_waves_would_tell(sigma: float, slow: float, waves: int | None) -> None:
    names = [f"n{number}" for number in range(16)]
    factors = [1 + sigma * ((number % 5) - 2) / math.sqrt(2) for number in range(16)]
    jobs = [
        Observation(job=f"j{number}", hosts=(name,), work="w", outcome=State.SUCCEEDED, seconds=factor)
        for number, (name, factor) in enumerate(zip(names, factors, strict=True))
    ]
    state = localise(jobs, Topology.of(names, {}), Settings(slow=slow))
    spread = next(iter(state.baselines.values())).sigma
    words = more_waves(state, 0)
    expected = math.ceil((SURE * spread / slow) ** 2)
    assert (expected <= MANY_WAVES) == (waves is not None)
    assert (f"about {expected} waves" in words) == (waves is not None)
    assert JobClass("w", 1) in state.baselines
    assert "would tell" not in more_waves(state, expected)  # as many were made: it is not the spread


def jobs_of(tasks: Sequence[Task], seconds: dict[clock.Kind, list[float]], **more: Any) -> Jobs:
    nothing: Any = None
    made_of = Jobs(
        nothing, nothing, list(tasks), {}, BenchWatcher(), lambda done, unstarted: list(tasks),
        nothing, **more,
    )  # fmt: skip
    made_of.seconds = seconds
    return made_of


def test_a_job_is_cut_by_its_own_age() -> None:
    """Three alike took 100 s: 400 s are late. Not the bench's age, nor another kind's seconds."""
    cut: dict[str, bool] = {}

    def child(job: Task, age: float) -> Any:
        def end(why: str, *, late: bool) -> None:
            cut[job.id] = late

        return SimpleNamespace(task=job, begun=time.monotonic() - age, time_out=end)

    tasks = [task("young"), task("old"), task("pair", hosts=2), task("warm", warm_up=True)]
    jobs = jobs_of(tasks, {("gpt", 1): [100.0] * 3, ("gpt", 2): [1.0] * 2}, begun=time.monotonic() - 9999)
    jobs.children = [child(each, age) for each, age in zip(tasks, (390, 410, 3000, 3000), strict=True)]
    jobs._cut_late()
    assert cut == {"old": True}


def test_what_would_not_end_in_the_time_is_postponed() -> None:
    """Of 5 minutes 3 are over: 100 s fit, 140 s do not, and a kind that nobody knows may."""
    tasks = [task("a"), task("b", hosts=2), task("c", entry="vit")]
    seconds = {("gpt", 1): [100.0], ("gpt", 2): [140.0]}
    begun = time.monotonic() - 180
    assert [each.id for each in jobs_of(tasks, seconds, minutes=5, begun=begun)._in_time()] == ["a", "c"]
    assert [each.id for each in jobs_of(tasks, seconds, begun=begun)._in_time()] == ["a", "b", "c"]
    more = jobs_of(tasks, seconds, minutes=6, begun=begun)
    assert len(more._in_time()) == 3 and more._open()
    more.done = {each.id: took(each, 1.0) for each in tasks}
    assert not more._open()
