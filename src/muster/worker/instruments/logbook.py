"""The logbook: the trainer's own figures (loss, learning rate, gradient norm, held-out loss) as events."""

from __future__ import annotations

import math
import time
from typing import Any

from transformers import TrainerCallback

from muster.core.errors import WorkerError
from muster.failures.table import known_failures
from muster.progress import Pulse
from muster.store import events
from muster.worker.context import Context

# What trainers log beside the loss -> what Muster calls it. The names on the left are TRL's.
FIGURES = {
    "accuracy": "pair_accuracy", "rewards/accuracies": "pair_accuracy", "pair_accuracy": "pair_accuracy",
    "margin": "margin", "rewards/margins": "margin",
    "reward": "reward", "reward_std": "reward_std", "kl": "kl", "entropy": "entropy",
    "completions/mean_length": "answer_tokens", "completions/clipped_ratio": "cut_answers",
    "frac_reward_zero_std": "equal_groups",  # prompts whose answers are all as good: nothing is learned there
    "value_loss": "value_loss", "clip_fraction": "clip_fraction",
}  # fmt: skip


class HeartbeatCallback(TrainerCallback):  # type: ignore[misc]
    """Tells the agent of every step, and of what is done between steps, so that a hang is noticed."""

    def __init__(self, pulse: Pulse) -> None:
        self.pulse = pulse

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Beat for an optimizer step."""
        self.pulse.beat(state.global_step)

    def _beat(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Beat for anything else that the trainer does."""
        self.pulse.beat()

    on_substep_end = on_prediction_step = on_evaluate = on_save = on_log = on_train_begin = _beat


class LogCallback(TrainerCallback):  # type: ignore[misc]
    """Rank 0 records; the figures are averages over all ranks already."""

    def __init__(self, context: Context) -> None:
        self.emit, self.main = context.emit, context.main
        self.max_minutes = context.recipe.train.max_minutes
        self.deadline: float | None = None
        self.out_of_time = False
        self.rate: float | None = None  # of the last step
        self.next_rate: float | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Begin the time of training."""
        self.deadline = time.monotonic() + 60 * self.max_minutes if self.max_minutes else None

    def on_step_begin(self, args: Any, state: Any, control: Any, optimizer: Any = None, **_: Any) -> None:
        """Note the learning rate that this step will use; after the step, engines differ in which one they
        give."""
        if optimizer is not None:
            self.next_rate = float(optimizer.param_groups[0]["lr"])

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        """Emit a log. Raises WorkerError for a loss that is not a number: nothing good comes after it."""
        logs = logs or {}
        if self.main and "loss" in logs:
            self.emit(
                events.Log,
                step=state.global_step,
                epoch=state.epoch,
                loss=finite(logs["loss"]),
                learning_rate=finite(self.rate),
                gradient_norm=finite(logs.get("grad_norm")),
                figures=figures(logs),
            )
        if "loss" in logs and not math.isfinite(float(logs["loss"])):
            raise WorkerError(
                f"the loss is {logs['loss']} at step {state.global_step}",
                hint=known_failures()["loss_nan"].remedy,
                failure="loss_nan",
            )

    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: dict[str, Any] | None = None, **_: Any
    ) -> None:
        """Emit the held-out loss, or the reward of held-out answers."""
        metrics = metrics or {}
        loss, others = finite(metrics.get("eval_loss")), figures(metrics, "eval_")
        if self.main and (loss is not None or others):
            self.emit(
                events.Evaluated,
                step=state.global_step,
                loss=loss,
                perplexity=finite(metrics.get("eval_perplexity")),
                seconds=metrics.get("eval_runtime"),
                figures=others,
            )

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Stop when the recipe's training time is up; all ranks at the same step."""
        self.rate = self.next_rate  # a log may be written when the next step has begun
        if self.deadline is not None and not self.out_of_time and state.global_step % 10 == 0:
            from muster.worker.together import gather

            self.out_of_time = any(gather(time.monotonic() > self.deadline))
            if self.out_of_time:
                control.should_training_stop = True
                control.should_log = True


def figures(logs: dict[str, Any], before: str = "") -> dict[str, float]:
    """Pick the workload's further figures of a log, by Muster's names; what is no finite number is left
    out."""
    numbers = {
        label: finite(logs.get(before + name)) for name, label in FIGURES.items() if before + name in logs
    }
    return {name: value for name, value in numbers.items() if value is not None}


def finite(value: Any) -> float | None:
    """Return a number as a float; None for nothing, nan and infinity."""
    if value is None:
        return None
    number = float(value)
    return number if math.isfinite(number) else None
