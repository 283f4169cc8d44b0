"""Live progress on stderr: a bar on a terminal, a line from time to time elsewhere."""

from __future__ import annotations

import math
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from muster.cli.output import Interval, err_console
from muster.cli.views.waiting import Waiting
from muster.core.job import WARNINGS, Job
from muster.core.recipe import recipe_class
from muster.core.result import Pace, Result
from muster.core.units import counted, format_bytes, format_count, format_number, format_seconds
from muster.runs.follow import follow
from muster.store import events
from muster.store.runfolder import RunFolder

COMPILING = "50 s"  # for DeepSpeed's Adam on one idle core
QUIET = 5.0  # seconds between two lines where there is no terminal
_PHASES = {
    "verify": "checking the checkpoint's files",
    "copy": "copying the checkpoint to hosts that lack it",
    "load": "loading data and model",
    "train": "preparing the ranks",
    "steps": "training",
    "evaluate": "measuring the held-out loss",
    "save": "saving the model",
    "answer": "answering held-out questions",
    "rendezvous": "connecting the ranks",
    "matmul": "matrix products on every device",
    "values": "checking the values of collectives",
    "latency": "latency of a small all-reduce",
    "points": "bandwidth of pairs of hosts",
    "product": "a matrix product over all ranks",
    "beside": "computation during communication",
}


class _Steps(ProgressColumn):
    """Shows the steps done of all steps; a command does not state how many there will be."""

    def render(self, task: Task) -> Text:
        of = "" if task.total is None else f"/{task.total:.0f}"
        return Text(f"{task.completed:.0f}{of} steps")


class ProgressView(Waiting):
    """Shows a job's events. A context manager."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.live = console.is_terminal
        self.bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            _Steps(),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(),
            console=console,
            transient=False,
        )
        super().__init__(console, self.bar)
        self.task: Any = None
        self.world_size = 1
        self.windows: dict[int, list[events.Window]] = {}
        self.loss: float | None = None
        self.rate: float | None = None
        self.unit = "samples"
        self.tokens = 0.0  # per second; images have none
        self.interval = Interval(QUIET, at_once=True)
        self.phases: set[str] = set()
        self.phase: str | None = None  # in words
        self.compiling: set[tuple[str | None, int | None]] = set()  # (host, rank)
        self.names = _PHASES
        self.slow: set[tuple[str, str, str | None]] = set()  # who holds the job up: host, what, other end

    def announce(self, job: Job) -> None:
        """Print what is about to run, once hosts have agreed."""
        self.now(None)
        self.world_size = job.world_size
        hosts = ", ".join(f"{place.host} ({place.slots})" for place in job.placements[:8])
        more = f" and {len(job.placements) - 8} more" if len(job.placements) > 8 else ""
        batch = job.batch
        trains = recipe_class(job.recipe.get("workload")).trains
        self.names = _PHASES if trains else {**_PHASES, "load": "loading torch"}
        what = (
            f"{job.precision} on {job.device}; "
            f"global batch {batch.global_} = {batch.micro} x {batch.accumulation} x {job.world_size}"
        )
        if recipe_class(job.recipe.get("workload")).foreign:
            self.task = self.bar.add_task("running", total=None, figures="")
        where = f"{counted(job.world_size, 'rank')} on {counted(len(job.placements), 'host')}: {hosts}{more}"
        self.console.print(f"{where}; {what if trains else job.device}")
        for decision in job.decisions:
            if decision.value in WARNINGS:
                self.console.print(
                    f"[yellow]warning: {decision.field} {decision.value}: {decision.why}[/yellow]"
                )
            else:
                self.console.print(f"  [dim]{decision.field} = {decision.value}: {decision.why}[/dim]")
        if job.resume_step:
            self.console.print(f"resuming from the checkpoint of step {job.resume_step}")
        elif job.attempt > 1 and trains:
            self.console.print("no complete checkpoint on every host: starting from the first step")

    def __call__(self, event: events.Event) -> None:
        """Show one event."""
        if isinstance(event, events.Started) and event.rank == 0:
            self.task = self.bar.add_task("training", total=event.total_steps, figures="")
        elif isinstance(event, events.Log):
            self.loss = event.loss
            self._refresh(event.step)
        elif isinstance(event, events.Progress):
            self.loss = math.nan if event.not_finite else event.loss
            self.rate, self.unit = event.rate, event.unit
            self._refresh(event.step)
        elif isinstance(event, events.Window):
            self._window(event)
        elif isinstance(event, events.Phase):
            self._phase(event)
        elif isinstance(event, events.Hanging):
            self.console.print(f"[yellow]no progress for {event.found.seconds:.0f} s[/yellow]", end=": ")
            self.console.print(event.found.what, markup=False)
        elif isinstance(event, events.Paced):
            self._paced(event.found)
        elif isinstance(event, events.DataRead):
            cut = f", {event.cut} cut to length" if event.cut else ""
            skipped = f", {event.skipped} skipped" if event.skipped else ""
            self.console.print(f"{event.train} training samples, {event.validation} held out{cut}{skipped}")
        elif isinstance(event, events.Saved) and event.step is not None:
            size, seconds = format_bytes(event.bytes), format_seconds(event.seconds)
            self.console.print(f"[dim]checkpoint at step {event.step}: {size} in {seconds}[/dim]")
        elif isinstance(event, events.Split):
            self.console.print(f"[dim]samples of a micro-step per rank: {_listed(event.shares)}[/dim]")
        elif isinstance(event, events.Evaluated):
            more = f", perplexity {event.perplexity:.2f}," if event.perplexity is not None else ""
            for name, value in event.figures.items():
                more += f", {name.replace('_', ' ')} {value:.4g}"
            loss = f"loss {event.loss:.4f}" if event.loss is not None else "answers"
            self.console.print(f"held-out {loss}{more} at step {event.step}")

    def _paced(self, pace: Pace) -> None:
        """Print which host holds the job up, where that has changed."""
        now = [each for each in pace.stragglers if each.last_step is None]
        for each in now:
            if (each.host, each.kind, each.to) not in self.slow:
                self.console.print(f"step {each.first_step}: {each.words}", style="yellow", markup=False)
        if self.slow and not now:
            self.console.print("no host holds the others up any more", style="dim")
        self.slow = {(each.host, each.kind, each.to) for each in now}

    def _phase(self, event: events.Phase) -> None:
        """Show what the first rank does; and what any rank compiles, which all others wait for."""
        if event.name == "compile":
            self.compiling.add((event.host, event.rank))
            self.now(f"compiling {event.what} on {event.host} (once per machine, about {COMPILING})")
        elif event.name == "compiled":
            self.compiling.discard((event.host, event.rank))
            if not self.compiling:
                self.now(self.phase)
        elif event.rank == 0 and event.name not in self.phases:
            self.phases.add(event.name)
            self.phase = self.names.get(event.name, event.name)
            if event.name == "steps":  # its figures say how it goes
                self.now(None)
                self.console.print(f"[dim]{self.phase} ...[/dim]")
            else:
                self.now(self.phase)

    def _window(self, window: events.Window) -> None:
        """Show the rate of a window once every rank has reported it."""
        parts = self.windows.setdefault(window.step, [])
        parts.append(window)
        if len(parts) == self.world_size:
            del self.windows[window.step]
            seconds = max(part.seconds for part in parts)
            self.rate = sum(part.samples for part in parts) / seconds if seconds > 0 else None
            self.tokens = sum(part.tokens for part in parts) / seconds if seconds > 0 else 0.0
            if self.live:
                self._refresh(window.step)

    def _refresh(self, step: int) -> None:
        figures = [f"loss {self.loss:.4f}"] if self.loss is not None else []
        figures += [f"{format_number(self.rate)} {self.unit}/s"] if self.rate is not None else []
        figures += [f"{format_count(self.tokens)} tokens/s"] if self.tokens else []
        slow = sorted({host for host, _, _ in self.slow})[:3]
        figures += [f"waits for {', '.join(slow)}"] if slow else []
        text = ", ".join(figures)
        if self.live and self.task is not None:
            self.bar.update(self.task, completed=step, figures=text)
        elif not self.live and self.interval.over():
            total = f"/{int(self.bar.tasks[0].total or 0)}" if self.bar.tasks else "/?"
            self.console.print(f"step {step}{'' if total == '/0' else total}{text and ': '}{text}")


def _listed(shares: list[int], most: int = 16) -> str:
    more = f" ... ({len(shares)} ranks)" if len(shares) > most else ""
    return ", ".join(str(share) for share in shares[:most]) + more


def watch(run: RunFolder, *, stops: bool) -> Result | None:
    """Show a run's progress as it happens. `stops`: Ctrl-C stops the run."""
    console = err_console()
    with ProgressView(console) as view:
        return follow(run, watch=view, announce=view.announce, say=console.print, stops=stops)
