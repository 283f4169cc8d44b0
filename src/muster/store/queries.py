"""Questions to all runs at once: DuckDB reads their result.json files where they lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb

from muster.core.errors import UsageError
from muster.store.runfolder import list_runs

_COLUMNS = """
  id, status, workload, model, engine, precision, world_size, len(hosts) AS hosts, steps, loss_final,
  throughput.samples_per_second AS samples_per_second, quality.exact_match AS exact_match,
  quality.execution_match AS execution_match, seconds.total AS seconds, started, failure.what AS failure
"""
# Fields that may be null in every file there is still need a type.
_TYPES = {
    "id": "VARCHAR", "status": "VARCHAR", "workload": "VARCHAR", "model": "VARCHAR", "engine": "VARCHAR",
    "precision": "VARCHAR", "world_size": "INTEGER", "hosts": "JSON[]", "steps": "BIGINT",
    "loss_final": "DOUBLE",
    "throughput": "STRUCT(samples_per_second DOUBLE)",
    "quality": "STRUCT(exact_match DOUBLE, execution_match DOUBLE)",
    "seconds": "STRUCT(total DOUBLE)", "started": "DOUBLE", "failure": "STRUCT(what VARCHAR)",
}  # fmt: skip


def runs_table(root: Path, where: str | None = None) -> list[dict[str, Any]]:
    """One row per run, oldest first: finished ones from their results, the others with their state alone.

    `where` is a condition in SQL over the columns. Raises UsageError where it is not one.
    """
    runs = list_runs(root)
    finished = [str(run.result) for run in runs if run.result.is_file()]
    rows = _finished(finished, where) if finished else []
    if where is None:
        known = {row["id"] for row in rows}
        rows += [
            _unfinished(run.id, run.state(), run.read_json(run.job) if run.job.exists() else {})
            for run in runs
            if run.id not in known
        ]
    return sorted(rows, key=lambda row: str(row["id"]))


def _finished(files: list[str], where: str | None) -> list[dict[str, Any]]:
    connection = duckdb.connect(":memory:")
    try:
        connection.register("results", connection.read_json(files, columns=_TYPES))
        query = f"SELECT * FROM (SELECT {_COLUMNS} FROM results)"
        cursor = connection.execute(f"{query} WHERE {where}" if where else query)
        names = [column[0] for column in cursor.description or []]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    except duckdb.Error as error:
        if where is None:
            raise
        first = str(error).splitlines()[0]
        raise UsageError(
            f"is not a condition: {first}", where=where, hint="such as \"status = 'failed'\""
        ) from None
    finally:
        connection.close()


def _unfinished(identity: str, state: str, job: dict[str, Any]) -> dict[str, Any]:
    recipe = job.get("recipe", {})
    return {
        "id": identity,
        "status": state,
        "workload": recipe.get("workload"),
        "model": (recipe.get("model") or {}).get("name"),
        "engine": (recipe.get("engine") or {}).get("name"),
        "precision": job.get("precision"),
        "world_size": job.get("world_size"),
        "hosts": len(job.get("placements", [])),
        **dict.fromkeys(
            (
                "steps",
                "loss_final",
                "samples_per_second",
                "exact_match",
                "execution_match",
                "seconds",
                "started",
                "failure",
            )
        ),
    }
