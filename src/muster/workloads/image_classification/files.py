"""Image data on disk: Parquet files, CIFAR-10's batches, or a folder of images per class; and their classes.

The control side checks with it what the ranks read with it, and decodes no image.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

from muster.core.errors import DataError, refused
from muster.store.records import HELD_OUT_NAMES, ROWS, TRAIN_NAMES, DataFiles, by_part, parquet_file
from muster.workloads.image_classification.batches import ImageBatches, find_batches

PARQUET = ".parquet"
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
METADATA = "huggingface"
LOOKED_AT = 1 << 30  # bytes of a Parquet file up to which the images' lengths are read too
LAYOUT = "train/CLASS/*.png and validation/CLASS/*.png, or train*.parquet and test*.parquet"
# The first one is the recipe's default.
IMAGE_COLUMNS = ("image", "img", "picture", "jpg", "png")
LABEL_COLUMNS = ("label", "labels", "fine_label", "class", "target", "cls")


@dataclass(frozen=True)
class ImageFolders:
    """Image files with the numbers of their classes, whose names are those of the folders."""

    names: tuple[str, ...]
    train: tuple[tuple[Path, int], ...]
    held_out: tuple[tuple[Path, int], ...]

    def check(self) -> None:
        """Raise DataError for the first file that cannot be read, or is empty."""
        for file, _ in (*self.train, *self.held_out):
            try:
                size = file.stat().st_size
            except OSError as error:
                raise DataError(f"cannot be read: {error.strerror}", where=str(file)) from None
            if not size:
                raise DataError("is empty", where=str(file), hint="data.bad=skip leaves such images out")


def find_images(path: Path) -> DataFiles | ImageFolders | ImageBatches:
    """Find what is in a file or folder: Parquet, CIFAR-10's batches, or a folder for each class. Raises
    DataError with its name."""
    if path.is_file():
        if path.suffix.lower() != PARQUET:
            raise DataError("is not a Parquet file", where=str(path), hint=f"or a folder: {LAYOUT}")
        return DataFiles((path,))
    if not path.is_dir():
        raise DataError("no such data", where=str(path), hint=f"a Parquet file, or a folder: {LAYOUT}")
    if batches := find_batches(path):
        return batches
    train = _part(path, TRAIN_NAMES)
    if train is None or not _folders(train):
        files = [file for file in _visible(path) if file.suffix.lower() == PARQUET]
        files = files or [
            file for folder in _folders(path) for file in _visible(folder) if file.suffix.lower() == PARQUET
        ]
        if files:
            return _parquet(path, files)
    held_out = _part(path, HELD_OUT_NAMES)
    if train is None and held_out is not None:
        raise DataError("has no train folder", where=str(path), hint=f"expected {LAYOUT}")
    return _image_folders(train or path, held_out)


def _visible(folder: Path) -> list[Path]:
    with refused(DataError, "read", folder):
        return sorted(entry for entry in folder.iterdir() if not entry.name.startswith((".", "_")))


def _folders(folder: Path) -> list[Path]:
    return [entry for entry in _visible(folder) if entry.is_dir()]


def _part(path: Path, names: Sequence[str]) -> Path | None:
    """Find the folder of a part: the first of `names` that is there."""
    by_name = {folder.name.lower(): folder for folder in _folders(path)}
    return next((by_name[name] for name in names if name in by_name), None)


def _parquet(path: Path, files: list[Path]) -> DataFiles:
    parts = by_part(path.parent, files)
    train = next((parts[name] for name in TRAIN_NAMES if name in parts), None)
    held_out = next((parts[name] for name in HELD_OUT_NAMES if name in parts), [])
    if train is None and not held_out:
        train = files
    if train is None:
        raise DataError("has no train*.parquet", where=str(path), hint=f"expected {LAYOUT}")
    return DataFiles(tuple(train), tuple(held_out))


def _image_folders(train: Path, held_out: Path | None) -> ImageFolders:
    names = tuple(folder.name for folder in _folders(train))
    if not names:
        what = "has no folders of images, one for each class"
        raise DataError(what, where=str(train), hint=f"expected {LAYOUT}")
    numbers = {name: number for number, name in enumerate(names)}
    others = [folder for folder in _folders(held_out) if folder.name not in numbers] if held_out else []
    if others:
        raise DataError(
            "is a class that no training image has",
            where=str(others[0]),
            hint=f"the classes in {train.name}: {', '.join(names[:10])}",
        )
    return ImageFolders(
        names,
        tuple(_in_turn(train, numbers, empty=False)),
        tuple(_in_turn(held_out, numbers, empty=True)) if held_out else (),
    )


def _in_turn(part: Path, numbers: dict[str, int], *, empty: bool) -> Iterator[tuple[Path, int]]:
    """Yield one image of each class after the other, so that the first so many are of all classes.

    `empty`: a class may be without images.
    """
    classes = []
    for folder in _folders(part):
        files = [(file, numbers[folder.name]) for file in _image_files(folder)]
        if not files and not empty:
            raise DataError(
                "has no images", where=str(folder), hint=f"files that end in {', '.join(SUFFIXES)}"
            )
        classes.append(files)
    for row in zip_longest(*classes):
        yield from (each for each in row if each is not None)


def _image_files(folder: Path) -> list[Path]:
    """List the images of a class, in sub-folders too."""
    images = []
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        images += [
            Path(place, name)
            for name in files
            if name.lower().endswith(SUFFIXES) and not name.startswith(".")
        ]
    return sorted(images)


def image_column(wanted: str, names: Sequence[str], where: str) -> str:
    """Find the column with the images: the recipe's, or where that is the default a usual name."""
    return _column(wanted, IMAGE_COLUMNS, names, where)


def label_column(wanted: str, names: Sequence[str], where: str) -> str:
    """Find the column with the classes: the recipe's, or where that is the default a usual name."""
    return _column(wanted, LABEL_COLUMNS, names, where)


def _column(wanted: str, usual: Sequence[str], names: Sequence[str], where: str) -> str:
    if wanted in names:
        return wanted
    column = next((name for name in usual if name in names), None) if wanted == usual[0] else None
    if column is None:
        raise DataError(
            f"has no column {wanted!r}",
            where=where,
            hint=f"its columns: {', '.join(names)}; data.image and data.label name those to use",
        )
    return column


def class_names(metadata: bytes | None, column: str) -> list[str] | None:
    """Read the names of a column's classes from what the datasets library writes into a Parquet file about it
    (the value of the key METADATA); None where there are none."""
    try:
        features = json.loads((metadata or b"").decode())["info"]["features"]
        return [str(name) for name in features[column]["names"]]
    except (ValueError, KeyError, TypeError):
        return None


def row_of(file: Path | str, row: int) -> str:
    """Name a row: its number counts from 0, as in a data frame."""
    return f"{file}[{row}]"


@dataclass(frozen=True)
class Classes:
    """The classes of a data set. Labels are numbers from 0, or for `texts` names."""

    names: tuple[str, ...]
    texts: bool

    def number(self, label: object) -> int | None:
        """Return the class of a label; None for one that is out of range."""
        if self.texts:
            return self.names.index(label) if isinstance(label, str) and label in self.names else None
        if isinstance(label, int) and 0 <= label < len(self.names):
            return label
        return None

    def fault(self, label: object) -> DataError:
        """Make the error of a label that has no number."""
        if label is None:
            return DataError("has no label")
        if self.texts:
            return DataError(f"label {label!r} is none of the training images' {len(self.names)} classes")
        if not self.names:
            return DataError(
                f"label {label} is out of range: no image has label 0", hint="labels count from 0"
            )
        return DataError(
            f"label {label} is out of range: {len(self.names)} classes, 0 to {len(self.names) - 1}",
            hint="model.config.num_labels=N where there are more classes than the training images show",
        )


def classes_of(labels: Iterable[object], names: Sequence[str] | None, number: int | None) -> Classes:
    """Return the classes: the data's own names, else so many as the recipe says, else those without a gap
    from 0.

    labels: those of the training images, each once or more.
    """
    if names:
        return Classes(tuple(names), texts=False)
    values = set(labels)
    if any(isinstance(label, str) for label in values):
        return Classes(tuple(sorted(label for label in values if isinstance(label, str))), texts=True)
    if number is None:
        number = 0
        while number in values:
            number += 1
    return Classes(tuple(str(each) for each in range(number)), texts=False)


# ----------------------------------------------------------------------------------------------------
# Parquet files: columns, labels, and how many classes there are.


def table_classes(training: Sequence[ParquetTable], number: int | None) -> Classes:
    """Return the classes of Parquet files, by the training images' labels, or as the first file names
    them."""
    labels = {label for table in training for label in table.labels}
    return classes_of(labels, training[0].names, number)


def classes_at(path: Path, image: str, label: str, number: int | None) -> int:
    """Count the classes of a training part. `number`: as Classes take it. Raises DataError for data that
    cannot be read."""
    return _counted(path, image, label, number, _stamp(path))


@lru_cache(maxsize=16)
def _counted(path: Path, image: str, label: str, number: int | None, stamp: tuple[int, ...]) -> int:
    """Read once for each state of the data: a plan asks for it with each of its ways."""
    images = find_images(path)
    if not isinstance(images, DataFiles):
        return len(images.names)
    return len(table_classes([read_table(file, image, label) for file in images.train], number).names)


def _stamp(path: Path) -> tuple[int, ...]:
    """Return what changes with the data: of a file, or of a folder and what is in it, one folder deep."""
    entries = [path, *sorted(path.iterdir())] if path.is_dir() else [path]
    return tuple(entry.stat().st_mtime_ns for entry in entries if entry.exists())


@dataclass(frozen=True)
class ParquetTable:
    """A Parquet file of images: its columns, the labels of its rows, and the names of the classes, where it
    says them."""

    file: Path
    image: str
    label: str
    labels: list[object]
    names: list[str] | None

    def check(self, classes: Classes) -> None:
        """Raise DataError for the first row without a usable label, or without an image's bytes."""
        bad = {value for value in set(self.labels) if classes.number(value) is None}
        if bad:
            row = next(row for row, value in enumerate(self.labels) if value in bad)
            fault = classes.fault(self.labels[row])
            raise DataError(fault.what, where=row_of(self.file, row), hint=fault.hint)
        if self.file.stat().st_size > LOOKED_AT:
            return
        with parquet_file(self.file) as opened:
            batches = opened.iter_batches(ROWS, columns=[self.image])
            images = (image for batch in batches for image in batch.column(0).to_pylist())
            empty = next((row for row, image in enumerate(images) if _is_empty(image)), None)
        if empty is not None:
            raise DataError("is empty", where=row_of(self.file, empty), hint="data.bad=skip leaves it out")


def _is_empty(image: Any) -> bool:
    """Return whether a row has neither an image's bytes nor the name of a file beside."""
    content = image.get("bytes") or image.get("path") if isinstance(image, dict) else image
    return not content


def read_table(file: Path, image: str, label: str) -> ParquetTable:
    """Read a Parquet file's labels. `image`, `label`: columns as the recipe names them. Raises DataError
    where it is none, is empty, or lacks a column, and ReaderMissingError."""
    where = str(file)
    with parquet_file(file) as opened:
        schema, about = opened.schema_arrow, opened.metadata.metadata or {}
        image, label = image_column(image, schema.names, where), label_column(label, schema.names, where)
        _check_images(image, schema.field(image).type, where)
        _check_labels(label, schema.field(label).type, where)
        labels = opened.read(columns=[label]).column(label).to_pylist()
    if not labels:
        raise DataError("has no rows", where=where)
    return ParquetTable(file, image, label, labels, class_names(about.get(METADATA.encode()), label))


def _check_labels(column: str, kind: Any, where: str) -> None:
    """Raise DataError where a column of this Arrow type holds several values a row."""
    from pyarrow import types

    if types.is_nested(kind):
        hint = "one class for each image; data.label=COLUMN"
        raise DataError(f"column {column!r} holds {kind}, not classes", where=where, hint=hint)


def _check_images(column: str, kind: Any, where: str) -> None:
    """Raise DataError where a column of this Arrow type holds no images."""
    from pyarrow import types

    content = kind
    if types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
        content = kind.field("bytes").type
    if not (types.is_binary(content) or types.is_large_binary(content)):
        what = f"column {column!r} holds {kind}, not images"
        hint = "a struct of bytes and path, or bytes; data.image=COLUMN"
        raise DataError(what, where=where, hint=hint)
