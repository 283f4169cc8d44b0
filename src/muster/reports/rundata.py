"""Reads a run folder into one frozen value, from which the page is made."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from muster.core.errors import RunFolderError, refused
from muster.core.job import read_job
from muster.core.result import Result
from muster.core.state import State
from muster.results.fold import EventFold, make_result
from muster.store import events
from muster.store.runfolder import RunFolder

TAIL_BYTES, TAIL_LINES = 1 << 14, 25  # of a log
_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|.)|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)


@dataclass(frozen=True)
class RunData:
    """Everything that a report shows. `folded` is only read."""

    id: str
    state: State
    result: Result | None = None  # result.json; of an unfinished run what its events come to so far
    folded: EventFold = field(default_factory=EventFold)
    recipe: str = ""
    plan: dict[str, Any] = field(default_factory=dict)
    job: dict[str, Any] = field(default_factory=dict)
    env: dict[str, Any] = field(default_factory=dict)
    predictions: tuple[events.Answer, ...] = ()
    unreadable: int = 0  # lines of predictions.jsonl that are not a prediction
    log: tuple[str, tuple[str, ...]] | None = None  # of a run that failed: a log's name, its last lines

    @property
    def broken(self) -> bool:
        """Whether it was cut short: a figure that was not measured then means nothing."""
        return self.state.over and not self.state.good

    @property
    def world_size(self) -> int | None:
        """The number of ranks, where it is known."""
        if self.result is not None:
            return self.result.world_size
        value = self.job.get("world_size")
        return value if isinstance(value, int) else None

    @property
    def decisions(self) -> list[dict[str, Any]]:
        """What the plan chose, each with its reason."""
        listed = self.plan.get("decisions")
        return [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []

    def measure(self, name: str) -> Any:
        """Return a value of the recipe's `measure` section as it was run, or None."""
        section = (self.job.get("recipe") or {}).get("measure") or {}
        return section.get(name)


def gather(run: RunFolder) -> RunData:
    """Read a run folder. Files that do not exist yet count as empty. Raises RunFolderError for a damaged one.
    """
    if not run.path.is_dir():
        raise RunFolderError("no such run folder", where=str(run.path))
    job = _read(run, run.job)
    folded, answers, last = read_stream(events.read_events(run.events))
    result = run.read_result()
    written, unreadable = read_predictions(run.predictions)
    state = run.state()
    return RunData(
        id=run.id,
        state=state,
        log=last_lines(run, folded, result) if state in (State.FAILED, State.TIMEOUT) else None,
        result=result if result is not None else so_far(folded, job, last),
        folded=folded,
        recipe=_text(run.recipe),
        plan=_read(run, run.plan),
        job=job,
        env=_read(run, run.env),
        predictions=written or answers,
        unreadable=unreadable,
    )


def read_stream(stream: Iterable[events.Event]) -> tuple[EventFold, tuple[events.Answer, ...], float | None]:
    """Fold events. Return the fold, the last attempt's answers by index, and when the last event arrived."""
    folded = EventFold()
    answers: dict[int, events.Answer] = {}
    last: float | None = None
    for event in stream:
        folded.add(event)
        last = event.arrived if last is None else max(last, event.arrived)
        if isinstance(event, events.JobState) and event.state == "begin":
            answers.clear()
        elif isinstance(event, events.Answer):
            answers[event.index] = event
    return folded, tuple(answers[index] for index in sorted(answers)), last


def so_far(folded: EventFold, job: dict[str, Any], last: float | None) -> Result | None:
    """Return the result of an unfinished run. Its status means nothing: `RunData.state` counts."""
    made = read_job(job)
    if made is None or last is None:
        return None
    try:
        return make_result(folded, made, status=State.STOPPED, failure=None, ended=last)
    except ValueError:  # a recipe of another version of muster
        return None


def read_predictions(path: Path) -> tuple[tuple[events.Answer, ...], int]:
    """Return the predictions of a file, which has no times of them, and how many of its lines are none."""
    predictions, bad = [], 0
    for line in _text(path).split("\n"):
        if not line.strip():
            continue
        try:
            predictions.append(events.Answer.model_validate({**json.loads(line), "time": 0.0}))
        except (ValueError, TypeError):
            bad += 1
    return tuple(predictions), bad


def last_lines(
    run: RunFolder, folded: EventFold, result: Result | None
) -> tuple[str, tuple[str, ...]] | None:
    """Return the name and the last lines of the log that shows most of a failure: the log of a rank that
    failed, or else of its host, or else the one that was written last."""
    host = result.failure.host if result and result.failure else None
    ranks = [event for event in folded.failed if event.rank is not None and event.host is not None]
    ranks.sort(key=lambda event: event.host != host)
    paths = [run.rank_log(str(event.host), int(event.rank or 0)) for event in ranks]
    if host is not None:
        paths.append(run.host_log(host))
    paths += sorted(run.logs.glob("*.log"), key=lambda path: -path.stat().st_mtime)
    for path in paths:
        try:
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - TAIL_BYTES))
                text = _ESCAPES.sub("", file.read().decode("utf-8", "replace"))
        except OSError:
            continue
        lines = [line.rstrip() for line in text.splitlines() if line.strip()]
        if lines:
            return path.name, tuple(lines[-TAIL_LINES:])
    return None


def _read(run: RunFolder, path: Path) -> dict[str, Any]:
    return run.read_json(path) if path.exists() else {}


def _text(path: Path) -> str:
    with refused(RunFolderError, "read", path), suppress(FileNotFoundError):
        return path.read_text(encoding="utf-8", errors="replace")
    return ""
