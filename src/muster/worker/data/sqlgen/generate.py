"""Questions with their SQL, and the folder that holds them beside their databases."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path

from .dice import Dice
from .phrases import Draw
from .schemas import SCHEMAS, Column, Schema, SqlTable
from .shapes import SHAPES
from .values import HeldPool, Pool, Row, Rows, SeenPool, Values, make_values

FORMAT = 1  # raise it when the same seed gives other questions
SHARED = 24  # distinct places in one column: several rows share each
HELD_ROWS = 0.5  # of names are held-out ones, so that there is enough to ask for in validation
ATTEMPTS = 40  # fruitless draws before a shape is taken for exhausted


@dataclass(frozen=True)
class Example:
    """One line of a data file."""

    question: str
    sql: str
    database: str
    shape: str


@dataclass(frozen=True)
class Manifest:
    """What a finished folder was built from; its file marks the folder as complete."""

    seed: int
    train: int
    validation: int
    format: int = FORMAT


def build(folder: Path, *, seed: int, train: int, validation: int) -> None:
    """Write train.jsonl, validation.jsonl and databases/*.sqlite into a new folder, all or nothing.

    The same seed and sizes give the same lines everywhere. A folder that already holds just this set is
    left alone; one that holds anything else raises FileExistsError.
    """
    manifest = Manifest(seed, train, validation)
    if _complete(folder, manifest):
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        work.chmod(0o755)
        _fill(work, manifest)
        try:
            work.rename(folder)
        except OSError:
            if not _complete(folder, manifest):  # else another process was first, with the same set
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _complete(folder: Path, manifest: Manifest) -> bool:
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return False
    try:
        before = json.loads((folder / "manifest.json").read_text())
    except (OSError, ValueError):
        before = None
    if before != asdict(manifest):
        wanted = asdict(manifest)
        raise FileExistsError(f"{folder} exists and is not the generated set {wanted}: found {before}")
    return True


def _fill(folder: Path, manifest: Manifest) -> None:
    dice = Dice(manifest.seed)
    values = make_values(dice)
    rows = {schema.name: make_rows(schema, values, dice) for schema in SCHEMAS}
    (folder / "databases").mkdir()
    for schema in SCHEMAS:
        write_database(folder / _database(schema), schema, rows[schema.name])
    asked: set[str] = set()
    held = _validation(folder, rows, values, dice, manifest.validation, asked)
    pools = dict.fromkeys((schema.name for schema in SCHEMAS), SeenPool(values, dice))
    seen = _examples(dice, pools, manifest.train, asked, lambda _schema, _sql: True)
    _write(folder / "validation.jsonl", held)
    _write(folder / "train.jsonl", seen)
    _write(folder / "manifest.json", [manifest])


def _database(schema: Schema) -> str:
    return f"databases/{schema.name}.sqlite"


def _validation(
    folder: Path,
    rows: Mapping[str, Rows],
    values: Values,
    dice: Dice,
    count: int,
    asked: set[str],
) -> list[Example]:
    """Questions over held-out values, with answers: an empty one would make much wrong SQL right."""
    pools = {schema.name: HeldPool(values, rows[schema.name], dice) for schema in SCHEMAS}
    with ExitStack() as stack:
        connections = {}
        for schema in SCHEMAS:
            connection = sqlite3.connect(folder / _database(schema))
            connections[schema.name] = stack.enter_context(closing(connection))

        def answers(schema: Schema, sql: str) -> bool:
            rows = connections[schema.name].execute(sql)
            return any(value not in (None, 0) for row in rows for value in row)

        return _examples(dice, pools, count, asked, answers)


def _examples(
    dice: Dice,
    pools: Mapping[str, Pool],
    count: int,
    asked: set[str],
    accept: Callable[[Schema, str], bool],
) -> list[Example]:
    """Return the shapes in turn, so that each has the same share until it has no new questions.

    No question occurs twice, here or in an earlier call with the same `asked`.
    """
    names = list(SHAPES)
    examples: list[Example] = []
    while len(examples) < count and names:
        name = names.pop(0)
        for _ in range(ATTEMPTS):
            schema = dice.pick(SCHEMAS)
            question, sql = SHAPES[name](Draw(dice, pools[schema.name], schema))
            if question not in asked and accept(schema, sql):
                asked.add(question)
                examples.append(Example(question, sql, _database(schema), name))
                names.append(name)
                break
    if len(examples) < count:
        raise ValueError(f"only {len(examples)} different questions, not {count}: ask for fewer")
    dice.shuffle(examples)
    return examples


def _write(path: Path, lines: Iterable[Example | Manifest]) -> None:
    text = "".join(json.dumps(asdict(line)) + "\n" for line in lines)
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


# --- the rows of a schema, and the SQLite database that holds them ------------------------------------------


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
    """Return a parent's id; every fifth parent has no children, so that "without" questions have an
    answer."""
    while (chosen := dice.between(1, count)) % 5 == 0:
        pass
    return chosen


def _column(table: SqlTable, column: Column, values: Values, dice: Dice) -> list[str | int]:
    """Return the cells of one column; cells of the label column are all different."""
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
            columns = ["id INTEGER PRIMARY KEY"]
            for item in table.columns:
                columns.append(f"{item.name} {'INTEGER' if item.is_number else 'TEXT'} NOT NULL")
            for parent in table.parents:
                columns.append(f"{parent}_id INTEGER NOT NULL REFERENCES {parent}(id)")
            connection.execute(f"CREATE TABLE {table.name} ({', '.join(columns)})")
            names = list(rows[table.name][0])
            marks = ", ".join("?" for _ in names)
            connection.executemany(
                f"INSERT INTO {table.name} ({', '.join(names)}) VALUES ({marks})",
                [tuple(row.values()) for row in rows[table.name]],
            )
