"""`muster bench` as a user meets it: schedules, what is refused, what is printed."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from muster.benches.child import Child
from muster.benches.inputs import read_bench
from muster.benches.schedule import Task
from muster.cli import main
from muster.cli.views.bench import BenchView
from muster.cli.views.benches import print_bench
from muster.core.errors import MusterError
from muster.core.result import Failure, Result
from muster.core.state import State
from muster.store.runfolder import RunFolder
from tests.unit.benches import ended, made, player, recorded, suite_of, write_suite


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main(["bench", *argv])
    shown = capsys.readouterr()
    assert "Traceback" not in shown.err
    return int(left.value.code or 0), shown.out, shown.err


def test_a_dry_run_shows_the_schedule_and_starts_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["acceptance", "--hosts", "node[1-5]:8", "--dry-run", "--runs", str(tmp_path / "runs")]
    code, out, _ = run(capsys, *argv)
    assert code == 0 and not (tmp_path / "runs").exists()
    for words in (
        "opt-350m-2x-002",
        "node[3-4]",
        "warm-up",
        "at most 64 at once",
        "inspected",
    ):
        assert words in out
    code, out, _ = run(capsys, *argv, "--json", "--jobs", "2", "opt-350m:train.max_steps=5")
    plan = json.loads(out)
    assert code == 0 and max(len(wave) for wave in plan["waves"]) == 2
    jobs = {job["id"]: job for job in plan["jobs"]}
    assert sorted(jobs) == sorted(name for wave in plan["waves"] for name in wave)
    command = jobs["opt-350m-warmup"]["command"]
    assert command[1:4] == ["-m", "muster", "train"] and "train.max_steps=3" in command
    assert "train.max_steps=3" not in jobs["opt-350m-1x-001"]["command"]


def test_the_size_of_a_batch_that_cannot_be_is_left_out_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "scaling", "--hosts", "node[1-7]:8", "--dry-run", "--json")
    plan = json.loads(out)
    assert code == 0
    assert {len(job["hosts"]) for job in plan["jobs"] if job["entry"] == "weak"} == {1, 2, 4, 7}
    assert {len(job["hosts"]) for job in plan["jobs"] if job["entry"] == "strong"} == {1, 2, 4}
    assert "strong, 7 hosts: a global batch of 960 cannot be made of 56 ranks" in plan["notes"][0]


@pytest.mark.parametrize("dry", [True, False])
def test_a_bench_without_any_job_is_refused(
    dry: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_suite(tmp_path, {"groups": [4], "jobs": [{"recipe": "digits"}]})
    argv = [
        str(path),
        "--hosts",
        "local:2x1",
        "--runs",
        str(tmp_path / "runs"),
        *(["--dry-run"] if dry else []),
    ]
    code, out, err = run(capsys, *argv)
    assert (code, out) == (2, "") and not (tmp_path / "runs").exists()
    assert "local:2x1: no job of the suite can be made of these hosts" in err
    assert "digits: no group of 4: there are 2 hosts" in err


def test_overrides_go_where_they_mean_something() -> None:
    """A change of all entries changes those for which it means something; one with a name, that one alone."""
    training = ["train.max_steps=9", "measure.warmup=1"]
    both = ["launch.threads=1", "measure.hardware_seconds=3"]
    made = read_bench("acceptance", "local:1x1", [*training, "fabric.seconds=7", *both])
    assert made.recipes["opt-350m"].train.max_steps == 9
    assert made.recipes["fabric"].as_dict()["fabric"]["seconds"] == 7
    assert {recipe.launch.threads for recipe in made.recipes.values()} == {1}
    assert {recipe.measure.hardware_seconds for recipe in made.recipes.values()} == {3}
    assert made.recipes["opt-350m"].measure.warmup == 1
    one = read_bench("scaling", "local:1x1", ["weak:batch.micro=2", "data.sequence=128"])
    assert (one.recipes["weak"].batch.micro, one.recipes["strong"].batch.global_) == (2, 960)
    assert {recipe.as_dict()["data"]["sequence"] for recipe in one.recipes.values()} == {128}
    own = read_bench("scaling", "local:1x1", [], recipe="digits")
    assert {recipe.workload for recipe in own.recipes.values()} == {"image-classification"}
    assert own.recipes["strong"].batch.global_ == 960


def test_how_many_hosts_a_job_has_is_the_suites_to_say(tmp_path: Path) -> None:
    path = write_suite(tmp_path, {"jobs": [{"recipe": "digits", "set": {"launch": {"hosts": 1}}}]})
    assert read_bench(str(path), "local:2x1").recipes["digits"].launch.hosts is None


def test_warm_ups_are_valid_for_every_recipe_of_a_suite() -> None:
    from muster.core.recipes import load_recipe

    for name in (
        "digits",
        "demo",
        "gpt2-micro",
        "opt-benchmark",
        "fabric",
        "text2sql-t5-small-zero3-offload",
    ):
        recipe = load_recipe(name)
        short = load_recipe(name, recipe.short)
        assert not recipe.trains or short.train.max_steps == 3
        assert recipe.trains or short.as_dict()["fabric"]["seconds"] == 5


def test_an_error_names_its_entry() -> None:
    with pytest.raises(MusterError) as refused:
        read_bench("acceptance", "local:1x1", ["engine.name=ddp", "engine.zero=2"])
    assert str(refused.value).startswith("opt-350m: engine.zero")


def printed(bench: Any, capsys: pytest.CaptureFixture[str], *, every: bool = False) -> tuple[str, str]:
    print_bench(bench, every=every)
    shown = capsys.readouterr()
    return shown.out, shown.err


def result(task: Task) -> Result:
    if "local1" in task.hosts and len(task.hosts) == 1:
        return made(
            task.hosts,
            status=State.FAILED,
            failure=Failure(what="out of [memory]", host="local1", hint="less"),
        )
    rate = 80.0 if "local3" in task.hosts else 100.0 + 0.05 * len(task.hosts[0]) + 0.01 * len(task.id)
    return made(task.hosts, rate * len(task.hosts))


def test_of_many_the_bad_ones_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    found = ended(suite_of({"groups": [1]}), "local:130x1", result)
    out, _ = printed(found, capsys)
    assert "digits-1x-002" in out and "digits-1x-050" not in out
    assert "--all shows them" in out
    everything, _ = printed(found, capsys, every=True)
    assert all(f"local{number} " in everything for number in range(130))


def test_a_comparison_is_printed_with_what_confounds_it(capsys: pytest.CaptureFixture[str]) -> None:
    suite = suite_of(
        {"name": "no-zero", "recipe": "text2sql-t5-small"},
        {"name": "zero1", "recipe": "text2sql-t5-small-zero1"},
        compare=["engine.zero"],
    )
    out, _ = printed(ended(suite, "local:3x1", result), capsys)
    assert re.search(r"zero1 +3 +1 ", out)
    assert "confounded engine.name differs as well (no-zero: ddp, zero1: deepspeed)" in out


@pytest.mark.parametrize("terminal", [True, False])
def test_the_live_view(tmp_path: Path, terminal: bool) -> None:
    """Jobs, hosts and the count while they run; each end with its reason."""
    tasks = [Task(f"j{number}", "digits", (f"n{number}", f"n{number + 1}"), 60.0) for number in (1, 3, 5)]
    console = Console(file=io.StringIO(), force_terminal=terminal, width=120)
    (tmp_path / "hosts").write_text('{"hosts": [{"name": "n1"}]}')
    shell = player(tmp_path / "diary", lambda job, hosts: (30.0, 0, made(["n1"])))
    argv = [
        "python",
        "-m",
        "muster",
        "train",
        "x",
        "--hosts",
        str(tmp_path / "hosts"),
        "--output",
        str(tmp_path / "o"),
    ]
    child = Child(tasks[0], shell.start(argv), RunFolder(tmp_path / "o"), (tmp_path / "log").open("wb"))
    child.words = "step 5/20: loss 2.1"
    done = {"j5": recorded(tasks[2], None, outcome=State.TIMEOUT, reason="too late")}
    try:
        with BenchView(console) as view:
            view.drawn.began = view.counts.began = -100.0
            view.began(tasks[0], tmp_path)
            view.turn([child], tasks, done)
            view.ended(tasks[2], done["j5"])
            view.ended(tasks[1], recorded(tasks[1], made(["n3", "n4"])))
            view.ended(tasks[0], None)
            view.announce("three [left]")
            pictured = Console(file=io.StringIO(), width=120)
            pictured.print(view.picture([child], tasks, done))
    finally:
        child.kill()
    said = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", console.file.getvalue())  # type: ignore[attr-defined]
    picture = pictured.file.getvalue()  # type: ignore[attr-defined]
    for words in (
        "j5  too late",
        "12 s, 100.0 samples/s",
        "it will be run again",
        "three [left]",
        "step 5/20",
    ):
        assert words in said
    for words in (
        "n[1-2]",
        "step 5/20",
        "1 min 0 s",
        "waiting",
        "n[3-4]",
        "done",
        "n[5-6]",
        "in failed jobs",
    ):
        assert words in picture
    assert "1/3 finished, 1 failed; 1 running" in picture


def test_a_suite_without_about_has_no_empty_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    suite = tmp_path / "mine.yaml"
    suite.write_text("jobs: [{recipe: digits, groups: [1]}]\n")
    code, out, err = run(capsys, str(suite), "--hosts", "node[1-2]:1", "--dry-run")
    assert code == 0, err
    assert out.splitlines()[0] == "mine"
