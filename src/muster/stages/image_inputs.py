"""What can be told of an image recipe's data before a host is asked, without decoding an image."""

from __future__ import annotations

from pathlib import Path

from muster.core.data import ImageData
from muster.core.errors import DataError
from muster.core.recipe import Recipe
from muster.store.image_tables import Table, table_classes
from muster.store.images import ImageFolders, ParquetFiles, find_images


def check_images(recipe: Recipe, data: ImageData) -> None:
    """Look at data.path. Raises DataError with the file, and the row in it.

    What is wrong with single images and labels is an error where data.bad says so.
    """
    assert data.path
    found = find_images(Path(data.path))
    strict = data.bad == "error"
    if isinstance(found, ImageFolders):
        _check_count(len(found.train), len(found.held_out), data)
        if strict:
            _check_files(found)
        return
    number = (recipe.model.config or {}).get("num_labels")
    _check_tables(found, data, number if isinstance(number, int) else None, strict=strict)


def _check_count(train: int, held_out: int, data: ImageData) -> None:
    if train + held_out < 2:
        raise DataError("1 image is too few to hold some out", where=data.path, hint="more images")


def _check_files(found: ImageFolders) -> None:
    for file, _ in (*found.train, *found.held_out):
        try:
            size = file.stat().st_size
        except OSError as error:
            raise DataError(f"cannot be read: {error.strerror}", where=str(file)) from None
        if not size:
            raise DataError("is empty", where=str(file), hint="data.bad=skip leaves such images out")


def _check_tables(found: ParquetFiles, data: ImageData, number: int | None, *, strict: bool) -> None:
    tables = [Table(file, data) for file in (*found.train, *found.held_out)]
    classes = table_classes(tables[: len(found.train)], number)
    trained = sum(table.rows for table in tables[: len(found.train)])
    _check_count(trained, len(found.held_out), data)
    for table in tables if strict else ():
        table.check(classes)
