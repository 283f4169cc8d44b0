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
    assert "local_rank" not in job.recipe and "--max_seq_len 512" in job.recipe
    assert (job.batch, job.steps, job.skipped, job.memory) == (192, 110, 8, int(33.78 * 2**30))
    assert job.measured is not None
    assert (job.measured.windows, job.measured.steps, job.measured.skipped) == (9, 90, 0)
    assert job.rate == pytest.approx(192 / 0.2, rel=1e-4)
    assert job.step_seconds == pytest.approx(0.2, rel=1e-4)


def test_two_hosts_are_joined_by_pdsh_prefixes() -> None:
    job = one(chat_log(["node-1", "node-2"]))
    assert (job.hosts, job.world_size, job.batch) == (("node-1", "node-2"), 16, 384)
    assert job.rate == pytest.approx(384 / 0.2, rel=1e-4)
    assert job.recipe == one(chat_log(["node-3"])).recipe  # so that a judge can compare them


def test_windows_with_skipped_steps_do_not_count() -> None:
    """They are faster: with them, the rate would be 1 % higher."""
    job = one(chat_log(["node-1"], skipped=(8, 0, 0, 0, 9)))
    assert (job.skipped, job.measured.windows if job.measured else 0) == (17, 8)
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


def test_without_a_batch_the_average_still_gives_a_rate() -> None:
    """As of a program of one's own that uses DeepSpeed."""
    lines = [line for line in chat_log(["node-1"]) if "SamplesPerSec" in line]
    job = one(lines, "logs/node-1.log")
    assert (job.batch, job.step_seconds, job.hosts, job.hosts_from) == (
        None,
        None,
        ("node-1",),
        "guess: file name",
    )
    assert job.rate == pytest.approx(960, rel=1e-4)
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
