"""Execution match: does predicted SQL give the same rows as expected SQL on a real SQLite database?

Predicted SQL comes from a model and is not trusted. It runs on a read-only connection whose authorizer
knows only reading and a list of harmless functions, within a budget of SQLite's own steps: a count and not
a time, so that the verdict does not depend on how busy the host is (a generous time limit stands behind it).
"""

from __future__ import annotations

import math
import re
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

Cell = int | float | str | bytes | None
Row = tuple[Cell, ...]

STEPS = 20_000_000  # of SQLite's virtual machine, about a second
STEPS_PER_CALL = 10_000
SECONDS = 20.0
ROWS = 20_000
LONGEST = 1_000_000  # bytes in one value
SQLITE_LIMIT_LENGTH = 0  # SQLite's own number for it
_FUNCTIONS = (
    "abs avg coalesce count date datetime dense_rank glob ifnull iif instr julianday length like lower ltrim "
    "max min nullif rank round row_number rtrim sign strftime substr substring sum time total trim "
    "typeof upper"
)
FUNCTIONS = frozenset(_FUNCTIONS.split())  # none that makes a large value, touches a file or loads code
ACTIONS = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE})
SKIPPED = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|`[^`]*`|\[[^\]]*\]|--[^\n]*|/\*.*?\*/", re.DOTALL)
NESTED = re.compile(r"\([^()]*\)")
ORDERED = re.compile(r"\border\s+by\b", re.IGNORECASE)


class QueryFailed(ValueError):
    """A statement was refused, failed, or ran past a limit."""


def same_result(database: Path, predicted: str, expected: str) -> bool:
    """Return whether both statements give the same rows: in the same order if the expected one sorts, else in
    any.

    A prediction that fails, is not one single SELECT, or runs past a limit is wrong: False. An expected
    statement that fails raises QueryFailed, and a missing database FileNotFoundError: there the data are at
    fault and not the model.
    """
    right = run_query(database, expected)
    try:
        answer = run_query(database, predicted)
    except QueryFailed:
        return False
    return answer[0] == right[0] and _same_rows(answer[1], right[1], ordered=is_ordered(expected))


def run_query(database: Path, sql: str) -> tuple[int, list[Row]]:
    """Run one SELECT read-only and within limits. -> the number of columns, and the rows."""
    if not database.is_file():
        raise FileNotFoundError(f"no database file {database}")
    try:
        with closing(sqlite3.connect(f"{database.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            _restrict(connection)
            with closing(connection.execute(sql)) as cursor:
                if cursor.description is None:
                    raise QueryFailed(f"not a SELECT: {sql!r}")
                rows: list[Row] = cursor.fetchmany(ROWS + 1)
                columns = len(cursor.description)
    except (sqlite3.Error, sqlite3.Warning, ValueError, MemoryError) as error:  # ValueError: NUL, surrogate
        raise QueryFailed(f"{error}: {sql!r}") from error
    if len(rows) > ROWS:
        raise QueryFailed(f"more than {ROWS} rows: {sql!r}")
    return columns, rows


def is_ordered(sql: str) -> bool:
    """Return whether the outermost SELECT has an ORDER BY (one in a nested query doesn't order the
    result)."""
    text, before = SKIPPED.sub(" ", sql), ""
    while text != before:
        text, before = NESTED.sub(" ", text), text
    return ORDERED.search(text) is not None


def _restrict(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA query_only = ON")
    connection.execute("PRAGMA temp_store = MEMORY")
    if (set_limit := getattr(connection, "setlimit", None)) is not None:  # Python >= 3.11
        set_limit(SQLITE_LIMIT_LENGTH, LONGEST)
    calls = 0
    deadline = time.monotonic() + SECONDS

    def tick() -> int:
        nonlocal calls
        calls += 1
        return int(calls > STEPS // STEPS_PER_CALL or time.monotonic() > deadline)

    connection.set_progress_handler(tick, STEPS_PER_CALL)
    connection.set_authorizer(_authorize)  # last: it forbids PRAGMA too


def _authorize(action: int, _one: str | None, name: str | None, _base: str | None, _by: str | None) -> int:
    if action in ACTIONS or (action == sqlite3.SQLITE_FUNCTION and (name or "").lower() in FUNCTIONS):
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY


def _same_rows(left: Sequence[Row], right: Sequence[Row], *, ordered: bool) -> bool:
    if len(left) != len(right):
        return False
    if not ordered:
        left, right = sorted(left, key=_key), sorted(right, key=_key)
    return all(
        _same_cell(one, other)
        for first, second in zip(left, right, strict=True)
        for one, other in zip(first, second, strict=True)
    )


def _key(row: Row) -> tuple[tuple[tuple[int, float, str], ...], tuple[tuple[int, float, str], ...]]:
    """Return a sorting key that puts nearly equal floats side by side: rounded cells first, then exact
    ones."""
    return tuple(_rank(cell, rounded=True) for cell in row), tuple(_rank(cell, rounded=False) for cell in row)


def _rank(cell: Cell, *, rounded: bool) -> tuple[int, float, str]:
    if cell is None:
        return 0, 0.0, ""
    if isinstance(cell, (int, float)):
        return 1, float(f"{cell:.7g}") if rounded else float(cell), ""
    return (2, 0.0, cell) if isinstance(cell, str) else (3, 0.0, cell.hex())


def _same_cell(one: Cell, other: Cell) -> bool:
    if isinstance(one, float) or isinstance(other, float):
        numbers = isinstance(one, (int, float)) and isinstance(other, (int, float))
        return numbers and math.isclose(float(one or 0), float(other or 0), rel_tol=1e-7, abs_tol=1e-9)
    return one == other
