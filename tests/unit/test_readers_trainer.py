"""Logs of Transformers' Trainer."""

from __future__ import annotations

import re

import pytest

from tests.unit.logs import one, trainer_log


def split(text: str) -> list[str]:
    return re.split("[\r\n]", text)


def test_the_trainers_bars() -> None:
    """64 samples a second; its own account says 58.2, since the first step took half a minute."""
    job = one(split(trainer_log()), "node-1.log")
    assert (job.format, job.outcome, job.batch, job.steps) == ("Transformers", "succeeded", 64, 300)
    assert job.rate == pytest.approx(64, rel=0.01)
    assert job.reported == pytest.approx(58.2, rel=0.01)


def test_without_the_announcement_the_batch_comes_from_the_account() -> None:
    job = one(split(trainer_log(batch=None)), "node-1.log")
    assert job.batch == 64 and job.rate == pytest.approx(64, rel=0.01)


def test_a_short_run_has_the_trainers_own_account() -> None:
    """Whole seconds are too coarse for it."""
    job = one(split(trainer_log(step=0.1)), "node-1.log")
    assert job.measured is None and job.rate == job.reported == pytest.approx(300 * 64 / 60)
    assert "the tool printed" in job.notes[0]


def test_evaluation_bars_stop_the_trainings_clock() -> None:
    text = trainer_log(step=1.0, steps=400)
    place = text.index("200/400")
    later = re.sub(
        r"\[(\d\d):(\d\d)<", lambda m: f"[{int(m[1]) + 5:02d}:{m[2]}<", text[place:]
    )  # five minutes
    evaluation = "\r 50%|█████     | 5/10 [00:05<00:05, 1.0it/s]\r100%|███| 10/10 [05:00<00:00, 1.0it/s]"
    text = f"{text[:place]}200/400 [03:50<01:00, 1.0s/it]{evaluation}\r  50%|██  | {later}"
    job = one(split(text), "node-1.log")
    assert job.rate == pytest.approx(64, rel=0.02)


def test_a_trainer_that_was_cut_off() -> None:
    job = one(split(trainer_log().partition("{'train_runtime'")[0]), "node-1.log")
    assert job.outcome == "timeout" and "after step 300" in (job.reason or "")


def test_a_trainer_without_bars() -> None:
    lines = ["{'loss': 0.51, 'grad_norm': 1.2, 'learning_rate': 5e-05, 'epoch': 0.5}"] * 3
    assert (one(lines, "node-1.log").outcome, one(lines, "node-1.log").format) == ("timeout", "Transformers")
    metrics = [
        "***** train metrics *****",
        "  train_runtime            = 0:12:22.52",
        "  train_samples_per_second =      227.7",
    ]
    job = one([*lines, *metrics], "node-1.log")
    assert (job.outcome, job.rate) == ("succeeded", 227.7)
