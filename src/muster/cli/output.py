"""Output that every verb prints the same way: data to stdout, messages to stderr."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from muster.core.printable import clean, scrubbed_data, spelt_out

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def err_console() -> Console:
    """Return the console for messages and progress. rich respects NO_COLOR and tells a terminal from a pipe.
    """
    from muster.cli.console import SafeConsole

    return SafeConsole(stderr=True, highlight=False, soft_wrap=True)


def out_console(*, soft_wrap: bool = True) -> Console:
    """Return the console for results."""
    from muster.cli.console import SafeConsole

    return SafeConsole(highlight=False, soft_wrap=soft_wrap)


def say(text: object, *, end: str = "\n", err: bool = False) -> None:
    """Print a line without terminal controls."""
    print(clean(str(text)), end=end, file=sys.stderr if err else sys.stdout, flush=True)


class Interval:
    """Lets a line through every so many `seconds` at most: the first one after as long, or `at_once`."""

    def __init__(self, seconds: float, *, at_once: bool = False) -> None:
        self.seconds = seconds
        self.began = -math.inf if at_once else time.monotonic()

    def over(self) -> bool:
        """Return whether it is over; the next one begins then."""
        now = time.monotonic()
        if now - self.began <= self.seconds:
            return False
        self.began = now
        return True


def say_places(**paths: Path) -> None:
    """Print a line for each of these files and folders that exists."""
    for name, path in paths.items():
        if path.exists():
            say(f"  {name:<22} {path}")


def print_json(data: Any) -> None:
    """Print one document to stdout. JSON has no infinite numbers and no NaN: they become null."""
    print(spelt_out(json.dumps(scrubbed_data(_finite(data)), indent=2, ensure_ascii=False, allow_nan=False)))


def _finite(data: Any) -> Any:
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    return [_finite(value) for value in data] if isinstance(data, list | tuple) else data


def fail(
    message: str, hint: str | None, *, as_json: bool, code: int, detail: dict[str, Any] | None = None
) -> int:
    """Print a line and a hint to stderr; with --json the same as a document to stdout. Return the exit code.
    """
    if as_json:
        print_json({"error": {"message": message, "hint": hint, **(detail or {})}})
    say("\n".join(wrapped(f"error: {message}", err=True)), err=True)
    if hint:
        say(f"hint: {hint}", err=True)
    return code


def wrapped(text: str, indent: int = 0, *, err: bool = False) -> list[str]:
    """Return the lines of a text that begins in column `indent`, broken at spaces for the terminal."""
    import textwrap

    room = max(20, terminal_width(err=err) - indent)
    lines = [
        textwrap.wrap(line, room, break_long_words=False, break_on_hyphens=False)
        for line in text.splitlines()
    ]
    return [part for line in lines for part in line or [""]] or [""]


def print_row(console: Console, name: str, value: str, *, style: str = "dim", width: int = 22) -> None:
    """Print a name with its value, in lines below each other."""
    from rich.markup import escape

    begin = " " * (width + 3)
    text = f"\n{begin}".join(wrapped(value, len(begin)))
    console.print(f"  [{style}]{name:<{width}}[/{style}] {escape(text)}")


def table(*heads: str, **how: Any) -> Table:
    """Return an empty table without borders. Columns whose head begins with `>` have figures, aligned right.
    """
    from rich.table import Table

    made = Table(**{"box": None, "title_justify": "left", **how})
    for head in heads:
        right = head.startswith(">")
        made.add_column(head.removeprefix(">"), no_wrap=True, justify="right" if right else "left")
    return made


def print_table(console: Console, made: Table) -> None:
    """Print a table. A pipe has no width to fit into. In a narrow terminal words are broken, and figures
    never cut."""
    if not console.is_terminal:
        console.width = 1000
    for column in made.columns:
        if column.justify != "right":
            column.no_wrap, column.overflow = False, "fold"
    if made.row_count:
        console.print(made)


def tinted(summary: Mapping[Any, int], colours: Mapping[str, str]) -> str:
    """Return "3 fit, 1 slow" with markup, without zeros."""
    return ", ".join(
        f"[{colours[name]}]{count} {name}[/{colours[name]}]" for name, count in summary.items() if count
    )


def print_columns(rows: list[list[str]], *, right: frozenset[int] = frozenset()) -> None:
    """Print rows in columns, to stdout. The last column is wrapped at spaces where a terminal is too narrow.
    """
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))] if rows else []
    indent = sum(widths[:-1]) + 2 * len(widths[:-1])
    for row in rows:
        cells = [
            cell.rjust(width) if place in right else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        first, *rest = wrapped(row[-1], indent)
        if len(row) - 1 in right:
            first = cells[-1]
        begin = "  ".join(cells[:-1])
        say(f"{begin}  {first}".rstrip())
        for line in rest:
            say(f"{'':<{len(begin)}}  {line}")


def terminal_width(*, err: bool = False) -> int:
    """Return the width of stdout, or of stderr; a pipe has no width to fit into."""
    try:
        return os.get_terminal_size((sys.stderr if err else sys.stdout).fileno()).columns or 80
    except (OSError, ValueError):
        return 1000
