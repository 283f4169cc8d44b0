"""muster explain"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from muster.cli.options import Json, Root
from muster.cli.output import out_console, print_json, print_row
from muster.cli.parameters import Argument
from muster.core.errors import UsageError
from muster.core.units import counted

if TYPE_CHECKING:
    from muster.runs.explain import Explanation

EXAMPLES = """Examples:

  muster explain last

  muster explain job.log

  muster explain logs/ --json

  kubectl logs trainer-0 | muster explain -

Exit code:

  0  there is an answer: a cause is named, it says that it ended well, or it has not ended

  1  it failed and nothing says why, or nothing says how it ended

  2  bad input"""
COLOURS = {"known": "red", "named": "red", "unknown": "yellow", "nothing": "green", "going": "green"}


def explain(
    what: Annotated[
        str,
        Argument(
            metavar="RUN|BENCH|FILE|-",
            help="A run; a bench; a log, archive or folder of logs, of whatever tool; - is standard input.",
            complete="runs",
        ),
    ],
    root: Root = Path("runs"),
    json: Json = False,
) -> int:
    """Explain a failure: its cause, the line that says so, what helps, and the command to go on."""
    from muster.benches.explain import explain as explain_any
    from muster.runs.explain import explain_stream

    if what == "-":
        if sys.stdin.isatty():
            raise UsageError(
                "standard input is a terminal", where="-", hint="COMMAND 2>&1 | muster explain -"
            )
        explanation = explain_stream(sys.stdin.buffer)
    else:
        explanation = explain_any(what, root)
    if json:
        print_json(explanation.model_dump(mode="json"))
    else:
        _print(explanation)
    return explanation.exit_code


def _print(explanation: Explanation) -> None:
    """Print the cause, the evidence, the remedy, the command."""
    from rich.markup import escape

    from muster.runs.explain import AGAIN

    console, failure = out_console(), explanation.failure
    colour = COLOURS[explanation.answer]
    console.print(f"[{colour}]{escape(explanation.says)}[/{colour}]")
    rows: list[tuple[str, str | None]] = [("of", explanation.of)]
    if failure:
        place = ", ".join(part for part in (failure.where, failure.host) if part)
        rows += [("by", place), ("says", None if failure.what in explanation.says else failure.what)]
        rows += [("at", failure.evidence.place if failure.evidence else None)]
    if explanation.alike or explanation.echoes:
        same = f"{counted(explanation.alike, 'other')} ended the same way" if explanation.alike else ""
        echoes = f"{counted(explanation.echoes, 'line')} only followed from it" if explanation.echoes else ""
        rows.append(("besides", "; ".join(part for part in (same, echoes) if part)))
    rows += [("also", f"{each.text}  {each.place}") for each in explanation.others]
    rows += [("known as", failure.id if failure else None)]
    rows += [("to blame", explanation.blamed), ("remedy", explanation.remedy)]
    rows += [("again?", AGAIN[explanation.retry] if explanation.retry else None)]
    rows += [("beforehand", f"`muster check` looks at {explanation.check}" if explanation.check else None)]
    rows += [("note", note) for note in explanation.notes]
    for name, value in rows:
        if value:
            print_row(console, name, value)
    for each in explanation.jobs:
        why = f"{each.id}: {each.what}" if each.id else each.what
        print_row(console, each.job, why + (f" ({each.host})" if each.host else ""))
    for line in explanation.lines:
        console.print(f"    {line}", markup=False)
    if explanation.command:
        print_row(console, "then", explanation.command)
