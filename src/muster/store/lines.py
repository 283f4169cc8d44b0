"""Lines of text files and JSON-lines files; every error names the file and the line."""

from __future__ import annotations

import codecs
import gzip
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

from muster.core.errors import DataError
from muster.core.units import format_bytes

LONGEST_LINE = 16 << 20  # bytes; what is longer is no text that anybody wrote

MISSING = object()  # the value of a field that is not there

T = TypeVar("T")
Skip = Callable[[DataError], None]
SKIPPABLE = "; data.bad=skip leaves such rows out"  # behind the hint of whatever is wrong with a row


@dataclass
class Skipped:
    """Samples that were left out as unusable: their number, and the places of the first."""

    count: int = 0
    first: str | None = None

    def clear(self) -> None:
        """Reset the count."""
        self.count, self.first = 0, None

    def add(self, error: DataError) -> None:
        """Count another one."""
        self.count += 1
        self.first = self.first or f"{error.where}: {error.what}"

    def where(self, bad: str) -> Skip | None:
        """Return what readers call for each unusable sample if `bad`, the recipe's data.bad, is skip; None:
        they raise."""
        return self.add if bad == "skip" else None

    @property
    def notes(self) -> list[str]:
        """Notes on the samples that were left out, for people."""
        words = (
            f"could not be used and were left out (data.bad=skip): {self.count:,}; the first: {self.first}"
        )
        return [words] if self.count else []


def pass_over(error: DataError, skip: Skip | None) -> None:
    """Pass a row's error to `skip`. Without one raise it, with a hint how to leave such rows out."""
    if skip is None:
        hint = f"{error.hint or ''}{SKIPPABLE}".removeprefix("; ")
        raise DataError(error.what, where=error.where, hint=hint) from None
    skip(error)


def each_made(
    rows: Iterable[tuple[str, Mapping[str, Any]]],
    make: Callable[[Mapping[str, Any], str], T],
    skip: Skip | None,
) -> Iterator[T]:
    """Yield what `make` returns for each row and its place. A row for which it raises DataError is passed to
    `skip` and left out; without `skip` the error is raised."""
    for place, row in rows:
        try:
            made = make(row, place)
        except DataError as error:
            pass_over(error, skip)
            continue
        yield made


def read_lines(
    file: Path, skip: Skip | None = None, *, way: str = "", longest: int = LONGEST_LINE
) -> Iterator[tuple[int, str]]:
    """Yield the number and the text, with its line end, of every readable line: UTF-8, gzip by the file's
    name.

    `skip` gets each line that cannot be read, which is then left out; without it DataError is raised. `way`
    is added to the hints of these errors; `longest`: the most bytes of a line.
    """
    try:
        opener = gzip.open if file.name.lower().endswith(".gz") else open
        with opener(file, "rb") as stream:
            yield from _decoded(stream, file, skip, way, longest)
    except FileNotFoundError:
        raise DataError("no such file", where=str(file)) from None
    except (OSError, EOFError, zlib.error) as error:
        broken = DataError(f"cannot be read: {error}", where=str(file))
        if skip is None:
            raise broken from None
        skip(broken)


def _decoded(
    stream: IO[bytes] | gzip.GzipFile, file: Path, skip: Skip | None, way: str, longest: int
) -> Iterator[tuple[int, str]]:
    number = offset = 0
    while raw := stream.readline(longest + 1):
        number += 1
        where, size = f"{file}:{number}", len(raw)
        if size > longest:
            while not raw.endswith(b"\n") and (raw := stream.readline(longest)):
                size += len(raw)
            error = DataError(
                f"a line of {format_bytes(size)}, where {format_bytes(longest)} is the most",
                where=where,
                hint=f"break it into lines{way}",
            )
        else:
            try:
                text = (raw.removeprefix(codecs.BOM_UTF8) if number == 1 else raw).decode("utf-8")
                offset += size
                yield number, text
                continue
            except UnicodeDecodeError as wrong:
                byte = wrong.object[wrong.start]
                marked = raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
                encoding = "UTF-16" if marked else "ENCODING"
                such = "" if marked else " (ENCODING: such as WINDOWS-1252 or GB18030)"
                error = DataError(
                    f"is not UTF-8: byte 0x{byte:02x} at {offset + size - len(wrong.object) + wrong.start} "
                    "of the file",
                    where=where,
                    hint=f"iconv -f {encoding} -t UTF-8 FILE writes it in UTF-8{such}{way}",
                )
        offset += size
        if skip is None:
            raise error
        skip(error)


def parse_object(line: str, where: str) -> dict[str, Any]:
    """Return the JSON object of a line. Raises DataError."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"is not JSON: {error}", where=where, hint="one JSON object per line") from None
    if not isinstance(record, dict):
        kind = "a list" if isinstance(record, list) else type(record).__name__
        raise DataError(f"is not a JSON object but {kind}", where=where, hint="one JSON object per line")
    return record


def value_at(record: Mapping[str, Any], name: str) -> Any:
    """Return the value of a field, by its name or by a dotted path through objects (sql.human_readable);
    MISSING where there is none."""
    if name in record:
        return record[name]
    if "." not in name:  # this is asked for every known name of every row
        return MISSING
    value: Any = record
    for part in name.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return MISSING
        value = value[part]
    return value


def text_of(record: Mapping[str, Any], name: str, where: str, key: str, *, blank: bool = True) -> str:
    """Return a text field of an object; `name` may be a dotted path. Raises DataError, which lists the parts
    of a field that has parts. `key`: the recipe's key that names the field; `blank`: it may be empty."""
    text = value_at(record, name)
    if not isinstance(text, str):
        raise _no_text(record, name, text, where, key)
    if not (blank or text.strip()):
        raise DataError(f"field {name!r} is empty", where=where)
    check_unicode(text, where)
    return text


def check_unicode(text: str, where: str) -> None:
    """Raise DataError for half of a surrogate pair, which JSON can express and no tokenizer reads."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as wrong:
        raise DataError(f"is not Unicode text: {wrong.reason}", where=where) from None


def _no_text(record: Mapping[str, Any], name: str, value: Any, where: str, key: str) -> DataError:
    if isinstance(value, Mapping):
        texts = [part for part, below in value.items() if isinstance(below, str)]
        hint = f"{key}={name}.{texts[0]} names one of them" if texts else f"{key} names a field that is text"
        return DataError(
            f"field {name!r} is not text: it has the parts {', '.join(map(str, value))}",
            where=where,
            hint=hint,
        )
    what = "is missing" if value is MISSING else f"is not text but {_kind(value)}"
    has = ", ".join(list(map(str, record))[:10])
    return DataError(
        f"field {name!r} {what}", where=where, hint=f"the fields there are: {has}; {key} names the one to use"
    )


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    kinds: dict[type, str] = {bool: "true or false", int: "a number", float: "a number", list: "a list"}
    return kinds.get(type(value), type(value).__name__)
