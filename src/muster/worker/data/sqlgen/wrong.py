"""Wrong SQL for a question: what a model that has learned the form and not the meaning would write."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from muster.worker.data.sqlexec import QueryFailed, same_result

TRIES = 20
SWAPS = (
    ("<=", "<"), (">=", ">"), (" < ", " > "), (" > ", " < "), ("max(", "min("), ("min(", "max("),
    ("sum(", "avg("), ("avg(", "sum("), ("count(*)", "max(id)"), (" DESC", ""), ("NOT IN", "IN"),
    (" AND ", " OR "), (" = ", " != "), ("LIKE '", "LIKE '%"),
)  # fmt: skip
_NUMBER = re.compile(r"\b\d+\b")
_VALUE = re.compile(r"'([^']*)'")


def wrong_queries(pairs: Sequence[tuple[str, Path]], seed: int) -> list[str]:
    """For each (SQL, its database) other SQL that gives other rows. The same arguments give the same queries.

    By turns: a changed comparison or aggregate, another number, another value, the query of another
    question; the first of some tries whose rows differ.
    """
    dice = random.Random(seed)
    numbers = [number for sql, _ in pairs for number in _NUMBER.findall(sql)] or ["1"]
    values = [value for sql, _ in pairs for value in _VALUE.findall(sql)] or ["none"]
    by_database: dict[Path, list[str]] = {}
    for sql, database in pairs:
        by_database.setdefault(database, []).append(sql)

    def swapped(sql: str) -> str:
        left, right = dice.choice([swap for swap in SWAPS if swap[0] in sql] or [("", "")])
        return sql.replace(left, right, 1)

    def numbered(sql: str) -> str:
        return _NUMBER.sub(lambda _: dice.choice(numbers), sql, count=1)

    def valued(sql: str) -> str:
        return _VALUE.sub(lambda _: f"'{dice.choice(values)}'", sql, count=1)

    kinds: list[Callable[[str], str]] = [swapped, numbered, valued]
    queries = []
    for sql, database in pairs:
        for attempt in range(TRIES):
            other = dice.choice(by_database[database])
            made = dice.choice(kinds)(sql) if attempt < TRIES // 2 and dice.random() < 0.75 else other
            if made != sql and not _same(database, made, sql):
                queries.append(made)
                break
        else:  # every other query that was tried gives the same rows
            queries.append("SELECT 1 WHERE 0")
    return queries


def _same(database: Path, made: str, sql: str) -> bool:
    try:
        return same_result(database, made, sql)
    except QueryFailed:
        return False
