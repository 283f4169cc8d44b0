"""Where a log has two clocks or two rates: time stamps win, and unlike units do not contradict each other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from muster.readers._lines import STEPS_ONLY
from muster.readers._read import contradicting
from muster.readers._user import UserFormat
from muster.readers.base import JobLog, MeasuredWindows, Reading
from tests.golden.documents import sections
from tests.unit.logs import one, read_log

LOGS = sections(Path(__file__).parents[1] / "golden" / "logs" / "formats.txt")
MEGATRON = f"\n{LOGS['megatron']}"
DONE = "[after training is done] datetime: 2024-08-01 09:44:58\n"  # as above, of another run


def mllog(time: int, key: str, value: str = "null", about: str = "") -> str:
    """As they are printed, but for `namespace`, `event_type`, and the file and line in `metadata`."""
    return f':::MLLOG {{"time_ms": {time}, "key": "{key}", "value": {value}, "metadata": {{{about}}}}}'


def test_a_throughput_of_unknown_unit_is_no_rate() -> None:
    """NVIDIA's of GPT-3 on 10,752 GPUs is of tokens, and nothing in the log says so."""
    lines = [
        mllog(1696565166948, "run_start"),
        mllog(1696565401886, "tracked_stats", '{"throughput": 5154997.267404211}'),
        mllog(1696565401896, "run_stop", about='"status": "success"'),
    ]
    job = one(lines, "node-1.log")
    assert (job.outcome, job.rate, job.reported) == ("succeeded", None, None) and job.notes


def test_time_stamps_win_over_a_tools_own_time() -> None:
    """An iteration of 5 s by its own timer every 7.5 s."""
    lines = [
        MEGATRON.split("\n")[1].replace("03:02:12", f"03:{n * 15 // 2 // 60:02d}:{n * 15 // 2 % 60:02d}")
        .replace("71/", f"{n + 1}/").replace("5361.6", "5000.0").replace("9088", f"{128 * (n + 1)}")
        for n in range(100)
    ]  # fmt: skip
    job = one([*lines, DONE], "node-1.log")
    assert job.step_seconds == pytest.approx(7.5, rel=1e-3)
    assert job.contradicted == pytest.approx(128 / 5)
    agree = one([line.replace("5000.0", "7500.0") for line in lines] + [DONE], "node-1.log")
    assert agree.step_seconds == pytest.approx(7.5) and agree.contradicted is None
    assert one([*lines[:10], DONE], "node-1.log").step_seconds == 5  # too short for whole seconds
    enough = one([*lines[:12], DONE], "node-1.log")  # 60 s, give or take one
    assert enough.step_seconds == pytest.approx(7.5, rel=0.02) and enough.contradicted


@pytest.mark.parametrize("seconds", [0.3, 0.7, 1.3])
def test_short_steps_under_stamps_of_whole_seconds(seconds: float) -> None:
    """Single steps seem to take none, one or two seconds: so many together tell what they take."""
    line = MEGATRON.split("\n")[1]

    def log(own: float) -> list[str]:
        return [
            line.replace("03:02:12", f"03:{int(n * seconds) // 60:02d}:{int(n * seconds) % 60:02d}")
            .replace("71/", f"{n + 1}/").replace("5361.6", f"{1000 * own:.1f}")
            .replace("9088", f"{128 * (n + 1)}")
            for n in range(1400)
        ]  # fmt: skip

    agree = one([*log(seconds), DONE], "node-1.log")
    assert agree.step_seconds == pytest.approx(seconds, rel=1e-3) and agree.contradicted is None
    less = one([*log(seconds / 1.5), DONE], "node-1.log")
    assert less.step_seconds == pytest.approx(seconds, rel=0.01)
    assert less.contradicted == pytest.approx(192 / seconds, rel=0.01)
    assert less.measured is not None
    for half in less.measured.halves or ():  # neither half seems to be slower
        assert half == pytest.approx(seconds / 128, rel=0.01)


def test_a_format_that_counts_steps_beside_one_that_counts_samples() -> None:
    """Megatron-DeepSpeed: DeepSpeed's timer lines know of no batch."""
    lines = []
    for n in range(1, 30):
        at = f"2024-03-07 15:{27 + n // 4}:{n % 4 * 15:02d},500"
        lines += [
            f"[{at}] [INFO] [timer.py:260:stop] epoch=0/micro_step={n}/global_step={n}, "
            "RunningAvgSamplesPerSec=51.2, CurrSamplesPerSec=51.2, MemAllocated=6.01GB",
            f" iteration {n:8d}/      29 | consumed samples: {768 * n:12d} | "
            "elapsed time per iteration (ms): 15000.0 | global batch size:   768 | lm loss: 5.9E+00 |",
        ]
    job = one([*lines, DONE], "node-1.log")
    assert job.rate == pytest.approx(51.2) and STEPS_ONLY not in job.notes


def test_formats_that_count_unlike_things_do_not_contradict_each_other() -> None:
    steps = MeasuredWindows(steps=10, skipped=0, samples=10.0, seconds=10.0, unit="steps")
    samples = replace(steps, samples=640.0, unit="samples")
    first, other = Reading("a", unit="steps"), Reading("b", sure=False)
    assert contradicting([(first, steps), (other, samples)]) is None
    assert contradicting([(first, replace(samples, samples=700.0)), (other, samples)]) == 64.0


def rows(lines: list[str]) -> list[JobLog]:
    columns = ("elapsed=t", "samples_per_second=speed")
    return read_log("results.csv", lines, UserFormat.of((), columns))


def test_a_table_of_rates() -> None:
    """The rate of the mean, not the mean of rates: half of the time at 100, half at 300 samples/s."""
    lines = [
        "t,speed",
        "0,100",
        *[f"{2 * n},100" for n in range(1, 25)],
        *[f"{48 + n},300" for n in range(1, 49)],
    ]
    (job,) = rows(lines)
    assert job.measured and job.rate == pytest.approx(job.measured.samples / job.measured.seconds)
    assert 200 < (job.rate or 0) < 225  # the warm-up is taken from the slow half
    (longer,) = rows(lines + [f"{96 + n},200" for n in range(1, 200)])
    assert longer.rate == pytest.approx(206, rel=0.02) and longer.contradicted is None


def test_pdsh_before_a_line_that_begins_with_a_space() -> None:
    megatron = " [2025-08-01 07:19:37] iteration        1/    5000 | consumed samples:          128 |"
    line = f"gpu07: {megatron} elapsed time per iteration (ms): 1000.0 | global batch size:   128 |"
    assert one([line], "x.log").hosts == ("gpu07",)


def test_an_attempt_that_begins_one_line_back_is_no_other_rank() -> None:
    """The minute between two attempts is no step's; who prints a step again at once is another rank."""
    line = MEGATRON.split("\n")[1]

    def at(second: int, step: int) -> str:
        stamp = f"03:{second // 60:02d}:{second % 60:02d}"
        text = line.replace("03:02:12", stamp).replace("71/", f"{step}/").replace("5361.6", "5000.0")
        return text.replace("9088", f"{128 * step}")

    first = [at(5 * n, n) for n in range(1, 41)]
    lines = [*first, *(at(265 + 5 * n, 39 + n) for n in range(1, 41)), DONE]
    job = one(lines, "node-1.log")
    assert job.step_seconds == pytest.approx(5, rel=0.02) and job.contradicted is None
    both = [each for line in first for each in (line, line.replace(":00]", ":01]"))]
    assert one([*both, DONE], "node-1.log").step_seconds == pytest.approx(5, rel=0.02)


@pytest.mark.parametrize("late", [0, 15, 50])
def test_a_rank_that_prints_late_makes_no_step_shorter(late: int) -> None:
    """Steps of 5 s that a second rank prints ten at a time, stamped when they come."""
    line = MEGATRON.split("\n")[1]

    def at(second: int, step: int) -> tuple[int, str]:
        stamp = f"03:{second // 60:02d}:{second % 60:02d}"
        text = line.replace("03:02:12", stamp).replace("71/", f"{step}/").replace("5361.6", "5000.0")
        return second, text.replace("9088", f"{128 * step}")

    printed = [at(5 * step, step) for step in range(1, 121)]
    printed += [at(50 * (1 + (step - 1) // 10) + late, step) for step in range(1, 121)]
    job = one([*(text for _, text in sorted(printed, key=lambda each: each[0])), DONE], "node-1.log")
    assert job.step_seconds == pytest.approx(5, rel=0.01) and job.contradicted is None


def test_hosts_whose_clocks_differ_begin_no_new_attempt() -> None:
    """Three ranks, steps of 5 s, on clocks that are 0, 3 and 6 s fast."""
    printed = [
        f"2025-08-01 07:{second // 60:02d}:{second % 60:02d},500 step {step} done"
        for step in range(1, 121)
        for second in (5 * step, 5 * step + 3, 5 * step + 6)
    ]
    (job,) = read_log("x.log", printed, UserFormat.of([r"step (?P<step>\d+)"]))
    assert job.step_seconds == pytest.approx(5, rel=0.01)
