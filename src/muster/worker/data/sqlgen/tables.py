"""The rows of a schema, and the real SQLite database that holds them."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from .dice import Dice
from .schemas import Column, Schema, SqlTable
from .values import Row, Rows, Values

SHARED = 24  # distinct places in one column: several rows share each
HELD_ROWS = 0.5  # of names are held-out ones, so that there is enough to ask for in validation


def make_rows(schema: Schema, values: Values, dice: Dice) -> Rows:
    """Seeded rows for every table, parents first."""
    rows: dict[str, Sequence[Row]] = {}
    for table in schema.tables:
        filled = [_column(table, column, values, dice) for column in table.columns]
        rows[table.name] = [
            {"id": place + 1}
            | {column.name: cells[place] for column, cells in zip(table.columns, filled, strict=True)}
            | {f"{parent}_id": _parent(len(rows[parent]), dice) for parent in table.parents}
            for place in range(table.rows)
        ]
    return rows


def _parent(count: int, dice: Dice) -> int:
    """A parent's id; every fifth parent has no children, so that "without" questions have an answer."""
    while (chosen := dice.between(1, count)) % 5 == 0:
        pass
    return chosen


def _column(table: SqlTable, column: Column, values: Values, dice: Dice) -> list[str | int]:
    """The cells of one column; cells of the label column are all different."""
    label = column is table.label
    if column.is_number:
        if not label:
            return [dice.between(column.low, column.high) for _ in range(table.rows)]
        numbers = list(range(column.low, column.high + 1))
        dice.shuffle(numbers)
        return [*numbers[: table.rows]]
    if column.options:
        return [dice.pick(column.options) for _ in range(table.rows)]
    split = values.names[column.kind]
    size = table.rows if label else SHARED
    held = int(size * HELD_ROWS)
    names: list[str] = []
    for source, count in ((split.held, held), (split.seen, size - held)):
        chosen = list(source)
        dice.shuffle(chosen)
        names += chosen[:count]
    dice.shuffle(names)
    return [*names] if label else [dice.pick(names) for _ in range(table.rows)]


def write_database(path: Path, schema: Schema, rows: Rows) -> None:
    """Create the SQLite file with its foreign keys."""
    with closing(sqlite3.connect(path)) as connection, connection:
        for table in schema.tables:
            connection.execute(_create(table))
            names = list(rows[table.name][0])
            marks = ", ".join("?" for _ in names)
            connection.executemany(
                f"INSERT INTO {table.name} ({', '.join(names)}) VALUES ({marks})",
                [tuple(row.values()) for row in rows[table.name]],
            )


def _create(table: SqlTable) -> str:
    columns = ["id INTEGER PRIMARY KEY"]
    columns += [f"{item.name} {'INTEGER' if item.is_number else 'TEXT'} NOT NULL" for item in table.columns]
    columns += [f"{parent}_id INTEGER NOT NULL REFERENCES {parent}(id)" for parent in table.parents]
    return f"CREATE TABLE {table.name} ({', '.join(columns)})"
