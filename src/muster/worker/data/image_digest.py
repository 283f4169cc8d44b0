"""What tells a host's images from another's, without reading them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from muster.worker.data.digest import short_digest
from muster.worker.data.image_sources import FileSource, Parts, Shard, TableSource

MOST_SIZES = 100_000  # image files that are asked for their size; of more, evenly spread ones


def digest_of_images(parts: Parts, root: str | None) -> str:
    """Of names, sizes and labels in their order, and of the classes. `root`: the folder that they are in,
    which hosts may have in different places. Images of one size that differ in content are not told apart."""
    train, held_out = (_of_part(part, root) for part in (parts.train, parts.held_out))
    return (
        f"{len(parts.train):,} to train on ({train}) and {len(parts.held_out):,} held out ({held_out}), "
        f"{len(parts.names):,} classes ({short_digest(parts.names)})"
    )


def _of_part(part: Shard, root: str | None) -> str:
    numbers = [np.array(part.rows, dtype=np.int64), np.array(part.labels, dtype=np.int64)]
    names: list[str] = []
    if isinstance(part.source, FileSource):
        files = [part.source.files[row] for row in part.rows]
        apart = -(-len(files) // MOST_SIZES) or 1
        folder = str(Path(root).expanduser()) if root else ""
        names = [str(file).removeprefix(folder) for file in files]
        numbers[0] = np.array([_size(file) for file in files[::apart]], dtype=np.int64)
    elif isinstance(part.source, TableSource):
        names = [f"{Path(name).name} {rows}" for name, rows in part.source.parts]
        numbers.append(_lengths(part.source.column))
    return short_digest(names, *numbers)


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return -1  # it cannot be read either, which is told elsewhere


def _lengths(column: Any) -> Any:
    """The bytes of each image of a table's column, without reading them; -1 where it has none."""
    import pyarrow
    import pyarrow.compute

    if pyarrow.types.is_struct(column.type):
        column = pyarrow.compute.struct_field(column, "bytes")
    if pyarrow.types.is_null(column.type):
        return np.array([len(column)])
    return pyarrow.compute.binary_length(column).fill_null(-1).to_numpy().astype(np.int64)
