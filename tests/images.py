"""Small images and tables of images; without Pillow, which the control side has not."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)


def png(colour: tuple[int, int, int], width: int = 8, height: int = 8) -> bytes:
    """An image of one colour as a PNG file's content."""
    return png_of([[colour] * width] * height)


def png_of(rows: Sequence[Sequence[tuple[int, int, int]]]) -> bytes:
    """Rows of (red, green, blue) as a PNG file's content."""
    raw = b"".join(b"\0" + bytes(value for pixel in row for value in pixel) for row in rows)
    header = struct.pack(">IIBBBBB", len(rows[0]), len(rows), 8, 2, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(raw)), (b"IEND", b"")]
    chunks = (
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def write_folder(folder: Path, files: dict[str, bytes]) -> Path:
    """Files by their paths below a folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def write_parquet(
    file: Path,
    rows: Sequence[tuple[bytes | None, Any]],
    *,
    image: str = "image",
    label: str = "label",
    names: Sequence[str] | None = None,
) -> Path:
    """(content, label) rows as the hub has them: a struct of bytes and path, and a label.

    `names`: of the classes, in the metadata that the datasets library writes.
    """
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    file.parent.mkdir(parents=True, exist_ok=True)
    fields = [("bytes", arrow.binary()), ("path", arrow.string())]
    images = arrow.array([{"bytes": content} for content, _ in rows], arrow.struct(fields))
    table = arrow.table({image: images, label: [value for _, value in rows]})
    if names:
        features = {image: {"_type": "Image"}, label: {"names": list(names), "_type": "ClassLabel"}}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    parquet.write_table(table, file)
    return file


def write_cifar(folder: Path, batches: dict[str, Sequence[tuple[bytes, int]]], names: Sequence[str]) -> Path:
    """(3,072 bytes, label) by the batch's name, in pickles as Python 2 and NumPy wrote CIFAR-10's."""
    folder.mkdir(parents=True, exist_ok=True)
    meta = {
        b"num_cases_per_batch": 10000,
        b"label_names": [name.encode() for name in names],
        b"num_vis": 3072,
    }
    (folder / "batches.meta").write_bytes(b"\x80\x02" + _python2(meta) + b".")
    for name, images in batches.items():
        content = {
            b"batch_label": b"a batch",
            b"labels": [label for _, label in images],
            b"data": _Bytes((len(images), 3072), b"".join(pixels for pixels, _ in images)),
            b"filenames": [b"a.png"] * len(images),
        }
        (folder / name).write_bytes(b"\x80\x02" + _python2(content) + b".")
    return folder


class _Bytes(NamedTuple):
    """A NumPy array of unsigned bytes."""

    shape: tuple[int, ...]
    content: bytes


def _python2(value: Any) -> bytes:
    """A value's operations in a pickle of Python 2."""
    if isinstance(value, _Bytes):
        kind = b"cnumpy\ndtype\n" + _python2((b"u1", 0, 1)) + b"R"
        kind += _python2((3, b"|", None, None, None, -1, -1, 0)) + b"b"
        begin = (
            b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n"
            + _python2((0,))
            + _python2(b"b")
            + b"tR"
        )
        state = _python2(1) + _python2(value.shape) + kind + b"\x89" + _python2(value.content)
        return begin + b"(" + state + b"tb"
    if isinstance(value, dict):
        return b"}(" + b"".join(_python2(each) for pair in value.items() for each in pair) + b"u"
    if isinstance(value, list | tuple):
        inside = b"".join(map(_python2, value))
        return b"](" + inside + b"e" if isinstance(value, list) else b"(" + inside + b"t"
    if isinstance(value, bytes):
        return b"T" + struct.pack("<i", len(value)) + value
    return b"N" if value is None else b"J" + struct.pack("<i", value)
