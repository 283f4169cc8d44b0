r"""What is where in logs that no reader knows: a small YAML file for each tool.

about: one line for people
files: ["*.csv"]               which files; without it, all
batch: 192                     samples of a step, where nothing else tells
unit: 0.001                    seconds of one unit of time; or s, ms, us
workload: gpt2                 what was trained: logs of one workload and batch are compared
path: '(?P<host>gpu\d+)\.log'  of a file's path: host (or a list such as gpu[01,05]), work, job; alone, it is
                               of logs of any format

and one of two: the columns of a table,

delimiter: ","                 without it, found from the header
columns:
  step: step                   optimizer steps so far; without it, each row is a step
  seconds: elapsed             since the start; or step_seconds: of one step; or samples_per_second: a rate
  samples: samples             so far; or batch: of one step
  host: hostname               whose row it is; without it, as for any log
  job: run                     rows with the same value are of one job, on all its hosts
  skipped: skipped             steps so far that were not used
  tokens: tokens               so far

or an expression for a line, with some of GROUPS:

line: '(?P<time>\S+) step (?P<step>\d+) loss (?P<loss>\S+) (?P<seconds>\S+) s'
                               with a step and no time, the time stamps of the lines count, and of a job that
                               runs the moments at which its lines come
time: "%H:%M:%S"               the form of `time`, as strptime has it; without it, ISO 8601 or a number
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from fnmatch import fnmatch
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PrivateAttr, ValidationError, model_validator

from muster.core.errors import UsageError
from muster.core.near import did_you_mean
from muster.core.recipes import read_yaml
from muster.core.section import Section
from muster.readers.base import number

DELIMITERS = (",", ";", "\t")
# Of a line; what they mean stands in _lines.py.
GROUPS = (
    "time", "step", "loss", "samples_per_second", "tokens_per_second", "seconds", "elapsed", "samples",
    "tokens", "batch", "skipped", "host", "rank", "job",
)  # fmt: skip
PACES = ("seconds", "elapsed", "samples_per_second", "tokens_per_second", "time")
PLACES = ("host", "work", "job")
LONGEST = 4000  # characters: longer lines are not searched
UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
SHIPPED = Path(__file__).resolve().parent / "mappings"
_Positive = Annotated[float, Field(gt=0)]
_Unit = Annotated[float, BeforeValidator(lambda value: UNITS.get(value, value)), Field(gt=0)]
_Name = Annotated[str, Field(min_length=1)]


class Columns(Section):
    """The names of columns."""

    step: _Name | None = None
    seconds: _Name | None = None
    step_seconds: _Name | None = None
    samples_per_second: _Name | None = None
    samples: _Name | None = None
    batch: _Name | None = None
    host: _Name | None = None
    job: _Name | None = None
    skipped: _Name | None = None
    tokens: _Name | None = None

    @model_validator(mode="after")
    def _times(self) -> Columns:
        if not (self.seconds or self.step_seconds or self.samples_per_second):
            raise ValueError("needs one of seconds, step_seconds, samples_per_second")
        if self.seconds and self.step_seconds:
            raise ValueError("give one of seconds (of the whole run) and step_seconds (of a step)")
        return self


class Mapping(Section):
    """A mapping file."""

    about: str = ""
    files: tuple[str, ...] = ()
    delimiter: Annotated[str, Field(min_length=1, max_length=1)] | None = None
    columns: Columns | None = None
    line: str = ""
    path: str = ""
    time: str = ""
    batch: _Positive | None = None
    unit: _Unit = 1.0
    workload: str = ""
    _shipped: bool = PrivateAttr(False)

    @model_validator(mode="after")
    def _sound(self) -> Mapping:
        if self.columns and self.line:
            raise ValueError("give one of columns (of a table) and line (an expression for a line)")
        if not (self.columns or self.line or self.path):
            raise ValueError("needs columns (of a table), line (an expression for a line) or path")
        groups = expression("line", self.line, GROUPS).groupindex if self.line else {}
        if self.line and not set(groups) & {*PACES, "step"}:
            raise ValueError(
                f"line: no group tells how fast it was: needs one of {', '.join(PACES)}; or step, and time "
                "stamps in the lines"
            )
        if self.time and "time" not in groups:
            raise ValueError("time: it is the form of a group `time`, and line has none")
        if self.time and "%" not in self.time:
            raise ValueError("time: is no form of a time: it has no %, as in %H:%M:%S")
        if self.path and not expression("path", self.path, PLACES).groupindex:
            raise ValueError(f"path: needs one of the groups {', '.join(PLACES)}")
        return self

    @property
    def work(self) -> str:
        """What its tables have in common; empty: only their format, since the mapping is not the user's."""
        return self.workload or ("" if self._shipped else "tables of one mapping")

    def of_workload(self, name: str) -> Mapping:
        """Of this workload, where neither it nor paths say another; one that ships leaves it to the log."""
        if self._shipped or self.workload or "(?P<work>" in self.path:
            return self
        return self.model_copy(update={"workload": name})

    @property
    def names(self) -> frozenset[str]:
        """The columns that a header must have."""
        return (
            frozenset(name for name in self.columns.model_dump().values() if name)
            if self.columns
            else frozenset()
        )

    def delimiter_of(self, header: str) -> str | None:
        """What separates the columns of a header that has all of them; None: it has not."""
        if not self.columns:
            return None
        for delimiter in (self.delimiter,) if self.delimiter else DELIMITERS:
            if delimiter not in header and len(self.names) > 1:
                continue
            if self.names <= {name.strip() for name in cells_of(header, delimiter)}:
                return delimiter
        return None

    def absent(self, header: str) -> str:
        """Which column of the user's a header has not; empty: none, or the mapping is not the user's."""
        if self._shipped or not self.columns:
            return ""
        choices = (self.delimiter,) if self.delimiter else DELIMITERS
        has = max(([name.strip() for name in cells_of(header, each)] for each in choices), key=len)
        missing = sorted(self.names - set(has))
        near = did_you_mean(missing[0], has) if missing else None
        more = near or f"its columns: {', '.join(has)}"
        return f"has no column {missing[0]!r}, which a mapping names; {more}" if missing else ""

    def takes(self, path: str) -> bool:
        """Whether it is of a file of this path."""
        return not self.files or any(
            fnmatch(path, pattern) or fnmatch(path, f"*/{pattern}") for pattern in self.files
        )

    def placed(self, path: str) -> dict[str, str]:
        """What the path says: host (unless lines or rows say whose they are), work, job."""
        match = re.search(self.path, path) if self.path else None
        places = {name: text for name, text in match.groupdict().items() if text} if match else {}
        if "(?P<host>" in self.line or (self.columns and self.columns.host):
            places.pop("host", None)
        return places

    def moment(self, text: str) -> float | None:
        """Seconds of a line's `time`, on the clock of who wrote it."""
        try:
            if self.time:
                return datetime.strptime(text, self.time).replace(tzinfo=timezone.utc).timestamp()
            if (value := number(text)) is not None:
                return value * self.unit
            stamp = datetime.fromisoformat(text.replace(",", ".").removesuffix("Z"))
            return stamp.replace(tzinfo=stamp.tzinfo or timezone.utc).timestamp()
        except (ValueError, OverflowError):
            return None


def expression(key: str, text: str, groups: Sequence[str]) -> re.Pattern[str]:
    """A regular expression that may have these groups. Raises ValueError."""
    try:
        pattern = re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"{key}: is not a regular expression: {error}") from None
    for name in pattern.groupindex:
        if name not in groups:
            near = did_you_mean(name, groups) or f"known groups: {', '.join(groups)}"
            raise ValueError(f"{key}: unknown group {name!r}; {near}")
    if _explodes(text):
        raise ValueError(
            f"{key}: repeats a group that itself repeats or has alternatives, which can take forever on a "
            "line that does not match: write it without the outer + or *"
        )
    return pattern


def _explodes(text: str) -> bool:
    """Whether something that can be repeated in several ways is itself repeated, as in (a+)+ and (a|aa)*."""
    bare = re.sub(r"\\.", "x", text)
    bare = re.sub(r"\[\^?\]?[^\]]*\]", "x", bare)
    group = re.compile(r"\((?:\?(?:P<\w+>|[:=!>]|<[=!]|[aiLmsux-]*:))?([^()]*)\)([*+]|\{\d*,\d*\})?")
    while match := group.search(bare):
        inner, repeated = match.groups()
        many = "\0" in inner or re.search(r"[*+|]|\{\d*,\d*\}", inner) is not None
        if many and repeated:
            return True
        bare = f"{bare[: match.start()]}{chr(0) if many else 'x'}{repeated or ''}{bare[match.end() :]}"
    return False


def cells_of(text: str, delimiter: str) -> list[str]:
    """A line's cells; empty where it is no line of a table."""
    try:
        return next(csv.reader([text], delimiter=delimiter), [])
    except csv.Error:
        return []


def load_mappings(files: Iterable[Path] = ()) -> tuple[Mapping, ...]:
    """The user's mappings, in their order, and then the ones that ship. Raises UsageError."""
    shipped = [load_mapping(path) for path in sorted(SHIPPED.glob("*.yaml"))]
    for mapping in shipped:
        mapping._shipped = True
    return (*(load_mapping(path) for path in files), *shipped)


def load_mapping(path: Path) -> Mapping:
    """A mapping file. Raises UsageError that names the file and the key."""
    return made_mapping(read_yaml(path), str(path))


def made_mapping(data: dict[str, Any], where: str) -> Mapping:
    """A mapping of these keys. Raises UsageError that names `where` and the key."""
    try:
        return Mapping.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            fields = Columns.model_fields if key.startswith("columns.") else Mapping.model_fields
            hint = did_you_mean(key.rpartition(".")[2], fields) or f"known keys: {', '.join(fields)}"
            raise UsageError(f"unknown key {key!r}", where=where, hint=hint) from None
        says = str(first["ctx"]["error"]) if first["type"] == "value_error" else first["msg"].lower()
        raise UsageError(
            f"{key}: {says}" if key else says, where=where, hint="docs/judge.md has an example"
        ) from None
