"""Logs of formats that a user describes: expressions for lines, columns of tables, expressions for paths."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from muster.core.errors import UsageError
from muster.readers._live import Live
from muster.readers._user import FIELDS, PLACES, Expression, UserFormat
from tests.unit.logs import read_log

PAGE = Path(__file__).resolve().parents[2] / "docs" / "judge.md"
STEP = r"it=(?P<step>\d+) loss=(?P<loss>\S+) dt=(?P<ms>[\d.]+)"
BATCH = r"^batch (?P<batch>\d+)"


# ---- lines -------------------------------------------------------------------------------------------------


def test_a_step_alone_is_timed_by_the_stamps_of_its_lines() -> None:
    """Of a job that runs, by the moments at which lines without a stamp come."""
    user = UserFormat.of([r"at (?P<step>\d+)", BATCH])
    live = Live(user)
    live.lines(["batch 4", *(f"2026-03-01 10:00:{2 * step:02d}.500 at {step}" for step in range(30))])
    seen = live.seen(0.0)
    assert seen is not None and (seen.unit, seen.rate) == ("samples", pytest.approx(2.0))
    live = Live(user)
    for step in range(5):
        live.lines([f"at {step}"])
    seen = live.seen(0.0)
    assert seen is not None and seen.step_seconds is not None


# ---- expressions -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", [r"(\w+ ?)+(?P<step>\d)!", r"(x|xx|x+)*(?P<step>\d)", r"((a*)*)*(?P<step>b)"]
)
def test_no_expression_hangs(text: str) -> None:
    """Each of these takes longer than the universe is old, where an engine tries one way after the other."""
    expression = Expression.of(text, FIELDS, "--line")
    for line in ("x" * 100_000, "word " * 20_000, "a" * 100_000):
        assert not expression.search(line)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("a(?P<seconds>", "is not a regular expression"),
        (r"(?P<stepp>\d+) (?P<seconds>\S+)", "unknown group 'stepp'"),
        (r"(?P<work>\w+) (?P<seconds>\S+)", "unknown group 'work'"),
        (r"(?P<loss>\S+)", "no group gives a speed"),
        (r"\d+ s", "has no named group"),
        (r"(?=a)(?P<seconds>\d+)", "look-around"),
        (r"(?<!a)(?P<seconds>\d+)", "look-around"),
        (r"(?P<seconds>\d+) \1", "look-around and backreferences"),
        (r"(?P<seconds>\d+) (?P=seconds)", "look-around and backreferences"),
    ],
)
def test_an_expression_that_is_refused(text: str, what: str) -> None:
    with pytest.raises(UsageError, match=re.escape(what)) as refused:
        UserFormat.of([text])
    assert refused.value.where == "--line"


def test_any_text_is_searched() -> None:
    """Half of a pair of surrogates is no UTF-8; a group may be of letters that take several bytes."""
    expression = Expression.of(r"(?P<host>[^ ]+): (?P<step>\d+)(?P<loss> \d+)?", FIELDS, "--line")
    assert expression.search("\ud800 größe: 7") == {"host": "größe", "step": "7"}


# ---- tables ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "what"),
    [
        (["step=s"], "none gives a speed"),
        (["secons=a"], "unknown field 'secons'"),
        (["seconds"], "is FIELD=NAME"),
        (["seconds="], "is FIELD=NAME"),
    ],
)
def test_columns_that_are_refused(columns: list[str], what: str) -> None:
    with pytest.raises(UsageError, match=re.escape(what)) as refused:
        UserFormat.of((), columns)
    assert refused.value.where == "--column"


# ---- paths -------------------------------------------------------------------------------------------------


def test_the_pages_example() -> None:
    """The expressions of docs/judge.md read the lines beside them."""
    text = PAGE.read_text(encoding="utf-8")
    (shown,) = re.findall(r"```text ours\.log\n(.*?)```", text, re.DOTALL)
    (command,) = re.findall(r"```console.*\n(muster judge DIR --line .*?)```", text, re.DOTALL)
    options = dict(re.findall(r"--(line|host-pattern) '(.*?)'", command))
    (job,) = read_log(
        "opt-13b/run3/gpu[01,05].log",
        shown.splitlines(),
        UserFormat.of([each for name, each in re.findall(r"--(line) '(.*?)'", command)]),
        Expression.of(options["host-pattern"], PLACES, "--host-pattern"),
    )
    assert (job.hosts, job.workload, job.group) == (("gpu01", "gpu05"), "opt-13b", "run3")
    assert job.rate == pytest.approx(2 * 64 / 0.496) and job.measured and job.measured.tokens is None
