"""Small images and tables of images; without Pillow, which the control side has not."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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
