"""JSON-lines data: found in a folder or file, read with the file and line of anything wrong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from muster.core.errors import DataError
from muster.store.lines import parse_object, read_lines, text_of

SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".json.gz", ".ndjson", ".ndjson.gz")
TRAIN_NAMES = ("train", "training")
HELD_OUT_NAMES = ("validation", "valid", "val", "dev", "test", "eval", "heldout")


@dataclass(frozen=True)
class DataFiles:
    """The parts of a data set on disk; validation is None where it must be split off."""

    train: Path
    validation: Path | None


def find_data(path: Path) -> DataFiles:
    """The train and held-out files of a folder, or a single file. Raises DataError."""
    if path.is_file():
        return DataFiles(path, None)
    if not path.is_dir():
        raise DataError(
            "no such data", where=str(path), hint="a JSON-lines file, or a folder with train.jsonl"
        )
    files = sorted(p for p in path.iterdir() if p.name.endswith(SUFFIXES) and p.is_file())
    by_stem = {p.name.partition(".")[0].lower(): p for p in files}
    train = next((by_stem[name] for name in TRAIN_NAMES if name in by_stem), None)
    held_out = next((by_stem[name] for name in HELD_OUT_NAMES if name in by_stem), None)
    if train is None and len(files) == 1:
        train, held_out = files[0], None
    if train is None:
        found = ", ".join(p.name for p in files[:5]) or "none"
        raise DataError(
            "no train.jsonl in the folder",
            where=str(path),
            hint=f"expected train{SUFFIXES[0]} or train{SUFFIXES[1]} and a validation file; "
            f"JSON-lines files there: {found}",
        )
    return DataFiles(train, held_out)


def read_records(
    path: Path, fields: tuple[str, ...], *, limit: int | None = None
) -> Iterator[dict[str, Any]]:
    """The objects of a JSON-lines file (gzip by its name). Every one has `fields` as non-empty text.

    Raises DataError with the file and line number.
    """
    count = 0
    for number, line in read_lines(path):
        if limit is not None and count >= limit:
            break
        if line.strip():
            count += 1
            yield _record(line, fields, where=f"{path}:{number}")
    if not count:
        raise DataError("has no samples", where=str(path))


def _record(line: str, fields: tuple[str, ...], *, where: str) -> dict[str, Any]:
    record = parse_object(line, where)
    for name in fields:
        text_of(record, name, where, "data.question and data.sql name those to use", blank=False)
    return record
