"""muster ls"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from muster.cli.options import Json, Root
from muster.cli.output import print_columns, print_json, say, terminal_width
from muster.cli.parameters import Option
from muster.core.units import format_bytes, format_number, format_seconds

EXAMPLES = """Examples:

  muster ls

  muster ls --where "status = 'failed'"

  muster ls --where "model = 't5-small'" --markdown > table.md

  muster ls --where "engine LIKE 'deepspeed%' AND samples_per_second > 100" --json"""

# Heading -> column of --json and how it is written. On a narrow terminal the last ones are left out.
_SHOWN: dict[str, tuple[str, str]] = {
    "run": ("id", "s"), "status": ("status", "s"), "loss": ("loss_final", ".4f"),
    "samples/s": ("samples_per_second", "n"), "time": ("seconds", ""), "steps": ("steps", "d"),
    "exact": ("exact_match", ".1%"), "ranks": ("world_size", "d"), "engine": ("engine", "s"),
    "same rows": ("execution_match", ".1%"),
}  # fmt: skip
# The same of --markdown and --csv, where numbers are as they are in --json.
_COMPARED: dict[str, tuple[str, str]] = {
    "run": ("id", "s"), "model": ("model", "s"), "technique": ("engine", "s"),
    "precision": ("precision", "s"), "hosts": ("hosts", "d"), "ranks": ("world_size", "d"),
    "status": ("status", "s"), "time": ("seconds", ""),
    "samples/s": ("samples_per_second", "n"), "loss": ("loss_final", ".4f"),
    "held-out loss": ("evaluation_loss", ".4f"), "perplexity": ("perplexity", "n"),
    "exact": ("exact_match", ".1%"), "same rows": ("execution_match", ".1%"),
    "device memory": ("allocator_peak", "b"), "host memory": ("resident_peak", "b"),
}  # fmt: skip
_ALWAYS = 2  # columns that are never left out


def ls(
    root: Root = Path("runs"),
    where: Annotated[
        str | None, Option("--where", help="A condition in SQL over the columns of --json.")
    ] = None,
    markdown: Annotated[
        bool, Option("--markdown", help="A table in Markdown: models, techniques, times, results, memory.")
    ] = False,
    as_csv: Annotated[bool, Option("--csv", help="The same as CSV, in seconds and bytes.")] = False,
    json: Json = False,
) -> int:
    """List runs and benches."""
    from muster.benches.listing import benches
    from muster.store.atomic import csv_text
    from muster.store.queries import runs_table

    rows = runs_table(root, where)
    if json:
        print_json(rows)
        return 0
    if markdown or as_csv:
        keys = [key for key, _ in _COMPARED.values()]
        cells = ([row[key] for key in keys] for row in rows)
        say(_markdown(rows) if markdown else csv_text(keys, cells), end="")
        return 0
    if rows:
        _table(rows)
    listed = benches(root) if where is None else []
    for each in listed:
        state = each.bench.go_on
        if each.running:
            state = "running"
        elif each.complete:
            words = ", ".join(f"{count} {verdict}" for verdict, count in each.verdicts.items())
            state = f"hosts: {words or 'none'}"
        say(f"bench {each.bench.id}  {each.done}/{each.jobs} finished; {state}")
    if listed:
        say(f"the runs of a bench: muster ls --runs {listed[-1].bench.runs}")
    if not rows and not listed:
        say(f"no runs in {root}/", err=True)
    return 0


def _markdown(rows: list[dict[str, Any]]) -> str:
    """Return a table without the columns that are empty for all runs."""
    written = {name: [_word(row[key], form) for row in rows] for name, (key, form) in _COMPARED.items()}
    names = [name for name, words in written.items() if any(words)] or ["run"]
    lines = [names, ["---" if _COMPARED[name][1] == "s" else "---:" for name in names]]
    lines += [[written[name][place].replace("|", "\\|") for name in names] for place in range(len(rows))]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _table(rows: list[dict[str, Any]]) -> None:
    """Print as many columns as the terminal has room for. Ids are never cut."""
    for row in rows:  # what trains no model, or prints no step, counts none
        row["steps"] = None if row["model"] is None and row["steps"] == 0 else row["steps"]
    written = {name: [_word(row[key], form) for row in rows] for name, (key, form) in _SHOWN.items()}
    names = [name for name, words in written.items() if any(words)]
    widths = {name: max(len(word) for word in (name, *written[name])) for name in names}
    kept = list(names)
    while len(kept) > _ALWAYS and sum(widths[name] + 2 for name in kept) - 2 > terminal_width():
        kept.pop()
    lines = [kept, *([written[name][place] for name in kept] for place in range(len(rows)))]
    numbers = frozenset(place for place, name in enumerate(kept) if _SHOWN[name][1] != "s")
    print_columns(lines, right=numbers)
    if len(kept) < len(names):
        left_out = ", ".join(names[len(kept) :])
        say(f"not shown: {left_out} (a wider terminal, or --json)", err=True)


def _word(value: Any, form: str) -> str:

    try:
        if value is None:
            return ""
        if form == "b":
            return format_bytes(value)
        if form == "n":
            return format_number(value)
        return format(value, form) if form else format_seconds(value)
    except (TypeError, ValueError):
        return "?"  # a result.json that somebody has edited
