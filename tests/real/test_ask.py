"""A trained model by the real command line: ask, and everything that looks at a finished run."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from muster.runs.afterwards import loading_lines, next_command
from muster.runs.ask import TrainedModel
from muster.store import events
from muster.store.runfolder import RunFolder, find_run
from tests.support import by_the_lines, needs_torch, run, said

pytestmark = [pytest.mark.real, pytest.mark.timeout(280)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run of 60 steps in a folder of runs of its own."""
    needs_torch()
    folder = tmp_path_factory.mktemp("asked") / "runs" / "asked-run"
    boards = folder.parent / "boards.sh"
    boards.parent.mkdir()
    boards.write_text(f"export TENSORBOARD_LOGGING_DIR={folder.parent}/boards\n")
    settings = [
        f"launch.setup={boards}",
        "evaluate.every=epoch",
        "measure.report_to=[tensorboard]",
        "evaluate.after=true",
        "train.max_steps=60",
        "engine.name=ddp",
        "engine.zero=0",
        "data.max_target=32",
    ]
    done, result = run(folder, "local:2", *settings)
    assert result.status == "succeeded", result.failure
    return done


def muster(where: RunFolder, *arguments: str, told: str = "") -> subprocess.CompletedProcess[str]:
    """`muster ARGUMENTS` in the folder that holds the folder of runs."""
    argv = [sys.executable, "-m", "muster", *arguments]
    return subprocess.run(
        argv, cwd=where.path.parent.parent, input=told, capture_output=True, text=True, timeout=120
    )


def document(done: subprocess.CompletedProcess[str]) -> Any:
    """What a verb that succeeded printed with --json."""
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def refused(done: subprocess.CompletedProcess[str]) -> tuple[str, str]:
    """(error, hint) of bad input: exit code 2, one line each, nothing on stdout."""
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    error, hint = done.stderr.splitlines()
    assert error.startswith("error: ")
    assert hint.startswith("hint: ")
    return error.removeprefix("error: "), hint.removeprefix("hint: ")


# --- ask -------------------------------------------------------------------------------------------------


def test_questions_from_the_command_line_and_a_file(trained: RunFolder) -> None:
    """In their order, blank lines left out; a question gets the same answer, whatever it is asked with."""
    first, second = "How many employees are there?", "Which products cost more than 12, and where?"
    file = trained.path.parent.parent / "questions.txt"
    file.write_text(f"{second}\n\n  {first}  \n", encoding="utf-8")
    answers = document(muster(trained, "ask", "asked-run", first, "--file", str(file), "--json"))
    assert [row["question"] for row in answers["answers"]] == [first, second, first]
    assert answers["questions"] == 3
    assert answers["answers"][0]["predicted"] == answers["answers"][2]["predicted"]
    assert answers["seconds"] > 0
    assert answers["milliseconds_per_question"] == pytest.approx(1000 * answers["seconds"] / 3)
    assert answers["device"] in ("cpu", "cuda")
    alone = muster(trained, "ask", "last", first)
    assert alone.returncode == 0, alone.stderr
    assert alone.stdout.strip() == answers["answers"][0]["predicted"].strip()
    assert "1 question" in alone.stderr


def test_questions_from_standard_input(trained: RunFolder) -> None:
    asked = muster(trained, "ask", "asked-run", "--file", "-", "--json", told="How many?\n\n Which? \n")
    assert [row["question"] for row in document(asked)["answers"]] == ["How many?", "Which?"]


def at_a_terminal(where: RunFolder, typed: list[str], *arguments: str) -> tuple[int, str]:
    """(exit code, everything that is shown) where each line is typed at a prompt of a terminal."""
    front, back = os.openpty()
    argv = [sys.executable, "-m", "muster", *arguments]
    process = subprocess.Popen(
        argv, cwd=where.path.parent.parent, stdin=back, stdout=back, stderr=back, start_new_session=True
    )
    os.close(back)
    shown = b""
    with contextlib.suppress(OSError):  # EIO: the other side is closed
        while part := os.read(front, 1 << 16):
            shown += part
            if typed and shown.endswith(b"> "):
                os.write(front, typed.pop(0).encode())
    os.close(front)
    return process.wait(60), shown.decode("utf-8", "replace")


def test_a_terminal_keeps_the_model_loaded(trained: RunFolder) -> None:
    """One question after the other, an empty one refused, until the end of the input."""
    question = "How many employees are there?"
    alone = document(muster(trained, "ask", "asked-run", question, "--json"))["answers"][0]["predicted"]
    code, shown = at_a_terminal(trained, [f"{question}\n", "\n", f"{question}\n", "\x04"], "ask", "asked-run")
    assert code == 0, shown
    assert shown.count("loading the model") >= 1
    assert "is empty" in shown
    assert shown.replace("\r\n", "\n").count(alone) == 2
    assert "muster ask asked-run --evaluate" in shown


def test_answers_grow_word_by_word(trained: RunFolder) -> None:
    """Where a terminal shows them; together they are the answer."""
    question = "How many employees are there?"
    pieces: list[str] = []
    with TrainedModel(trained) as model:
        whole = model.ask([question]).rows[0]["predicted"]
        grown = model.ask([question], pieces.append).rows[0]["predicted"]
        again = model.ask([question]).rows[0]["predicted"]
    assert whole == grown == again == "".join(pieces).strip()


def test_transformers_loads_it(trained: RunFolder) -> None:
    """The lines that the end of `train` and `ask` shows give the same answer."""
    example = next(json.loads(line) for line in trained.predictions.read_text().splitlines())
    asked = muster(trained, "ask", "asked-run", example["question"])
    assert by_the_lines(trained) == asked.stdout.strip()
    assert loading_lines(trained).splitlines()[0] in asked.stderr


def test_the_next_command_can_be_copied(trained: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the folder of the runs' folder, and from elsewhere, where it needs --runs."""
    monkeypatch.chdir(trained.path.parent.parent)
    example = json.loads(trained.predictions.read_text().splitlines()[0])["question"]
    assert shlex.split(next_command(trained)) == ["muster", "ask", "asked-run", example]
    monkeypatch.chdir("/usr")
    words = shlex.split(next_command(trained))
    assert words == ["muster", "ask", "asked-run", "--runs", str(trained.path.parent), example]
    assert find_run(words[2], Path(words[4])) == trained


def test_evaluate(trained: RunFolder) -> None:
    """The held-out questions with what was expected, judged."""
    answers = document(muster(trained, "ask", str(trained.path), "--evaluate", "--limit", "10", "--json"))
    held = [json.loads(line) for line in next((trained.path / "data").glob("val*")).read_text().splitlines()]
    rows = answers["answers"]
    assert [(row["question"], row["expected"]) for row in rows] == [
        (row["question"], row["sql"]) for row in held[:10]
    ]
    for row in rows:
        assert row["exact"] is (row["predicted"].split() == row["expected"].split())
        assert isinstance(row["executed"], bool)
    assert answers["exact_match"] == sum(row["exact"] for row in rows) / 10
    assert answers["execution_match"] == sum(row["executed"] for row in rows) / 10


def test_an_expected_query_that_cannot_be_run(trained: RunFolder) -> None:
    """It is named, and the others are scored."""
    file = next((trained.path / "data").glob("val*"))
    before = file.read_text()
    first = {**json.loads(before.splitlines()[0]), "sql": "SELECT x FROM lake"}
    file.write_text("\n".join([json.dumps(first), *before.splitlines()[1:]]))
    try:
        done = muster(trained, "ask", "asked-run", "--evaluate", "--limit", "3")
    finally:
        file.write_text(before)
    said = " ".join(done.stderr.split())
    assert done.returncode == 0, said
    assert done.stdout.startswith("3 questions in ") and "same rows from the database" in done.stdout
    rows = [json.loads(line) for line in trained.asked.read_text().splitlines()]
    assert rows[0]["question"] == first["question"] and len(rows) == 3
    assert "1 held-out question does not count in same rows" in said
    assert "question 1: no such table: lake" in said


def test_what_cannot_be_asked(trained: RunFolder) -> None:
    """Each is one line and a hint, before any model is loaded."""
    error, hint = refused(muster(trained, "ask", "askde-run", "How many?"))
    assert "askde-run" in error
    assert "asked-run" in hint
    empty = trained.path.parent.parent / "empty.txt"
    empty.write_text("\n \n")
    error, hint = refused(muster(trained, "ask", "asked-run", "--file", str(empty)))
    assert "no question" in error
    assert "--evaluate" in hint
    for nothing in (["  "], ["How many?", ""]):
        error, _ = refused(muster(trained, "ask", "asked-run", *nothing))
        assert "is empty" in error
    untrained = trained.path.with_name("untrained")
    untrained.mkdir()
    for file in (trained.job, trained.recipe):
        shutil.copy(file, untrained)
    try:
        error, hint = refused(muster(trained, "ask", "untrained", "How many?"))
        assert "no trained model" in error
        assert "muster resume untrained" in hint
        failed = muster(trained, "ask", "untrained", "How many?", "--json")
        assert failed.returncode == 2
        assert json.loads(failed.stdout)["error"]["hint"] == hint
    finally:
        shutil.rmtree(untrained)


# --- what else it was asked for ----------------------------------------------------------------------------


def test_the_loss_was_evaluated_after_each_epoch(trained: RunFolder) -> None:
    """400 samples in batches of 32, and once more at the end."""
    assert [event.step for event in said(trained, events.Evaluated)] == [13, 26, 39, 52, 60]


def test_trackers_were_told_where_the_setup_said(trained: RunFolder) -> None:
    """The ranks' environment is what launch.setup left, and the first rank reports to TensorBoard by
    Transformers, beside what the controller writes."""
    assert list((trained.path.parent / "boards").rglob("events.out.tfevents*"))
    assert list(trained.tensorboard.rglob("events.out.tfevents*"))


@pytest.mark.parametrize(
    ("setting", "what"),
    [
        ("launch.setup=echo no such module; exit 3", "launch.setup failed with exit code 3: no such module"),
        ("measure.report_to=[trackio]", "trackio is not installed"),
    ],
)
def test_what_a_host_lacks_is_said_before_the_start(setting: str, what: str, trained: RunFolder) -> None:
    argv = ["train", "demo", "--hosts", "local:1", setting, "--json"]
    done = muster(trained, *argv)
    assert done.returncode == 2, done.stderr
    problem = json.loads(done.stdout)["error"]
    assert problem["what"].startswith(what)
    assert problem["host"] == "local"
    assert [path.name for path in trained.path.parent.iterdir() if path.is_dir()] == ["asked-run", "boards"]


# --- looking at it ---------------------------------------------------------------------------------------


def test_ls(trained: RunFolder) -> None:
    rows = document(muster(trained, "ls", "--json"))
    assert [(row["id"], row["status"], row["steps"]) for row in rows] == [("asked-run", "succeeded", 60)]
    condition = "status = 'succeeded' AND steps = 60 AND engine LIKE 'ddp%'"
    assert document(muster(trained, "ls", "--where", condition, "--json")) == rows
    assert document(muster(trained, "ls", "--where", "steps > 60", "--json")) == []
    assert "asked-run" in muster(trained, "ls").stdout
    for nonsense in ("nonsense =", "no_such_column = 1", "1; DROP TABLE results"):
        error, hint = refused(muster(trained, "ls", "--where", nonsense))
        assert nonsense in error
        assert "status" in hint


def test_show_and_report(trained: RunFolder) -> None:
    shown = document(muster(trained, "show", "asked-run", "--json"))
    assert (shown["id"], shown["state"], shown["step"], shown["total_steps"]) == (
        "asked-run",
        "succeeded",
        60,
        60,
    )
    assert shown["result"] == json.loads(trained.result.read_text())
    page = document(muster(trained, "report", "asked-run", "--output", "page.html", "--json"))
    text = (trained.path.parent.parent / page["report"]).read_text(encoding="utf-8")
    assert text.lstrip().lower().startswith("<!doctype html>")
    assert "asked-run" in text
    refused(muster(trained, "show", "nothing-like-it"))
    table = muster(trained, "show", "asked-run", "--csv")
    assert table.returncode == 0 and table.stderr == ""
    rows = list(csv.DictReader(io.StringIO(table.stdout)))
    assert rows[-1]["step"] == "60" and float(rows[-1]["loss"]) == shown["result"]["loss_final"]
    assert [row["step"] for row in rows if row["evaluation_loss"]] == ["13", "26", "39", "52", "60"]
