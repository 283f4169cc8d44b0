"""Logs of Transformers whose figures are coarse: rates of whole runs, bars in seconds, and loops that do not
say that they end."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from muster.judging.document import Judged
from muster.judging.logs import judge
from muster.readers._read import read_blocks
from muster.readers.base import JobLog

HOSTS = tuple(f"node{number:02d}" for number in range(1, 9))


def bar(step: int, total: int, seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    pace = seconds / max(1, step)
    clock = f"{minutes:02d}:{rest:02d}<00:10, {pace:.2f}s/it"
    return f"\r{100 * step // total:3d}%|##        | {step}/{total} [{clock}]"


def trainer(steps: int, step: float, *, first: int = 0, startup: float = 6.0, seed: int = 0) -> str:
    """A short run of the Trainer, which tells 64 samples a step and its own rate of all that it made; it goes
    on from step `first`."""
    draw = random.Random(seed)
    text = (
        "[INFO|trainer.py:2409] 2025-10-02 09:14:13,119 >> ***** Running training *****\n"
        f"  Num examples = {steps * 64:,}\n  Num Epochs = 1\n"
        "  Instantaneous batch size per device = 8\n"
        "  Total train batch size (w. parallel, distributed & accumulation) = 64\n"
        f"  Gradient Accumulation steps = 1\n  Total optimization steps = {steps:,}\n"
        "  Number of trainable parameters = 8,030,261,248\n"
    )
    if first:
        text += f"  Continuing training from global step {first}\n"
    seconds = startup
    for number in range(first + 1, steps + 1):
        seconds += step * draw.gauss(1, 0.01)
        text += bar(number, steps, seconds)
        if number % 50 == 0:
            text += f"\n{{'loss': {3 - number / steps:.4f}, 'epoch': {number / steps:.2f}}}\n"
    runtime = seconds + 0.4
    return f"{text}\n" + (
        f"{{'train_runtime': {runtime:.4f}, 'train_samples_per_second': {steps * 64 / runtime:.3f}, "
        f"'train_steps_per_second': {steps / runtime:.3f}, 'train_loss': 2.1, 'epoch': 1.0}}\n"
    )


def loop(
    step: float = 0.62,
    *,
    evaluation: float = 48.0,
    end: str = "",
    cut: int = 0,
    seed: int = 0,
    told: bool = True,
) -> str:
    """Two epochs of 300 steps as `run_clm_no_trainer.py` shows them: with an evaluation that has no bar."""
    draw = random.Random(seed)
    line = "10/02/2025 09:20:13 - INFO - __main__ - "
    text = "".join(
        f"{line}  {each}\n"
        for each in (
            "***** Running training *****",
            "Num examples = 9,600",
            "Total train batch size (w. parallel, distributed & accumulation) = 32",
            "Total optimization steps = 600",
        )
    )
    seconds = 5.0
    for number in range(1, (cut or 600) + 1):
        seconds += step * draw.gauss(1, 0.02)
        text += bar(number, 600, seconds)
        if number % 300 == 0:
            seconds += evaluation
            text += f"{line}epoch {number // 300 - 1}: perplexity: 19.2 eval_loss: 2.95\n" if told else ""
    return text + end


def read(text: str) -> JobLog:
    (log,) = read_blocks("gpu07.log", [text.replace("\r", "\n").split("\n")])
    return log


def judged(folder: Path, logs: dict[str, str]) -> Judged:
    for name, text in logs.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text.encode())
    return judge(folder)


def conditions(document: Judged) -> dict[str, str]:
    return {each.host: each.condition for each in document.hosts}


def test_rates_of_whole_runs_are_compared_where_these_have_as_many_steps(tmp_path: Path) -> None:
    """Both runs of node04 go on at step 240 of 400: "13.5 % slower", by their start-up."""
    logs = {
        f"exp{turn}/{host}.log": trainer(400, 0.16, first=240 * (host == "node04"), seed=8 * turn + number)
        for turn in (1, 2)
        for number, host in enumerate(HOSTS)
    }
    found = judged(tmp_path, logs)
    assert conditions(found) == {host: "unknown" if host == "node04" else "fit" for host in HOSTS}
    reason = next(each.reason for each in found.hosts if each.host == "node04")
    assert "how many steps" in reason
    assert all(
        any("start-up" in note for note in job.notes) == (job.hosts == ("node04",)) for job in found.jobs
    )


def test_resumed_runs_are_compared_with_each_other(tmp_path: Path) -> None:
    logs = {
        f"exp{turn}/{host}.log": trainer(
            400, 0.16 * (1.1 if host == "node06" else 1.0), first=240 * (number < 4), seed=8 * turn + number
        )
        for turn in (1, 2)
        for number, host in enumerate(HOSTS)
    }
    found = conditions(judged(tmp_path, logs))
    assert found.pop("node06") == "slow" and set(found.values()) == {"fit"}


@pytest.mark.parametrize("kind", ["Trainer", "loop"])
def test_runs_with_the_same_losses_are_no_copies(tmp_path: Path, kind: str) -> None:
    """Seeded runs have the same losses, and bars tell whole seconds; what else they print differs."""
    logs = {
        f"run{turn}/{host}.log": trainer(300, 0.5, seed=8 * turn + number)
        if kind == "Trainer"
        else loop(0.31, evaluation=15, seed=8 * turn + number)
        for turn in (1, 2, 3)
        for number, host in enumerate(HOSTS)
    }
    assert not any("cop" in note for note in judged(tmp_path, logs).notes)


@pytest.mark.parametrize("more", ["", "logout\n"])
def test_a_copy_with_another_line_that_tells_nothing_is_one(tmp_path: Path, more: str) -> None:
    text = trainer(300, 0.5)
    found = judged(tmp_path, {"a/node01.log": text, "backup/node01.log": f"{text}{more}"})
    assert any("copy" in note for note in found.notes)


SAVED = "Configuration saved in /tmp/clm/config.json\nModel weights saved in /tmp/clm/model.safetensors\n"


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        (loop(end=SAVED), "succeeded"),
        (loop(), "succeeded"),
        (loop(cut=450), "timeout"),
        (loop(end=bar(3, 75, 9.0)), "timeout"),  # a last evaluation was begun
        (loop(end="Traceback (most recent call last):\nRuntimeError: CUDA error: out of memory\n"), "failed"),
        # The Trainer itself says when it ends.
        (trainer(300, 0.5).partition("{'train_runtime'")[0], "timeout"),
    ],
    ids=["saved", "nothing more", "cut", "another bar", "died after it", "the Trainer"],
)
def test_a_bar_at_its_own_total_is_an_end(text: str, outcome: str) -> None:
    assert read(text).outcome.value == outcome


@pytest.mark.parametrize("evaluation", [0.0, 3.0, 48.0])
def test_an_evaluation_without_a_bar_is_in_no_window(evaluation: float) -> None:
    """It is told by a line between two bars alone; it made 52 samples/s 45."""
    log = read(loop(evaluation=evaluation, end=SAVED))
    assert log.samples_per_second == pytest.approx(32 / 0.62, rel=0.006)


def test_a_line_of_an_epoch_alone_leaves_no_window_out() -> None:
    log = read(loop(evaluation=0.0))
    assert log.measured is not None and log.measured.steps > 560 and not log.measured.interrupted
