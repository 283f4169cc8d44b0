"""List, show and stop benches."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path

from muster.benches.folder import BenchFolder, list_benches
from muster.core.errors import RunFolderError

PATIENCE = 60.0  # seconds in which jobs that are to stop have ended


@dataclass(frozen=True)
class BenchRow:
    """A bench as `muster ls` shows it. `done` of `jobs` are over; `running`: a process works on it;
    `verdicts`: hosts by verdict, where there are any."""

    bench: BenchFolder
    jobs: int
    done: int
    running: bool
    complete: bool
    verdicts: dict[str, int]


def benches(root: Path) -> list[BenchRow]:
    """Return benches under `root`, oldest first; those that cannot be read are left out."""
    return [row for folder in list_benches(root) if (row := bench_row(folder)) is not None]


def bench_row(folder: BenchFolder) -> BenchRow | None:
    """Return how far a bench has come; None where its files cannot be read."""
    try:
        jobs = [str(each["id"]) for each in folder.read_schedule()["jobs"]]
        document = json.loads(folder.result.read_bytes()) if folder.result.exists() else {}
        verdicts = {str(name): int(count) for name, count in document.get("summary", {}).items() if count}
    except (RunFolderError, OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
    done = sum(folder.record(job).exists() for job in jobs)
    complete = document.get("complete") is True
    return BenchRow(folder, len(jobs), done, folder.controller_alive() is not False, complete, verdicts)


def stop_bench(folder: BenchFolder) -> bool:
    """Ask the process that works on a bench to stop its jobs, and wait. Return whether it has ended. Raises
    RunFolderError."""
    if folder.controller_alive() is False:
        raise RunFolderError("is not running", where=folder.id)
    folder.stop_request.touch()
    limit = time.monotonic() + PATIENCE
    while folder.controller_alive() is not False:
        if time.monotonic() >= limit:
            return False
        time.sleep(0.2)
    return True
