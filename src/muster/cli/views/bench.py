"""A bench as it runs, on stderr: live tables of jobs and hosts on a terminal, lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from muster.benches.bench import BenchWatcher
from muster.benches.child import Child
from muster.benches.clock import durations, remaining
from muster.benches.document import JobRecord
from muster.benches.schedule import Task
from muster.cli.output import Interval, table
from muster.core.hostlist import fold_hosts
from muster.core.state import State
from muster.core.units import counted, format_number, format_seconds

SHOWN = 12  # running jobs in the live table
QUIET = 30.0  # seconds between two lines where there is no terminal
TURN = 0.5  # seconds between two pictures


class BenchView(BenchWatcher):
    """Shows a running bench. A context manager."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        self.drawn, self.counts, self.answers = Interval(TURN), Interval(QUIET), Interval(5.0)
        self.at_once: int | None = None

    def __enter__(self) -> BenchView:
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.live.stop()

    def announce(self, text: str) -> None:
        """Show what comes next."""
        self.console.print(f"[dim]{escape(text)}[/dim]")

    def progress(self, done: int, total: int, unreached: int) -> None:
        """Show how many hosts have answered the inspection."""
        if self.answers.over():
            self.announce(f"{done} of {total} hosts answered, {unreached} unreachable")

    def begins(self, at_once: int) -> None:
        """Show that the jobs begin, so many at a time."""
        self.at_once = at_once

    def began(self, task: Task, run: Path) -> None:
        """Show that a job was started."""
        if not self.live:
            self.console.print(f"[dim]started  {escape(task.id)}  on {escape(fold_hosts(task.hosts))}[/dim]")

    def ended(self, task: Task, record: JobRecord | None) -> None:
        """Show that a job is over; None: it was stopped."""
        if record is None:
            self.console.print(f"[yellow]stopped  [/yellow]{escape(task.id)}: it will be run again")
        elif record.outcome.good:
            took = format_seconds(record.took)
            self.console.print(f"[green]done     [/green]{escape(task.id)}  {took}{_speed(record)}")
        else:
            word = "timeout  " if record.outcome is State.TIMEOUT else "failed   "
            host = f"{record.failed_host}: " if record.failed_host else ""
            why = f"{host}{record.reason or 'reason unknown'}"
            self.console.print(f"[red]{word}[/red]{escape(task.id)}  {escape(why)}")

    def turn(self, children: Sequence[Child], tasks: Sequence[Task], done: Mapping[str, JobRecord]) -> None:
        """Update the picture; called a few times a second."""
        if self.live and self.drawn.over():
            self.live.update(self.picture(children, tasks, done), refresh=True)
        elif not self.live and self.counts.over():
            under_way = ", ".join(f"{child.task.id} ({child.words or 'starting'})" for child in children[:4])
            self.announce(f"{self._counted(tasks, done)}; {len(children)} running: {under_way}")

    def _counted(self, tasks: Sequence[Task], done: Mapping[str, JobRecord]) -> str:
        """Return "12/20 finished, 0 failed, about 3 min for the rest"."""
        failed = sum(not record.outcome.good for record in done.values())
        left, unknown = remaining(tasks, done, durations(done.values()), self.at_once)
        more = f", about {format_seconds(left)} for the rest" if left else ""
        more += f" without {counted(unknown, 'job')} of a new kind" if left and unknown else ""
        return f"{len(done)}/{len(tasks)} finished, {failed} failed{more}"

    def picture(
        self, children: Sequence[Child], tasks: Sequence[Task], done: Mapping[str, JobRecord]
    ) -> Group:
        """Return running jobs; hosts by what they do and how their jobs ended; the count."""
        now = time.monotonic()
        jobs = table("job", "hosts", ">time", ">of", "", padding=(0, 2, 0, 0))
        for child in children[:SHOWN]:
            limit = format_seconds(child.task.timeout)
            took = format_seconds(now - child.begun)
            words = f"stopping: {child.stopped}" if child.stopped else child.words
            jobs.add_row(
                escape(child.task.id), escape(fold_hosts(child.task.hosts)), took, limit, escape(words[:70])
            )
        if len(children) > SHOWN:
            jobs.add_row(f"and {len(children) - SHOWN} more", "", "", "", "")
        count = Text(f"{self._counted(tasks, done)}; {len(children)} running")
        return Group(jobs, self._hosts(children, tasks, done), count)

    def _hosts(
        self, children: Sequence[Child], tasks: Sequence[Task], done: Mapping[str, JobRecord]
    ) -> Table:
        """Return a row per state: hosts at work, waiting, done; and those with jobs that did not end well."""
        busy = {host for child in children for host in child.task.hosts}
        due = {host for task in tasks if task.id not in done for host in task.hosts}
        involved = {host for task in tasks for host in task.hosts}
        bad = {
            host
            for task in tasks
            if (record := done.get(task.id)) and not record.outcome.good
            for host in ([record.failed_host] if record.failed_host else task.hosts)
        }
        rows = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
        for name, colour, members in (
            ("working", "cyan", busy),
            ("waiting", "dim", due - busy),
            ("done", "green", involved - due - busy),
            ("in failed jobs", "red", bad),
        ):
            if members:
                rows.add_row(
                    f"[{colour}]{name}[/{colour}]", f"{len(members)}", escape(fold_hosts(members)[:100])
                )
        return rows


def _speed(record: JobRecord) -> str:
    speed = record.result.throughput if record.result else None
    return f", {format_number(speed.samples_per_second)} samples/s" if speed else ""
