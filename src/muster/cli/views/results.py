"""A result for a person: its figures, the fabric's tables, what to type next, answers."""

from __future__ import annotations

import shlex
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from muster.cli.output import err_console, out_console, print_row, table
from muster.core.fabric.result import FabricRun
from muster.core.result import Attention, CommandRun, Failure, Flops, Quality, Result
from muster.core.units import (
    counted,
    format_bytes,
    format_count,
    format_flops,
    format_number,
    format_seconds,
)
from muster.reports.fabric_tables import pair_rows, summary, sweep_rows
from muster.runs.afterwards import loading_lines, next_command
from muster.store.runfolder import RunFolder, from_here

_MOST_NAMES = 8  # of a matrix on a terminal; the whole of it is in the run folder


def print_result(result: Result) -> None:
    """A result for a person."""
    console = out_console()
    for name, value in result_rows(result):
        print_row(console, name, value)
    if result.fabric:
        print_tables(console, result.fabric)
        console.print()
    for note in result.notes[len(result.caveats) :]:  # which the status has
        print_row(console, "note", note, style="yellow")
    if result.failure:
        print_failure(result.status, result.failure)


def print_failure(status: str, failure: Failure) -> None:
    """Why a run or a pipeline did not succeed, and what helps."""
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
    """What to type next, and how to load the trained model without Muster. Nothing is indented: it can be
    pasted as it stands."""
    console = err_console()
    lines = loading_lines(run)
    if lines:
        console.print(f"{from_here(run.model)} is a Transformers folder; in Python:", markup=False)
        console.print(lines, markup=False)
    console.print(f"next        {next_command(run, asked=asked)}", markup=False)


def result_rows(result: Result) -> list[tuple[str, str]]:
    """The figures of a result as (name, text); unknown ones are left out."""
    if result.fabric:
        return fabric_rows(result, result.fabric)
    if result.command:
        return command_rows(result, result.command)
    rows = [
        ("status", result.outcome),
        ("model", f"{result.model}, {format_count(result.parameters)} parameters"),
        (
            "spread",
            f"{result.engine}, {result.precision}, {counted(result.world_size, 'rank')} on "
            f"{counted(len(result.hosts), 'host')}",
        ),
        ("steps", f"{result.steps} of {result.global_batch} samples ({result.skipped_steps} skipped)"),
    ]
    rows += loss_rows(result)
    if result.evaluation_loss is not None:
        told = f" (perplexity {result.perplexity:.2f})" if result.perplexity is not None else ""
        rows.append(("held-out loss", f"{result.evaluation_loss:.4f}{told}"))
    for each in result.figures:
        held = f"{each.held_out:.4g} held out" if each.held_out is not None else ""
        rows.append((each.called, ", ".join(filter(None, (each.course, held)))))
    speed = result.throughput
    if speed:
        spread = f" (varies by {100 * speed.variation:.1f} %)" if speed.variation is not None else ""
        tokens = f", {format_count(speed.tokens_per_second)} tokens/s" if speed.tokens_per_second else ""
        rows.append(("throughput", f"{format_number(speed.samples_per_second)} samples/s{tokens}{spread}"))
        median, p95 = format_seconds(speed.step_seconds_median), format_seconds(speed.step_seconds_p95)
        share = speed.data_share
        getting = f", {100 * share:.1f} % of it getting batches" if share is not None else ""
        rows.append(("step time", f"{median} median, {p95} p95{getting}"))
    if result.pace and result.pace.words:
        rows.append(("pace", result.pace.words))
    if result.phases:
        parts = [
            f"{each.name} {100 * each.share:.0f} % ({format_number(each.samples_per_second)} samples/s)"
            for each in result.phases
            if each.samples_per_second is not None
        ]
        rows.append(("of a step", ", ".join(parts)))
    if result.flops:
        rows.append(("model FLOPs", flops_words(result.flops)))
    peak = result.memory.allocator_peak or result.memory.resident_peak
    if peak:
        kind = "allocator" if result.memory.allocator_peak else "resident"
        rows.append(("memory of a rank", f"{format_bytes(peak)} peak ({kind})"))
    rows += [line for profile in result.profiles for line in profile.lines]
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
    more = flops.hardware_per_second > flops.model_per_second
    words = f"{format_flops(flops.model_per_second)} per device"
    if flops.mfu is None or flops.peak is None:
        again = f" ({format_flops(flops.hardware_per_second)} with recomputation)" if more else ""
        return f"{words}{again}, MFU unknown: the device's peak is unknown"
    hfu = f", HFU {100 * flops.hfu:.1f} %" if more and flops.hfu is not None else ""
    return f"{words}, MFU {100 * flops.mfu:.1f} %{hfu} of {format_flops(flops.peak)} ({flops.peak_source})"


def shown(answer: str) -> str:
    """An answer for people."""
    return answer if answer.strip() else "(empty answer)"


def print_answers(rows: list[dict[str, Any]]) -> None:
    """Questions, predictions and what was expected, as a table."""
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


def loss_rows(result: Result) -> list[tuple[str, str]]:
    """How the loss went, where it was told."""
    if result.loss_final is None:
        return []
    once = result.loss_first is None or result.loss_first == result.loss_final  # a single window
    first = "" if once else f"{result.loss_first:.4f} -> "
    return [("loss", f"{first}{result.loss_final:.4f}")]


def command_rows(result: Result, run: CommandRun) -> list[tuple[str, str]]:
    """The figures of a command as (name, text); unknown ones are left out."""
    where = f"{counted(result.world_size, 'rank')} on {counted(len(result.hosts), 'host')}"
    rows = [
        ("status", result.status),
        ("command", shlex.join(run.command)),
        (
            "started",
            f"{where}, by {run.start}" if run.start == "torchrun" else f"{where}, once per {run.start}",
        ),
    ]
    if run.code:
        sent = f", {format_bytes(run.code.sent)} sent" if run.code.sent else ""
        size = f"{counted(run.code.files, 'file')}, {format_bytes(run.code.bytes)}{sent}"
        rows.append(("code", f"{run.code.digest[:16]} of {run.code.folder} ({size})"))
    if run.told_by:
        rows.append(("steps", f"{result.steps}, as {run.told_by} tells"))
    rows += loss_rows(result)
    if run.rate is not None:
        spread = f" (varies by {100 * run.variation:.1f} %)" if run.variation is not None else ""
        rows.append(("throughput", f"{format_number(run.rate)} {run.unit}/s{spread}"))
    if run.step_seconds is not None:
        rows.append(("step time", format_seconds(run.step_seconds)))
    if result.pace and result.pace.words:
        rows.append(("pace", result.pace.words))
    return [*rows, ("time", format_seconds(result.seconds.total))]


def fabric_rows(result: Result, fabric: FabricRun) -> list[tuple[str, str]]:
    """The figures as (name, text)."""
    where = f"{counted(result.world_size, 'rank')} on {counted(len(result.hosts), 'host')}"
    return [
        ("status", result.status),
        ("measured", f"{where}, {fabric.backend} on {fabric.device}"),
        *summary(fabric),
        ("time", format_seconds(result.seconds.total)),
    ]


def print_tables(console: Console, fabric: FabricRun) -> None:
    """The sweep, and the pairs where they are few."""
    if fabric.sweeps:
        columns, rows = sweep_rows(fabric)
        _table(console, "bus bandwidth by message size, Gbit/s", columns, rows)
    if fabric.pairs and len(fabric.pairs.names) <= _MOST_NAMES:
        columns, rows = pair_rows(fabric.pairs)
        _table(console, "point to point, from row to column, Gbit/s", columns, rows)


def _table(console: Console, title: str, columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    first, *others = map(escape, columns)
    made = table(first, *(f">{name}" for name in others), title=title, padding=(0, 2, 0, 2))
    for row in rows:
        made.add_row(*map(escape, row))
    console.print()
    console.print(made)
