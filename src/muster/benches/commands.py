"""How fast a job of the user's own was: by its output, or by the clock. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from muster.benches.document import JobRecord
from muster.core.recipe import Recipe
from muster.core.result import CommandRun
from muster.core.units import format_seconds
from muster.readers.base import MeasuredWindows
from muster.workloads.command.spec import CommandRecipe

CLOCK = "seconds from start to end"
SHORTEST = 2.0  # seconds of a job that the clock measures: of less, the start is too large a part
TELL = "run.line says how its lines are read, muster.step reports it (docs/run.md)"


@dataclass(frozen=True)
class Speed:
    """`how`: the way of measuring, for people; `measured`: None where it is no measurement, and `why`."""

    how: str
    measured: MeasuredWindows | None
    why: str = ""


def speeds(records: Mapping[str, JobRecord], recipes: Mapping[str, Recipe]) -> dict[str, Speed]:
    """Return the speed of every job of a command that succeeded. All of an entry are measured alike: by their
    output as soon as one of them prints a speed."""
    ran: dict[str, dict[str, CommandRun]] = defaultdict(dict)
    for record in records.values():
        command = record.result.command if record.result and record.outcome.good else None
        if command is not None and not record.warm_up:
            ran[record.entry][record.job] = command
    by_job = {}
    for entry, jobs in ran.items():
        recipe = recipes[entry]
        wanted = recipe.run.speed if isinstance(recipe, CommandRecipe) else "auto"
        by_output = wanted == "output" or (wanted == "auto" and any(each.rate for each in jobs.values()))
        for job, command in jobs.items():
            by_job[job] = _by_output(command) if by_output else _by_clock(command)
    return by_job


def notes_on(jobs: Mapping[str, Speed], records: Mapping[str, JobRecord]) -> Iterable[str]:
    """Yield how each entry's jobs were compared."""
    ways_of: dict[str, dict[str, None]] = defaultdict(dict)
    for job, speed in jobs.items():
        if speed.measured is not None:
            ways_of[records[job].entry][speed.how] = None
    for entry, ways in ways_of.items():
        more = ""
        if CLOCK in ways:
            more = f": right where every run does the same work. For its speed instead: {TELL}"
        yield f"{entry}: its jobs are compared by {' and '.join(ways)}{more}"


def _by_output(run: CommandRun) -> Speed:
    if run.rate is None or not run.rate > 0 or not run.rests_on:
        how = f"the output ({run.told_by})" if run.told_by else "the output"
        why = f"{run.told_by or 'its output'} states no speed; {TELL}, and run.speed=seconds takes the clock"
        return Speed(how, None, why)
    timed = run.step_seconds is not None
    seconds = run.rests_on * run.step_seconds if run.step_seconds else 1.0
    figures = MeasuredWindows(
        run.rests_on, 0, run.rate * seconds, seconds, variation=run.variation, timed=timed, unit=run.unit
    )
    return Speed(f"{run.unit}/s as {run.told_by} states them", figures)


def _by_clock(run: CommandRun) -> Speed:
    if run.seconds is None:
        return Speed(CLOCK, None, "it is not known how long it ran")
    if run.seconds < SHORTEST:
        why = f"it ran for {format_seconds(run.seconds)}, which is too short to be timed"
        return Speed(CLOCK, None, f"{why} ({SHORTEST:g} s at least)")
    return Speed(CLOCK, MeasuredWindows(1, 0, 1.0, run.seconds, unit="steps"))
