"""What `muster ask` shows of an answer as it grows, and what it refuses before it loads a model."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from muster.core.errors import RunFolderError, UsageError
from muster.core.recipes import dump_yaml, load_recipe
from muster.runs.afterwards import loading_lines, next_command
from muster.runs.ask import Answers, TrainedModel, check_questions
from muster.store.atomic import write_text
from muster.store.runfolder import RunFolder
from muster.worker.ask import _Pieces


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


def test_questions_that_are_none() -> None:
    check_questions(["How many?"])
    for questions in ([], [""], ["How many?", " \t"]):
        with pytest.raises(UsageError):
            check_questions(questions)


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
    assert f"max_new_tokens={new})" in loading_lines(run)
    assert json.dumps(str(run.model)) in loading_lines(run)


def test_nothing_is_started_for_a_run_without_a_model(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    run.create()
    with pytest.raises(RunFolderError):
        TrainedModel(run, shell=None)
