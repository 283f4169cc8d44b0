"""The result of a bench, and its schedule, for people."""

from __future__ import annotations

from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from muster.benches.commands import CLOCK
from muster.benches.document import Bench, Comparison, Curve
from muster.benches.folder import BenchFolder
from muster.cli.console import SafeConsole
from muster.cli.output import err_console, out_console, print_table, say_places, table
from muster.cli.views.verdicts import count_words, print_answer, print_hosts, print_notes, signed
from muster.core.hostlist import fold_hosts
from muster.core.result import JobEntry
from muster.core.units import counted, format_bytes, format_flops, format_seconds

SHOWN = 100  # jobs; of more, those that are not well
# Of a comparison, in this order: name in the document, heading.
_COMPARED = (
    ("samples_per_second", "samples/s"), ("training_seconds", "training"), ("seconds", "total"),
    ("memory", "memory"), ("loss", "loss"), ("evaluation_loss", "held-out loss"), ("exact_match", "exact"),
    ("execution_match", "same rows"),
)  # fmt: skip


def show_bench(folder: BenchFolder, *, json: bool) -> int:
    """Print how far a bench has come, and its result. Return the exit code."""
    from muster.benches.listing import bench_row
    from muster.cli.output import print_json

    row, bench = bench_row(folder), folder.read_result()
    state = (
        "damaged" if row is None else "running" if row.running else "ended" if row.complete else "not ended"
    )
    jobs, done = (row.jobs, row.done) if row else (None, None)
    if json:
        document = bench.model_dump(mode="json") if bench else None
        where = str(folder.path)
        print_json(
            {"id": folder.id, "path": where, "state": state, "jobs": jobs, "done": done, "result": document}
        )
        return 0
    console = out_console()
    console.print(f"{escape(folder.id)}\n  {state}: {done}/{jobs} finished")
    if bench:
        print_bench(bench, every=False)
    say_places(folder=folder.path, results=folder.result, table=folder.table, report=folder.report)
    if row and not row.running and not row.complete:
        console.print(f"  {'go on with':<22} {escape(folder.go_on)}")
    return 0


def bench_page(folder: BenchFolder, output: Path | None) -> Path:
    """Write a bench's tables as one HTML file. Raises RunFolderError where it has no result yet."""
    from muster.core.errors import RunFolderError
    from muster.store.atomic import write_text

    bench = folder.read_result()
    if bench is None:
        raise RunFolderError("has no results yet", where=folder.id, hint=f"`muster show {folder.id}`")
    console = SafeConsole(record=True, width=180, file=StringIO(), force_terminal=True, highlight=False)
    console.print(f"[bold]{escape(folder.id)}[/bold]  {escape(bench.suite)}\n")
    print_bench(bench, every=True, console=console)
    write_text(output or folder.report, console.export_html())
    return output or folder.report


def print_bench(bench: Bench, *, every: bool, console: Console | None = None) -> None:
    """Print the answer and the count; jobs, curves, comparison; hosts with evidence."""
    notes = console or err_console()
    console = console or out_console()
    print_answer(console, bench)
    console.print(f"{_count(bench)}\n")
    print_table(console, _jobs(bench, every=every))
    for curve in bench.curves:
        print_table(console, _curve(curve))
        for note in curve.notes:
            console.print(f"[yellow]note[/yellow] {escape(note)}")
    if bench.comparison:
        _comparison(console, bench.comparison)
    if bench.published:
        print_table(console, _published(bench))
    console.print()
    print_hosts(console, bench, every=every)
    print_notes(notes, bench)


def figure_words(name: str, value: float | None) -> str:
    """Return a figure as people read it."""
    if value is None:
        return ""
    if name == "memory":
        return format_bytes(int(value))
    if name.endswith("seconds") and name != "step_seconds":
        return format_seconds(value)
    if name in ("exact_match", "execution_match", "mfu", "variation", "skipped_share"):
        return f"{value:.1%}"
    if name == "busbw":
        return f"{8 * value / 1e9:.3g} Gbit/s"
    if name in ("matmul", "flops_per_second"):
        return format_flops(value)
    return f"{value:.4f}" if "loss" in name else f"{value:.4g}" if value < 1000 else f"{value:,.0f}"


def _jobs(bench: Bench, *, every: bool) -> Table:
    """Return a row per job; of many, those that did not end well, or missed a threshold."""
    made = table("job", "hosts", "outcome", "result", ">memory", ">time", ">peers", "why")
    shown = bench.jobs
    if not every and len(shown) > SHOWN:
        shown = [job for job in shown if not job.outcome.good or job.misses][:SHOWN]
        made.caption = f"{len(bench.jobs) - len(shown)} jobs that succeeded are not shown; --all shows them"
    for job in shown:
        made.add_row(
            escape(job.job),
            escape(fold_hosts(job.hosts)),
            f"[{job.outcome.colour}]{job.outcome}[/]",
            _result(job),
            figure_words("memory", job.figures.get("memory")),
            "" if job.took is None else format_seconds(job.took),
            "" if job.slower is None else signed(job.slower),
            escape(_why(job)),
        )
    return made


def _result(job: JobEntry) -> str:
    if job.warm_up:
        return "warm-up"
    names = [("samples_per_second", "samples/s"), ("busbw", ""), ("matmul", "")]
    if job.measure is not None:
        names = [*names[:1], ("tokens_per_second", "tokens/s"), ("step_seconds", "s a step")]
        names = [("seconds", "")] if job.measure == CLOCK else names
    for name, unit in names:
        if name in job.figures:
            return f"{figure_words(name, job.figures[name])} {unit}".strip()
    return ""


def _why(job: JobEntry) -> str:
    """Return why a job did not end well, or what it missed."""
    if job.misses:
        return "; ".join(job.misses)
    if job.not_measured:
        return f"not a measurement: {'; '.join(job.not_measured)}"
    if job.outcome.good:
        extra = [f"an extra job for {', '.join(job.leftover)}"] if job.leftover else []
        return "; ".join([*extra, *job.notes])
    parts = [job.failed_host, job.reason or "reason unknown"]
    return ": ".join(part for part in parts if part) + (f" (hint: {job.hint})" if job.hint else "")


def _curve(curve: Curve) -> Table:
    heads = (">hosts", ">ranks", ">jobs", ">samples/s", ">spread", ">speed-up", ">efficiency")
    made = table(*heads, title=f"{curve.entry}: {curve.kind} scaling")
    for point in curve.points:
        efficiency = "" if point.efficiency is None else f"{point.efficiency:.1%}"
        made.add_row(
            *map(str, (point.hosts, point.ranks, point.jobs)),
            f"{point.samples_per_second:,.1f}",
            "" if point.variation is None else f"{point.variation:.1%}",
            "" if point.speedup is None else f"{point.speedup:.2f}",
            "not a measurement" if point.not_measured else efficiency,
        )
    return made


def _comparison(console: Console, comparison: Comparison) -> None:
    """Print entries side by side; then what else differs."""
    paths = dict.fromkeys(path for row in comparison.rows for path in row.settings)
    settings = [path for path in paths if path.count(".") <= 1 and not path.endswith(".options")][:5]
    present = [each for each in _COMPARED if any(each[0] in row.figures for row in comparison.rows)]
    made = table("entry", "hosts", *settings, *(f">{heading}" for _, heading in present), title="comparison")
    for row in comparison.rows:
        made.add_row(
            escape(row.entry),
            str(row.hosts),
            *(escape(row.settings.get(path, "")) for path in settings),
            *(figure_words(name, row.figures.get(name)) for name, _ in present),
        )
    print_table(console, made)
    for path, values in comparison.confounded_by.items():
        listed = ", ".join(f"{name}: {value}" for name, value in values.items())
        console.print(f"[yellow]confounded[/yellow] {escape(path)} differs as well ({escape(listed)})")


def _published(bench: Bench) -> Table:
    """Return published figures of the same recipes; where they had another device or number of ranks, that is
    stated, and the figure is scaled by the ranks."""
    heads = ("entry", ">ranks", ">samples/s", ">published", ">ratio", ">memory", ">published", "published on")
    made = table(*heads, title="compared with published figures")
    for each in bench.published:
        where = f"{each.published_ranks} x {each.published_on}, {each.source}"
        if each.published_ranks != each.ranks:
            where += "; scaled by the ranks"
        if not each.same_device:
            where += f"; measured on {', '.join(each.devices) or 'an unknown device'}"
        made.add_row(
            escape(each.entry),
            str(each.ranks),
            f"{each.samples_per_second:,.2f}",
            f"{each.published:,.2f}",
            f"{each.ratio:.1%}",
            figure_words("memory", each.memory),
            figure_words("memory", each.published_memory),
            escape(where),
        )
    if bench.overrides:
        made.caption = f"with changes: {escape(' '.join(bench.overrides))}"
    return made


def _count(bench: Bench) -> str:
    missed = sum(bool(job.misses) for job in bench.jobs)
    more = f", {missed} below a threshold" if missed else ""
    open_ = "" if bench.complete else "; incomplete"
    return f"{count_words(bench)}{more}{open_} ({format_seconds(bench.ended - bench.started)})"


def print_schedule(plan: Mapping[str, Any], *, every: bool) -> None:
    """Print what would run at the same time, job by job."""
    console = out_console()
    about = f": {escape(plan['about'])}" if plan["about"] else ""
    console.print(f"{escape(plan['suite'])}{about}")
    checks = "inspected first; unfit ones take no part" if plan["check"] else "not inspected"
    console.print(f"{counted(len(plan['hosts']), 'host')} ({escape(fold_hosts(plan['hosts']))}), {checks}")
    jobs = {job["id"]: job for job in plan["jobs"]}
    made = table(">wave", "job", "hosts", ">timeout", "")
    for number, wave in enumerate(plan["waves"], 1):
        for identity in wave if every else wave[:SHOWN]:
            job = jobs[identity]
            hosts, timeout = escape(fold_hosts(job["hosts"])), format_seconds(job["timeout"])
            remark = f"for {escape(', '.join(job['leftover']))}, left over" if job["leftover"] else ""
            remark = "warm-up, before the others of its entry" if job["warm_up"] else remark
            made.add_row(str(number), escape(identity), hosts, timeout, remark)
        if len(wave) > SHOWN and not every:
            made.add_row(str(number), f"and {len(wave) - SHOWN} more (--all)", "", "", "")
    print_table(console, made)
    for note in plan["notes"]:
        console.print(f"[yellow]note[/yellow] {escape(note)}")
    most = format_seconds(plan["at_most_seconds"])
    console.print(
        f"{counted(len(jobs), 'job')}, at most {plan['at_once']} at once; a wave is what could run at once. "
        f"If every job took all of its time: {most}"
    )
