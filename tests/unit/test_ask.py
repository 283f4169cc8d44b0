"""What `muster ask` shows of an answer as it grows, and what it refuses before it loads a model."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from muster.cli.ask import _answer, _print_wrong, _talk
from muster.cli.views.results import print_answers
from muster.core.errors import BrokenPluginError, DataError, RunFolderError, UsageError
from muster.core.recipes import dump_yaml, load_recipe
from muster.core.result import Result
from muster.core.state import State
from muster.reports.words import headline
from muster.runs.afterwards import loading_lines, next_command
from muster.runs.ask import Answers, TrainedModel, check_questions
from muster.store.atomic import write_text
from muster.store.runfolder import RunFolder
from muster.worker.ask import _Model, _Pieces


def test_an_answer_is_said_token_by_token() -> None:
    """Without a space in it, and with a character of several tokens, of which none is said alone."""
    said: list[str] = []
    tokenizer = SimpleNamespace(decode=lambda tokens, **_: bytes(tokens).decode("utf-8", "replace"))
    for answer in ("SELECT-1", "aüz", ""):
        said.clear()
        pieces = _Pieces(tokenizer, lambda piece: said.append(piece))
        for _ in range(2):  # a streamer is used again
            pieces.put(np.array([[1, 2, 3]]))  # the prompt
            for byte in answer.encode():
                pieces.put(np.array([byte]))
            pieces.end()
        assert said == 2 * list(answer)


def test_what_is_refused_before_a_model_is_loaded(tmp_path: Path) -> None:
    check_questions(["How many?"])
    for questions in ([], [""], ["How many?", " \t"]):
        with pytest.raises(UsageError):
            check_questions(questions)
    run = RunFolder(tmp_path / "run")
    run.create()
    with pytest.raises(RunFolderError):
        TrainedModel(run)


def test_only_questions_that_can_be_scored_are() -> None:
    rows = [{"executed": None, "unscored": None}, {"executed": True}, {"executed": False},
            {"executed": None, "unscored": "no such table: lake"}]  # fmt: skip
    answers = Answers(rows, seconds=1.0, device="cpu")
    assert (answers.scored, answers.execution_match) == (2, 0.5)
    assert [(each.index, each.why) for each in answers.unscored] == [(3, "no such table: lake")]
    without = Answers(rows[:1], seconds=1.0, device="cpu")
    assert (without.scored, without.execution_match) == (None, None)


def trained(folder: Path, recipe: str, config: dict[str, object], *overrides: str) -> RunFolder:
    run = RunFolder(folder / "a run")
    run.create()
    write_text(run.recipe, dump_yaml(load_recipe(recipe, overrides).as_dict()))
    run.model.mkdir()
    (run.model / "config.json").write_text(json.dumps(config))
    return run


def test_what_to_type_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Words of a shell, also where a question or a folder has quotes and spaces."""
    run = trained(tmp_path, "demo", {})
    monkeypatch.chdir(tmp_path / "a run")
    named = ["muster", "ask", "a run", "--runs", str(tmp_path)]
    assert shlex.split(next_command(run)) == named
    question = 'Who\'s the "first"?'
    run.predictions.write_text(json.dumps({"question": question}) + "\n")
    assert shlex.split(next_command(run)) == [*named, question]
    assert shlex.split(next_command(run, asked=True)) == [*named, "--evaluate"]
    (run.model / "config.json").unlink()
    run.model.rmdir()
    assert shlex.split(next_command(run)) == ["muster", "show", *named[2:]]
    assert loading_lines(run) == ""


@pytest.mark.parametrize(
    ("config", "new"),
    [({}, 100), ({"n_positions": 64}, 32), ({"n_positions": 64, "is_encoder_decoder": True}, 100)],
)
def test_a_model_of_few_positions_is_asked_for_fewer_tokens(
    config: dict[str, object], new: int, tmp_path: Path
) -> None:
    run = trained(tmp_path, "causal-lm", config, "evaluate.max_new_tokens=100")
    assert f"max_new_tokens={new}," in loading_lines(run)
    assert json.dumps(str(run.model)) in loading_lines(run)


class Told:
    """In a trained model's place: answers with what it heard, and keeps it."""

    device = "cpu"

    def __init__(self, converses: bool = True) -> None:
        self.converses = converses
        self.heard: list[tuple[str, list[tuple[str, str]]]] = []

    def __enter__(self) -> Told:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def ask(self, questions: list[str], *_: object, schema: object = None, before: object = ()) -> Answers:
        self.heard += [(question, list(before)) for question in questions]  # type: ignore[call-overload]
        rows = [{"question": each, "predicted": f"{each}!"} for each in questions]
        return Answers(rows, seconds=1.0, device="cpu")

    def evaluate(self, limit: int | None) -> Answers:
        rows = [{"question": "held?", "predicted": "x", "expected": "x", "executed": True}]
        return Answers(rows[:limit], seconds=1.0, device="cpu")


@pytest.mark.parametrize("converses", [True, False])
def test_a_conversation_goes_on(converses: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was said before comes with each question, until /new; to a model that takes it."""
    typed = iter(["one", " ", "two", "/new", "three", EOFError()])

    def asked(_: str) -> str:
        given = next(typed)
        if isinstance(given, EOFError):
            raise given
        return given

    monkeypatch.setattr("builtins.input", asked)
    model = Told(converses)
    _talk(model, None)  # type: ignore[arg-type]
    before = [("user", "one"), ("assistant", "one!")]
    if converses:
        assert model.heard == [("one", []), ("two", before), ("three", [])]
    else:
        assert model.heard == [(each, []) for each in ("one", "two", "/new", "three")]


def test_what_asks_and_hears() -> None:
    """Earlier turns reach the model."""
    model = _Model.__new__(_Model)
    model.recipe = load_recipe("sft")
    heard: list[object] = []
    model.answerer = SimpleNamespace(answer=lambda questions, **more: (heard.append(more), (["yes"], 1.0))[1])
    for before in ([["user", "Hi"], ["assistant", "Ho"]], []):
        model.answer({"questions": ["And?"], "stream": False, "before": before}, lambda **_: None)
    assert heard == [{"before": [("user", "Hi"), ("assistant", "Ho")]}, {}]


def test_an_empty_answer_is_seen(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """By people; a program reads it as it is."""
    empty = Answers([{"question": "a", "predicted": " "}], 1.0, "cpu")
    monkeypatch.setattr(Told, "ask", lambda *_, **__: empty)
    shown = []
    for json_ in (False, True):
        more: dict[str, Any] = {"evaluate": False, "limit": None, "json": json_, "file": Path("none")}
        _answer(Told(), ["a"], None, **more)  # type: ignore[arg-type]
        shown.append(capsys.readouterr().out.strip())
    assert shown[0] == "(empty answer)" and json.loads(shown[1])["answers"][0]["predicted"] == " "
    print_answers([{"question": "a", "predicted": ""}, {"question": "b", "predicted": "yes"}])
    assert capsys.readouterr().out.count("(empty answer)") == 1


def test_a_success_with_a_caveat_says_so() -> None:
    """In the terminal's first line and at the top of the page."""
    cut = "cut at 160 of 400 steps by train.max_minutes=2"
    given = {"status": State.SUCCEEDED, "caveats": [cut], "steps": 160, "failure": None, "fabric": None}
    result: Result = Result.model_construct(**given)  # type: ignore[arg-type]
    data = SimpleNamespace(state=State.SUCCEEDED, result=result)
    assert cut in headline(data).title and headline(data).tone != "good"  # type: ignore[arg-type]
    assert cut in result.outcome


def test_of_a_held_out_set_the_score_and_ten_wrong_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All of them are in a file; what is right, or could not be scored, is not shown."""
    rows: list[dict[str, Any]] = [
        {"question": f"q{n}", "predicted": f"p{n}", "expected": "e", "exact": n % 2 == 0, "executed": None}
        for n in range(60)
    ]
    rows.append({**rows[1], "question": "lake", "unscored": "no such table"})
    _print_wrong(rows, tmp_path / "asked.jsonl")
    shown = capsys.readouterr().out
    assert "10 of 30 wrong answers" in shown
    assert shown.count("wrong") == 11 and "q19" in shown and "q21" not in shown and "lake" not in shown
    assert [json.loads(line) for line in (tmp_path / "asked.jsonl").read_text().splitlines()] == rows
    _print_wrong(rows, tmp_path / "gone" / "asked.jsonl")
    assert "asked.jsonl" in capsys.readouterr().err


def test_held_out_samples_that_are_not_asked_are_counted(tmp_path: Path) -> None:
    """A question behind a system's message is none that the model is asked alone."""
    from muster.dialogues.answer import questions

    system = {"role": "system", "content": "Count."}
    rows = [
        {"messages": [*([system] if n % 2 else []), {"role": "user", "content": f"{n}?"}, answer]}
        for n in range(4)
        for answer in [{"role": "assistant", "content": str(n)}]
    ]
    model, said = _Model.__new__(_Model), list[dict[str, Any]]()
    model.answerer = SimpleNamespace(
        answer=lambda questions: ([""] * len(questions), 1.0), score=lambda cache, limit: None
    )
    model.cache = tmp_path
    model.workload = SimpleNamespace(questions=questions)

    def asked(used: list[dict[str, Any]]) -> None:
        for name in ("train", "validation"):
            lines = "".join(json.dumps(row) + "\n" for row in used)
            (tmp_path / f"{name}.jsonl").write_text(lines, encoding="utf-8")
        model.recipe = load_recipe("sft", [f"data.path={tmp_path}"])
        model.answer({"limit": None}, lambda **message: said.append(message))

    asked(rows)
    assert [row["row"]["question"] for row in said[:-1]] == ["0?", "2?"]
    assert len(said[-1]["done"]["notes"]) == 1 and "2 of 4" in said[-1]["done"]["notes"][0]
    with pytest.raises(DataError, match="2 of 2"):
        asked(rows[1::2])
    said.clear()
    asked(rows[::2])
    assert said[-1]["done"]["notes"] == []


def test_an_answerer_that_derives_from_nothing_is_a_broken_plugin(tmp_path: Path) -> None:
    from muster.worker.answering import load_answerer

    theirs: Any = SimpleNamespace(Answerer=lambda folder, recipe, device: object(), __file__="train.py")
    with pytest.raises(BrokenPluginError, match=r"not derived from muster\.worker\.answering\.Answerer"):
        load_answerer(theirs, tmp_path, load_recipe("sft"), "cpu")
