"""Where a language model's text comes from: files, the standard library, a hub data set."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

from muster.core.units import counted, format_bytes
from muster.store.lines import Skipped, each_made, text_of
from muster.store.records import names_of
from muster.worker.data.hub import hub_parts
from muster.workloads.causal_lm.spec import TextData
from muster.workloads.causal_lm.texts import Document, documents, find_texts, library_files, pieces_of


@dataclass(frozen=True)
class TextSource:
    """A text data set. `identity` differs from any other's without reading it; `validation` is None
    where a part must be split off. Both parts may be read again and again."""

    about: str
    identity: dict[str, Any]
    train: Callable[[], Iterator[Document]]
    validation: Callable[[], Iterator[Document]] | None
    skipped: Skipped = field(default_factory=Skipped)


def source_of(data: TextData) -> TextSource:
    """Return the text that a recipe names; the standard library where it names none. Raises DataError."""
    if data.name:
        return _hub(data)
    if data.path:
        return _files(data)
    return _library(data)


def _files(data: TextData) -> TextSource:
    assert data.path
    path = Path(data.path).expanduser()
    data_files = find_texts(path)
    skipped = Skipped()
    skip = skipped.where(data.bad)

    def read(files: tuple[Path, ...]) -> Iterator[Document]:
        for file in files:
            yield from documents(file, data.field, skip)

    size = sum(file.stat().st_size for file in (*data_files.train, *data_files.validation))
    about = path.name if path.is_file() else f"{path.name}: {_files_of(data_files.train)}"
    if data_files.validation:
        about += f", held out {_files_of(data_files.validation)}"
    if data_files.unused:
        about += f", not used {_files_of(data_files.unused)}"
    return TextSource(
        f"{about}, {format_bytes(size)}",
        {
            "path": str(path),
            "train": _stamps(data_files.train),
            "validation": _stamps(data_files.validation),
            "field": data.field,
            "bad": data.bad,
        },
        lambda: read(data_files.train),
        (lambda: read(data_files.validation)) if data_files.validation else None,
        skipped,
    )


def _library(data: TextData) -> TextSource:
    """Take the standard library; each module is a document. Whole modules are taken while the size allows,
    the first one always."""
    root, files = library_files()
    most = data.library.megabytes * 1e6 if data.library and data.library.megabytes else None
    chosen: list[Path] = []
    size = 0
    for file in files:
        bytes_ = file.stat().st_size
        if most is None or not chosen or size + bytes_ <= most:
            chosen.append(file)
            size += bytes_
    skipped = Skipped()

    def read() -> Iterator[Document]:
        for file in chosen:
            yield from documents(file, "", skipped.add)

    version = platform.python_version()
    return TextSource(
        f"the standard library of Python {version}: {counted(len(chosen), 'file')}, {format_bytes(size)}",
        {"library": version, "root": str(root), "train": _stamps(tuple(chosen))},
        read,
        None,
        skipped,
    )


def _hub(data: TextData) -> TextSource:
    """Take a hub data set, which is loaded when it is read for the first time: a rank that has its tokens in
    the cache needs no hub."""

    assert data.name
    loaded, skipped = cache(partial(hub_parts, data.name, data.subset)), Skipped()

    def part(*names: str) -> Iterator[Document]:
        parts = loaded()
        name = next((name for name in names if name in parts), None)
        if name is None:
            return
        rows = parts[name]
        root = data.field if data.field in rows.column_names else data.field.partition(".")[0]
        yield from joined(texts(rows.select_columns([root]) if root in rows.column_names else rows, name))

    def texts(rows: Any, name: str) -> Iterator[str]:
        placed = ((f"data.name={data.name}, {name}[{number}]", row) for number, row in enumerate(rows))
        return each_made(
            placed,
            lambda row, where: text_of(row, data.field, where, "data.field"),
            skipped.where(data.bad),
        )

    about = f"{data.name}" + (f", {data.subset}" if data.subset else "")
    return TextSource(
        about,
        {"name": data.name, "subset": data.subset, "field": data.field, "bad": data.bad},
        lambda: part("train"),
        lambda: part("validation", "test"),
        skipped,
    )


def joined(rows: Iterable[str]) -> Iterator[Document]:
    """Join rows to documents. One that ends with a newline, or is empty, goes on in the next: wikitext's rows
    are lines."""
    rest = iter(rows)
    for first in rest:
        yield _document(first, rest)


def _document(row: str, rest: Iterator[str]) -> Document:
    yield from pieces_of(row)
    while not row or row.endswith("\n"):
        following = next(rest, None)
        if following is None:
            return
        row = following
        yield from pieces_of(row)


def _stamps(files: tuple[Path, ...]) -> list[tuple[str, int, int]]:
    """Return what changes when a file does."""
    return [(str(file), (about := file.stat()).st_size, about.st_mtime_ns) for file in files]


def _files_of(files: tuple[Path, ...]) -> str:
    return f"{counted(len(files), 'file')} ({names_of(files)})"
