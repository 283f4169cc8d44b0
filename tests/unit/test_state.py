"""Every state, and everything that reads one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import TypeAdapter
from rich.color import Color

from muster.core.result import Result
from muster.core.state import JobEnd, LogEnd, RunEnd, State
from muster.reports.pipeline import render_pipeline
from muster.reports.rundata import RunData
from muster.reports.words import headline
from muster.store.runfolder import RunFolder

STATES = pytest.mark.parametrize("state", State, ids=str)


@STATES
def test_a_state_is_its_word(state: State) -> None:
    assert state == str(state) == f"{state}" == json.loads(json.dumps(state)) and State(str(state)) is state
    assert f"{state:>20}" == str(state).rjust(20)


@STATES
def test_every_reader_has_words_for_it(state: State) -> None:
    assert state.words and state.mark and Color.parse(state.colour)
    said = headline(RunData("r", state))
    assert (said.mark, said.tone) == (state.mark, state.tone) and state.words in said.title
    page = render_pipeline("p", state, [("sft", RunData("r", state), None)])
    assert f"The pipeline {state.words}" in page and state.mark in page


@STATES
def test_what_it_means(state: State) -> None:
    assert state.good == (state.exit_code == 0) == (state.tone == "good")
    assert not (state.good and not state.over) and not (state.supervised and state.over)
    run = RunData("r", state)
    assert run.broken == (state.over and not state.good)


@pytest.mark.parametrize("kind", [RunEnd, JobEnd, LogEnd])
def test_what_is_read_is_a_state_again(kind: Any) -> None:
    reader = TypeAdapter(kind)
    for state in get_args(kind):
        assert reader.validate_json(reader.dump_json(state)) is reader.validate_python(str(state)) is state
        assert state.over
    with pytest.raises(ValueError, match="running"):
        reader.validate_python("running")


@pytest.mark.parametrize("state", get_args(RunEnd), ids=str)
def test_the_state_of_a_run_is_that_of_its_result(state: State, tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "r")
    run.path.mkdir()
    run.result.write_text(json.dumps({"status": state}))
    assert run.state() is state and Result.model_fields["status"].annotation == RunEnd


@pytest.mark.parametrize("status", ["running", "odd", None, 3, ["failed"]])
def test_a_result_with_another_status_is_damaged(status: Any, tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "r")
    run.path.mkdir()
    run.result.write_text(json.dumps({"status": status}))
    assert run.state() is State.DAMAGED


def test_what_nobody_works_on_is_over() -> None:
    """Nothing more happens to an interrupted run by itself: its page and explain say what broke."""
    still = {State.NOT_BEGUN, State.SUBMITTED, State.RUNNING, State.ELSEWHERE}
    assert {state for state in State if not state.over} == still
