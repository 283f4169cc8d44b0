"""What the columns of a table mean: a small YAML file for each tool.

about: one line for people
files: ["*.csv"]               which files; without it, every table whose header has the columns
delimiter: ","                 without it, found from the header
columns:
  step: step                   optimizer steps so far; without it, each row is a step
  seconds: elapsed             since the start; or step_seconds: of one step; or samples_per_second: a rate
  samples: samples             so far; or batch: of one step
  host: hostname               whose row it is; without it, as for any log
  skipped: skipped             steps so far that were not used
  tokens: tokens               so far
batch: 192                     samples of a step, where no column tells
unit: 0.001                    seconds of one unit of time
workload: gpt2                 what was trained: tables of one workload and batch are compared
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path
from typing import Annotated

from pydantic import Field, PrivateAttr, ValidationError, model_validator

from muster.core.errors import UsageError
from muster.core.near import did_you_mean
from muster.core.recipes import read_yaml
from muster.core.section import Section

DELIMITERS = (",", ";", "\t")
SHIPPED = Path(__file__).resolve().parent / "mappings"
_Positive = Annotated[float, Field(gt=0)]
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
    columns: Columns
    batch: _Positive | None = None
    unit: _Positive = 1.0
    workload: str = ""
    _shipped: bool = PrivateAttr(False)

    @property
    def work(self) -> str:
        """What its tables have in common; empty: only their format, since the mapping is not the user's."""
        return self.workload or ("" if self._shipped else "tables of one mapping")

    @property
    def names(self) -> frozenset[str]:
        """The columns that a header must have."""
        return frozenset(name for name in self.columns.model_dump().values() if name)

    def delimiter_of(self, header: str) -> str | None:
        """What separates the columns of a header that has all of them; None: it has not."""
        for delimiter in (self.delimiter,) if self.delimiter else DELIMITERS:
            if delimiter not in header and len(self.names) > 1:
                continue
            if self.names <= {name.strip() for name in cells_of(header, delimiter)}:
                return delimiter
        return None

    def takes(self, path: str) -> bool:
        """Whether a file of this path may be such a table."""
        return not self.files or any(
            fnmatch(path, pattern) or fnmatch(path, f"*/{pattern}") for pattern in self.files
        )


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
    data = read_yaml(path)
    try:
        return Mapping.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            known = Columns.model_fields if key.startswith("columns.") else Mapping.model_fields
            hint = did_you_mean(key.rpartition(".")[2], known) or f"known keys: {', '.join(known)}"
            raise UsageError(f"unknown key {key!r}", where=str(path), hint=hint) from None
        says = str(first["ctx"]["error"]) if first["type"] == "value_error" else first["msg"].lower()
        raise UsageError(f"{key}: {says}", where=str(path), hint="docs/judge.md has an example") from None
