"""What `muster ask` shows of an answer as it grows, and what it refuses before it loads a model."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from muster.core.errors import RunFolderError, UsageError
from muster.stages.ask import Answers, Model, check_questions
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


def test_nothing_is_started_for_a_run_without_a_model(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    run.create()
    with pytest.raises(RunFolderError):
        Model(run, shell=None)
