"""What planted bugs in the readers changed, and no other test saw. Expected figures are computed by hand."""

from __future__ import annotations

import pytest

from muster.readers.base import JobLog
from muster.stages.joblogs import work_of
from tests.unit.logs import metaseq_log, one
from tests.unit.test_readers_lines import LORA, mllog


def mlperf(steps: int) -> JobLog:
    return one(
        [*LORA[:3], mllog(1715848254700, "gradient_accumulation_steps", str(steps)), *LORA[3:]], "node-1.log"
    )


def test_mlperf_jobs_of_another_accumulation_are_other_work() -> None:
    """The same batch in more pieces takes another time."""
    assert work_of(mlperf(1)) == work_of(mlperf(1)) != work_of(mlperf(4))


def test_samples_of_updates_that_were_skipped_are_not_counted() -> None:
    """Each window: 10 updates of 64 and a skipped one, 11 in 22 s. 640 samples in 22 s, and not 704."""
    lines, overflow = metaseq_log(2.2, overflow_at=None), metaseq_log()[6]
    assert "overflow" in overflow
    job = one([each for line in lines for each in ([overflow, line] if "train_inner" in line else [line])])
    assert job.rate == pytest.approx(640 / 22) and job.skipped == 10
