"""A user's description of logs that no reader knows: expressions for lines, and the columns of tables.

Both name the same FIELDS: as groups of an expression, and for columns. _lines.py defines them.
"""

from __future__ import annotations

import csv
import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from muster.core.errors import UsageError
from muster.core.near import did_you_mean

FIELDS = (
    "step", "time", "seconds", "ms", "elapsed", "elapsed_ms", "samples_per_second", "tokens_per_second",
    "samples", "tokens", "batch", "step_tokens", "skipped", "loss", "host", "rank", "job",
)  # fmt: skip
PLACES = ("host", "work", "job")  # of a path
PACES = ("seconds", "ms", "elapsed", "elapsed_ms", "samples_per_second", "tokens_per_second", "time")
# Lightning's ThroughputMonitor in a CSVLogger's metrics.csv, by its separator (/ unless another is given);
# samples are those of one device.
LIGHTNING = tuple(
    (("step", "step"), ("elapsed", f"train{mark}time"), ("samples", f"train{mark}samples")) for mark in "/|"
)
_DELIMITERS = (",", ";", "\t")
_UNCOMMON = re.compile(r"invalid perl operator: \(\?(?:<?[=!]|P|>|\()|invalid escape sequence: \\[1-9]")


@dataclass(frozen=True)
class Expression:
    """A user's regular expression. RE2 searches in time that is linear in the text, so that none hangs."""

    text: str
    groups: tuple[tuple[str, int], ...]  # field -> its number

    @classmethod
    def of(cls, text: str, fields: Sequence[str], where: str) -> Expression:
        """Return an expression whose groups are some of these fields. Raises UsageError."""
        import re2

        try:
            groups = {name.decode(): number for name, number in _compiled(text).groupindex.items()}
        except re2.error as error:
            why = error.args[0].decode(errors="replace")
            if _UNCOMMON.match(why):
                raise UsageError(
                    f"has '{why.partition(': ')[2]}': look-around and backreferences can take forever, and "
                    "are not supported",
                    where=where,
                    hint="write out what precedes and follows the groups; docs/judge.md has examples",
                ) from None
            raise UsageError(f"is not a regular expression: {why}", where=where) from None
        for name in groups:
            if name not in fields:
                hint = did_you_mean(name, fields) or f"known groups: {', '.join(fields)}"
                raise UsageError(f"unknown group {name!r}", where=where, hint=hint)
        if not groups:
            raise UsageError(
                "has no named group",
                where=where,
                hint=f"such as (?P<{fields[0]}>...); of {', '.join(fields)}",
            )
        return cls(text, tuple(groups.items()))

    def search(self, text: str) -> dict[str, str]:
        """Return the fields in a text; empty: it does not match, or none of its groups takes part."""
        data = text.encode("utf-8", "replace")
        match = _compiled(self.text).search(data)
        if match is None:
            return {}
        values = ((name, match[number]) for name, number in self.groups)
        return {name: value.decode("utf-8", "replace") for name, value in values if value is not None}


@functools.cache
def _compiled(text: str) -> Any:
    """Compile an expression of bytes: a text is encoded once for a search, and not measured group by group.
    """
    import re2

    options = re2.Options()
    options.log_errors = False
    return re2.compile(text.encode("utf-8", "surrogateescape"), options)


class TableLayout(NamedTuple):
    """How the columns of a table are separated, and which ones have fields."""

    delimiter: str
    columns: dict[str, int]  # field -> column


@dataclass(frozen=True)
class UserFormat:
    """A user's description of a format."""

    lines: tuple[Expression, ...] = ()
    columns: tuple[tuple[str, str], ...] = ()  # field, column
    workload: str = ""

    @classmethod
    def of(
        cls, lines: Sequence[str] = (), columns: Sequence[str] = (), workload: str = "", where: str = "--line"
    ) -> UserFormat:
        """Return a format of expressions, and of columns as FIELD=NAME. Raises UsageError."""
        expressions = tuple(Expression.of(each, FIELDS, where) for each in lines)
        groups = [name for each in expressions for name, _ in each.groups]
        if lines and not {*PACES, "step"} & set(groups):
            raise UsageError(
                "no group gives a speed",
                where=where,
                hint=f"needs one of {', '.join(PACES)}; or step, and time stamps in the lines",
            )
        named = [_column(each) for each in columns]
        if columns and not set(PACES) & {field for field, _ in named}:
            raise UsageError(
                "none gives a speed", where="--column", hint=f"needs one of {', '.join(PACES)}"
            )
        return cls(expressions, tuple(named), workload)

    @property
    def work(self) -> str:
        """What its logs have in common."""
        return self.workload or "one format of the user's"

    def lacking(self, header: str) -> str:
        """Return why nothing can be read from a table with this first line."""
        if any(layout_of(header, each) for each in (self.columns, *LIGHTNING)):
            return "has the columns, but no row with values in all of them"
        names = max((cells_of(header, each) for each in _DELIMITERS), key=len)
        missing = next((column for _, column in self.columns if column not in names), None)
        if missing is None:
            return (
                f"no known table has its columns, and --column FIELD=NAME can name them: {', '.join(names)}"
            )
        near = did_you_mean(missing, names) or f"its columns: {', '.join(names)}"
        return f"has no column {missing!r}, which --column names; {near}"


def layout_of(header: str, columns: Sequence[tuple[str, str]]) -> TableLayout | None:
    """Return the layout of a table whose header has all of these columns; None: it has not."""
    for delimiter in _DELIMITERS if columns else ():
        names = cells_of(header, delimiter)
        if all(column in names for _, column in columns):
            return TableLayout(delimiter, {field: names.index(column) for field, column in columns})
    return None


def cells_of(text: str, delimiter: str) -> list[str]:
    """Return a line's cells; empty where it is no line of a table."""
    try:
        return [cell.strip() for cell in next(csv.reader([text], delimiter=delimiter), [])]
    except csv.Error:
        return []


def _column(text: str) -> tuple[str, str]:
    field, equals, name = (part.strip() for part in text.partition("="))
    if not (field and equals and name):
        raise UsageError(
            f"is FIELD=NAME, not {text!r}", where="--column", hint="such as --column step=iteration"
        )
    if field not in FIELDS:
        hint = did_you_mean(field, FIELDS) or f"known fields: {', '.join(FIELDS)}"
        raise UsageError(f"unknown field {field!r}", where="--column", hint=hint)
    return field, name
