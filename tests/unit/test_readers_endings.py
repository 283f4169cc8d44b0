"""How a job ended, as its log tells."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from muster.readers._read import read_log
from muster.store.logfiles import BrokenFile
from tests.unit.logs import chat_log, one


def test_a_log_that_stops_without_a_word() -> None:
    job = one(chat_log(["node-1"], ends=False))
    assert (job.outcome, job.failure) == ("timeout", None)
    assert job.reason == "the log stops after step 110 without an error and without an end"
    before = one(chat_log(["node-1"], ends=False)[:12])
    assert before.outcome == "timeout" and "before its first step" in (before.reason or "")


FAILURES = [
    (["n2: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 56.00 MiB."],
     "failed", "cuda_oom", "n2"),
    (["n2: RuntimeError: CUDA error: uncorrectable ECC error encountered",
      "n1: [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)"],
     "failed", "gpu_hardware", "n2"),
    (["n1: [rank0]: torch.distributed.DistBackendError: ncclRemoteError: A call failed possibly",
      "n2: [t] [ERROR] [launch.py:325:sigkill_handler] ['python3'] exits with return code = -9"],
     "failed", "host_oom_killed", "n2"),
    (["n1: Traceback (most recent call last):", '  File "main.py", line 1, in <module>',
      "n1: ValueError: a tensor of the wrong shape",
      "n1: [t] [INFO] [launch.py:318:sigkill_handler] Killing subprocess 7",
      "n1: [t] [ERROR] [launch.py:325:sigkill_handler] ['python3'] exits with return code = 1"],
     "failed", None, "n1"),
    (["n1: [t] [INFO] [launch.py:328:sigkill_handler] Main process received SIGTERM, exiting"],
     "timeout", None, "n1"),
    (["slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2024-07-08T05:52:10 DUE TO TIME LIMIT ***"],
     "timeout", None, None),
    (["slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2024-07-08T05:52:10 DUE TO NODE FAILURE, SEE LOG ***"],
     "failed", "slurm_time_or_node", None),
]  # fmt: skip


@pytest.mark.parametrize(("last", "outcome", "failure", "host"), FAILURES)
def test_why_a_job_failed(last: list[str], outcome: str, failure: str | None, host: str | None) -> None:
    job = one([*chat_log(["n1", "n2"], windows=3, ends=False), *last])
    assert (job.outcome, job.failure, job.failed_host) == (outcome, failure, host)
    assert job.reason and job.reason in last[-1].partition(": ")[2] + " ".join(last)


def test_the_exception_is_the_reason_and_not_the_exit_code() -> None:
    job = one([*chat_log(["n1", "n2"], ends=False), *FAILURES[3][0]])
    assert job.reason == "ValueError: a tensor of the wrong shape"


def test_a_non_zero_exit_after_the_last_figure_is_a_failure() -> None:
    job = one(
        [*chat_log(["n1", "n2"]), "n2: [ERROR] [launch.py:325:x] ['python3'] exits with return code = 1"]
    )
    assert (job.outcome, job.failed_host) == ("failed", "n2")


def test_what_was_written_before_the_job_went_on_ended_nothing() -> None:
    lines = chat_log(["n1"])
    place = next(n for n, line in enumerate(lines) if "step=20," in line)
    noise = ["OSError: [Errno 98] Address already in use"]
    assert one([*lines[:place], *noise, *lines[place:]]).outcome == "succeeded"
    cut = [*lines[:place], *noise, *lines[place : place + 20]]
    assert one(cut).outcome == "timeout"


def test_a_job_that_never_began() -> None:
    job = one(["ssh: connect to host node-9 port 22: Connection timed out"], "batch/node-9.log")
    assert (job.outcome, job.failure, job.hosts) == ("failed", "ssh_unreachable", ("node-9",))


def test_what_is_no_log() -> None:
    assert one([]).reason == "is empty"
    assert one(["# Notes", "", "buy milk"]).reason == "no known log format was recognised"
    assert one(["a,b,c", "1,2,3"], "x.csv").reason == "no mapping matches its columns: a,b,c"
    assert one([]).outcome == "unreadable"


def test_a_file_that_breaks_off_keeps_what_was_read() -> None:
    def cut() -> Iterator[str]:
        yield from chat_log(["node-1"])[:30]
        raise BrokenFile("cannot be read to its end: x")

    (job,) = read_log("a.log", cut())
    assert (job.outcome, job.reason, job.hosts) == ("unreadable", "cannot be read to its end: x", ("node-1",))
    assert job.steps and job.steps > 10
