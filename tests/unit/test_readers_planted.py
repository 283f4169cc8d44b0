"""What planted bugs in the readers changed, and no other test saw. Expected figures are computed by hand."""

from __future__ import annotations

import pytest

from muster.judging.joblogs import work_of
from muster.readers._frame import Frame, moment
from muster.readers._user import UserFormat
from muster.readers.base import JobLog
from tests.unit.logs import chat_log, metaseq_log, one, read_log
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
    assert job.rate == pytest.approx(640 / 22) and job.skipped_steps == 10


def test_a_clock_of_milliseconds() -> None:
    """100 steps of 32 samples a second apart, on a clock in ms: 32 samples/s."""
    user = UserFormat.of([r"at (?P<elapsed_ms>\d+) did (?P<step>\d+) of (?P<batch>\d+)"])
    lines = [f"at {1000 * step} did {step} of 32" for step in range(1, 101)]
    (job,) = read_log("node-1.log", lines, user)
    assert job.rate == pytest.approx(32) and job.step_seconds == pytest.approx(1.0)


def test_times_with_a_zone_are_of_one_clock() -> None:
    there, here = moment("2024-05-01T14:00:00+02:00"), moment("2024-05-01T12:00:00Z")
    assert there == here == 1714564800


def test_more_hosts_than_took_part_are_no_evidence() -> None:
    """NCCL's lines of two hosts, in a job that says that it ran on one."""
    lines = [
        *chat_log(["n1"], ends=False),
        *(f"n{n}:10:20 [0] NCCL INFO comm 0x1 rank 0 nranks 16" for n in (1, 2)),
    ]
    bare = [line for line in lines if "NCCL" in line or "global_step" in line]
    assert one(["nnodes=2", *bare]).unplaced == ""
    assert one(["nnodes=1", *bare]).unplaced


def test_a_part_of_the_ranks_is_not_all_of_them() -> None:
    """NCCL makes a communicator of all ranks, and then smaller ones."""
    frame = Frame()
    for ranks in (16, 8, 2):
        frame.line(f"n1:10:20 [0] NCCL INFO comm 0x1 rank 0 nranks {ranks}")
    assert frame.ranks == 16


def test_composers_memory_is_in_thousands() -> None:
    """Its "GB" are 1e9 bytes."""
    lines = [
        f"[batch={step}/9]: Train time/sample: {8 * step} Train memory/peak_allocated_mem: 2.5"
        for step in range(1, 10)
    ]
    assert one(lines).memory == 2_500_000_000


def test_what_slurm_cancelled_for_a_node_names_no_host_by_its_line() -> None:
    """The line has the prefix of the host that printed it, which is not the one that failed."""
    lines = ["n1 slots=8", "n2 slots=8", "n1: [launch.py:1:main] dist_world_size=16"]
    job = one(
        [
            *lines,
            "n1: error: *** STEP 7.0 ON n1 CANCELLED AT 2024-05-01 DUE TO NODE FAILURE ***",
        ]
    )
    assert (job.outcome, job.failure, job.failed_hosts) == ("failed", "slurm_time_or_node", ())
