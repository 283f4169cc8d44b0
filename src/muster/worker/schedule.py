"""Whether the learning rate is what the recipe says, in every step."""

from __future__ import annotations

import math
from typing import Any

from transformers import TrainerCallback

from muster.core.schedule import learning_rate
from muster.core.zero import user_training
from muster.store import events
from muster.worker.context import Context

TOLERANCE = 1e-6  # relative; schedulers compute in another order


class ScheduleWatch(TrainerCallback):  # type: ignore[misc]
    """Holds the optimizer's rate at the begin of every step against the recipe's formula; the first
    difference becomes a note in the result.

    Not watched: a scheduler of DeepSpeed's own, which the plan names, and fp16, whose skipped steps do not
    move the schedule.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        fixed = user_training(context.deepspeed or {})
        known: dict[str, Any] = {name: fixed[name] for name in ("learning_rate", "warmup") if name in fixed}
        self.train = context.recipe.train.model_copy(update=known)
        own = "scheduler" in (context.deepspeed or {})
        self.watching = context.main and not own and context.precision != "fp16"

    def on_step_begin(self, args: Any, state: Any, control: Any, optimizer: Any = None, **_: Any) -> None:
        """Compare."""
        if not self.watching or optimizer is None:
            return
        step, train = state.global_step + 1, self.train
        wanted = learning_rate(train, step, state.max_steps)
        rate = float(optimizer.param_groups[0]["lr"])
        if not math.isclose(rate, wanted, rel_tol=TOLERANCE, abs_tol=TOLERANCE * train.rate):
            self.watching = False
            self.context.emit(
                events.Noted,
                text=f"the learning rate of step {step} was {rate:.6g}, where the recipe's schedule "
                f"({train.schedule}, warm-up {train.warmup:g}) gives {wanted:.6g}",
            )
