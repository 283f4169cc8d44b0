"""A bench of the user's own command: what its jobs are compared by, and which entries it stands for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from muster.benches.folder import BenchFolder
from muster.benches.inputs import freeze_bench, read_bench, reread
from muster.core.errors import UsageError
from muster.workloads.command.spec import CommandRecipe
from tests.unit.benches import write_suite

OWN = {"recipe": None, "command": ["python3", "tools/mytest.py", "--size", "9"]}
NOTHING: dict[str, Any] = {"model": None, "engine": None, "precision": None, "global_batch": None}
TOLD = {"told_by": "nanoGPT", "unit": "steps", "rests_on": 50}


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
