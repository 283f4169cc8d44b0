"""Numbers in every notation that tools print, and a tool's own rate held against its time stamps.

Lines are quoted from public logs: LambdaLabsML/DeepSpeedExamples, in applications/DeepSpeed-Chat/training/
output/1cc-64xN/allnodes_8xN_opt-350m_bs24_zero0/opt-350m_1_8xN_batch0001.log.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest

from muster.core.state import State
from muster.judging import Settings
from muster.judging.joblogs import judged
from muster.readers._frame import Frame, moment
from muster.readers.base import FIGURE, number
from tests.unit.logs import at, chat_log, one, resumed_trainer_log, timer_log


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1.536000e+03", 1536.0), ("1,536", 1536.0), ("1_536", 1536.0), ("1.5e3", 1500.0), ("1536", 1536.0),
        ("1,234,567.5", 1234567.5), ("-2.5E-3", -0.0025), ("12,5", 12.5), ("7.", 7.0), ("+3", 3.0),
        (" 192 ", 192.0), ("1,2,3", None), ("auto", None), ("nan", None), ("inf", None), ("1e400", None),
    ],
)  # fmt: skip
def test_every_notation(text: str, value: float | None) -> None:
    assert number(text) == value


def test_a_figure_ends_where_the_number_does() -> None:
    """A comma after it belongs to the line."""
    for text, figure in (("192, ", "192"), ("1.536000e+03, x", "1.536000e+03"), ("1,536,", "1,536"),
                         ("20, RunningAvg", "20"), ("1_536]", "1_536"), ("64 ranks", "64")):  # fmt: skip
        found = re.match(FIGURE, text)
        assert found is not None and found[0] == figure


@pytest.mark.parametrize("batch", ["1536", "1.536000e+03", "1,536", "1_536", "1.536e3"])
@pytest.mark.parametrize("line", ['    "train_batch_size": {}, ', "  train_batch_size ............. {}"])
def test_a_batch_of_more_than_a_thousand(batch: str, line: str) -> None:
    frame = Frame()
    frame.line(line.format(batch))
    assert frame.batch == 1536


@pytest.mark.parametrize(
    "line",
    [
        "dist_world_size={}",
        "  world_size ................... {}",
        "using world size: {}, data-parallel-size: 8",
        "'distributed_world_size': {}, 'distributed_rank': 0",
    ],
)
def test_the_world_size(line: str) -> None:
    for text, size in (("64", 64), ("1.024000e+03", 1024), ("1,024", 1024)):
        frame = Frame()
        frame.line(line.format(text))
        assert frame.world_size == size
    for other in ("group_world_size=2", "local_world_size=4", "tensor_model_parallel_world_size = 4"):
        frame.line(other)
    assert frame.world_size == 1024


def test_a_rate_that_the_tool_contradicts_is_said() -> None:
    """Both figures in the job's notes; how many there are in the judgement's."""
    logs = []
    for number_, host in enumerate(("n1", "n2", "n3", "n4", "n5")):
        lines = chat_log([host], 0.2 + number_ / 10_000)
        if host == "n3":  # its configuration names another batch than its timer counts
            lines = [re.sub(r"(train_batch_size \.+) 192", r"\1 96", line) for line in lines]
        logs.append(one(lines, f"{host}.log"))
    wrong = [log for log in logs if log.notes]
    assert [log.hosts for log in wrong] == [("n3",)]
    (note,) = wrong[0].notes
    assert "479.52" in note and "959.04" in note  # 96 / 0.2002, and what the timer says
    found = judged("x", logs, Settings(), {})
    (said,) = [note for note in found.notes if "1 job" in note]
    assert "n3.log" in said and "2 %" in said


@pytest.mark.parametrize(("between", "rate"), [(0.0, 10.0), (0.02, 10.0), (0.1, 32 / 3.3)])
def test_what_is_between_steps_that_a_tool_times(between: float, rate: float) -> None:
    """DeepSpeed-Chat's third step: two engines print stamps at every tenth, the latencies have none."""
    lines, now = [], 10.0
    for step in range(1, 106):
        now += 3.2 + between
        for _ in range(2 if step % 10 == 0 else 0):
            lines += [
                f"[{at(now)}] [INFO] [timer.py:215:stop] epoch=0/micro_step={step}/global_step={step}, "
                "RunningAvgSamplesPerSec=41.0, CurrSamplesPerSec=41.0, MaxMemAllocated=2.0GB"
            ]
        lines.append(
            "|E2E latency=3.20s |Gather latency=0.00s (0.00%) |Generate time=2.09s (65.3%) |Training time="
            "0.79s (24.6%) |Others=0.32 (10.0%)|CurSamplesPerSec=10.00 |AvgSamplesPerSec=10.00"
        )
    job = one(lines)
    assert (job.steps, job.rate) == (105, pytest.approx(rate, rel=2e-3))
    assert len(job.notes) == (rate != 10.0)


RESUMED, STOPPED, BARE = (480, 500), (0, 500, 30), {"bars": False, "info": False}


@pytest.mark.parametrize(
    ("steps", "how", "done", "rate"),
    [
        ((0, 40), {}, 40, 30.476),
        (RESUMED, {}, 20, 29.091), (RESUMED, {"counts": "own"}, 20, 29.091),
        (RESUMED, {"info": False}, 20, 29.091), (RESUMED, {"info": False, "counts": "own"}, 20, 29.091),
        (RESUMED, {"bars": False}, 20, 29.091), (RESUMED, BARE, None, None),
        (STOPPED, {}, 30, 30.0), (STOPPED, {"bars": False}, 30, 30.0), (STOPPED, {"info": False}, 30, 30.0),
    ],
)  # fmt: skip
def test_the_trainers_account_is_of_the_steps_that_a_process_made(
    steps: tuple[int, ...], how: dict[str, Any], done: int | None, rate: float | None
) -> None:
    """Before Transformers 5.23 it divides the samples of all steps by the time of the last process."""
    log = one(resumed_trainer_log(*steps, **how))
    assert log.steps == done
    assert log.rate == (pytest.approx(rate, rel=1e-3) if rate else None)
    assert log.batch == (None if rate is None else 64)


def test_the_trainers_account_of_steps_that_may_not_have_been_made() -> None:
    """Nothing tells how many there were but a learning rate that has not fallen to its end."""
    for falls in (True, False):
        assert one(resumed_trainer_log(0, 500, falls=falls, **BARE)).rate == pytest.approx(31.873, rel=1e-3)
    assert one(resumed_trainer_log(*STOPPED, falls=True, **BARE)).rate is None


def test_the_pace_of_the_trainers_dictionaries_by_their_stamps() -> None:
    """It was cut at step 200 of 500, of 300 an epoch; then it goes on from step 150."""
    first = resumed_trainer_log(0, 500, 200, bars=False, stamped=True)[:-1]
    log = one(first)
    assert (log.outcome, log.steps, log.rate) == ("timeout", 200, pytest.approx(32, rel=1e-3))
    assert log.notes == ()
    second = resumed_trainer_log(150, 500, 465, bars=False, stamped=True)
    log = one([*first, *(line.replace("07-08T", "07-09T") for line in second)])
    assert (log.outcome, log.steps, log.rate) == ("succeeded", 515, pytest.approx(32, rel=1e-3))


@pytest.mark.parametrize("info", [True, False])
def test_steps_of_several_processes_in_a_log_of_the_trainer(info: bool) -> None:
    """The second one goes on from step 250."""
    first, second = resumed_trainer_log(0, 500, 300, info=info)[:-1], resumed_trainer_log(250, 500, info=info)
    log = one([*first, *second])
    assert (log.steps, log.rate) == (550, pytest.approx(32, rel=1e-3))
    assert log.reported == pytest.approx(64 * 250 / 504, rel=1e-3)


@pytest.mark.parametrize(
    ("lines", "steps", "skipped"),
    [
        (timer_log(0, 100, skipped=7), 100, 7),
        (timer_log(500, 100, before=7), 100, 0),
        ([*timer_log(0, 100, skipped=7), *timer_log(100, 60, start=400, before=7)], 160, 7),
        ([line for line in timer_log(0, 300, skipped=7) for _ in range(4)], 300, 7),
        ([*timer_log(0, 90), *timer_log(50, 100, start=400)], 190, 0),
        ([*timer_log(0, 10), *timer_log(10, 100, start=400)], 110, 0),
        ([*timer_log(0, 100), *timer_log(100, 800, start=400, every=200)], 900, 0),
        ([*timer_log(0, 100), *timer_log(50, 800, start=400, every=200)], 900, 0),
        ([*timer_log(0, 100), *timer_log(0, 800, start=400, every=200)], 900, 0),
        ([*timer_log(0, 100)[:-3], *timer_log(0, 1)[:1], *timer_log(0, 100)[-3:]], 100, 0),
    ],
)
def test_steps_of_several_processes_in_a_log_of_deepspeed(lines: list[str], steps: int, skipped: int) -> None:
    """A checkpoint has the count of skipped steps, the timer begins anew, and each rank prints it."""
    log = one(lines)
    assert (log.steps, log.skipped_steps, log.rate) == (steps, skipped, pytest.approx(32, rel=1e-3))


@pytest.mark.parametrize(
    ("numbers", "steps"),
    [
        ([501, *range(510, 601, 10)], 100), (range(510, 601, 10), 100), (range(9, 200, 10), 200),
        ([*range(10, 121, 10), *range(100, 201, 10)], 230), ([*range(1, 71), *range(51, 101)], 120),
        (range(100), 100), ([0, *range(10, 101, 10)], 101), (range(1, 101), 100), (range(901, 1001), 100),
    ],
)  # fmt: skip
def test_steps_of_lines_however_these_are_numbered(numbers: Sequence[int], steps: int) -> None:
    """From 0 or 1, every so many, with the first one of a process or without it."""
    lines = [f"iter {step}: loss 2.5, time 500.00ms, mfu 1.00%" for step in numbers]
    assert one(lines).steps == steps


FAIRSEQ = (
    "{stamp} | INFO | train_inner | epoch 001:   {n} / 900 loss=3.1, wps=1000, ups=1, wpb=1000, bsz=50, "
    "num_updates={n}, lr=0.0001, wall={wall}"
)
METASEQ = (
    '{stamp} | INFO | train_inner | {{"epoch": 1, "loss": "3.1", "wps": "1000", "wpb": "1000", "bsz": "50", '
    '"num_updates": "{n}", "wall": "{wall}"}}'
)
LOADED = "{stamp} | INFO | fairseq.trainer | Loaded checkpoint ckpt/last.pt (epoch 1 @ {n} updates)"
SIZE = "{stamp} | INFO | fairseq_cli.train | num. model params: 86,066,176 (num. trained: 86,066,176)"


@pytest.mark.parametrize("form", [FAIRSEQ, METASEQ])
@pytest.mark.parametrize(
    ("restarts", "steps"),
    [
        ([(None, 10, 61), (LOADED, 60, 111)], 110),  # goes on at once
        ([(None, 10, 61), (LOADED, 50, 101)], 110),  # ten updates are made twice
        ([(None, 10, 61), (SIZE, 60, 101)], 100),
        ([(None, 10, 61), (None, 50, 101)], 110),
        ([(LOADED, 50, 101)], 50),
        ([(None, 60, 101)], 50),
    ],
)
def test_updates_of_several_processes(
    form: str, restarts: list[tuple[str | None, int, int]], steps: int
) -> None:
    """A process begins 500 s after the one before has ended; a second an update, its `wall` goes on."""
    lines, now = [], 0.0
    for said, first, last in restarts:
        now += 500.0
        if said:
            lines.append(said.format(stamp=f"2023-06-13 {moment_of(now)[:8]}", n=first))
        for updates in range(first + 10 if said or first == 50 else first, last, 10):
            now += 10.0
            stamp = f"2023-06-13 {moment_of(now)[:8]}"
            lines += 2 * [form.format(stamp=stamp, n=updates, wall=int(now))]  # of two handlers
    job = one(lines)
    assert (job.steps, job.step_seconds) == (steps, pytest.approx(1.0))


def test_a_batch_that_a_later_process_changes() -> None:
    first, second = resumed_trainer_log(0, 300, 100)[:-1], resumed_trainer_log(100, 300)
    log = one([*first, *(line.replace("= 64", "= 128") for line in second)])
    assert (log.steps, log.rate) == (300, pytest.approx((89 * 64 + 199 * 128) / (2 * 288), rel=0.01))
    assert any("64, 128" in note for note in log.notes)
    later = [line.replace(". 64", ". 128") for line in timer_log(100, 100, start=900)]
    log = one([*timer_log(0, 100), *later])
    assert (log.steps, log.rate) == (200, pytest.approx((80 * 64 + 90 * 128) / (2 * 170), rel=0.02))
    assert any("64, 128" in note for note in log.notes)
    unstamped = one([line.partition("] ")[2] for line in (*timer_log(0, 100), *later)])
    assert (unstamped.steps, unstamped.rate) == (200, pytest.approx(32.0))


def test_steps_of_nemo_over_epochs() -> None:
    """Of 150; the total beside them is the epoch's, or the training's."""
    for total in (149, 299):
        lines = [
            f"Training epoch {step // 150}, iteration {step % 150}/{total} | global_batch_size: 8 | "
            f"global_step: {step} | reduced_train_loss: 1.233 | train_step_timing in s: 0.5"
            for step in range(300)
        ]
        assert (one(lines).steps, one(lines).step_seconds) == (300, 0.5)


def test_steps_of_a_log_of_swift_that_was_restarted() -> None:
    """Steps 50 to 60 are made twice; its lines have no stamps, and a clock that begins again."""
    lines = []
    for first, last in ((0, 60), (50, 100)):
        for step in ([1] if not first else []) + list(range(first + 5, last + 1, 5)):
            seconds = 30 + 4 * (step - first)
            lines.append(
                f"{{'loss': '0.3', 'global_step/max_steps': '{step}/100', "
                f"'elapsed_time': '{seconds // 60}m {seconds % 60}s', "
                f"'train_speed(s/it)': '{seconds / (step - first):.6f}'}}"
            )
    job = one(lines)
    assert (job.outcome, job.steps, job.total) == ("succeeded", 110, None)


def test_times_with_a_zone_are_of_one_clock() -> None:
    there, here = moment("2024-05-01T14:00:00+02:00"), moment("2024-05-01T12:00:00Z")
    assert there == here == 1714564800


@pytest.mark.parametrize(
    ("text", "hours"),
    [("11:58:10 PM", 23), ("11:58:10 am", 11), ("1:58:10PM", 13), ("12:58:10.0 AM", 0), ("12:58:10 PM", 12)],
)
def test_times_of_half_a_day(text: str, hours: int) -> None:
    assert moment(text) == 3600 * hours + 60 * 58 + 10


def test_a_part_of_the_ranks_is_not_all_of_them() -> None:
    """NCCL makes a communicator of all ranks, and then smaller ones."""
    frame = Frame()
    for ranks in (16, 8, 2):
        frame.line(f"n1:10:20 [0] NCCL INFO comm 0x1 rank 0 nranks {ranks}")
    assert frame.ranks == 16


def test_a_log_of_an_older_launcher_that_just_stops() -> None:
    """It names no process that it starts, and each that ends."""
    outcomes = []
    for ends in (True, False):
        lines = [line for line in chat_log(["node-1"], ends=ends) if "spawned with command" not in line]
        outcomes.append(one(lines).outcome)
    assert outcomes == [State.SUCCEEDED, State.TIMEOUT]


def test_tokens_of_a_job_where_the_tool_says_those_of_a_device() -> None:
    """torchtitan: 8 samples of 8,192 tokens in 1.5 s on eight devices. Tokens are those of the whole job."""
    head = "[rank0]:[titan] 2026-05-04 {} - root - INFO - "
    said = (
        "Trainer is initialized with local batch size 1, global batch size 8, gradient accumulation steps 1, "
    )
    lines = [f"{head.format(moment_of(0))}{said}sequence length 8192, total steps 100 (warmup 2)"]
    lines += [f"{head.format(moment_of(1.5 * n))}step: {n}  loss:  2.5  tps: 5,461" for n in range(1, 101)]
    job = one(lines)
    assert job.tokens_per_second == pytest.approx(8 * 8192 / 1.5) and job.notes == ()


def test_windows_of_whole_seconds_tell_no_usual_pace() -> None:
    """Bars of ten seconds a window."""
    measured = one(resumed_trainer_log(0, 300)).measured
    assert measured is not None and (measured.halves, measured.stalls) == (None, None)


def test_what_lies_between_two_processes_is_no_training() -> None:
    """torchtitan, resumed 400 s after it had stopped: four seconds a step before and after."""
    head, now, lines = "[rank0]:[titan] 2026-05-04 {} - root - INFO - ", 0.0, []
    for first in (1, 101):
        now += 400.0
        start = head.format(moment_of(now))
        lines += [f"{start}Model llama3 8B size: 8,030,261,248 total parameters"]
        lines += [f"{start}Trainer is initialized with local batch size 2, global batch size 16, x"]
        lines += [f"{start}Training starts at step {first}"]
        for step in (first, *range(first + 9, first + 100, 10)):
            at = now + 4.0 * (step - first + 1)
            lines.append(f"{head.format(moment_of(at))}step: {step:2d}  loss:  2.5  tps: 4,096")
        now = at
    job = one(lines)
    assert (job.steps, job.step_seconds) == (200, pytest.approx(4.0, rel=1e-3))


def test_a_batch_that_a_resumed_training_changes_and_evaluations() -> None:
    """torchtitan: 16 samples in four seconds, then 64 in eight; each twentieth step is followed by 30 s."""
    head, now, lines = "[rank0]:[titan] 2026-05-04 {} - root - INFO - ", 0.0, []
    for first, batch, took in ((1, 16, 4.0), (101, 64, 8.0)):
        now += 400.0
        said = (
            f"Trainer is initialized with local batch size 2, global batch size {batch}, total steps 200 (w"
        )
        lines += [f"{head.format(moment_of(now))}{said}"]
        for step in range(first, first + 100):
            now += took
            lines.append(f"{head.format(moment_of(now))}step: {step:2d}  loss:  2.5  tps: 4,096")
            if step % 20 == 0:
                now += 30.0
                lines.append(f"{head.format(moment_of(now))}validate step: {step:2d}  loss:  2.5  tps: 9,000")
    job = one(lines)
    assert job.measured is not None and job.steps == 200
    used = {4.0: 90 - 4, 8.0: 99 - 4}  # without the warm-up, and the steps that an evaluation is in
    samples, seconds = 16 * used[4.0] + 64 * used[8.0], sum(took * n for took, n in used.items())
    assert job.rate == pytest.approx(samples / seconds, rel=5e-3)
    assert job.tokens_per_second == pytest.approx(4096) and [note for note in job.notes if "16, 64" in note]


def moment_of(seconds: float) -> str:
    return f"{int(seconds // 3600):02d}:{int(seconds // 60) % 60:02d}:{seconds % 60:06.3f}".replace(".", ",")
