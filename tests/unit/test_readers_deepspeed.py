"""DeepSpeed's and DeepSpeed-Chat's logs."""

from __future__ import annotations

import re

import pytest

from tests.unit.logs import at, chat_log, one


def test_deepspeed_chat() -> None:
    """The warm-up ends after ten steps that were used: of the first ten, eight were skipped."""
    job = one(chat_log(["node-1"]))
    assert (job.outcome, job.hosts, job.hosts_from, job.world_size) == ("succeeded", ("node-1",), "log", 8)
    assert (job.format, job.workload) == ("DeepSpeed, DeepSpeed-Chat", "facebook/opt-350m (step1_sft)")
    assert "local_rank" not in job.settings and "--max_seq_len 512" in job.settings
    assert (job.batch, job.steps, job.skipped_steps, job.memory) == (192, 110, 8, int(33.78 * 2**30))
    assert job.measured is not None
    assert (job.measured.windows, job.measured.steps, job.measured.skipped) == (9, 90, 0)
    assert job.rate == pytest.approx(192 / 0.2, rel=1e-4)
    assert job.step_seconds == pytest.approx(0.2, rel=1e-4)


def test_two_hosts_are_joined_by_pdsh_prefixes() -> None:
    job = one(chat_log(["node-1", "node-2"]))
    assert (job.hosts, job.world_size, job.batch) == (("node-1", "node-2"), 16, 384)
    assert job.rate == pytest.approx(384 / 0.2, rel=1e-4)
    assert job.settings == one(chat_log(["node-3"])).settings  # so that a judge can compare them


def test_windows_with_skipped_steps_do_not_count() -> None:
    """They are faster: with them, the rate would be 1 % higher."""
    job = one(chat_log(["node-1"], skipped=(8, 0, 0, 0, 9)))
    assert (job.skipped_steps, job.measured.windows if job.measured else 0) == (17, 8)
    assert job.rate == pytest.approx(192 / 0.2, rel=1e-4)


def test_where_every_window_has_skipped_steps_only_used_samples_count() -> None:
    job = one(chat_log(["node-1"], skipped=(1,) * 11))
    assert job.measured is not None and job.measured.skipped > 0 and "skipped" in job.notes[0]
    assert job.rate == pytest.approx(9 * 192 / (9 * 0.2 + 0.18), rel=1e-3)


def test_a_job_that_skipped_all_steps_trained_nothing() -> None:
    job = one(chat_log(["node-1"], windows=3, skipped=(10,) * 4))
    assert (job.outcome, job.failure, job.rate) == ("failed", "loss_scale_too_high", 240 * 4)
    assert "all 40 steps were skipped" in (job.reason or "")


def test_the_timers_own_average_where_lines_have_no_stamps() -> None:
    lines = [re.sub(r"\[2024[^]]*\] ", "", line) for line in chat_log(["node-1"])]
    assert one(lines).rate == pytest.approx(960, rel=1e-4)
    assert one(lines).step_seconds == pytest.approx(0.2, rel=1e-4)


def test_without_a_batch_time_stamps_give_the_pace() -> None:
    """As of a program of one's own that uses DeepSpeed: its timer leaves out what is between the steps."""
    lines = [line for line in chat_log(["node-1"]) if "SamplesPerSec" in line]
    job = one(lines, "logs/node-1.log")
    assert (job.batch, job.step_seconds, job.hosts, job.hosts_from) == (
        None,
        0.2,
        ("node-1",),
        "guess: file name",
    )
    assert (job.unit, job.rate) == ("steps", pytest.approx(5, rel=1e-4))
    assert job.reported == pytest.approx(960, rel=1e-4)
    assert one([line.partition("] ")[2] for line in lines]).rate == pytest.approx(960, rel=1e-4)
    assert job.outcome == "succeeded"  # these lines do not say when a job is over


def test_older_lines_of_the_timer() -> None:
    lines = [f"[{at(step / 5)}] [INFO] [timer.py:198:stop] 0/{step}, RunningAvgSamplesPerSec=5.0, "
             "CurrSamplesPerSec=5.0, MemAllocated=0.36GB" for step in range(10, 90, 10)]  # fmt: skip
    assert one(lines, "node-1.log").rate == pytest.approx(5.0)


def test_evaluation_between_epochs_does_not_count() -> None:
    lines = chat_log(["node-1"])
    place = next(n for n, line in enumerate(lines) if "step=60," in line)
    later = [re.sub(r"05:52:(\d\d)", lambda m: f"05:53:{m[1]}", line) for line in lines[place:]]  # 60 s later
    job = one([*lines[:place], "***** Evaluating perplexity, Epoch 1/2 *****", *later])
    assert job.rate == pytest.approx(960, rel=1e-3)
    assert job.measured and job.measured.windows == 8


def test_a_run_that_began_anew_in_the_same_file() -> None:
    job = one([*chat_log(["node-1"], ends=False, windows=4), *chat_log(["node-1"], windows=4)])
    assert (job.outcome, job.steps) == ("succeeded", 100)
    assert job.rate == pytest.approx(960, rel=2e-2)


def test_latency_lines_of_deepspeed_chat() -> None:
    lines = ["|E2E latency=4.06s |Gather latency=0.00s |"] + [
        f"End-to-End => Latency: {latency}s, TFLOPs: 69.5, Samples/sec: {32 / latency}, Time/seq 0.13s"
        for latency in (9.0, *[4.0] * 29)
    ]
    assert one(lines, "node-1.log").rate == pytest.approx(8.0)


# Lambda's and DeepSpeedExamples' step 3 (dschat/utils/perf.py, deepspeed/runtime/hybrid_engine.py)
ENGINE = (
    "|E2E latency=12.60s |Gather latency=0.77s (6.12%) |Generate time=6.19s (49.18%) "
    "|Training time=3.41s (27.08%) |Others=2.99 (23.72%)|CurSamplesPerSec=10.16 |AvgSamplesPerSec=9.81"
)
STEP = (
    "End-to-End => Latency: 12.60s, TFLOPs: 69.5, Samples/sec: 10.16, Time/seq 0.10s, Batch Size: 128, "
    "Total Seq. Length: 512"
)
MICRO = (
    "Model Parameters: 0.331 B, Latency: {latency}s, TFLOPs: 0.51, Samples/sec: {rate}, Time/seq 0.28s, "
    "Batch Size: 2, Sequence Length: 512"
)


def test_a_step_with_generation_is_not_its_training() -> None:
    """DeepSpeed's timer sees the training of two models; the step has 128 prompts in 12.6 s."""
    lines = [line for line in chat_log(["node-1"]) if "SamplesPerSec" in line or "dist_world_size" in line]
    for said in ([ENGINE], [STEP], [ENGINE, STEP]):
        job = one([*lines[:3], *(said * 10), *lines[3:6], *(said * 10), *lines[6:]], "node-1.log")
        assert (job.unit, job.rate) == ("samples", pytest.approx(10.16, rel=1e-3))
    wrong = STEP.replace("10.16", "0.16").replace("128", "2")  # where an unsupervised data set is given
    assert one(["dist_world_size=8", *([wrong] * 20)], "node-1.log").step_seconds == pytest.approx(
        12.6, rel=0.01
    )


def test_a_latency_is_of_one_ranks_micro_batch() -> None:
    """Two of them a step, 0.55 and 0.14 s, on eight ranks: 46 samples/s, and not 5.8."""
    pair = [MICRO.format(latency=0.55, rate=3.63), MICRO.format(latency=0.14, rate=14.01)]
    job = one(["dist_world_size=8", *(pair * 30)], "node-1.log")
    assert job.rate == pytest.approx(8 * 4 / (2 / 3.63 + 2 / 14.01), rel=0.01)
    runner = (
        "[2025-01-02 15:45:22,160] [INFO] [runner.py:607:main] cmd = python3 -u -m deepspeed.launcher.launch "
        "--world_info=eyJsb2NhbGhvc3QiOiBbMCwgMSwgMiwgMywgNCwgNSwgNiwgN119 --master_port=29500 main.py "
        "--model_name_or_path facebook/opt-350m --per_device_train_batch_size 2 "
    )
    timer = [
        *(pair * 10),
        "[{at}] [INFO] [timer.py:264:stop] epoch=0/micro_step={micro}/global_step={step}, "
        "RunningAvgSamplesPerSec=46.5, CurrSamplesPerSec=46.8, MemAllocated=5.53GB, MaxMemAllocated=8.61GB",
    ]
    lines = [
        line.format(at=at(0.69 * step), micro=2 * step, step=step)
        for step in range(10, 210, 10)
        for line in timer
    ]
    job = one([runner, "[2025] [INFO] [launch.py:163:main] dist_world_size=8", *lines], "node-1.log")
    assert (job.batch, job.rate) == (32, pytest.approx(32 / 0.69, rel=1e-3))
