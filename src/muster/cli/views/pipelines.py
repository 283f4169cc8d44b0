"""A pipeline for people: its steps as they run, their results, and what they would do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.markup import escape

from muster.cli.output import err_console, out_console, print_json, print_table, say, say_places, table
from muster.cli.views.progress import ProgressView
from muster.cli.views.results import print_afterwards, print_failure
from muster.core.result import PipelineResult, StepResult
from muster.core.state import State
from muster.core.units import format_number, format_seconds
from muster.runs.dry_run import format_dry_run
from muster.runs.listing import show
from muster.runs.pipeline import Seen, dry_run_of, read_pipeline, so_far
from muster.store.runfolder import PipelineFolder


@contextmanager
def seeing(title: str) -> Iterator[Seen]:
    """Show a step's progress."""
    console = err_console()
    with ProgressView(console) as view:
        console.print(f"[bold]{escape(title)}[/bold]")
        view.now("asking the hosts, and planning")
        yield view, view.announce


def finish_pipeline(result: PipelineResult, folder: PipelineFolder, json: bool) -> int:
    """Print the result. Return the exit code: 0 succeeded, 1 failed."""
    if json:
        print_json(result.model_dump(mode="json"))
    else:
        _print_result(result)
    err_console().print(f"run folder  {folder.path}\nreport      {folder.report}", markup=False)
    if not result.status.good:
        return result.status.exit_code
    if folder.trained.model.is_dir():
        print_afterwards(folder.trained)
    return 0


def show_pipeline(folder: PipelineFolder, *, json: bool) -> int:
    """Print how far a pipeline has come, and its steps' results. Return the exit code."""
    state, result = folder.state(), folder.read_result()
    shown = result or so_far(folder)
    now = next((each for each in shown.pipeline if each.status is State.RUNNING), None)
    running = show(folder.step(now.name)) if now else None
    if json:
        document = shown.model_dump(mode="json")
        about: dict[str, Any] = {"id": folder.id, "path": str(folder.path), "state": state}
        if now and running:
            progress = {"step": running.step, "total_steps": running.total_steps, "loss": running.loss}
            about["running"] = {"name": now.name, **progress}
        print_json({**about, "pipeline": document["pipeline"], "result": document if result else None})
        return 0
    say(folder.id)
    _print_result(shown, state)
    if now and running:
        loss = f", loss {running.loss:.4f}" if running.loss is not None else ""
        say(f"  {now.name:<22} step {running.step} of {running.total_steps or '?'}{loss}")
    say_places(folder=folder.path, report=folder.report)
    if state is State.INTERRUPTED:
        say(f"  {'go on with':<22} muster resume {folder.word}")
    return 0


def print_dry_run(
    file: Path, hosts: str, changes: list[str], folder: PipelineFolder, *, json: bool, verbose: bool
) -> int:
    """Print what each step would do. Return the exit code."""
    from muster.cli.views.waiting import waiting

    with waiting(err_console(), "planning"):
        steps = dry_run_of(read_pipeline(file, hosts, changes), folder)
    if json:
        print_json({"pipeline": steps})
        return 0
    for number, each in enumerate(steps, 1):
        after = f", after {', '.join(each['after'])}" if each["after"] else ""
        say(f"step {number} of {len(steps)}: {each['step']}{after}")
        say(format_dry_run(each, verbose=verbose) + "\n" * (number < len(steps)))
    return 0


def _print_result(result: PipelineResult, state: State | None = None) -> None:
    """Print a row per step, and why the pipeline ended."""
    console = out_console()
    took = format_seconds(result.seconds.total)
    say(f"  {state or result.status}; {took}")
    made = table(
        "step", "status", ">steps", ">loss", ">held-out", ">right", ">samples/s", ">time", padding=(0, 2)
    )
    for step in result.pipeline:
        made.add_row(escape(step.name), f"[{step.status.colour}]{step.status}[/]", *_figures(step))
    print_table(console, made)
    for note in result.notes:
        say(f"  note: {note}")
    if result.failure:
        print_failure(result.status, result.failure)


def _figures(step: StepResult) -> list[str]:
    result = step.result
    if result is None:
        return [""] * 6
    speed, quality = result.throughput, result.quality
    return [
        str(result.steps),
        "" if result.loss_final is None else f"{result.loss_final:.4f}",
        "" if result.evaluation_loss is None else f"{result.evaluation_loss:.4f}",
        "" if quality is None else f"{100 * quality.exact_match:.1f} %",
        "" if speed is None else format_number(speed.samples_per_second),
        format_seconds(result.seconds.total),
    ]
