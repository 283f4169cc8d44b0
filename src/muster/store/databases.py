"""SQLite files that belong to samples: where a row's file is, and its tables as text."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import lru_cache
from pathlib import Path

from muster.core.errors import DataError

FIELDS = ("database", "db_id")  # of a row, that name its file; Spider and BIRD have the second
# Folders beside the data, and a file's name in them: Spider has database/geo/geo.sqlite.
_FOLDERS = ("", "database", "databases", "train_databases", "dev_databases")
_FILES = ("{0}", "{0}.sqlite", "{0}.db", "{0}/{0}.sqlite", "{0}/{0}.db")
SUFFIXES = (".sqlite", ".sqlite3", ".db")
MAGIC = b"SQLite format 3\0"


@lru_cache(maxsize=10_000)
def find_database(name: str, near: Path) -> Path | None:
    """Return the file of a row's database, relative to the folder of the row's file; None: there is none."""
    places = (near / folder / file.format(name) for folder in _FOLDERS for file in _FILES)
    return next((place for place in places if place.is_file()), None)


@lru_cache(maxsize=10_000)
def tables_of(file: Path) -> str:
    """Return `singer: id INTEGER, name TEXT | song: id INTEGER, ...`: tables in the order of their creation,
    columns as declared. Raises DataError."""
    try:
        with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            rows = connection.execute(
                "SELECT t.name, c.name, c.type FROM sqlite_master t JOIN pragma_table_info(t.name) c "
                "WHERE t.type IN ('table', 'view') AND t.name NOT LIKE 'sqlite\\_%' ESCAPE '\\' "
                "ORDER BY t.rowid, c.cid"
            ).fetchall()
    except sqlite3.Error as error:
        raise DataError(f"is not a SQLite file that can be read: {error}", where=str(file)) from None
    tables: dict[str, list[str]] = {}
    for table, column, kind in rows:
        tables.setdefault(table, []).append(" ".join(f"{column} {kind}".split()))
    if not tables:
        raise DataError("has no tables", where=str(file))
    return " | ".join(f"{table}: {', '.join(columns)}" for table, columns in tables.items())
