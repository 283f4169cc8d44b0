"""`import muster`: the verbs as functions."""

from __future__ import annotations

import inspect
import math
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import muster
from muster.core import families
from muster.core.recipes import parse_override
from muster.fleet.interrupts import interrupts, keyboard_interrupts
from muster.planner.forecast import NO_TIME
from tests.unit.test_contracts import HEAVY, LAZY

VERBS = sorted(set(muster.__all__) - {*muster._ERRORS, *muster._PROGRESS})


def test_importing_takes_no_time() -> None:
    code = "import sys, muster; dir(muster); print(*sys.modules)"
    loaded = set(subprocess.check_output([sys.executable, "-c", code], text=True).split())
    assert not loaded & (HEAVY | LAZY | {"muster.api", "muster.core"})


@pytest.mark.parametrize("name", VERBS)
def test_a_verb_is_typed_and_says_what_it_raises(name: str) -> None:
    verb = getattr(muster, name)
    signature = inspect.signature(verb)
    assert signature.return_annotation is not inspect.Signature.empty
    assert all(each.annotation is not inspect.Parameter.empty for each in signature.parameters.values())
    assert "Raises" in (verb.__doc__ or "")


def test_what_is_no_verb_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="launch"):
        _ = muster.launch


def test_rooms_do_not_hide_verbs() -> None:
    """A subpackage of a verb's name would replace the function once it is imported."""
    root = Path(muster.__file__).parent
    assert not {each.stem for each in root.iterdir()} & set(VERBS)


def test_a_plan_and_what_a_user_can_cause() -> None:
    planned = muster.plan("s1-opt-350m", on="h100:8x4,hdr", traced=False)
    assert planned.memory is not None and planned.memory.lacking is None
    options: dict[str, Any] = {"engine.options": {"gradient_clipping": 0.3}, "train.clip": 2}
    overruled = muster.plan("s1-opt-350m", on="h100:8x4,hdr", traced=False, overrides=options)
    assert [each for each in overruled.notes if each.startswith("train.clip=2.0 has no effect")]
    with pytest.raises(muster.MusterError, match="either hosts or on"):
        muster.plan("s1-opt-350m")
    with pytest.raises(muster.MusterError) as caught:
        muster.plan("s1-opt-350m", on="h1000:8")
    assert caught.value.hint


def test_one_question_needs_no_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr("muster.runs.ask.check_trained", lambda run: None)
    monkeypatch.setattr("muster.runs.ask.ask", lambda run, questions, **more: asked.append(questions))
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "job.json").write_text("{}")
    muster.ask(tmp_path / "one", "How many?")
    assert asked == [["How many?"]]


def test_logs_are_judged(tmp_path: Path) -> None:
    for host in range(8):
        slower = 1.3 if host == 3 else 1 + host / 1000
        lines = "".join(f"{step},{slower * step},n{host}\n" for step in range(30))
        (tmp_path / f"n{host}.csv").write_text(f"iteration,seconds,hostname\n{lines}")
    found = muster.judge(tmp_path, columns=["step=iteration", "elapsed=seconds", "host=hostname"])
    with pytest.raises(muster.UsageError, match="nosuch"):  # one expression needs no list
        muster.judge(tmp_path, columns="nosuch")
    assert [each.hosts[0] for each in found.hosts if each.condition == "slow"] == ["n3"]
    assert found.gate == 1
    lenient = muster.judge(tmp_path, columns=["step=iteration", "elapsed=seconds", "host=hostname"], slow=0.5)
    assert not [each for each in lenient.hosts if each.condition == "slow"]
    with pytest.raises(muster.UsageError, match="between 0 and 1"):
        muster.judge(tmp_path, columns=["step=iteration"], slow=1)


def test_what_a_verb_is_given_reaches_its_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    monkeypatch.setattr("muster.benches.bench.bench", lambda *_, **more: given.append(more))
    monkeypatch.setattr("muster.reports.pipeline.write_page", lambda run, output: given.append(output))
    muster.bench(
        "acceptance", "local:2", baseline=tmp_path / "old.json", output=tmp_path / "bench", minutes=7
    )
    assert (given[0]["baseline"], given[0]["minutes"]) == (tmp_path / "old.json", 7)
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "job.json").write_text("{}")
    muster.report(tmp_path / "one", output=tmp_path / "page.html")
    assert given[1] == tmp_path / "page.html"
    plans = [
        muster.plan("s1-opt-350m", on="h100:8", tokens=tokens, traced=False) for tokens in (10**9, 10**10)
    ]
    first, second = [plan.time.steps or 0 for plan in plans if plan.time]
    assert second / first == pytest.approx(10, rel=1e-3)


def test_progress_calls_are_looked_up_once() -> None:
    """A call of every step: the module's own lookup took four microseconds each time."""
    vars(muster).pop("step", None)
    muster.step(loss=1.0)
    assert vars(muster)["step"] is muster.step


def test_what_help_names_is_there() -> None:
    code = "import muster; print(muster.api.__name__, issubclass(muster.RecipeError, muster.UsageError))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == ["muster.api", "True"]
    assert all(isinstance(getattr(muster, name), type) for name in muster._ERRORS)


@pytest.mark.parametrize(
    ("recipe", "overrides"),
    [
        ("digits", {"train.max_steps": 7}),
        ("digits", {"train": {"max_steps": 7}}),
        ("digits", ["train.max_steps=7"]),
        ({"inherit": "digits", "train": {"max_steps": 7}}, ()),
    ],
)
def test_a_recipe_and_overrides_in_any_form(recipe: Any, overrides: Any) -> None:
    """A string is a sequence as well: of its letters, which nobody means."""
    planned = muster.plan(recipe, on="h100:8", overrides=overrides, traced=False)
    assert planned == muster.plan("digits", on="h100:8", overrides="train.max_steps=7", traced=False)
    assert planned != muster.plan("digits", on="h100:8", traced=False)


def test_values_of_overrides_are_what_they_are() -> None:
    given = {"train.learning_rate": 1e-05, "data.path": None, "model.name": "null", "train.compile": True}
    made = [parse_override(word) for word in muster.api._overrides(given)]
    assert float(made[0]["train"]["learning_rate"]) == 1e-05
    assert made[1:] == [{"data": {"path": None}}, {"model": {"name": "null"}}, {"train": {"compile": True}}]


def test_a_recipe_may_be_a_mapping() -> None:
    with pytest.raises(muster.RecipeError, match="max_stepz"):
        muster.plan({"inherit": "digits", "train": {"max_stepz": 7}}, on="h100:8", traced=False)


@pytest.mark.parametrize("recipe", [None, 3, ["digits"]])
def test_what_is_no_recipe_is_said(recipe: Any) -> None:
    with pytest.raises(muster.UsageError):
        muster.plan(recipe, on="h100:8", traced=False)
    with pytest.raises(muster.UsageError):
        muster.plan("digits", on="h100:8", overrides=[("train.max_steps", recipe)], traced=False)


@pytest.mark.parametrize(
    "given",
    [
        {"samples": -3}, {"samples": 0}, {"price": math.nan}, {"tokens": 0}, {"tokens": 5, "samples": 5},
        {"jobs": 0}, {"minutes": 0}, {"minutes": -1}, {"minutes": math.nan},
    ],
)  # fmt: skip
def test_figures_that_mean_nothing_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(muster.UsageError):
        if {"jobs", "minutes"} & set(given):
            muster.bench("acceptance", "local:2", **given)
        else:
            muster.plan("digits", on="h100:8", traced=False, **given)


def test_hosts_may_be_a_list_or_a_path(tmp_path: Path) -> None:
    (tmp_path / "here").write_text("localhost slots=2\n")
    plans = [muster.plan("digits", hosts, traced=False) for hosts in ("localhost:2", tmp_path / "here")]
    assert plans[0].ranks == plans[1].ranks == 2
    with pytest.raises(muster.InventoryError, match="named twice"):
        muster.plan("digits", ["n1:8", "n1:8"], traced=False)


def test_ctrl_c_is_raised_once_the_run_has_ended() -> None:
    """And a loop does not go on with the next training."""
    ended = []

    @keyboard_interrupts()
    def run(fails: bool) -> str:
        with interrupts() as wish:
            signal.raise_signal(signal.SIGINT)
        ended.append(wish.stop)
        if fails:
            raise muster.JobError("stopped by Ctrl-C")
        return "stopped"

    for fails in (False, True):
        with pytest.raises(KeyboardInterrupt):
            run(fails)
    assert ended == ["stopped by Ctrl-C"] * 2

    @keyboard_interrupts()
    def terminated() -> str | None:
        with interrupts() as wish:
            signal.raise_signal(signal.SIGTERM)
        return wish.stop

    assert terminated() == "stopped by SIGTERM"


def test_no_time_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the workload, or where operations are not counted."""
    planned = muster.plan("s1-opt-350m-ppo", on="h100:8", traced=False)
    assert planned.time is None and any("time" in note for note in planned.notes)
    monkeypatch.setattr(families, "products", lambda config, shape: None)
    planned = muster.plan("digits", on="h100:8", traced=False)
    assert planned.time is None and NO_TIME in planned.notes


def test_a_bench_may_be_given_a_time(tmp_path: Path) -> None:
    """A tenth of a second: nothing ends in it, and the bench is open."""
    suite = tmp_path / "suite.yaml"
    suite.write_text("jobs: [{recipe: digits}]\ngroups: [1]\n")
    found = muster.bench(str(suite), "local:1x1", minutes=0.1 / 60, output=tmp_path / "bench")
    assert not found.complete and not found.jobs
    assert any("minutes given are over" in note for note in found.notes)
