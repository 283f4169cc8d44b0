"""Image data's Parquet files as the control side asks them, by DuckDB: columns, labels, and how many classes
there are. No image is decoded."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from muster.core.data import ImageData
from muster.core.errors import DataError
from muster.store.images import (
    METADATA,
    Classes,
    ImageFolders,
    class_names,
    classes_of,
    find_images,
    image_column,
    label_column,
    row_of,
)

LOOKED_AT = 1 << 30  # bytes of a Parquet file up to which the images' lengths are read too
DIGITS = 10  # scikit-learn's


def classes_in(data: ImageData, number: int | None) -> int | None:
    """How many classes a run on this data has, as its ranks find them; None: that is not known here, since
    the data is on a hub or on other machines.

    `number`: what the recipe says, which counts where labels are numbers and the data names no classes.
    Raises DataError for data that cannot be read.
    """
    if data.path:
        path = Path(data.path).expanduser()
        if not path.exists():
            return None
        return _counted(path, data.image, data.label, number, _stamp(path))
    return None if data.name else DIGITS


def table_classes(training: Sequence[ParquetTable], number: int | None) -> Classes:
    """The classes of Parquet files, by the training images' labels, or as the first file names them."""
    labels = {label for table in training for label in table.labels()}
    return classes_of(labels, training[0].names(), number)


@lru_cache(maxsize=16)
def _counted(path: Path, image: str, label: str, number: int | None, stamp: tuple[int, ...]) -> int:
    """Read once for each state of the data: a plan asks for it with each of its ways."""
    found = find_images(path)
    if isinstance(found, ImageFolders):
        return len(found.names)
    data = ImageData(path=str(path), image=image, label=label)
    return len(table_classes([ParquetTable(file, data) for file in found.train], number).names)


def _stamp(path: Path) -> tuple[int, ...]:
    """What changes with the data: of a file, or of a folder and what is in it, one folder deep."""
    entries = [path, *sorted(path.iterdir())] if path.is_dir() else [path]
    return tuple(entry.stat().st_mtime_ns for entry in entries if entry.exists())


class ParquetTable:
    """A Parquet file, asked by DuckDB. Raises DataError where it is none, is empty, or lacks a column."""

    def __init__(self, file: Path, data: ImageData) -> None:
        import duckdb

        self.file, self.where = file, str(file)
        self.base = duckdb.connect()
        described = self.ask("DESCRIBE SELECT * FROM read_parquet($file)")
        types = {name: kind for name, kind, *_ in described}
        self.image = image_column(data, list(types), self.where)
        self.label = label_column(data, list(types), self.where)
        self.bytes = _content(self.image, types[self.image])
        if self.bytes is None:
            kind = f"column {self.image!r} holds {types[self.image]}, not images"
            hint = "a struct of bytes and path, or bytes; data.image=COLUMN"
            raise DataError(kind, where=self.where, hint=hint)
        self.rows = int(self.ask("SELECT count(*) FROM read_parquet($file)")[0][0])
        if not self.rows:
            raise DataError("has no rows", where=self.where)

    def ask(self, statement: str) -> list[Any]:
        """The rows of a statement over $file."""
        import duckdb

        try:
            return list(self.base.execute(statement, {"file": self.where}).fetchall())
        except duckdb.Error as error:
            reason = str(error).strip().splitlines()[0]
            what = f"is not a Parquet file that can be read: {reason}"
            raise DataError(what, where=self.where) from None

    def labels(self) -> list[Any]:
        """The labels that occur."""
        return [row[0] for row in self.ask(f"SELECT DISTINCT {_quoted(self.label)} FROM read_parquet($file)")]

    def names(self) -> list[str] | None:
        """The names of the classes, where the file says them."""
        kept = self.ask(f"SELECT value FROM parquet_kv_metadata($file) WHERE key = '{METADATA}'")
        return class_names(bytes(kept[0][0]) if kept else None, self.label)

    def check(self, classes: Classes) -> None:
        """Raise DataError for the first row without a usable label, or without an image's bytes."""
        label = _quoted(self.label)
        bad = [each for each in self.labels() if classes.number(each) is None]
        if bad:
            row, value = self._first(label, f"value IS NULL OR value IN ({_listed(bad)})")
            fault = classes.fault(value)
            raise DataError(fault.what, where=row_of(self.file, row), hint=fault.hint)
        if self.file.stat().st_size > LOOKED_AT:
            return
        size = f"coalesce(octet_length({self.bytes}), 0)"
        if self.bytes != _quoted(self.image):  # an image may lie beside, in a file
            size += f" + coalesce(length({_quoted(self.image)}.path), 0)"
        found = self._first(size, "value = 0")
        if found:
            raise DataError("is empty", where=row_of(self.file, found[0]), hint="data.bad=skip leaves it out")

    def _first(self, value: str, condition: str) -> Any:
        """(row, value) of the first row whose value meets the condition, or None."""
        source = "read_parquet($file, file_row_number = true)"
        inner = f"SELECT file_row_number AS row, {value} AS value FROM {source}"
        rows = self.ask(f"SELECT row, value FROM ({inner}) WHERE {condition} ORDER BY 1 LIMIT 1")
        return rows[0] if rows else None


def _content(column: str, kind: str) -> str | None:
    """The expression for an image's bytes; None where a column of this type holds none."""
    if kind == "BLOB":
        return _quoted(column)
    if kind.startswith("STRUCT(") and "bytes" in kind and "BLOB" in kind:
        return f"{_quoted(column)}.bytes"
    return None


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _listed(values: list[Any]) -> str:
    """Labels as SQL: numbers and texts."""
    known = [value for value in values if value is not None]
    texts = ["'" + str(value).replace("'", "''") + "'" for value in known]
    return ", ".join(texts) or "NULL"
