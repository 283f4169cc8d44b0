"""Samples with fields, from JSON lines, CSV, TSV or Parquet: the files for training and for evaluation, and
their rows. Every error names its place."""

from __future__ import annotations

import csv
import json
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from muster.core.errors import DataError, ReaderMissingError
from muster.core.units import counted
from muster.store.lines import (
    LONGEST_LINE,
    SKIPPABLE,
    Skip,
    Skipped,
    each_made,
    parse_object,
    pass_over,
    read_lines,
)

T = TypeVar("T")

JSON_LINES = (".jsonl", ".jsonl.gz", ".json", ".json.gz", ".ndjson", ".ndjson.gz")
TABLES = (".csv", ".csv.gz", ".tsv", ".tsv.gz")
PARQUET = (".parquet",)
SUFFIXES = (*JSON_LINES, *TABLES, *PARQUET)  # of files whose rows have fields
TRAIN_NAMES = ("train", "training")
HELD_OUT_NAMES = ("validation", "valid", "val", "dev", "test", "eval", "heldout")
# Behind a split's name: the numbers of its shards, and the hash that the hub once added.
_SHARD = re.compile(r"([-_ ]?[0-9]+([-_ ]of[-_ ][0-9]+)?)?(-[0-9a-f]{16})?$")
ROWS = 1024  # of a Parquet file that are in memory at a time

LONGEST_LIST = 1 << 30  # bytes of a list on one line, as json.dump writes it
csv.field_size_limit(LONGEST_LINE)


@dataclass(frozen=True)
class DataFiles:
    """The parts of a data set on disk; validation is empty where it has to be split off. `unused`: further
    files of samples."""

    train: tuple[Path, ...]
    validation: tuple[Path, ...] = ()
    unused: tuple[Path, ...] = ()


@dataclass(frozen=True)
class LoadedSamples(Generic[T]):
    """Samples to train on, held-out samples, the rows that were left out, the source, and notes on what is
    changed or left out."""

    train: list[T]
    held_out: list[T]
    skipped: Skipped = field(default_factory=Skipped)
    about: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Splits:
    """The splits of a data set to use: by name; None: by their usual names. `words`: of several splits with a
    usual name, those with one of these words (train_sft)."""

    train: str | None = None
    held_out: str | None = None
    words: tuple[str, ...] = ()

    def check(self, names: Sequence[str], where: str) -> None:
        """Raise DataError for a split that does not exist."""
        for key, name in (("train_split", self.train), ("held_out_split", self.held_out)):
            if name is not None and name not in names:
                hint = f"data.{key}=NAME, one of: {', '.join(names)}"
                raise DataError(f"has no split {name!r}", where=where, hint=hint)

    def train_of(self, names: Sequence[str]) -> list[str]:
        """Return the splits to train on."""
        if self.train is not None:
            return [name for name in names if name == self.train]
        return self._those(_first_kind(names, TRAIN_NAMES))

    def held_of(self, names: Sequence[str], train: Sequence[str]) -> list[str]:
        """Return the splits to hold out: of several, those with the same ending as the training splits."""
        if self.held_out is not None:
            return [name for name in names if name == self.held_out]
        held = _first_kind([name for name in names if name not in train], HELD_OUT_NAMES)
        ends = {name.removeprefix(_word(name)) for name in train}
        return [name for name in held if name.removeprefix(_word(name)) in ends] or self._those(held)

    def _those(self, names: list[str]) -> list[str]:
        """Return the names with one of the words; all names where none has one."""
        return [name for name in names if {*re.split(r"[-_.]", name)} & {*self.words}] or names


def _word(name: str) -> str:
    return re.split(r"[-_.]", name)[0]


def _first_kind(names: Sequence[str], kinds: Sequence[str]) -> list[str]:
    """Return the names that begin with the first of these words with which any name begins."""
    kind = next((each for each in kinds if any(_word(name) == each for name in names)), None)
    return [name for name in names if _word(name) == kind]


def is_of(file: Path, suffixes: tuple[str, ...]) -> bool:
    """Return whether a file's name ends in one of these suffixes, in lower or upper case."""
    return file.name.lower().endswith(suffixes)


def find_data(path: Path, splits: Splits | None = None) -> DataFiles:
    """Return the training and held-out files of a folder, or a single file. Raises DataError.

    A file named after a held-out part, such as test.jsonl, is trained on only where `path` is that file, or
    `splits` names it.
    """
    if path.is_file():
        return DataFiles((path,))
    splits = splits or Splits()
    hint = "expected a train file (train.jsonl, train.csv, train.parquet, ...) and a validation file"
    if not path.is_dir():
        raise DataError("no such data", where=str(path), hint=f"a file of samples, or a folder: {hint}")
    files = sorted(each for each in path.iterdir() if is_of(each, SUFFIXES) and each.is_file())
    files = files or sorted(
        each
        for each in path.rglob("*")
        if is_of(each, SUFFIXES) and not each.relative_to(path).as_posix().startswith((".", "_"))
    )
    kinds = [
        _by_split(path, [each for each in files if is_of(each, kind)])
        for kind in (JSON_LINES, TABLES, PARQUET)
    ]
    splits.check([name for parts in kinds for name in parts], str(path))
    for parts in kinds:
        train = splits.train_of([*parts])
        if not train:
            continue
        held = [
            [file for name in splits.held_of([*each], train) for file in each[name]]
            for each in (parts, *kinds)
        ]
        held_out = next(filter(None, held), [])
        used = [file for name in train for file in parts[name]]
        return DataFiles(tuple(used), tuple(held_out), tuple(sorted({*files} - {*used, *held_out})))
    if len(files) == 1 and by_part(path, files).keys().isdisjoint(HELD_OUT_NAMES):
        return DataFiles((files[0],))
    listed = ", ".join(each.relative_to(path).as_posix() for each in files[:5]) or "none"
    raise DataError(
        "has no file to train on",
        where=str(path),
        hint=f"{hint}, or data.path=FILE; files of samples there: {listed}",
    )


def _by_split(root: Path, files: Sequence[Path]) -> dict[str, list[Path]]:
    """Group files by their split: train_sft for train_sft-00000-of-00001.parquet."""
    by_split: dict[str, list[Path]] = {}
    for part, members in by_part(root, files).items():
        for file in members:
            name = _SHARD.sub("", file.name.partition(".")[0].lower())
            by_split.setdefault(name if _word(name) == part else part, []).append(file)
    return by_split


def by_part(root: Path, files: Iterable[Path]) -> dict[str, list[Path]]:
    """Group files by their part of a data set: the first word of a file's name (train-00000-of-00001), else
    the name of its folder below `root`."""
    parts: dict[str, list[Path]] = {}
    for file in files:
        word = re.split(r"[-_.]", file.name)[0].lower()
        named = word in (*TRAIN_NAMES, *HELD_OUT_NAMES)
        folder = file.relative_to(root).parent.name.lower()
        parts.setdefault(word if named else folder, []).append(file)
    return parts


def names_of(files: Sequence[Path]) -> str:
    """Return the names of files, of many the first few."""
    names = ", ".join(file.name for file in files[:3])
    return names if len(files) <= 3 else f"{names} and {len(files) - 3:,} more"


def parts_of(
    path: Path,
    train: Sequence[Path],
    held_out: Sequence[Path],
    fraction: float,
    unused: Sequence[Path] = (),
) -> str:
    """Return which files of `path` are for what, in words. `fraction`: the part held out where no file is."""
    words = f"{path}: train {names_of(train)}; held out "
    words += names_of(held_out) if held_out else f"{fraction:.3g} of it" if fraction else "nothing"
    return words + (f"; not used: {names_of(unused)}" if unused else "")


def held_note(count: int | None, of: int | None, fraction: float) -> list[str]:
    """Return a note where data has no part to hold out. `count`, `of`: samples; None: not counted yet."""
    if not fraction:
        return ["nothing is held out (data.validation_fraction=0): the model is not evaluated"]
    some = f"{100 * fraction:.3g} %" if count is None else f"{count:,} of {of:,} samples"
    are = "are" if count != 1 else "is"
    ways = "data.validation_fraction sets the share, 0 trains on all"
    return [f"{some} {are} held out, since the data has no part for that: {ways}"]


def hold_out(
    keys: Iterable[str], fraction: float, seed: int, where: str | None, *, kind: str = "sample"
) -> set[str]:
    """Return the keys (questions, prompts) to hold out where a data set has no held-out part: all samples of
    a key stay together. `kind`: what a key is called in messages. Raises DataError where none would be left
    to train on."""
    if not fraction:
        return set()
    different = sorted(set(keys))
    if len(different) < 2:
        count = f"{counted(len(different), f'different {kind}')} {'is' if len(different) == 1 else 'are'}"
        raise DataError(
            f"{count} too few to hold some out",
            where=where,
            hint="more samples, or a validation file next to the train file",
        )
    random.Random(seed).shuffle(different)
    return set(different[: max(1, int(len(different) * fraction))])


@dataclass(frozen=True)
class RowForm(Generic[T]):
    """How rows become samples. `make`: from a row, its place and its file's folder (None: it is a hub's);
    `fields`: all that are looked for; `used`: those that a row's sample is made of; `names`: those that a row
    has."""

    make: Callable[[Mapping[str, Any], str, Path | None], T]
    fields: Sequence[str]
    used: Callable[[Mapping[str, Any], str], Iterable[str]]
    names: Callable[[Mapping[str, Any]], Iterable[str]] = list

    def read(
        self, files: Iterable[Path], *, limit: int | None = None, skip: Skip | None = None
    ) -> Iterator[T]:
        """Yield the samples of files; at most `limit`. Raises DataError with the file and row of what is no
        sample, unless `skip` takes it, and where there are no samples."""
        count, where = 0, ""
        skipped = Skipped()

        def left(error: DataError) -> None:
            if skip is not None:
                skipped.add(error)
                skip(error)

        passed = skip and left
        for file in files:
            where = str(file)
            rows = read_rows(file, passed, fields=self.fields)

            def made(row: Mapping[str, Any], place: str, folder: Path = file.parent) -> T:
                return self.make(row, place, folder)

            for sample in each_made(rows, made, passed):
                count += 1
                yield sample
                if count == limit:
                    return
        if not count:
            hint = f"of those that were left out the first: {skipped.first}" if skipped.first else None
            raise DataError("has no samples that can be used", where=where, hint=hint)

    def load(
        self, path: Path, splits: Splits, *, limit: int | None = None, skip: Skip | None = None
    ) -> LoadedSamples[T]:
        """Read the samples of a file or folder; at most `limit` to train on. Raises DataError."""
        files = find_data(path, splits)
        train = list(self.read(files.train, limit=limit, skip=skip))
        held_out = list(self.read(files.validation, skip=skip)) if files.validation else []
        about = names_of(files.train) + (f", held out {names_of(files.validation)}" if held_out else "")
        notes = [f"not used: {names_of(files.unused)}"] if files.unused else []
        first = files.train[0]
        notes += self.unread(first.name, read_rows(first, Skipped().add, fields=self.fields))
        return LoadedSamples(train, held_out, about=about, notes=tuple(notes))

    def unread(self, where: str, rows: Iterable[tuple[str, Mapping[str, Any]]]) -> list[str]:
        """Return notes on fields that are not read, by the first row whose fields are clear."""

        def left(row: Mapping[str, Any], place: str) -> list[str]:
            roots = _roots(self.used(row, place))
            names = [str(name) for name in self.names(row) if name not in roots]
            names = [name for name in names if name.partition(".")[0] not in names or "." not in name]
            return [f"{where}: fields that are not read: {', '.join(names)}"] if names else []

        return next(each_made(rows, left, Skipped().add), [])

    def columns(self, names: Iterable[str]) -> list[str]:
        """Choose the columns that may be read, in small or capital letters."""
        roots = _roots(self.fields)
        return [name for name in names if name in roots or name.lower() in roots]


def _roots(fields: Iterable[str]) -> set[str]:
    """Return the names of fields, and of the columns that dotted paths begin in."""
    return {root for field in fields for root in (field, field.partition(".")[0])}


def read_rows(
    file: Path, skip: Skip | None = None, *, fields: Sequence[str] = ()
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield place and content of every row of a file. A file that is no table has JSON lines, or (.json) one
    list of objects. Decompresses gzip, by the file's name.

    `skip` gets each row that cannot be read, which is then left out; without it DataError is raised.
    `fields`: those that are looked for. Of a Parquet file's columns of nested values, dates and times, only
    these are decoded: other columns are None.
    """
    if is_of(file, PARQUET):
        yield from _parquet(file, skip, fields)
        return
    listed = is_of(file, (".json", ".json.gz"))
    lines = read_lines(file, skip, way=SKIPPABLE, longest=LONGEST_LIST if listed else LONGEST_LINE)
    if is_of(file, TABLES):
        yield from _table(file, lines, skip)
        return
    for number, line in lines:
        if listed and line.lstrip().startswith("["):
            rest = "".join(text for _, text in lines)
            yield from _listed(file, "\n" * (number - 1) + line + rest, skip)
            return
        if line.strip():
            listed, where = False, f"{file}:{number}"
            try:
                record = parse_object(line, where)
            except DataError as error:
                pass_over(error, skip)
            else:
                yield where, record


def _listed(file: Path, text: str, skip: Skip | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the objects of a list, with their places in it."""
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:
        where = f"{file}:{error.lineno}" if isinstance(error, json.JSONDecodeError) else str(file)
        pass_over(DataError(f"is not JSON: {error}", where=where), skip)
        return
    for number, row in enumerate(rows):
        if isinstance(row, dict):
            yield f"{file}[{number}]", row
        else:
            pass_over(DataError("is not a JSON object", where=f"{file}[{number}]"), skip)


def _table(
    file: Path, lines: Iterator[tuple[int, str]], skip: Skip | None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield rows by the column names of the first line, separated by commas, by semicolons where there are no
    commas, or by tabs.

    A quote without its closing one swallows the lines behind it: each of them is left out, and counted.
    """
    numbers: list[int] = []  # of the lines of a row

    def texts() -> Iterator[str]:
        for number, line in lines:
            numbers.append(number)
            yield line

    top, header = next(((number, line) for number, line in lines if line.strip()), (1, ""))
    sign = "\t" if is_of(file, (".tsv", ".tsv.gz")) else ";" if ";" in header and "," not in header else ","
    try:
        names = [name.strip() for name in next(csv.reader([header], delimiter=sign), [])]
    except csv.Error as error:
        hint = "lines end in a line feed, with or without a carriage return before it"
        raise DataError(f"is not a table: {error}", where=f"{file}:{top}", hint=hint) from None
    twice = next((name for name in names if name and names.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"has two columns named {twice!r}", where=f"{file}:{top}", hint="rename one of them")
    rows = csv.reader(texts(), delimiter=sign, strict=True)
    while True:
        numbers.clear()
        try:
            row = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            for number in numbers:
                pass_over(DataError(f"is not a table: {error}", where=f"{file}:{number}"), skip)
            continue
        where = f"{file}:{numbers[0]}"
        if len(row) == len(names):
            yield where, dict(zip(names, row, strict=True))
        elif row:
            problem = f"has {counted(len(row), 'column')}, and the first line has {len(names)}"
            pass_over(DataError(problem, where=where, hint=f"columns are apart by {sign!r}"), skip)


@contextmanager
def parquet_file(file: Path) -> Iterator[Any]:
    """Open a Parquet file by pyarrow, which ranks have. Raises DataError where it cannot be read, and
    ReaderMissingError where pyarrow is not installed."""
    if not file.is_file():
        raise DataError("no such file", where=str(file))
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        what = "is a Parquet file, and pyarrow is not installed here: ranks read it first"
        raise ReaderMissingError(what, where=str(file), hint="pip install pyarrow") from None
    try:
        with parquet.ParquetFile(file) as opened:
            yield opened
    except (OSError, ArrowException) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        what = f"is not a Parquet file that can be read: {reason}"
        raise DataError(what, where=str(file)) from None
    except (ValueError, OverflowError) as error:  # a text that is not UTF-8, a date that Python has not
        raise DataError(f"has a value that cannot be read: {error}", where=str(file)) from None


def _parquet(file: Path, skip: Skip | None, fields: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    number = 0
    try:
        with parquet_file(file) as opened:
            for row in _rows(opened, fields):
                where = f"{file}[{number}]"
                number += 1
                if not isinstance(row, Exception):
                    yield where, row
                    continue
                fault = DataError(f"has a value that cannot be read: {row}", where=where)
                if skip is None:
                    raise fault
                skip(fault)
    except ReaderMissingError:
        raise
    except DataError as error:
        pass_over(error, skip)


def _rows(opened: Any, fields: Sequence[str]) -> Iterator[dict[str, Any] | Exception]:
    """Yield the rows; in place of one with a value that Python cannot hold, the error."""
    from pyarrow import types

    wanted = _roots(fields)
    names = opened.schema_arrow.names
    columns = [
        each.name
        for each in opened.schema_arrow
        if not (fields and (types.is_nested(each.type) or types.is_temporal(each.type)))
        or each.name in wanted
    ]
    columns = columns or names
    others = dict.fromkeys(name for name in names if name not in columns)
    for batch in opened.iter_batches(ROWS, columns=columns):
        try:
            rows = batch.to_pylist()
        except (ValueError, OverflowError):
            rows = [_alone(batch.slice(row, 1)) for row in range(batch.num_rows)]
        for row in rows:
            yield row if isinstance(row, Exception) else {**row, **others}


def _alone(batch: Any) -> dict[str, Any] | Exception:
    """Return the row of a batch of one, or the error of decoding it."""
    try:
        row: dict[str, Any] = batch.to_pylist()[0]
    except (ValueError, OverflowError) as error:
        return error
    return row
