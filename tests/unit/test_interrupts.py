"""What a signal means."""

from __future__ import annotations

import signal

import pytest

from muster.core.errors import RecipeError
from muster.core.recipes import load_recipe
from muster.fleet.interrupts import GRACE, meaning

BATCH = {"SLURM_JOB_END_TIME": "100000", GRACE: "120"}


@pytest.mark.parametrize(
    ("number", "env", "now", "limit"),
    [
        (signal.SIGTERM, BATCH, 100_000 - 120, True),
        (signal.SIGTERM, BATCH, 100_000 - 170, True),
        (signal.SIGTERM, BATCH, 50_000, False),  # scancel
        (signal.SIGTERM, {}, 100_000 - 120, False),
        (signal.SIGTERM, {**BATCH, "SLURM_JOB_END_TIME": "?"}, 100_000 - 120, False),
        (signal.SIGINT, BATCH, 100_000 - 120, False),
    ],
)
def test_slurms_time_limit_is_told_from_other_ends(
    number: int, env: dict[str, str], now: float, limit: bool
) -> None:
    assert ("Slurm" in meaning(number, env, now)) is limit


def test_a_batch_job_that_would_end_as_it_begins() -> None:
    with pytest.raises(RecipeError, match="grace"):
        load_recipe("demo", ["launch.slurm.minutes=1"])
    assert load_recipe("demo", ["launch.slurm.minutes=1", "launch.slurm.grace=20"]).launch.slurm.minutes == 1
