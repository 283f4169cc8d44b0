"""Where images come from: Parquet, folders, a hub data set, scikit-learn's digits."""

from __future__ import annotations

import csv
import gzip
import io
import random
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from muster.core.data import Digits, ImageData
from muster.core.errors import DataError
from muster.store.images import (
    METADATA,
    Classes,
    ImageFolders,
    ParquetFiles,
    class_names,
    classes_of,
    find_images,
    image_column,
    label_column,
    row_of,
)
from muster.worker.data.hub import hub_parts, load
from muster.worker.data.images import ImageSource, UnreadableImage, decode

# ----------------------------------------------------------------------------------------------------
# scikit-learn's digits, which come with Muster.

DIGITS = "digits"  # what the embedded images are called


@dataclass(frozen=True)
class DigitsSource:
    """(images, 8, 8) uint8, 0 to 255."""

    images: Any

    def read(self, row: int) -> Image.Image:
        """See Source."""
        return Image.fromarray(self.images[row])

    def place(self, row: int) -> str:
        """digits[row]."""
        return row_of(DIGITS, row)


def read_digits() -> tuple[Any, list[int]]:
    """scikit-learn's digits: (1797, 8, 8) uint8, whose 0..16 become 0..255, and what each of them is.

    The file is scikit-learn's own (digits.csv.gz): the test part of E. Alpaydin and C. Kaynak, Optical
    Recognition of Handwritten Digits (1998), UCI Machine Learning Repository, CC BY 4.0.
    """
    packed = resources.files("muster.worker.data").joinpath("digits.csv.gz").read_bytes()
    text = io.StringIO(gzip.decompress(packed).decode("ascii"))
    rows = np.array([[float(value) for value in line] for line in csv.reader(text)])
    images = np.rint(rows[:, :64] * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8)
    return images, [int(label) for label in rows[:, 64]]


# ----------------------------------------------------------------------------------------------------
# Where images come from: Parquet, folders, a hub data set, the digits.


@dataclass(frozen=True)
class Shard:
    """A part of a data set: its source, and the rows in use with their class numbers.

    `faults`: (place, error) of rows without a usable label, which are not in use.
    """

    source: ImageSource
    rows: list[int]
    labels: list[int]
    faults: list[DataError] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.rows)

    def only(self, indices: Sequence[int]) -> Shard:
        """Some of the rows in use."""
        return Shard(
            self.source, [self.rows[i] for i in indices], [self.labels[i] for i in indices], self.faults
        )


@dataclass(frozen=True)
class Parts:
    """Training and held-out images and the names of their classes."""

    train: Shard
    held_out: Shard
    names: tuple[str, ...]


def load_parts(data: ImageData, seed: int, number: int | None) -> Parts:
    """The recipe's images. `number`: of classes, where the recipe says it. Raises DataError.

    With data.bad = skip, rows without a usable label are left out and counted in `faults`.
    """
    if data.path:
        found = find_images(Path(data.path).expanduser())
        parts = _folders(found) if isinstance(found, ImageFolders) else _parquet(found, data, number)
    elif data.name:
        parts = _hub(data, number)
    else:
        parts = _digits(data.digits or Digits())
    for part in (parts.train, parts.held_out):
        if part.faults and data.bad == "error":
            raise part.faults[0]
    train, held_out = parts.train, parts.held_out
    if not len(held_out):
        train, held_out = _split(train, data.validation_fraction, seed)
    if not len(train):
        raise DataError("has no images to train on", where=data.path or data.name)
    return Parts(train.only(range(len(train))[: data.limit]), held_out, parts.names)


def _split(part: Shard, fraction: float, seed: int) -> tuple[Shard, Shard]:
    """Hold out a random part, at least one image; the rest stays in its order."""
    order = list(range(len(part)))
    random.Random(seed).shuffle(order)
    count = max(1, int(len(order) * fraction))
    if len(order) < 2:
        raise DataError(f"{len(order)} images are too few to hold some out")
    held_out = replace(part.only(sorted(order[:count])), faults=[])  # the whole's: counted once
    return part.only(sorted(order[count:])), held_out


# --- folders ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FileSource:
    """Image files."""

    files: Sequence[Path]

    def read(self, row: int) -> Image.Image:
        """See Source."""
        return decode(self.files[row])

    def place(self, row: int) -> str:
        """The file."""
        return str(self.files[row])


def _folders(found: ImageFolders) -> Parts:
    def part(files: Sequence[tuple[Path, int]]) -> Shard:
        source = FileSource([file for file, _ in files])
        return Shard(source, list(range(len(files))), [number for _, number in files])

    return Parts(part(found.train), part(found.held_out), found.names)


# --- tables ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TableSource:
    """A column of encoded images, memory-mapped: a struct of bytes and path, or bytes.

    parts: (name, rows) of the files that it was made from, in their order.
    """

    column: Any
    parts: Sequence[tuple[str, int]]

    def read(self, row: int) -> Image.Image:
        """See Source."""
        value = self.column[row].as_py()
        if value is None:
            raise UnreadableImage("is missing")
        if isinstance(value, dict):
            content, path = value.get("bytes"), value.get("path")
            if content is None and path:
                return decode(Path(self.parts[0][0]).parent / path)
            value = content or b""
        return decode(value)

    def place(self, row: int) -> str:
        """File[row of this file]."""
        ends = list(accumulate(rows for _, rows in self.parts))
        which = min(bisect_right(ends, row), len(ends) - 1)
        return row_of(self.parts[which][0], row - (ends[which] - self.parts[which][1]))


def _parquet(found: ParquetFiles, data: ImageData, number: int | None) -> Parts:
    """By way of the datasets library, whose cache on this machine the ranks share and map into memory."""
    about = {str(file): _about(file) for file in (*found.train, *found.held_out)}
    tables = {}
    for name, files in (("train", found.train), ("held_out", found.held_out)):
        if files:
            tables[name] = (_read(files), files)
    first, _ = tables["train"]
    where = str(found.train[0])
    image, label = (find(data, first.column_names, where) for find in (image_column, label_column))
    classes = classes_of(_distinct(first, label), class_names(about[where][1], label), number)
    parts = {
        name: _table_part(table, image, label, classes, [(str(f), about[str(f)][0]) for f in files])
        for name, (table, files) in tables.items()
    }
    return Parts(parts["train"], _held_out(parts, "held_out"), classes.names)


def _held_out(parts: Mapping[Any, Shard], *names: str) -> Shard:
    """The first of the parts that has rows, be they usable or not; an empty one where none has."""
    known = [parts[name] for name in names if name in parts]
    return next((part for part in known if len(part) or part.faults), _nothing(parts["train"]))


def _about(file: Path) -> tuple[int, bytes | None]:
    """A Parquet file's rows, and what the datasets library wrote about it. Raises DataError."""
    import pyarrow
    import pyarrow.parquet

    try:
        metadata = pyarrow.parquet.ParquetFile(file).metadata
    except (OSError, pyarrow.ArrowException) as error:
        reason = str(error).strip().splitlines()[0]
        raise DataError(f"is not a Parquet file that can be read: {reason}", where=str(file)) from None
    if not metadata.num_rows:
        raise DataError("has no rows", where=str(file))
    return int(metadata.num_rows), (metadata.metadata or {}).get(METADATA.encode())


def _nothing(part: Shard) -> Shard:
    return Shard(part.source, [], [])


def _read(files: Sequence[Path]) -> Any:
    """Parquet files as one table; the library calls all files of one list train."""
    return load("parquet", str(files[0].parent), data_files=[str(file) for file in files], split="train")


def _distinct(table: Any, column: str) -> list[object]:
    return list(table.data.table.column(column).unique().to_pylist())


def _table_part(
    table: Any, image: str, label: str, classes: Classes, files: Sequence[tuple[str, int]]
) -> Shard:
    missing = [name for name in (image, label) if name not in table.column_names]
    if missing:
        raise DataError(
            f"has no column {missing[0]!r}",
            where=files[0][0],
            hint=f"its columns: {', '.join(table.column_names)}; the training images have this one",
        )
    source = TableSource(table.data.table.column(image), files)
    values = table.data.table.column(label).to_pylist()
    known: dict[object, int | None] = {value: classes.number(value) for value in set(values)}
    rows, labels, faults = [], [], []
    for row, value in enumerate(values):
        found = known[value]
        if found is None:
            fault = classes.fault(value)
            faults.append(DataError(fault.what, where=source.place(row), hint=fault.hint))
        else:
            rows.append(row)
            labels.append(found)
    return Shard(source, rows, labels, faults)


def _hub(data: ImageData, number: int | None) -> Parts:
    where = f"data.name={data.name}"
    loaded = hub_parts(str(data.name), data.subset)
    train = loaded["train"]
    image, label = (find(data, train.column_names, where) for find in (image_column, label_column))
    classes = classes_of(_distinct(train, label), getattr(train.features[label], "names", None), number)
    parts = {
        name: _table_part(loaded[name], image, label, classes, [(f"{data.name}/{name}", len(loaded[name]))])
        for name in ("train", "validation", "test")
        if name in loaded
    }
    return Parts(parts["train"], _held_out(parts, "validation", "test"), classes.names)


# --- the embedded default --------------------------------------------------------------------------------


def _digits(digits: Digits) -> Parts:
    images, labels = read_digits()
    source = DigitsSource(images)
    if digits.validation >= len(labels):
        raise DataError(
            f"holds out {digits.validation} of {len(labels)} digits", where="data.digits.validation"
        )
    order = list(range(len(labels)))
    random.Random(digits.seed).shuffle(order)
    held_out, train = order[: digits.validation], order[digits.validation :]
    return Parts(
        Shard(source, train, [labels[row] for row in train]),
        Shard(source, held_out, [labels[row] for row in held_out]),
        tuple(str(digit) for digit in range(10)),
    )
