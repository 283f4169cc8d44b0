"""Pipelines: what a file says, what a step takes of those before it, the loop, the folder, the page.

The loop's steps are played; tests/real/test_pipeline.py has real ones.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from muster.benches.bench import bench
from muster.benches.folder import BenchFolder
from muster.benches.schedule import make_schedule
from muster.cli import app as cli
from muster.cli.views.pipelines import show_pipeline
from muster.core.errors import MusterError, RecipeError, RunFolderError, UsageError
from muster.core.recipes import dump_yaml, load_recipe
from muster.core.result import Failure, PipelineResult
from muster.core.state import State
from muster.inputs.entries import in_order
from muster.inputs.model import is_t5
from muster.inputs.pipeline import Pipeline, find_pipeline, load_pipeline
from muster.inputs.read import Inputs, absolute, read_inputs
from muster.reports.pipeline import Step, render_pipeline
from muster.reports.rundata import RunData
from muster.runs import pipeline as loop
from muster.runs.listing import stop
from muster.runs.pipeline import read_pipeline, read_steps, resume_pipeline, run_pipeline
from muster.runs.requirements import check_sharing
from muster.store.atomic import write_json, write_text
from muster.store.queries import runs_table
from muster.store.runfolder import PipelineFolder, RunFolder, find_any, find_run, list_folders
from tests.unit.benches import inputs_of, made, player, suite_of, well

CHAIN = [
    {"name": "rl", "recipe": "demo", "after": ["sft", "reward"]},
    {"name": "sft", "recipe": "demo"},
    {"name": "reward", "recipe": "demo", "after": "sft"},
]


def written(folder: Path, *steps: Any, **more: Any) -> Path:
    """A pipeline's file."""
    path = folder / "chain.yaml"
    path.write_text(dump_yaml({"pipeline": list(steps), **more}))
    return path


def step(name: str, *after: str, recipe: Any = "demo", **changes: Any) -> dict[str, Any]:
    return {"name": name, "recipe": recipe, "after": list(after), "set": changes}


# ----------------------------------------------------------------------------------------------------
# What a file says.


def test_each_step_comes_behind_all_that_it_follows(tmp_path: Path) -> None:
    made = load_pipeline(written(tmp_path, *CHAIN))
    assert [each.name for each in made.pipeline] == ["sft", "reward", "rl"]
    apart = Pipeline.model_validate({"pipeline": [{"recipe": "demo"}, {"recipe": "causal-lm"}]})
    assert [each.name for each in in_order(apart.pipeline)] == ["demo", "causal-lm"]


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([step("a", "c"), step("b", "a"), step("c", "b")], "wait for each other: a -> c -> b -> a"),
        ([step("sft"), step("b", "stf")], "b: after: no step is named 'stf'; did you mean sft?"),
        ([{"recipe": "demo"}, {"recipe": "demo"}], "two steps are named demo: give each a `name`"),
        ([step("train")], "a recipe has a section train"),
        ([step("a.b")], "'a.b' cannot be the name"),
        ([{"recipe": "demo", "afte": "x"}], "unknown key 'pipeline.0.afte'"),
        ([{"recipe": "demoo"}], "pipeline.0.recipe demoo: no such recipe"),
        ([], "pipeline: list should have at least 1 item"),
        ([step("a", train={"max_steps": 3}, **{"train.max_steps": 5})], "train.max_steps is set twice"),
    ],
)
def test_a_file_that_is_wrong(steps: list[Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as refused:
        load_pipeline(written(tmp_path, *steps))
    assert words in str(refused.value)


def test_which_files_are_pipelines(tmp_path: Path) -> None:
    path = written(tmp_path, step("a"))
    assert find_pipeline(str(path)) == path and find_pipeline("demo") is None
    with pytest.raises(RecipeError, match="is a pipeline of several recipes"):
        load_recipe(str(path))
    with pytest.raises(RecipeError, match="no such recipe"):
        find_pipeline(str(tmp_path / "none.yaml"))


def test_paths_count_from_the_pipelines_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of recipes beside it, of recipes that stand in it, and of changes. Those of a command: from its own."""
    (tmp_path / "own.yaml").write_text("inherit: demo\ndata: {path: own.jsonl}\n")
    inline = {"inherit": "own.yaml", "data": {"path": "more/inline.jsonl"}}
    steps = [step("a", recipe="own"), step("b", recipe=inline), step("c", **{"data.path": "set.jsonl"})]
    path = written(tmp_path, *steps, step("d"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    recipes = read_steps(path, ["d.data.path=typed.jsonl"]).recipes
    found = {name: recipe.data.path for name, recipe in recipes.items()}
    names = {"a": "own", "b": "more/inline", "c": "set", "d": "elsewhere/typed"}
    assert found == {name: str(tmp_path / f"{each}.jsonl") for name, each in names.items()}


# ----------------------------------------------------------------------------------------------------
# What a step takes of those before it.


def test_the_first_that_trains_gives_the_model(tmp_path: Path) -> None:
    """With its tokenizer, in place of the recipe's own, but not of what the step itself says."""
    steps = [
        step("net", recipe="fabric"),
        step("sft"),
        step("rl", "net", "sft", **{"model.config.dropout_rate": 0.1}),
        step("other", "sft", **{"model.name": "t5-small"}),
        step("anew", "sft", **{"model.init": "random"}),
        step("again", "rl", recipe="fabric"),
    ]
    recipes = read_steps(written(tmp_path, *steps)).recipes
    model = recipes["rl"].model
    assert (model.name, model.init, model.tokenizer) == ("{sft}", "pretrained", "auto")
    assert model.config == {"dropout_rate": 0.1}
    assert recipes["other"].model.name == "t5-small"
    assert recipes["anew"].model == load_recipe("demo").model
    assert recipes["again"].model.name is None
    assert recipes["sft"].model.config


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([step("a"), step("b", **{"model.name": "{a}", "model.init": "pretrained"})], "does not follow a"),
        ([step("a", **{"checkpoint.model": False}), step("b", "a")], "b: model.name: a keeps no model"),
        ([step("a", recipe="fabric"), step("b", "a", **{"model.tokenizer": "{a}"})], "a trains nothing"),
        ([step("sft"), step("b", "sft", **{"model.tokenizer": "{stf}"})], "no step is named 'stf'"),
        ([step("a"), step("b", "a", **{"train.max_stepss": 3})], "b (demo): unknown key 'train.max_stepss'"),
    ],
)
def test_a_model_that_cannot_be_taken(steps: list[Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as refused:
        read_steps(written(tmp_path, *steps))
    assert words in str(refused.value)


def test_braces_of_another_kind_are_text(tmp_path: Path) -> None:
    steps = [step("sft"), step("b", "sft", **{"data.prefix": "{question}"})]
    assert read_steps(written(tmp_path, *steps)).recipes["b"].data.prefix == "{question}"  # type: ignore[attr-defined]


def test_changes_of_one_step_and_of_all(tmp_path: Path) -> None:
    path = written(tmp_path, step("net", recipe="fabric"), step("sft"), step("rl", "sft"))
    words = ["sft.train.seed=1", "rl:train.seed=2", "train.max_steps=7", "launch.port=9", "fabric.seconds=5"]
    recipes = read_steps(path, [*words, "rl.model.tokenizer={sft}"]).recipes
    assert [recipes[name].train.seed for name in ("sft", "rl")] == [1, 2]
    assert [recipes[name].train.max_steps for name in ("sft", "rl")] == [7, 7]
    assert {recipe.launch.port for recipe in recipes.values()} == {9}
    assert recipes["rl"].model.tokenizer == "{sft}"
    # A step's own takes the place of what is for all, whatever the order.
    for words in (["data.path=a", "rl:data.name=b"], ["rl:data.name=b", "data.path=a"]):
        recipes = read_steps(path, words).recipes
        sources = [recipes[name].data for name in ("sft", "rl")]
        assert [(Path(each.path or "").name, each.name) for each in sources] == [("a", None), ("", "b")]


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("srt.train.seed=1", "no step is named 'srt'"),
        ("srt:train.seed=1", "no step is named 'srt'"),
        ("tran.seed=1", "no step is named 'tran'"),
        ("sft.train.sed=1", "sft (demo): unknown key 'train.sed'"),
        ("rl.model.init=random", "rl: model.init=random would draw other weights"),
        ("rl.model.name={sfft}", "not {'sfft': None}"),
        ("fabric.seconds=5", "means nothing to any step"),
    ],
)
def test_changes_that_are_wrong(override: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        read_steps(written(tmp_path, step("sft"), step("rl", "sft")), [override])
    assert words in str(refused.value)


def test_later_steps_are_checked_before_the_first(tmp_path: Path) -> None:
    """With a model that stands in: one of another family is refused, and one's own path is never told."""
    path = written(tmp_path, step("sft"), step("rl", "sft", recipe="causal-lm"))
    with pytest.raises(RecipeError, match=r"^rl: model.name: causal-lm does not train models of type t5"):
        list(read_pipeline(path, "local:1").checked(tmp_path / "stand"))
    bad = written(tmp_path, step("sft"), step("rl", "sft", **{"model.config.num_heads": 0}))
    with pytest.raises(RecipeError, match=r"^rl: ") as refused:
        list(read_pipeline(bad, "local:1").checked(tmp_path / "more"))
    assert str(tmp_path / "more") not in str(refused.value)
    with pytest.raises(UsageError, match="not handed to Slurm"):
        read_pipeline(path, "slurm:2")


def test_a_model_in_a_folder_is_what_its_configuration_says(tmp_path: Path) -> None:
    """Whatever a pipeline or a step is called."""
    folder = tmp_path / "t5-like" / "model"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"model_type": "gpt2"}')
    recipe = load_recipe("causal-lm", [f"model.name={folder}", "model.init=pretrained"])
    assert not is_t5(recipe)


# ----------------------------------------------------------------------------------------------------
# The command line, before anything starts.


def typed(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main(list(words))
    return int(str(ended.value.code or 0))


def test_a_dry_run_tells_all_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(written(tmp_path, *CHAIN))
    words = ["train", path, "local:1", "--name", "x", "--runs", str(tmp_path / "runs"), "--dry-run"]
    assert typed(*words, "--json") == 0
    steps = json.loads(capsys.readouterr().out)["pipeline"]
    assert [each["step"] for each in steps] == ["sft", "reward", "rl"]
    model = str(tmp_path / "runs" / "x" / "sft" / "model")
    assert [each["recipe"]["model"]["name"] for each in steps] == [None, model, model]
    memory = [each["plan"]["memory"]["host"] for each in steps]
    assert memory[0] == memory[1] == memory[2]
    assert typed(*words) == 0
    out = capsys.readouterr().out
    assert "step 2 of 3: reward, after sft" in out
    assert out.count("the model of sft, which is not trained yet") == 2
    assert not (tmp_path / "runs").exists()
    assert typed("train", path, "local:1", "--detach") == 2


def test_a_plan_has_all_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(written(tmp_path, step("net", recipe="fabric"), step("sft"), step("rl", "sft")))
    assert typed("plan", path, "--on", "h100:8x2,10Gbit", "--quick", "--json") == 0
    plans = {each["step"]: each["plan"] for each in json.loads(capsys.readouterr().out)["pipeline"]}
    assert list(plans) == ["sft", "rl"]
    assert plans["rl"]["model"] == "{sft}" and plans["rl"]["parameters"] == plans["sft"]["parameters"]
    assert typed("plan", path, "--hosts", "local:1", "--quick") == 0
    assert "step rl" in capsys.readouterr().out
    assert typed("plan", path, "--on", "h100:8x2,10Gbit", "--write", str(tmp_path / "y.yaml")) == 2


# ----------------------------------------------------------------------------------------------------
# The loop over steps, which are played.


class Played:
    """Plays `train` and `resume`: what ends badly is said by step, once. `models`: what each started from."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.models: dict[str, str | None] = {}
        self.bad: dict[str, Callable[[RunFolder], str]] = {}
        self.resumed: list[str] = []
        self.clock = 100.0
        monkeypatch.setattr(loop, "train", self.train)
        monkeypatch.setattr(loop, "resume", self.resume)

    def train(self, inputs: Inputs, run: RunFolder, **how: Any) -> Any:
        name = run.path.name
        self.models[name] = inputs.recipe.model.name
        run.create()
        write_text(run.recipe, dump_yaml(inputs.recipe.as_dict()))
        write_json(run.job, {"attempt": 1, "resume_step": None})
        return self._end(run)

    def resume(self, run: RunFolder, **how: Any) -> Any:
        self.resumed.append(run.path.name)
        run.result.unlink(missing_ok=True)
        return self._end(run)

    def _end(self, run: RunFolder) -> Any:
        name, self.clock = run.path.name, self.clock + 10
        status = self.bad.pop(name)(run) if name in self.bad else "succeeded"
        hint = f"less; `muster resume {run.word}` goes on from the checkpoint of step 20"
        failure = None if status == "succeeded" else Failure(what="full", where="rank 0", hint=hint)
        times = {"started": self.clock, "ended": self.clock + 5, "id": run.id}
        result = made(["local"], status=status, failure=failure, **times)
        if status == "succeeded":
            run.model.mkdir()
            (run.model / "config.json").write_text('{"model_type": "t5"}')
            (run.model / "model.safetensors").touch()
        write_json(run.result, result.model_dump(mode="json"))
        return result


def fails(run: RunFolder) -> str:
    return "failed"


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Played:
    return Played(monkeypatch)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PipelineFolder:
    monkeypatch.chdir(tmp_path)
    return PipelineFolder(tmp_path / "runs" / "chain")


def begin(folder: PipelineFolder, *steps: Any) -> PipelineResult:
    return run_pipeline(read_pipeline(written(folder.path.parents[1], *steps or CHAIN), "local:1"), folder)


def test_steps_follow_each_other(played: Played, folder: PipelineFolder) -> None:
    result = begin(folder)
    model = str(folder.step("sft").model)
    assert played.models == {"sft": None, "reward": model, "rl": model}
    assert (result.status, result.failure, folder.state()) == ("succeeded", None, "succeeded")
    assert [each.status for each in result.pipeline] == ["succeeded"] * 3
    assert result.seconds.total == 30 and result.notes == []
    assert folder.read_result() == result
    assert "The pipeline succeeded: 3 of 3 steps" in folder.report.read_text()
    with pytest.raises(RunFolderError, match="nothing to resume"):
        resume_pipeline(folder)
    with pytest.raises(RunFolderError, match="already there"):
        begin(folder)


def test_a_step_that_fails_ends_it_and_is_gone_on_with(played: Played, folder: PipelineFolder) -> None:
    played.bad["reward"] = fails
    result = begin(folder)
    assert (result.status, result.attempt) == ("failed", 1)
    assert result.failure is not None and result.failure.where == "step reward: rank 0"
    assert result.failure.hint == "less; `muster resume chain` goes on from the checkpoint of step 20"
    assert [each.status for each in result.pipeline] == ["succeeded", "failed", "not begun"]
    again = resume_pipeline(folder)
    assert (again.status, again.attempt, played.resumed) == ("succeeded", 2, ["reward"])
    assert list(played.models) == ["sft", "reward", "rl"]  # sft was not trained again
    assert (folder.path / "result.attempt1.json").exists()


def test_it_was_killed(played: Played, folder: PipelineFolder) -> None:
    """In a step, before its job was written down: that begins anew. Between two steps: the next one follows.
    No result, and nothing half-done is taken for finished."""

    def killed(run: RunFolder) -> str:
        run.job.unlink()
        raise SystemExit(137)

    played.bad["reward"] = killed
    with pytest.raises(SystemExit):
        begin(folder)
    assert folder.state() == "interrupted" and not folder.result.exists()
    assert [each.status for each in loop.so_far(folder).pipeline] == ["succeeded", "not begun", "not begun"]
    assert resume_pipeline(folder).status == "succeeded"
    assert played.resumed == []
    folder.result.unlink()
    assert resume_pipeline(folder).status == "succeeded"


def test_nothing_is_left_where_nothing_began(
    played: Played, folder: PipelineFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise UsageError("no such host", host="a")

    monkeypatch.setattr(loop, "train", refused)
    with pytest.raises(UsageError, match="no such host"):
        begin(folder)
    assert not folder.path.exists()


def test_an_error_before_a_later_step_is_that_steps(
    played: Played, folder: PipelineFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also Ctrl-C while it is prepared."""
    errors: list[BaseException] = [KeyboardInterrupt(), UsageError("is gone", host="a", hint="find it")]

    def second(inputs: Inputs, run: RunFolder, **how: Any) -> Any:
        if run.path.name == "reward" and errors:
            raise errors.pop()
        return played.train(inputs, run, **how)

    monkeypatch.setattr(loop, "train", second)
    result = begin(folder)
    assert result.status == "failed" and result.failure is not None and result.failure.usage
    assert result.failure.hint == "find it; `muster resume chain` goes on with this step"
    stopped = resume_pipeline(folder)
    assert stopped.status == "stopped" and stopped.failure is not None
    assert "Ctrl-C" in stopped.failure.what
    assert resume_pipeline(folder).status == "succeeded"


def test_stopped_between_two_steps(played: Played, folder: PipelineFolder) -> None:
    def asked(run: RunFolder) -> str:
        assert run.stop_asked() is False
        assert stop(folder, patience=0) is None
        assert run.stop_asked()
        return "succeeded"

    played.bad["sft"] = asked
    result = begin(folder)
    assert (result.status, list(played.models)) == ("stopped", ["sft"])
    assert not folder.stop_request.exists() and not folder.step("sft").stop_asked()
    with pytest.raises(RunFolderError, match="is not running: it is stopped"):
        stop(folder)


def test_a_model_that_was_lost_since(played: Played, folder: PipelineFolder) -> None:
    """It is said how it comes back; a step that had finished with the former one is told of."""
    played.bad["rl"] = fails
    begin(folder)
    model = folder.step("sft").model
    for file in model.iterdir():
        file.unlink()
    model.rmdir()
    result = resume_pipeline(folder)
    assert result.failure is not None and "the trained model is damaged: it is not there" in str(
        result.failure.what
    )
    assert "rm -r runs/chain/sft" in str(result.failure.hint)
    for path in sorted(folder.step("sft").path.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    folder.step("sft").path.rmdir()
    again = resume_pipeline(folder)
    assert again.status == "succeeded"
    assert "reward started from an earlier model of sft, which was trained again" in again.notes


def test_going_on_on_other_hosts(played: Played, folder: PipelineFolder) -> None:
    """They are the later steps' as well, also when it is resumed once more."""
    played.bad["reward"] = fails
    begin(folder)
    resume_pipeline(folder, hosts="local:2x1", leave=["local0"])
    assert [each["name"] for each in folder.read_json(folder.hosts)["hosts"]] == ["local1"]


def test_what_is_secret_is_not_in_its_files(
    played: Played, folder: PipelineFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(folder.path.parents[1] / "state"))
    seen = []

    def saw(run: RunFolder) -> str:
        return seen.append(run.path.name) or "failed"  # type: ignore[func-returns-value]

    played.bad["reward"] = saw
    begin(folder, *({**each, "set": {"env": {"MY_KEY": "hush-hush"}}} for each in CHAIN))
    assert "hush-hush" not in folder.pipeline.read_text()
    kept = list((folder.path.parents[1] / "state").rglob("*.json"))
    assert len(kept) == 3
    resume_pipeline(folder)
    assert seen and not [file for file in kept if file.exists()]


# ----------------------------------------------------------------------------------------------------
# The folder: found, listed, shown, asked.


def test_it_is_found_and_listed(
    played: Played, folder: PipelineFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    played.bad["reward"] = fails
    begin(folder)
    root = folder.path.parent
    other = RunFolder(root / "older")
    other.create()
    write_json(other.job, {})
    os.utime(other.job, (1, 1))
    assert {each.id for each in list_folders(root)} == {"older", folder.id}
    assert find_any("last", root) == find_any("chain", root) == find_any("hai", root) == folder
    assert find_any(str(folder.path)) == folder
    sft = folder.step("sft")
    assert find_run("chain/sft", root) == find_run("last/sft", root) == sft
    assert (sft.id, sft.word) == ("chain/sft", "chain/sft")
    refusals = {
        "chain": "is a pipeline, and not a run",
        "chain/nope": "has no step named 'nope'",
        "chain/rl": "step rl has not begun",
        "older/sft": "no pipeline with steps",
    }
    for text, words in refusals.items():
        with pytest.raises(RunFolderError, match=words):
            find_run(text, root)
    (row,) = [each for each in runs_table(root) if each["workload"] == "pipeline"]
    assert (row["id"], row["status"], row["seconds"], row["failure"]) == ("chain", "failed", 20.0, "full")
    assert typed("ls", "--runs", str(root)) == 0
    assert "chain  failed" in capsys.readouterr().out
    assert typed("show", "chain") == 0
    out = capsys.readouterr().out
    assert "not begun" in out and "reward" in out
    assert typed("show", "chain", "--json") == 0
    assert [each["name"] for each in json.loads(capsys.readouterr().out)["pipeline"]] == [
        "sft",
        "reward",
        "rl",
    ]
    assert typed("report", "chain", "--output", "page.html") == 0
    assert str(sft.report) in Path("page.html").read_text()
    for words in (
        ["show", "chain", "--csv"],
        ["resume", "chain", "--step", "3"],
        ["plan", "--calibrate", "chain"],
    ):
        assert typed(*words) == 2
    capsys.readouterr()
    assert typed("resume", "chain", "--json") == 0
    assert json.loads(capsys.readouterr().out)["status"] == "succeeded"


def test_its_model_is_that_of_its_last_step(played: Played, folder: PipelineFolder) -> None:
    played.bad["reward"] = fails
    begin(folder)
    recipe = load_recipe("demo", ["model.name=chain", "model.init=pretrained"])
    assert folder.trained == folder.step("sft")
    assert absolute(recipe).model.name == str(folder.step("sft").model)
    resume_pipeline(folder)
    assert find_any("last").trained == folder.step("rl")
    for name, taken in (("chain", "rl"), ("last", "rl"), ("chain/reward", "reward")):
        recipe = load_recipe("demo", [f"model.name={name}", "model.init=pretrained"])
        assert absolute(recipe).model.name == str(folder.step(taken).model)


def test_a_damaged_folder_is_told_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = PipelineFolder(tmp_path / "broken")
    folder.create()
    folder.pipeline.write_text("pipeline: 3\n")
    assert folder.state() == "damaged"
    assert [row["status"] for row in runs_table(tmp_path)] == ["damaged"]
    for verb in ("show", "ask", "resume", "stop", "report"):
        assert typed(verb, "broken", *(["hello"] if verb == "ask" else []), "--runs", str(tmp_path)) == 2
        assert "Traceback" not in capsys.readouterr().err


def test_hosts_must_see_the_folder(tmp_path: Path) -> None:
    """The model of one step has to be there for the next."""
    inputs = read_inputs("demo", "local:1", [])
    step_run, alone = PipelineFolder(tmp_path / "p").step("sft"), RunFolder(tmp_path / "r")
    (tmp_path / "p").mkdir()
    step_run.path.with_name("pipeline.yaml").write_text("pipeline: [{name: sft}]\n")
    check_sharing(inputs.recipe, alone, {"a": {"shared": False}})
    check_sharing(inputs.recipe, step_run, {"a": {"shared": True}})
    with pytest.raises(MusterError, match="a: does not see the run folder"):
        check_sharing(inputs.recipe, step_run, {"a": {"shared": False}})


def test_the_page(tmp_path: Path) -> None:
    """Verdict and figures of each step, with a link; text of others is escaped, and what is not known left
    out."""
    figures = made(["a"], failure=Failure(what="<b>full</b>"), status=State.FAILED)
    failed = RunData("x/sft", State.FAILED, figures)
    steps: list[Step] = [("sft", failed, "sft/report.html"), ("rl", None, None)]
    page = render_pipeline("x", State.FAILED, steps, ["a note"])
    assert "The pipeline failed: 0 of 2 steps" in page and "a note" in page
    assert '<a href="sft/report.html">' in page and "Not begun" in page
    assert "&lt;b&gt;full" in page and "<b>full" not in page and "not measured" not in page
    assert "Steps" in page and "60" in page


# ----------------------------------------------------------------------------------------------------
# A suite's entries follow each other in the same way.


def test_a_suites_jobs_follow_those_on_the_same_hosts() -> None:
    suite = suite_of({"name": "more", "after": "begin"}, {"name": "begin"}, groups=[1, 2], repeats=2)
    tasks = {task.id: task for task in make_schedule(suite, ["a", "b"]).tasks}
    assert tasks["more-1x-002-r2"].after == ("begin-1x-002-r2",)
    assert tasks["more-2x-001-r1"].hosts == tasks["begin-2x-001-r1"].hosts
    for fields in ({"groups": [1]}, {"repeats": 3}, {"cover": "first"}):
        with pytest.raises(UsageError, match="must have the same groups"):
            suite_of({"name": "begin"}, {"name": "more", "after": "begin", **fields}, groups=[1, 2])
    with pytest.raises(UsageError, match="wait for each other"):
        suite_of({"name": "a", "after": "b"}, {"name": "b", "after": "a"})


def test_a_suites_jobs_start_from_the_models_of_those_before(tmp_path: Path) -> None:
    """Where one has failed, the job that follows it is not started."""

    def plays(job: str, hosts: list[str]) -> Any:
        if job.startswith("begin") and hosts == ["local1"]:
            return 0.02, 1, made(hosts, status=State.FAILED, failure=Failure(what="full", host="local1"))
        return well(job, hosts)

    jobs = ({"name": "more", "after": "begin"}, {"name": "begin"})
    shell, folder = player(tmp_path / "diary", plays), BenchFolder(tmp_path / "bench", mark="")
    shell.use()
    found = bench(inputs_of(tmp_path, "local:2x1", *jobs, groups=[1]), folder)
    taken = {
        Path(argv[argv.index("--output") + 1]).name: argv[argv.index("--json") + 1 :]
        for argv in shell.started
    }
    by_job = {job.job: job for job in found.jobs}
    assert [by_job[f"begin-1x-00{n}"].outcome for n in (1, 2)] == ["succeeded", "failed"]
    assert [by_job[f"more-1x-00{n}"].outcome for n in (1, 2)] == ["succeeded", "failed"]
    assert by_job["more-1x-002"].reason == "follows begin-1x-002, which did not succeed"
    assert not by_job["more-1x-002"].judged
    model = folder.path / str(by_job["begin-1x-001"].run) / "model"
    assert taken["more-1x-001"] == [f'model.name="{model}"'] and "more-1x-002" not in taken
    with pytest.raises(RecipeError, match=r"more: model.name: begin keeps no model"):
        inputs_of(tmp_path, "local:2x1", jobs[0], {"name": "begin", "set": {"checkpoint.model": False}})


def test_a_model_that_is_no_longer_whole_starts_no_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(run: RunFolder) -> None:
        raise RunFolderError("the trained model is damaged: config.json is gone", where=str(run.model))

    monkeypatch.setattr("muster.benches.bench.check_model", damaged)
    jobs = ({"name": "more", "after": "begin"}, {"name": "begin"})
    shell, folder = player(tmp_path / "diary", well), BenchFolder(tmp_path / "bench", mark="")
    shell.use()
    found = bench(inputs_of(tmp_path, "local:1x1", *jobs, groups=[1]), folder)
    assert [job.job for job in found.jobs] == ["begin-1x-001"] and len(shell.started) == 1
    assert "more-1x-001 could not be started" in found.notes[0] and "config.json is gone" in found.notes[0]
    assert not found.complete


def test_show_tells_the_step_of_the_running_step(
    played: Played, folder: PipelineFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    def looks(run: RunFolder) -> str:
        with run.claim():
            show_pipeline(folder, json=True)
            show_pipeline(folder, json=False)
        return fails(run)

    played.bad["reward"] = looks
    begin(folder)
    told, end = json.JSONDecoder().raw_decode(out := capsys.readouterr().out)
    assert told["state"] == "running" and told["running"]["name"] == "reward"
    assert told["running"]["step"] == 0
    assert "step 0 of" in out[end:]
    show_pipeline(folder, json=True)
    assert "running" not in json.loads(capsys.readouterr().out)
