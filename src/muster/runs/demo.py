"""Demo: what it shows of its answers."""

from __future__ import annotations

import json
from typing import Any

from muster.store.runfolder import RunFolder


def answers_of(run: RunFolder, count: int) -> list[dict[str, Any]]:
    """A few held-out answers of a run, spread over the set so that they show different kinds of questions."""
    if not run.predictions.exists():
        return []
    rows = [json.loads(line) for line in run.predictions.read_text(encoding="utf-8").splitlines()]
    step = max(1, len(rows) // count)
    return rows[::step][:count]
