"""An inspection for people: progress on stderr, one line per kind of trouble on stdout."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from muster.checks.inspection import Inspection, Trouble
from muster.cli.output import Interval, out_console, print_json, tinted
from muster.cli.views.waiting import Waiting
from muster.core.hostlist import fold_hosts
from muster.core.units import counted, format_seconds

QUIET = 5.0  # seconds between two lines where there is no terminal
SHOWN = 3  # different pieces of evidence per kind of trouble
_COLOURS = {"fail": "red", "warn": "yellow", "unknown": "dim", "note": "dim"}
_VERDICTS = {"fit": "green", "warning": "yellow", "unfit": "red", "unreachable": "red"}


class ProgressLine(Waiting):
    """Shows how many hosts have answered. A context manager; call it with (done, total, unreached)."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.live = console.is_terminal
        self.interval = Interval(QUIET)
        self.bar = Progress(
            TextColumn("[bold]hosts"),
            BarColumn(),
            TextColumn("{task.completed:.0f}/{task.total:.0f}{task.fields[lost]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        super().__init__(console, self.bar)
        self.task: TaskID | None = None

    def __call__(self, done: int, total: int, unreached: int) -> None:
        lost = f", {unreached} unreachable" if unreached else ""
        if self.live:
            if self.task is None:
                self.task = self.bar.add_task("hosts", total=total, lost="")
            self.bar.update(self.task, completed=done, lost=lost)
        elif self.interval.over():
            self.console.print(f"{done} of {total} hosts have answered{lost}")

    def announce(self, text: str) -> None:
        """Show what comes next, and is waited for."""
        if self.task is not None:
            self.bar.update(self.task, visible=False)
        self.now(text)


def print_inspection(inspection: Inspection, *, verbose: bool = False) -> None:
    """Print each kind of trouble with its hosts, evidence and remedy; then the summary. Notes only if
    `verbose`."""
    from muster.checks.group import GROUPED, NO_TORCH

    console = out_console()
    for trouble in inspection.troubles:
        if verbose or trouble.level != "note":
            _print_trouble(console, trouble)
    parts = tinted(inspection.summary, _VERDICTS)
    ranks = f"; slots for {counted(inspection.world_size, 'rank')}" if inspection.world_size else ""
    seconds = format_seconds(inspection.seconds)
    alone = [
        host.host
        for host in inspection.hosts
        if any(each.check == GROUPED.name and each.problem == NO_TORCH for each in host.checks)
    ]
    if alone:
        where = "everywhere" if len(alone) == len(inspection.hosts) else f"on {escape(fold_hosts(alone))}"
        console.print(
            f"[dim]torch is not installed for the ranks {where}: no group checks there; "
            "muster prepare installs it[/dim]"
        )
    console.print(f"{counted(len(inspection.hosts), 'host')}: {parts}{ranks} ({seconds})")


def _print_trouble(console: Console, trouble: Trouble) -> None:
    colour = _COLOURS[trouble.level]
    hosts = trouble.hosts if trouble.count == 1 else f"{trouble.hosts} ({trouble.count} hosts)"
    console.print(
        f"[{colour}]{trouble.level:<7}[/{colour}] [bold]{escape(hosts)}[/bold]  "
        f"{escape(trouble.problem)}  [dim]{trouble.check}[/dim]"
    )
    for seen in trouble.seen[:SHOWN]:
        where = f"{seen.hosts}: " if len(trouble.seen) > 1 else ""
        console.print(f"          {escape(where + seen.evidence)}")
    rest = sum(seen.count for seen in trouble.seen[SHOWN:])
    if rest:
        console.print(f"          [dim]and {rest} more hosts with other values; --json lists all[/dim]")
    if trouble.remedy:
        console.print(f"          [dim]remedy:[/dim] {escape(trouble.remedy)}")


def print_checks(profile: str | None, *, as_json: bool) -> None:
    """Print every check: what is asked, why, and what is expected."""
    from muster.checks.check import all_checks
    from muster.checks.profiles import load_profile

    checks = all_checks()
    chosen = load_profile(profile, checks)
    if as_json:
        print_json(
            [
                {
                    "name": each.name,
                    "asks": each.asks,
                    "why": each.why,
                    "expects": dict(chosen.expects[each.name]),
                    "skipped": each.name in chosen.skipped,
                }
                for each in checks
            ]
        )
        return
    console = out_console()
    for each in checks:
        skipped = " (skipped by the profile)" if each.name in chosen.skipped else ""
        console.print(f"[bold]{each.name}[/bold]{skipped}\n    {escape(each.asks)}")
        console.print(f"    [dim]otherwise:[/dim] {escape(each.why)}")
        expects: dict[str, Any] = dict(chosen.expects[each.name])
        if expects:
            words = ", ".join(f"{key} = {value}" for key, value in expects.items())
            console.print(f"    [dim]expects:[/dim] {escape(words)}")
