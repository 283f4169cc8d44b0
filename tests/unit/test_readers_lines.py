"""Tools that write a step on a line, as they printed it; tests/golden/documents has what is read in each."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from muster.judging import Settings
from muster.judging.joblogs import judged
from muster.readers.base import JobLog
from tests.unit.logs import LOGS, one


@pytest.mark.parametrize("label", ["[rank0]:", "0: ", "[default0]:", "[1,0]<stdout>:"])
def test_labels_of_launchers_change_nothing(label: str) -> None:
    for name in ("megatron", "olmo", "composer", "modded", "nemo", "nano"):
        lines = LOGS[name].strip("\n").split("\n")
        job, labelled = one(lines), one([label + line for line in lines])
        assert labelled.measured == job.measured and labelled.batch == job.batch


def titan_log(host: str, step: float) -> JobLog:
    """torchtitan's own lines, 60 of them, `step` seconds apart; the batch is not told, as before 2025."""
    size, (head, *_) = LOGS["titan-sizes"].split("\n")[0], LOGS["titan"].split("\n")[1:]
    start = datetime(2026, 5, 18, 16, 4, 46)
    lines = [
        head.replace(
            "2026-05-18 16:04:46,338", f"{start + timedelta(seconds=n * step):%Y-%m-%d %H:%M:%S,%f}"[:23]
        )
        .replace("step: 14", f"step: {n}")
        .replace("7,282", f"{8192 / step:,.0f}")
        for n in range(1, 61)
    ]
    return one([size, *lines], f"run/{host}.log")


def test_a_slow_host_among_logs_without_samples() -> None:
    logs = [titan_log(f"gpu{n:02d}", 1.5 if n == 5 else 1 + n * 1e-4) for n in range(12)]
    found = judged("x", logs, Settings(), {})
    slow = [each.hosts[0] for each in found.hosts if each.condition == "slow"]
    assert slow == ["gpu05"] and found.summary["fit"] == 11
    assert {job.samples_per_second for job in found.jobs} == {None}
    assert all(job.tokens_per_second and job.step_seconds for job in found.jobs)
    assert found.peers[0].samples_per_second is None and found.peers[0].step_seconds == pytest.approx(1, 0.01)
