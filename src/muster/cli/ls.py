"""muster ls"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from muster.cli.options import Json, Root

EXAMPLES = """Examples:

  muster ls

  muster ls --where "status = 'failed'"

  muster ls --where "engine LIKE 'deepspeed%' AND samples_per_second > 100" --json"""


def ls(
    root: Root = Path("runs"),
    where: Annotated[
        str | None, typer.Option("--where", help="A condition in SQL over the columns of --json.")
    ] = None,
    json: Json = False,
) -> int:
    """List runs, and benches."""
    from muster.cli.output import err_console, print_json, say
    from muster.stages.runs import benches
    from muster.stages.runs import ls as run_ls

    rows = run_ls(root, where)
    if json:
        print_json(rows)
        return 0
    if rows:
        _table(rows)
    found = benches(root) if where is None else []
    for each in found:
        state = f"muster bench --continue {each.bench.path}"
        if each.running:
            state = "running"
        elif each.complete:
            words = ", ".join(f"{count} {verdict}" for verdict, count in each.verdicts.items())
            state = f"hosts: {words or 'none'}"
        say(f"bench {each.bench.id}  {each.done} of {each.jobs} jobs are over; {state}")
    if found:
        say(f"the runs of a bench: muster ls --runs {found[-1].bench.runs}")
    if not rows and not found:
        err_console().print(f"no runs in {root}/")
    return 0


def _table(rows: list[dict[str, Any]]) -> None:
    from rich.table import Table

    from muster.cli.output import out_console
    from muster.core.units import format_seconds

    def number(value: float | None, form: str) -> str:
        return "" if value is None else format(value, form)

    table = Table(box=None)
    for name in (
        "run",
        "status",
        "engine",
        "ranks",
        "steps",
        "loss",
        "samples/s",
        "exact",
        "same rows",
        "time",
    ):
        table.add_column(
            name, no_wrap=True, justify="left" if name in ("run", "status", "engine") else "right"
        )
    for row in rows:
        table.add_row(
            row["id"],
            row["status"],
            row["engine"],
            number(row["world_size"], "d"),
            number(row["steps"], "d"),
            number(row["loss_final"], ".4f"),
            number(row["samples_per_second"], ".1f"),
            number(row["exact_match"], ".1%"),
            number(row["execution_match"], ".1%"),
            format_seconds(row["seconds"]) if row["seconds"] is not None else "",
        )
    console = out_console(soft_wrap=False)
    if not console.is_terminal:
        console = out_console(soft_wrap=False, width=200)  # a pipe has no width to fit into
    console.print(table)
