"""CIFAR-10 as its authors pack it (cifar-10-batches-py): pickles of images and labels, and of the classes.

A pickle may call anything while it is read. Here it may hold numbers, texts, lists and dictionaries; arrays
are read as their bytes, by no code but this file's. The layout: https://www.cs.toronto.edu/~kriz/cifar.html
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from muster.core.errors import DataError, refused

FOLDER, META, HELD_OUT = "cifar-10-batches-py", "batches.meta", "test_batch"
TRAIN = "data_batch_"  # and a number, from 1 on
SIDE, CHANNELS = 32, 3
_PIXELS = CHANNELS * SIDE * SIDE
# What an array's pickle names, in the versions of NumPy.
_ARRAY = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
}
_BUFFER = {("numpy.core.numeric", "_frombuffer"), ("numpy._core.numeric", "_frombuffer")}  # in protocol 5


@dataclass(frozen=True)
class ImageBatches:
    """The files of a folder of batches, and the names of the classes."""

    names: tuple[str, ...]
    train: tuple[Path, ...]
    held_out: tuple[Path, ...]

    def read(self, file: Path) -> tuple[tuple[int, ...], bytes]:
        """Return the images' classes, and their bytes: each has 1,024 red, then green, then blue, row by row.
        Raises DataError."""
        content = _unpickled(file)
        labels, data = content.get(b"labels"), content.get(b"data")
        pixels = data.pixels() if isinstance(data, _Array) else None
        if not isinstance(labels, list) or pixels is None:
            raise DataError("has no labels with an array of bytes called data", where=str(file))
        if len(pixels) != len(labels) * _PIXELS:
            what = f"has {len(labels):,} labels and {len(pixels):,} bytes of images"
            raise DataError(what, where=str(file), hint=f"an image has {_PIXELS:,} bytes")
        for row, label in enumerate(labels):
            if not (isinstance(label, int) and 0 <= label < len(self.names)):
                what = f"label {label!r} is out of range: {len(self.names)} classes"
                raise DataError(what, where=f"{file}[{row}]")
        return tuple(labels), pixels


def find_batches(path: Path) -> ImageBatches | None:
    """Find the batches of a folder, or of the one in it that is called as in the archive; None: there are
    none. Raises DataError."""
    marks = (META, f"{TRAIN}1")
    places = (path, path / FOLDER)
    folder = next((each for each in places if any((each / mark).is_file() for mark in marks)), None)
    if folder is None:
        return None
    with refused(DataError, "read", folder):
        files = [file for file in folder.iterdir() if re.fullmatch(f"{TRAIN}[1-9][0-9]*", file.name)]
    train = tuple(folder / f"{TRAIN}{number}" for number in range(1, max(len(files), 1) + 1))
    missing = next((file.name for file in train if file not in files), None)
    if missing is not None:
        raise DataError(f"has no {missing}", where=str(folder))
    names = _unpickled(folder / META).get(b"label_names")
    if not (isinstance(names, list) and names and all(isinstance(name, bytes) for name in names)):
        raise DataError("has no label_names", where=str(folder / META))
    held_out = folder / HELD_OUT
    return ImageBatches(
        tuple(name.decode("utf-8", "replace") for name in names),
        train,
        (held_out,) if held_out.is_file() else (),
    )


class _Array:
    """A pickled array or type of an array: its state, and nothing that is called."""

    def __init__(self, *given: Any) -> None:
        self.given = given
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def pixels(self) -> bytes | None:
        """Return the array's bytes; None: it is no array of unsigned bytes, row by row."""
        try:
            _, _, kind, by_column, content = self.state
        except (TypeError, ValueError):
            return None
        plain = isinstance(kind, _Array) and kind.given[:1] in (("u1",), (b"u1",)) and not by_column
        return content if plain and isinstance(content, bytes) else None


def _from_buffer(content: Any, kind: Any, shape: Any, order: Any) -> _Array:
    """Make an array of protocol 5, which has its bytes in the pickle, as other protocols have it."""
    array = _Array()
    array.state = 1, shape, kind, order != "C", bytes(content) if isinstance(content, bytearray) else content
    return array


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Find the classes of arrays alone. Raises UnpicklingError."""
        if (module, name) in _ARRAY:
            return _Array
        if (module, name) in _BUFFER:
            return _from_buffer
        raise pickle.UnpicklingError(f"it holds {module}.{name}, and only numbers, texts and arrays are read")


def _unpickled(file: Path) -> Mapping[Any, Any]:
    """Read the dictionary of a pickle; its texts are bytes, as Python 2 wrote them. Raises DataError."""
    with refused(DataError, "read", file), file.open("rb") as stream:
        try:
            content = _Unpickler(stream, encoding="bytes").load()
        except Exception as error:  # a damaged pickle raises anything
            what = f"is not a pickle that can be read: {str(error) or type(error).__name__}"
            raise DataError(what, where=str(file)) from None
    if not isinstance(content, dict):
        raise DataError("is not a dictionary", where=str(file))
    return content
