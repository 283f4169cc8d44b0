"""Suites: what is shipped, what a user writes, and what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.benches.inputs import read_bench
from muster.benches.schedule import make_schedule
from muster.benches.suite import Narrowing, find_suite, load_suite, shipped_suites, suite_from
from muster.cli.app import main
from muster.core.errors import MusterError, RecipeError, UsageError
from muster.core.recipes import load_recipe
from tests.unit.benches import suite_of, write_suite


@pytest.mark.parametrize("name", shipped_suites())
def test_shipped_suites_are_valid(name: str) -> None:
    """Each loads, says what it is for, and every recipe in it with its changes is one."""
    suite = load_suite(name)
    assert suite.about
    for entry in suite.jobs:
        load_recipe(entry.recipe)
        assert suite.of(entry).timeout > 0


def test_a_suite_that_is_written_down_is_one_again() -> None:
    """With every key, as a bench that goes on reads it: also those that adaptive entries may not have."""
    suite = suite_of({"groups": "adaptive"}, {"name": "b", "groups": [1], "curve": "weak"}, repeats=2)
    assert suite_from(suite.model_dump(mode="json", by_alias=True), where="suite.yaml") == suite
    assert make_schedule(suite, ["a", "b"]).notes == (
        "digits: not repeated: its groups are chosen from results",
    )


def test_files_and_names(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("inherit: digits\ntrain: {max_steps: 7}\n")
    path = write_suite(tmp_path, {"jobs": [{"recipe": "own"}, {"recipe": "digits"}]})
    suite = load_suite(str(path))
    assert [each.recipe for each in suite.jobs] == [str(tmp_path / "own.yaml"), "digits"]
    assert [each.name for each in suite.jobs] == ["own", "digits"]
    assert find_suite("scaling.yaml") == shipped_suites()["scaling"]
    write_suite(tmp_path, {"jobs": [{"recipe": "digitz"}]})
    with pytest.raises(MusterError, match=r"jobs.0.recipe digitz: no such recipe") as lost:
        load_suite(str(path))
    assert lost.value.hint == "did you mean digits?"


def test_a_name_that_no_file_has() -> None:
    with pytest.raises(UsageError):
        load_suite("a\0b")


# --- a part of a suite, from the command line ------------------------------------------------------------


def test_one_entry_on_so_many_hosts_with_a_time_limit_and_a_speed() -> None:
    inputs = read_bench(
        "s1", "node[01-04]:8", narrowing=Narrowing(("opt-350m",), "2", 300.0, "600samples/s/host")
    )
    assert {(task.entry, len(task.hosts), task.timeout) for task in inputs.schedule.tasks} == {
        ("opt-350m", 2, 300.0)
    }
    (entry,) = inputs.suite.jobs
    bound = inputs.suite.of(entry).thresholds[-1]
    assert (bound.figure, bound.at_least, bound.per) == ("samples_per_second", 600.0, "host")


def test_what_follows_is_checked_with_the_model_that_will_be(tmp_path: Path) -> None:
    """Before anything is started, and the recipes still say whose model it is."""
    chain = [{"name": "a", "recipe": "reward"}, {"name": "b", "recipe": "grpo", "after": "a"}]
    with pytest.raises(RecipeError, match=r"^b: model.name: {a} is a reward model"):
        read_bench(str(write_suite(tmp_path, {"jobs": chain})), "local:1")
    chain[0]["recipe"] = "sft"
    made = read_bench(str(write_suite(tmp_path, {"jobs": chain})), "local:1")
    assert made.recipes["b"].model.name == "{a}"


@pytest.mark.parametrize("name", sorted(shipped_suites()))
def test_a_shipped_suite_can_be_printed(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bench", name, "--print"])
    assert not ended.value.code
    assert capsys.readouterr().out == find_suite(name).read_text()
