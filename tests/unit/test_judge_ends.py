"""Ways to end that many jobs share: whose they are."""

from __future__ import annotations

import pytest

from muster.core.state import State
from muster.judging.joblogs import observation_of
from muster.readers.base import JobLog, MeasuredWindows

FLEET = [f"node-{number:03d}" for number in range(1, 17)]
BROKEN = "RuntimeError: CUDA error: uncorrectable ECC error encountered"


@pytest.mark.parametrize(
    ("seconds", "quiet", "paced"), [(100, 25, True), (100, 200, False), (3000, 400, False)]
)
def test_a_job_that_stood_still_before_it_was_ended_has_no_pace(
    seconds: float, quiet: float, paced: bool
) -> None:
    """Of a short job a fifth of its time, or half a minute; of a long one five minutes."""
    measured = MeasuredWindows(steps=100, skipped=0, samples=1000.0, seconds=seconds, windows=100)
    log = JobLog(job="x", outcome=State.TIMEOUT, hosts=("n1",), measured=measured, quiet=quiet)
    observation = observation_of(log, "w")
    assert observation is not None and (observation.seconds is not None) == paced
