"""What every verb prints the same way: data to stdout, messages to stderr."""

from __future__ import annotations

import json
import math
import os
import sys
from typing import TYPE_CHECKING, Any

from muster.core.printable import clean, scrubbed_data, spelt_out

if TYPE_CHECKING:
    from rich.console import Console

    from muster.core.result import Attention, Flops, Quality, Result
    from muster.store.runfolder import RunFolder


def err_console() -> Console:
    """Messages and progress. rich respects NO_COLOR and knows a terminal from a pipe."""
    from muster.cli.console import SafeConsole

    return SafeConsole(stderr=True, highlight=False, soft_wrap=True)


def out_console(*, soft_wrap: bool = True, width: int | None = None) -> Console:
    """Results for people."""
    from muster.cli.console import SafeConsole

    return SafeConsole(highlight=False, soft_wrap=soft_wrap, width=width)


def say(text: object, *, end: str = "\n", err: bool = False) -> None:
    """A line as it is, but for what a terminal would obey."""
    print(clean(str(text)), end=end, file=sys.stderr if err else sys.stdout, flush=True)


def print_json(data: Any) -> None:
    """One document on stdout. JSON has no infinite numbers and no NaN: they become null."""
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
    """One line and a hint on stderr; with --json the same as a document on stdout."""
    if as_json:
        print_json({"error": {"message": message, "hint": hint, **(detail or {})}})
    say("\n".join(wrapped(f"error: {message}", err=True)), err=True)
    if hint:
        say(f"hint: {hint}", err=True)
    return code


def wrapped(text: str, indent: int = 0, *, err: bool = False) -> list[str]:
    """The lines of a text that begins in column `indent`, broken at spaces as a terminal needs it."""
    import textwrap

    room = max(20, terminal_width(err=err) - indent)
    lines = [
        textwrap.wrap(line, room, break_long_words=False, break_on_hyphens=False)
        for line in text.splitlines()
    ]
    return [part for line in lines for part in line or [""]] or [""]


def print_row(console: Console, name: str, value: str, *, style: str = "dim", width: int = 22) -> None:
    """A name and what belongs to it, in lines below each other."""
    from rich.markup import escape

    begin = " " * (width + 3)
    text = f"\n{begin}".join(wrapped(value, len(begin)))
    console.print(f"  [{style}]{name:<{width}}[/{style}] {escape(text)}")


def print_columns(rows: list[list[str]], *, right: frozenset[int] = frozenset()) -> None:
    """Rows in columns, to stdout. The last column is wrapped at spaces where a terminal is too narrow."""
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
    """Of stdout, or of stderr; a pipe has no width to fit into."""
    try:
        return os.get_terminal_size((sys.stderr if err else sys.stdout).fileno()).columns or 80
    except (OSError, ValueError):
        return 1000


def print_result(result: Result, run: RunFolder) -> None:
    """A result for a person."""
    from rich.markup import escape

    from muster.cli.output import print_tables

    console = out_console()
    for name, value in result_rows(result):
        print_row(console, name, value)
    if result.fabric:
        print_tables(console, result.fabric)
        console.print()
    for note in result.notes:
        print_row(console, "note", note, style="yellow")
    if result.failure:
        failure = result.failure
        place = ": ".join(part for part in (failure.host, failure.where) if part)
        err_console().print(
            f"[red]{result.status}[/red]: {escape(f'{place}: ' if place else '')}{escape(failure.what)}"
        )
        if failure.hint:
            err_console().print(f"hint: {escape(failure.hint)}")
        if failure.id:
            err_console().print(f"known as {failure.id}")


def print_afterwards(run: RunFolder, *, asked: bool = False) -> None:
    """What to type next, and how to load the trained model without Muster. Nothing is indented: it can be
    pasted as it stands."""
    from muster.runs.afterwards import loading_lines, next_command
    from muster.store.runfolder import from_here

    console = err_console()
    lines = loading_lines(run)
    if lines:
        console.print(f"{from_here(run.model)} is a Transformers folder; in Python:", markup=False)
        console.print(lines, markup=False)
    console.print(f"next        {next_command(run, asked=asked)}", markup=False)


def result_rows(result: Result) -> list[tuple[str, str]]:
    """The figures of a result as (name, text); unknown ones are left out."""
    from muster.cli.output import fabric_rows
    from muster.core.units import counted, format_bytes, format_count, format_number, format_seconds

    if result.fabric:
        return fabric_rows(result, result.fabric)
    rows = [
        ("status", result.status),
        ("model", f"{result.model}, {format_count(result.parameters)} parameters"),
        (
            "spread",
            f"{result.engine}, {result.precision}, {counted(result.world_size, 'rank')} on "
            f"{counted(len(result.hosts), 'host')}",
        ),
        ("steps", f"{result.steps} of {result.global_batch} samples ({result.skipped_steps} skipped)"),
    ]
    if result.loss_final is not None:
        once = result.loss_first is None or result.loss_first == result.loss_final  # a single window
        first = "" if once else f"{result.loss_first:.4f} -> "
        rows.append(("loss", f"{first}{result.loss_final:.4f}"))
    if result.evaluation_loss is not None:
        told = f" (perplexity {result.perplexity:.2f})" if result.perplexity is not None else ""
        rows.append(("held-out loss", f"{result.evaluation_loss:.4f}{told}"))
    speed = result.throughput
    if speed:
        spread = f" (varies by {100 * speed.variation:.1f} %)" if speed.variation is not None else ""
        tokens = f", {format_count(speed.tokens_per_second)} tokens/s" if speed.tokens_per_second else ""
        rows.append(("throughput", f"{format_number(speed.samples_per_second)} samples/s{tokens}{spread}"))
        median, p95 = format_seconds(speed.step_seconds_median), format_seconds(speed.step_seconds_p95)
        rows.append(("step time", f"{median} median, {p95} p95"))
    if result.flops:
        rows.append(("model FLOPs", flops_words(result.flops)))
    peak = result.memory.allocator_peak or result.memory.resident_peak
    if peak:
        kind = "allocator" if result.memory.allocator_peak else "resident"
        rows.append(("memory of a rank", f"{format_bytes(peak)} peak ({kind})"))
    if result.attention:
        rows.append(("attention logits", attention_words(result.attention)))
    if result.planned:
        rows.append(("planned", planned_words(result)))
    quality = result.quality
    if quality:
        executed = (
            f", {100 * quality.execution_match:.1f} % same rows from the database{of_scored(quality)}"
            if quality.execution_match is not None
            else ""
        )
        rows.append(
            (
                "held-out questions",
                f"{quality.questions}: {100 * quality.exact_match:.1f} % {quality.metric}{executed}",
            )
        )
    seconds = result.seconds
    parts = [
        f"{name} {format_seconds(value)}"
        for name, value in (
            ("training", seconds.training),
            ("evaluation", seconds.evaluation),
            ("saving", seconds.saving),
        )
        if value
    ]
    rows.append(
        (
            "time",
            f"{format_seconds(seconds.total)} ({', '.join(parts)})"
            if parts
            else format_seconds(seconds.total),
        )
    )
    return rows


def of_scored(quality: Quality) -> str:
    """Of how many questions the same rows are a share, where it is not all of them."""
    return "" if quality.scored in (None, quality.questions) else f" (of {quality.scored:,})"


def attention_words(found: Attention) -> str:
    """The extremes of the whole run, and where they were."""
    ends = [
        f"{name} {each.logit:.4g} ({each.layer}, step {each.step})"
        for name, each in (("largest", found.largest), ("smallest", found.smallest))
        if each
    ]
    return ", ".join(ends) or "none was finite"


def planned_words(result: Result) -> str:
    """What the plan had said, and how far what was measured is from it."""
    from muster.core.units import format_bytes, format_number

    plan = result.planned
    assert plan is not None
    words = []
    if plan.memory:
        how = "" if plan.traced else " by closed form"
        words.append(f"memory {format_bytes(plan.memory)}{how}{_apart(result.memory_beside_plan)}")
    if plan.samples_per_second:
        words.append(f"{format_number(plan.samples_per_second)} samples/s{_apart(result.speed_beside_plan)}")
    return "; ".join(words)


def _apart(beside: float | None) -> str:
    return "" if beside is None else f" (measured {100 * beside:+.1f} %)"


def flops_words(flops: Flops) -> str:
    """FLOP/s of a device, and what share of its peak that is; hardware's too where it does more."""
    from muster.core.units import format_flops

    more = flops.hardware_per_second > flops.model_per_second
    words = f"{format_flops(flops.model_per_second)} per device"
    if flops.mfu is None or flops.peak is None:
        again = f" ({format_flops(flops.hardware_per_second)} with recomputation)" if more else ""
        return f"{words}{again}, MFU unknown: the device's peak is unknown"
    hfu = f", HFU {100 * flops.hfu:.1f} %" if more and flops.hfu is not None else ""
    return f"{words}, MFU {100 * flops.mfu:.1f} %{hfu} of {format_flops(flops.peak)} ({flops.peak_source})"


def print_answers(rows: list[dict[str, Any]], limit: int | None = None) -> None:
    """Questions, predictions and what was expected, as a table."""
    from rich.markup import escape
    from rich.table import Table

    judged = bool(rows) and "expected" in rows[0]
    table = Table(show_lines=True)
    table.add_column("question", ratio=2, overflow="fold")
    table.add_column("prediction", ratio=3, overflow="fold")
    if judged:
        table.add_column("expected", ratio=3, overflow="fold")
        table.add_column("", no_wrap=True)
    for row in rows[:limit]:
        cells = [escape(row["question"]), escape(row["predicted"])]
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
        table.add_row(*cells)
    out_console(soft_wrap=False).print(table)


# ----------------------------------------------------------------------------------------------------
# What a run that measured the fabric prints: figures, the sweep, and a small matrix of pairs.

if TYPE_CHECKING:
    from rich.console import Console

    from muster.core.fabric.result import FabricRun
    from muster.core.result import Result

_MOST_NAMES = 8  # of a matrix on a terminal; the whole of it is in the run folder


def fabric_rows(result: Result, fabric: FabricRun) -> list[tuple[str, str]]:
    """The figures as (name, text)."""
    from muster.core.units import counted, format_seconds
    from muster.reports.fabric_tables import summary

    where = f"{counted(result.world_size, 'rank')} on {counted(len(result.hosts), 'host')}"
    return [
        ("status", result.status),
        ("measured", f"{where}, {fabric.backend} on {fabric.device}"),
        *summary(fabric),
        ("time", format_seconds(result.seconds.total)),
    ]


def print_tables(console: Console, fabric: FabricRun) -> None:
    """The sweep, and the pairs where they are few."""
    from muster.reports.fabric_tables import pair_rows, sweep_rows

    if fabric.sweeps:
        columns, rows = sweep_rows(fabric)
        _table(console, "bus bandwidth by message size, Gbit/s", columns, rows)
    if fabric.pairs and len(fabric.pairs.names) <= _MOST_NAMES:
        columns, rows = pair_rows(fabric.pairs)
        _table(console, "point to point, from row to column, Gbit/s", columns, rows)


def _table(console: Console, title: str, columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 2))
    for index, name in enumerate(columns):
        table.add_column(escape(name), justify="right" if index else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(escape(cell) for cell in row))
    console.print()
    console.print(table)
