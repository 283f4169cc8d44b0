"""A bench of the user's own command: what its jobs are compared by, and which entries it stands for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from muster.benches.commands import CLOCK
from muster.benches.document import Bench
from muster.benches.fold import fold_bench
from muster.benches.folder import BenchFolder
from muster.benches.inputs import freeze_bench, read_bench, reread
from muster.benches.schedule import Task
from muster.core.errors import UsageError
from muster.core.recipes import validate
from muster.core.result import CommandRun, Result
from muster.judging.document import Gate
from muster.workloads.command.spec import CommandRecipe
from tests.unit.benches import ended, made, suite_of, write_suite

OWN = {"recipe": None, "command": ["python3", "tools/mytest.py", "--size", "9"]}
NOTHING: dict[str, Any] = {"model": None, "engine": None, "precision": None, "global_batch": None}
TOLD = {"told_by": "nanoGPT", "unit": "steps", "rests_on": 50}


def ran(task: Task, **told: Any) -> Result:
    words = OWN["command"]
    return made(
        task.hosts, **NOTHING, throughput=None, command=CommandRun(command=words, start="rank", **told)
    )


def benched(result: Any, **run: str) -> Bench:
    suite = suite_of({**OWN, "groups": [1, 2]})
    recipe = validate({"command": OWN["command"], "run": {"start": "rank", **run}}, where="test")
    return fold_bench(ended(suite, "local:6x1", result, recipes={"mytest": recipe}))


def slower(task: Task, host: str = "local4") -> float:
    """A job's time with one host 10 % slower than the others, which differ by up to 0.2 %."""
    return (1.1 if host in task.hosts else 1.0) * (1 + 0.0005 * (sum(map(ord, task.id)) % 9 - 4))


def verdicts(found: Bench) -> dict[str, str]:
    return {each.host: each.verdict for each in found.hosts}


@pytest.mark.parametrize("unit", ["steps", "tokens", "samples"])
def test_what_its_output_tells(unit: str) -> None:
    """A job's time from start to end does not count then: here it says the opposite."""

    def result(task: Task) -> Result:
        pace = 0.1 * slower(task)
        rate = {"steps": 1.0, "tokens": 4096.0, "samples": 8.0}[unit] / pace
        told = {**TOLD, "unit": unit, "rate": rate, "step_seconds": pace, "seconds": 90 / slower(task)}
        return ran(task, **told)

    found = benched(result)
    assert verdicts(found).pop("local4") == "slow"
    assert sum(each == "slow" for each in verdicts(found).values()) == 1
    assert found.gate is Gate.BAD
    assert {job.measure for job in found.jobs} == {f"{unit}/s as nanoGPT tells them"}
    assert all(job.figures["step_seconds"] > 0 for job in found.jobs)
    assert ("samples_per_second" in found.jobs[0].figures) == (unit == "samples")
    assert any(f"compared by {unit}/s as nanoGPT" in note for note in found.notes)


def test_the_clock_counts_where_nothing_is_told() -> None:
    found = benched(lambda task: ran(task, seconds=20 * slower(task)))
    assert verdicts(found).pop("local4") == "slow"
    assert {job.measure for job in found.jobs} == {CLOCK}
    assert found.jobs[0].figures["seconds"] == pytest.approx(20, rel=0.01)
    assert found.jobs[0].step_seconds is None
    assert any("every run does the same work" in note for note in found.notes)


def test_a_healthy_fleet_passes() -> None:
    found = benched(lambda task: ran(task, seconds=20 * slower(task, "none")))
    assert set(verdicts(found).values()) == {"fit"} and found.gate is Gate.FIT


def test_no_speed_is_no_measurement() -> None:
    """Once one job of an entry tells its speed, the clock of another is not compared with it."""

    def result(task: Task) -> Result:
        if task.hosts == ("local2",):
            return ran(task, seconds=5.0)
        return ran(task, **TOLD, rate=10 / slower(task, "none"), seconds=20.0)

    found = benched(result)
    job = next(each for each in found.jobs if each.hosts == ("local2",))
    assert "tells no speed" in job.not_measured[0] and "run.line" in job.not_measured[0]
    assert found.gate is Gate.OPEN
    assert not [each for each in found.jobs if each.not_measured and each is not job]


@pytest.mark.parametrize(("run", "told"), [("output", {}), ("auto", {"seconds": 0.4}), ("auto", {})])
def test_nothing_is_guessed(run: str, told: dict[str, float]) -> None:
    """Without a word of the speed where the output is to tell it, and of a job too short for the clock."""
    found = benched(lambda task: ran(task, **told), speed=run)
    assert all(job.not_measured for job in found.jobs)
    assert set(verdicts(found).values()) == {"unknown"} and found.gate is Gate.OPEN


def test_the_clock_where_the_user_wants_it() -> None:
    found = benched(lambda task: ran(task, **TOLD, rate=10.0, seconds=20 * slower(task)), speed="seconds")
    assert verdicts(found).pop("local4") == "slow"


def test_a_speed_that_varies() -> None:
    def result(task: Task) -> Result:
        return ran(task, **TOLD, rate=10.0, variation=0.3 if task.hosts == ("local0",) else 0.01)

    job = benched(result).jobs[0]
    assert job.not_measured == ("steps/s varied by 30% over its windows",)


def test_in_a_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has a name, no warm-up, and starts in the same folder when the bench goes on elsewhere."""
    entry = {"command": OWN["command"], "set": {"run.start": "rank"}}
    path = write_suite(tmp_path, {"jobs": [entry, {"recipe": "fabric"}], "groups": [1]})
    monkeypatch.chdir(tmp_path)
    inputs = read_bench(str(path), "local:4x1", ["run.line=took (?P<seconds>\\S+) s"])
    assert [job.name for job in inputs.suite.jobs] == ["mytest", "fabric"]
    assert not [task for task in inputs.schedule.tasks if task.warm_up and task.entry == "mytest"]
    recipe = inputs.recipes["mytest"]
    assert isinstance(recipe, CommandRecipe)
    assert (recipe.run.start, recipe.run.workdir) == ("rank", str(tmp_path))
    assert recipe.run.line and recipe.command == OWN["command"]
    folder = BenchFolder(tmp_path / "bench")
    folder.create()
    freeze_bench(folder, inputs)
    monkeypatch.chdir("/")
    again = reread(folder)
    assert isinstance(again.recipes["mytest"], CommandRecipe)
    assert again.recipes["mytest"].run == recipe.run
    assert again.suite.jobs[0].foreign


def test_in_place_of_a_suites_training() -> None:
    """The fabric stays; entries that differ by their recipe's settings alone become one."""
    own = {"workload": "command", "command": ["./mytest"], "run": {"start": "rank"}}
    found = read_bench("acceptance", "local:4x1", recipe=own)
    assert [(job.name, job.foreign, job.thresholds) for job in found.suite.jobs] == [
        ("fabric", False, []),
        ("mytest", True, []),
    ]
    scaling = read_bench("scaling", "local:4x1", recipe=own)
    assert [(job.name, job.curve) for job in scaling.suite.jobs] == [("mytest", "weak")]
    with pytest.raises(UsageError, match="differ by their recipe"):
        read_bench("s1", "local:4x1", recipe=own)


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"recipe": "digits", "command": ["a"]}, "give one of recipe and command"),
        ({"command": []}, "there is nothing to run"),
        ({"name": "x"}, "recipe is missing"),
    ],
)
def test_bad_entries(tmp_path: Path, entry: dict[str, Any], says: str) -> None:
    path = write_suite(tmp_path, {"jobs": [entry]})
    with pytest.raises(UsageError, match=says):
        read_bench(str(path), "local:2x1")
