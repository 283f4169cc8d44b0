"""A result for a person: its figures, the fabric's tables, what to type next, answers."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from muster.cli.output import err_console, out_console, print_row, table
from muster.core.result import Failure, Result
from muster.reports.fabric import pair_rows, sweep_rows
from muster.results.figures import Figure, figures, grouped, subject
from muster.runs.afterwards import loading_lines, next_command
from muster.store.runfolder import RunFolder, from_here

_NAME = 30  # columns of a figure's name
_MOST_NAMES = 8  # of a matrix on a terminal; the whole of it is in the run folder


def print_result(result: Result) -> None:
    """Print a result for a person."""
    console = out_console()
    print_row(console, "status", result.outcome)
    print_row(console, "run", subject(result))
    print_figures(console, figures(result))
    if result.pace and result.pace.words:
        print_row(console, "pace", result.pace.words)
    for name, value in (line for profile in result.profiles for line in profile.lines):
        print_row(console, name, value)
    if fabric := result.fabric:
        if fabric.sweeps:
            _table(console, "bus bandwidth by message size, Gbit/s", *sweep_rows(fabric))
        if fabric.pairs and len(fabric.pairs.names) <= _MOST_NAMES:
            _table(console, "point to point, from row to column, Gbit/s", *pair_rows(fabric.pairs))
        console.print()
    for note in result.notes[len(result.caveats) :]:  # which the status has
        print_row(console, "note", note, style="yellow")
    if result.failure:
        print_failure(result.status, result.failure)


def print_figures(console: Console, listed: list[Figure]) -> None:
    """Print the figures that have a value, by group."""
    for group, own in grouped(listed, measured=True):
        console.print(group, style="bold")
        for figure in own:
            print_row(console, figure.name, figure.words, width=_NAME)


def print_failure(status: str, failure: Failure) -> None:
    """Print why a run or a pipeline did not succeed, and what helps."""
    console = err_console()
    place = ": ".join(part for part in (failure.host, failure.where) if part)
    console.print(f"[red]{status}[/red]: {escape(f'{place}: ' if place else '')}{escape(failure.what)}")
    if failure.evidence:
        console.print(f"at: {escape(failure.evidence.place)}")
    if failure.hint:
        console.print(f"hint: {escape(failure.hint)}")
    if failure.id:
        console.print(f"known as {failure.id}")


def print_afterwards(run: RunFolder, *, asked: bool = False) -> None:
    """Print what to type next, and how to load the trained model without Muster. Nothing is indented, so that
    it can be pasted."""
    console = err_console()
    lines = loading_lines(run)
    if lines:
        console.print(f"{from_here(run.model)} is a Transformers folder; in Python:", markup=False)
        console.print(lines, markup=False)
    console.print(f"next        {next_command(run, asked=asked)}", markup=False)


def shown(answer: str) -> str:
    """Return an answer for people."""
    return answer if answer.strip() else "(empty answer)"


def print_answers(rows: list[dict[str, Any]]) -> None:
    """Print questions, predictions and expected answers as a table."""
    judged = bool(rows) and "expected" in rows[0]
    made = Table(show_lines=True)
    made.add_column("question", ratio=2, overflow="fold")
    made.add_column("prediction", ratio=3, overflow="fold")
    if judged:
        made.add_column("expected", ratio=3, overflow="fold")
        made.add_column("", no_wrap=True)
    for row in rows:
        cells = [escape(row["question"]), escape(shown(row["predicted"]))]
        if judged:
            mark = (
                "[green]exact[/green]"
                if row["exact"]
                else "[green]same rows[/green]"
                if row["executed"]
                else "[yellow]not scored[/yellow]"
                if row.get("unscored")
                else "[red]wrong[/red]"
            )
            cells += [escape(row["expected"]), mark]
        made.add_row(*cells)
    out_console(soft_wrap=False).print(made)


def _table(console: Console, title: str, columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    first, *others = map(escape, columns)
    made = table(first, *(f">{name}" for name in others), title=title, padding=(0, 2, 0, 2))
    for row in rows:
        made.add_row(*map(escape, row))
    console.print()
    console.print(made)
