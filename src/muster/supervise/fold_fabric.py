"""The result of a run that measured and trained nothing. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from muster.core.fabric_figures import Event
from muster.core.fabric_run import make_run
from muster.core.job import Job
from muster.core.result import Result


def measured_alone(made: Result, heard: Sequence[tuple[str, Event]], job: Job) -> Result:
    """The same with what was measured, and without a model, an engine, a batch."""
    fabric, notes = make_run(job.placements, job.device, heard)
    torch = next((event.get("torch") for _, event in heard if event["kind"] == "ready"), None)
    return made.model_copy(
        update={
            "model": None,
            "engine": None,
            "precision": None,
            "global_batch": None,
            "fabric": fabric,
            "versions": {"torch": str(torch)} if torch else {},
            "notes": [*made.notes, *notes],
        }
    )
