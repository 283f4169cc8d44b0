"""Suites: what is shipped, what a user writes, and what is wrong with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from muster.benches.inputs import read_bench
from muster.benches.schedule import make_schedule
from muster.benches.suite import Narrowing, Threshold, find_suite, load_suite, shipped_suites, suite_from
from muster.cli.app import main
from muster.core.errors import MusterError, RecipeError, UsageError
from muster.core.recipes import load_recipe
from tests.unit.benches import suite_of, write_suite

JOB = {"recipe": "digits"}


@pytest.mark.parametrize("name", shipped_suites())
def test_shipped_suites_are_valid(name: str) -> None:
    """Each loads, says what it is for, and every recipe in it with its changes is one."""
    suite = load_suite(name)
    assert suite.about
    for entry in suite.jobs:
        load_recipe(entry.recipe)
        assert suite.of(entry).timeout > 0


def test_those_that_ship() -> None:
    compared = {"old-and-new", "s1-old-and-new", "zero-sweep"}
    assert set(shipped_suites()) == {"acceptance", "s1", "s1-ppo", "scaling", *compared}
    acceptance = load_suite("acceptance")
    assert (acceptance.slow, acceptance.check is not None) == (0.02, True)
    assert [each.name for each in acceptance.jobs] == ["fabric", "opt-350m"]
    assert {each.curve for each in load_suite("scaling").jobs} == {"weak", "strong"}
    assert load_suite("zero-sweep").compare == ["engine"]
    assert [job.name for job in load_suite("zero-sweep").jobs] == ["no-zero", "zero1", "zero3-offload"]


def test_s1s_settings() -> None:
    """As its logs have them: fp16, 24 samples of 512 tokens, ZeRO-0, no dropout, seed 1234, Adam 0.9/0.95."""
    recipe = load_recipe("s1-opt-350m")
    assert (recipe.precision, recipe.batch.micro, recipe.engine.zero) == ("fp16", 24, 0)
    assert (recipe.train.seed, recipe.train.beta1, recipe.train.beta2) == (1234, 0.9, 0.95)
    assert (recipe.train.weight_decay, recipe.train.schedule, recipe.train.clip) == (0.1, "cosine", 1.0)
    assert recipe.model.config == {"dropout": 0.0, "attention_dropout": 0.0}
    large, largest = load_recipe("s1-opt-13b"), load_recipe("s1-opt-66b")
    assert large.lora is not None
    assert (large.lora.rank, large.batch.micro, large.engine.zero) == (128, 16, 0)
    assert (largest.batch.micro, largest.engine.zero, largest.train.gradient_checkpointing) == (4, 3, True)


def test_what_an_entry_does_not_say_the_suite_says() -> None:
    bound = {"figure": "memory", "at_most": "40GB"}
    suite = suite_of(
        {"name": "a", "repeats": 3, "thresholds": [{"figure": "loss", "at_most": 2}]},
        {"name": "b", "groups": "doubling", "timeout": 5},
        groups=[1, "all"],
        timeout=60,
        thresholds=[bound],
    )
    first, second = (suite.of(each) for each in suite.jobs)
    assert (first.groups, first.repeats, first.timeout) == ([1, "all"], 3, 60)
    assert (second.groups, second.repeats, second.timeout) == ("doubling", 1, 5)
    assert [each.figure for each in first.thresholds] == ["memory", "loss"]
    assert second.thresholds == [Threshold(figure="memory", at_most=40e9)]


def test_a_suite_that_is_written_down_is_one_again() -> None:
    """With every key, as a bench that goes on reads it: also those that adaptive entries may not have."""
    suite = suite_of({"groups": "adaptive"}, {"name": "b", "groups": [1], "curve": "weak"}, repeats=2)
    assert suite_from(suite.model_dump(mode="json", by_alias=True), where="suite.yaml") == suite
    assert make_schedule(suite, ["a", "b"]).notes == (
        "digits: not repeated: its groups are chosen from results",
    )


def test_changes_may_be_dotted_and_names_are_the_recipes() -> None:
    suite = suite_of({"set": {"train.max_steps": 5, "train": {"seed": 1}, "batch.global": 8}})
    assert suite.jobs[0].name == "digits"
    assert suite.jobs[0].set == {
        "train": {"max_steps": 5, "seed": 1},
        "batch": {"global": 8},
    }


@pytest.mark.parametrize(
    ("data", "says", "hint"),
    [
        ({}, "jobs is missing", "docs/bench.md"),
        ({"jobs": []}, "jobs", ""),
        ({"jobs": [JOB], "group": [1]}, "unknown key 'group'", "groups"),
        ({"jobs": [{**JOB, "repeat": 2}]}, "unknown key 'jobs.0.repeat'", "repeats"),
        ({"jobs": [JOB], "check": {"profil": "x"}}, "unknown key 'check.profil'", "profile"),
        ({"jobs": [JOB, JOB]}, "two entries are named digits", ""),
        ({"jobs": [{**JOB, "groups": []}]}, "at least one size", ""),
        ({"jobs": [{**JOB, "groups": [0]}]}, "groups", "[1, 2, all]"),
        ({"jobs": [{**JOB, "groups": "twice"}]}, "groups", "doubling"),
        ({"jobs": [{**JOB, "timeout": 0}]}, "timeout", ""),
        ({"jobs": [{**JOB, "name": "../x"}]}, "jobs.0.name: '../x' cannot be the name of an entry", "`name"),
        ({"jobs": [JOB, {"recipe": "my Recipe.yaml"}]}, "jobs.1.name: 'my Recipe' cannot be the name",
         "a letter or digit first; `name: NAME` beside `recipe` gives one"),
        ({"jobs": [{**JOB, "groups": "adaptive", "repeats": 2}]},
         "digits: repeats and adaptive groups do not go together", ""),
        ({"jobs": [{**JOB, "curve": "weak"}], "groups": "adaptive"},
         "digits: curve and adaptive groups do not go together", ""),
        ({"jobs": [{**JOB, "groups": "adaptive", "cover": "first"}]}, "digits: cover and adaptive", ""),
        ({"jobs": [{"recipe": [3], "name": "A"}]}, "jobs.0.recipe: input should be a valid string", ""),
        ({"jobs": [JOB], "slow": 1.5}, "slow", ""),
        ({"jobs": [{"name": "x"}]}, "jobs.0.recipe is missing", ""),
        ({"jobs": [JOB], "thresholds": [{"figure": "loss"}]}, "one of at_least and at_most", ""),
        ({"jobs": [JOB], "thresholds": [{"figure": "sampels_per_second", "at_least": 1}]}, "figure",
         "samples_per_second"),
        ({"jobs": [JOB], "thresholds": [{"figure": "loss", "at_most": 1, "for": "slot"}]}, "for", ""),
        ({"jobs": [JOB], "thresholds": [{"figure": "memory", "at_most": "much"}]}, "at_most", ""),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(data: dict[str, Any], says: str, hint: str) -> None:
    with pytest.raises(UsageError) as refused:
        suite_from(data, where="my.yaml")
    assert says in str(refused.value)
    assert refused.value.where == "my.yaml"
    assert hint in (refused.value.hint or "")


def test_files_and_names(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("inherit: digits\ntrain: {max_steps: 7}\n")
    path = write_suite(tmp_path, {"jobs": [{"recipe": "own"}, {"recipe": "digits"}]})
    suite = load_suite(str(path))
    assert [each.recipe for each in suite.jobs] == [str(tmp_path / "own.yaml"), "digits"]
    assert [each.name for each in suite.jobs] == ["own", "digits"]
    assert find_suite("scaling.yaml") == shipped_suites()["scaling"]
    with pytest.raises(UsageError, match="no such suite") as refused:
        find_suite("acceptence")
    assert refused.value.hint == "did you mean acceptance?"
    write_suite(tmp_path, {"jobs": [{"recipe": "digitz"}]})
    with pytest.raises(MusterError, match=r"jobs.0.recipe digitz: no such recipe") as lost:
        load_suite(str(path))
    assert lost.value.hint == "did you mean digits?"


@pytest.mark.parametrize("source", ["", "/", "~nobody/x", "x" * 5000, "a\0b", "."])
def test_names_that_are_none(source: str) -> None:
    with pytest.raises(UsageError):
        load_suite(source)


@pytest.mark.parametrize(
    ("bound", "value", "good"),
    [
        ({"at_least": 10}, 10.0, True),
        ({"at_least": 10}, 9.99, False),
        ({"at_most": 0}, 0.0, True),
        ({"at_most": 0}, 0.1, False),
        ({"at_most": "2GiB"}, 2.0 * 2**30, True),
        ({"at_least": 98}, 228.0, True),  # as numbers: as texts 228 would be below 98
    ],
)
def test_bounds(bound: dict[str, Any], value: float, good: bool) -> None:
    assert Threshold.model_validate({"figure": "memory", **bound}).met(value) is good


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


def test_an_entry_brings_those_that_it_follows() -> None:
    data = {
        "jobs": [
            {"recipe": "demo", "name": "a"}, {"recipe": "demo", "name": "b", "after": "a"},
            {"recipe": "demo", "name": "c", "groups": [1]},
        ],
    }  # fmt: skip
    suite = suite_from(data, where="here")
    assert [each.name for each in Narrowing(only=("b",)).of(suite).jobs] == ["a", "b"]
    assert Narrowing(groups="1, all").of(suite).of(suite.jobs[0]).groups == [1, "all"]
    narrowed = Narrowing(groups="doubling").of(suite)
    assert narrowed.of(narrowed.jobs[2]).groups == "doubling"
    assert Narrowing().of(suite) == suite


@pytest.mark.parametrize(
    ("words", "where", "hint"),
    [
        ({"only": ("opt-350",)}, "--only", "did you mean opt-350m"),
        ({"groups": "two"}, "--groups", "1,2,all"),
        ({"groups": "0"}, "--groups", "1,2,all"),
        ({"groups": ","}, "--groups", None),
        ({"at_least": "600"}, "--at-least", "600samples/s"),
    ],
)
def test_a_part_that_there_is_not(words: dict[str, Any], where: str, hint: str | None) -> None:
    with pytest.raises(UsageError) as refused:
        Narrowing(**words).of(load_suite("s1"))
    assert refused.value.where == where
    assert hint is None or "such as" in (refused.value.hint or "") or hint in (refused.value.hint or "")


@pytest.mark.parametrize("name", sorted(shipped_suites()))
def test_a_shipped_suite_can_be_printed(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bench", name, "--print"])
    assert not ended.value.code
    assert capsys.readouterr().out == find_suite(name).read_text()
