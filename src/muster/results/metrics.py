"""A training's measurements step by step: a row per step with any event. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from muster.results.fold import EventFold
from muster.store import events
from muster.store.atomic import csv_text
from muster.store.windows import seconds_of

COLUMNS = (
    "step", "epoch", "time", "loss", "learning_rate", "gradient_norm", "evaluation_loss", "perplexity",
    "samples_per_second", "tokens_per_second", "step_seconds", "skipped_steps", "profiled", "allocator_peak",
    "device_peak", "resident_peak", "attention_largest", "attention_smallest",
)  # fmt: skip
_PEAKS = ("allocator_peak", "device_peak", "resident_peak")


def metrics_csv(folded: EventFold, world_size: int | None) -> str:
    """Return the table as CSV. A value that is not known is an empty cell: a rate is given where all ranks
    reported theirs, and no step was profiled. Peaks are the highest of all ranks, in bytes; `time` is Unix
    time."""
    rows: dict[int, dict[str, Any]] = {}
    for log in folded.logs.values():
        cells = {name: getattr(log, name) for name in ("epoch", "loss", "learning_rate", "gradient_norm")}
        rows.setdefault(log.step, {}).update(cells, time=log.time, **log.figures)
    for step, by_rank in folded.windows.items():
        rows.setdefault(step, {}).update(_window(list(by_rank.values()), world_size))
    for each in folded.evaluated:
        rows.setdefault(each.step, {}).update(evaluation_loss=each.loss, perplexity=each.perplexity)
        rows[each.step].update({f"held_out_{name}": value for name, value in each.figures.items()})
    for step, seen in folded.attention.items():
        rows.setdefault(step, {}).update(
            attention_largest=_known(seen.largest, max), attention_smallest=_known(seen.smallest, min)
        )
    more = dict.fromkeys(name for step in sorted(rows) for name in rows[step] if name not in COLUMNS)
    head = (*COLUMNS, *more)
    lines = ([step, *(_cell(rows[step].get(name)) for name in head[1:])] for step in sorted(rows))
    return csv_text(head, lines)


def _window(ranks: list[events.Window], world_size: int | None) -> dict[str, Any]:
    """Return one window of steps, of all ranks; the slowest rank's seconds are the step's."""
    row: dict[str, Any] = {name: _known((getattr(each, name) for each in ranks), max) for name in _PEAKS}
    row |= {"time": max(each.time for each in ranks), "skipped_steps": max(each.skipped for each in ranks)}
    row["profiled"] = int(any(each.profiled for each in ranks))
    seconds, steps = seconds_of(ranks), max(each.steps - each.skipped for each in ranks)
    if len(ranks) == world_size and seconds > 0 and steps > 0 and not row["profiled"]:
        row["samples_per_second"] = sum(each.samples for each in ranks) / seconds
        row["tokens_per_second"] = sum(each.tokens for each in ranks) / seconds
        row["step_seconds"] = seconds / steps
    return row


def _known(values: Iterable[float | None], pick: Callable[[list[float]], float]) -> float | None:
    numbers = [value for value in values if value is not None]
    return pick(numbers) if numbers else None


def _cell(value: Any) -> Any:
    return "" if value is None or (isinstance(value, float) and not math.isfinite(value)) else value
