"""Queries over all runs: a row per run from its result.json, and SQL conditions on these rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from muster.core.errors import RunFolderError, UsageError
from muster.core.state import State
from muster.store.runfolder import PipelineFolder, RunFolder, list_folders

# Column -> where it stands in result.json.
_COLUMNS: dict[str, tuple[str, ...]] = {
    "workload": ("workload",), "model": ("model",), "engine": ("engine",), "precision": ("precision",),
    "world_size": ("world_size",), "hosts": ("hosts",), "steps": ("steps",), "loss_final": ("loss_final",),
    "samples_per_second": ("throughput", "samples_per_second"), "exact_match": ("quality", "exact_match"),
    "execution_match": ("quality", "execution_match"), "seconds": ("seconds", "total"),
    "evaluation_loss": ("evaluation_loss",), "perplexity": ("perplexity",),
    "allocator_peak": ("memory", "allocator_peak"), "resident_peak": ("memory", "resident_peak"),
    "started": ("started",), "failure": ("failure", "what"),
}  # fmt: skip


def runs_table(root: Path, where: str | None = None) -> list[dict[str, Any]]:
    """Return a row per run or pipeline, sorted by start: of finished ones from their results, of others from
    what is recorded so far. A run whose files cannot be read is `damaged`, and `failure` has the reason.

    `where`: an SQL condition on the columns. Raises UsageError where it is invalid.
    """
    rows = [_row(run) for run in list_folders(root)]
    return rows if where is None else _those(rows, where)


def _row(run: RunFolder | PipelineFolder) -> dict[str, Any]:
    try:
        state = run.state()
        document = run.read_json(run.result) if run.result.is_file() else _begun(run)
    except RunFolderError as error:
        state, document = State.DAMAGED, {"failure": {"what": str(error)}}
    row = {"id": run.id, "status": state} | {name: _at(document, path) for name, path in _COLUMNS.items()}
    row["hosts"] = len(row["hosts"]) if isinstance(row["hosts"], list) else None
    return row


def _begun(run: RunFolder | PipelineFolder) -> dict[str, Any]:
    """Return the row of a run without a result, from its job."""
    if isinstance(run, PipelineFolder):
        return {"workload": "pipeline"}
    job = run.read_json(run.job) if run.job.exists() else {}
    return {
        "workload": _at(job, ("recipe", "workload")),
        "model": _at(job, ("recipe", "model", "name")),
        "engine": _at(job, ("recipe", "engine", "name")),
        "precision": job.get("precision"),
        "world_size": job.get("world_size"),
        "hosts": job.get("placements"),
    }


def _at(data: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        data = data.get(key) if isinstance(data, Mapping) else None
    return data


def _those(rows: list[dict[str, Any]], where: str) -> list[dict[str, Any]]:
    """Return the rows that meet the condition."""
    import sqlite3

    names = ["id", "status", *_COLUMNS]
    base = sqlite3.connect(":memory:")
    try:
        base.execute(f"CREATE TABLE runs (place, {', '.join(names)})")
        values = [[place, *(_plain(row[name]) for name in names)] for place, row in enumerate(rows)]
        base.executemany(f"INSERT INTO runs VALUES ({', '.join('?' * (len(names) + 1))})", values)
        places = base.execute(f"SELECT place FROM runs WHERE {where}\nORDER BY place").fetchall()
        return [rows[place] for (place,) in places]
    except (sqlite3.Error, sqlite3.Warning) as error:
        raise UsageError(
            f"is not a condition: {error}",
            where=where,
            hint=f"such as \"status = 'failed'\"; columns: {', '.join(names)}",
        ) from None
    finally:
        base.close()


def _plain(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict | list) else value
