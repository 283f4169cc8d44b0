"""metaseq's and fairseq's logs."""

from __future__ import annotations

import pytest

from tests.unit.logs import metaseq_log, one


def test_metaseq() -> None:
    job = one(metaseq_log(), "node-1.log")
    assert (job.format, job.outcome, job.batch, job.steps, job.skipped_steps) == (
        "metaseq",
        "succeeded",
        64,
        101,
        1,
    )
    assert job.rate == pytest.approx(32.0)
    assert job.measured and job.measured.tokens == pytest.approx(job.measured.samples * 2048)
    assert one(metaseq_log(ends=False), "node-1.log").outcome == "timeout"
