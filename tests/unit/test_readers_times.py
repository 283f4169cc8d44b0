"""When a job ran, from the time stamps of its log's own lines."""

from __future__ import annotations

import tracemalloc
from datetime import datetime, timezone

import pytest

from muster.judging.joblogs import observation_of, work_of
from muster.readers._live import Live
from muster.readers._read import read_blocks
from muster.readers._user import UserFormat
from tests.unit.logs import chat_log, metaseq_log, one, read_log, trainer_log

BEGAN = datetime(2024, 7, 8, 5, 52, 0, tzinfo=timezone.utc).timestamp()


def test_the_first_and_the_last_stamp() -> None:
    lines = chat_log(["n1", "n2"])
    job = one(["no stamp here", *lines, "nor here"])
    assert job.started == BEGAN and job.ended == pytest.approx(BEGAN + 10 + 110 * 0.2 - 8 * 0.02)
    observation = observation_of(job, work_of(job))
    assert observation is not None and (observation.began, observation.ended) == (job.started, job.ended)
    failed = one([*lines[:-20], "RuntimeError: CUDA error: uncorrectable ECC error encountered"])
    broken = observation_of(failed, work_of(failed))
    assert broken is not None and broken.began == BEGAN and (broken.ended or 0) > BEGAN


def test_a_long_log() -> None:
    """The last stamp is looked for from its end."""
    lines = [*chat_log(["n1"]), *["a line without a stamp"] * 3000, "2024-07-08 07:00:00,500 done", "bye"]
    assert one(lines).ended == BEGAN + 68 * 60 + 0.5


@pytest.mark.parametrize(
    "line",
    [
        "2024-07-08T05:52:00.250Z INFO x", "[2024-07-08 05:52:00,250] x",
        "07/08/2024 05:52:00.250 - INFO - x",
        "2024/07/08 05:52:00.250 x", "n1: [2024-07-08 05:52:00.250] x",
        "[INFO|trainer.py:2128] 2024-07-08 05:52:00,250 >> x",
    ],
)  # fmt: skip
def test_stamps_of_other_tools(line: str) -> None:
    bars = trainer_log().replace("\r", "\n").split("\n")
    job = one([line, *bars], "node1.log")
    assert job.started == job.ended == BEGAN + 0.25


def test_what_is_no_time_of_the_job() -> None:
    none = one(trainer_log().replace("\r", "\n").split("\n"), "node1.log")
    assert (none.started, none.ended) == (None, None)
    path = "x" * 200 + " built 2011-01-01 00:00:00"  # somewhere in a long line
    assert (
        one([path, *metaseq_log(), path]).started == datetime(2022, 5, 1, 12, tzinfo=timezone.utc).timestamp()
    )
    backwards = one(["2024-07-08 05:52:00 x", *metaseq_log()])  # two clocks: nobody knows
    assert (backwards.started, backwards.ended) == (None, None)


def test_a_table_with_times() -> None:
    rows = ["epoch,step,train_loss,train|batches,train|samples,train|time,val_loss"]
    rows += [f"0,{n},,{n},{n * 16},{BEGAN + n * 0.5:.3f}," for n in range(10, 110, 10)]
    (job,) = read_log("node1/metrics.csv", rows)
    assert (job.started, job.ended) == (BEGAN + 5, BEGAN + 50)
    since = [row.replace(str(int(BEGAN))[:6], "", 1) for row in rows]
    (job,) = read_log("node1/metrics.csv", since)
    assert (job.started, job.ended) == (None, None)


def test_what_is_kept_of_a_log_to_know_its_end_is_bounded() -> None:
    """80 MB of long lines, some at a time."""
    tracemalloc.start()
    try:
        blocks = ([f"2024-07-08 05:52:00 {n} {'x' * 10_000}" for n in range(80)] for _ in range(100))
        (job,) = read_blocks("x.log", blocks)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert job.started == job.ended == BEGAN and peak < 16 << 20


def test_steps_of_one_second_are_counted_with_those_of_the_next() -> None:
    """Stamps of whole seconds, five steps in each of them."""
    lines = [f"2025-03-01 10:00:{5 + step // 5:02d} INFO step {step}/200 loss 2.5" for step in range(200)]
    (job,) = read_log("node1.log", lines, UserFormat.of([r"step (?P<step>\d+)/"]))
    assert job.measured is not None and job.measured.rate == pytest.approx(5.0)


def test_steps_that_arrive_together_are_counted_with_those_that_arrive_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Lines without stamps, ten a second, which come once a second."""
    clock = iter(range(1_000_000_000, 1_000_000_020))
    monkeypatch.setattr("muster.readers._live.time.time", lambda: float(next(clock)))
    live = Live(UserFormat.of([r"step (?P<step>\d+)"]))
    for second in range(20):
        live.lines([f"step {10 * second + step}" for step in range(1, 11)])
    seen = live.seen(0.0)
    assert seen is not None and seen.rate == pytest.approx(10.0)
