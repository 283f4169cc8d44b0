"""The learning rate of every optimizer step, from the recipe alone. Pure.

The formulas are those of Transformers' schedulers (transformers/optimization.py), which do the work; the rank
holds what it really trains with against them (worker/report.py).
"""

from __future__ import annotations

import math
from typing import Any

from muster.core.recipe import Train

TIMESCALE = 10_000  # of inverse_sqrt without a warm-up


def warmup_steps(train: Train, total: int) -> int:
    """Return the steps of the warm-up: a number of them, or below 1 a fraction of all, rounded up."""
    return int(train.warmup) if train.warmup >= 1 else math.ceil(total * train.warmup)


def steps_of(train: Train, samples: int, global_batch: int, accumulation: int) -> int:
    """Return the optimizer steps of a training on so many samples: of each epoch all micro-steps, the last
    optimizer step with fewer of them."""
    if train.max_steps:
        return train.max_steps
    micro_steps = -(-samples // (global_batch // accumulation))
    per_epoch = max(1, -(-micro_steps // accumulation))
    return max(1, math.ceil(train.epochs * per_epoch))


def warmup_note(train: Train, total: int, own: tuple[str, int] | None = None) -> str | None:
    """Return a note where the learning rate never reaches its peak; else None. `own`: an engine's key in
    place of train.warmup, and its steps."""
    name, warmup = own or ("train.warmup", train.warmup)
    if warmup < max(1, total):
        return None
    steps = "1 step" if total == 1 else f"{total:,} steps"
    less = "fewer of them" if own else "a fraction, such as train.warmup=0.1, scales with the steps"
    return (
        f"{name}={warmup:g} is no shorter than the training of {steps}, so the learning rate never reaches "
        f"its peak: {less}"
    )


def learning_rate(train: Train, step: int, total: int) -> float:
    """Return the rate of optimizer step `step` (1 is the first) of `total`. A warm-up begins with rate 0."""
    return train.rate * _factor(train, step - 1, total)


def scheduler(train: Train) -> dict[str, Any]:
    """Return the arguments of TrainingArguments with which Transformers follows the schedule. A floor is
    given as a share of the rate: for a rate Transformers asks the optimizer, and DeepSpeed's have no
    `defaults`."""
    if not train.min_learning_rate:
        return {"lr_scheduler_type": train.schedule}
    share = {"min_lr_rate": train.min_learning_rate / train.rate}
    return {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": share}


def _factor(train: Train, done: int, total: int) -> float:
    warmup = warmup_steps(train, total)
    if train.schedule == "constant":
        return 1.0
    if done < warmup:
        return done / warmup
    if train.schedule == "constant_with_warmup":
        return 1.0
    if train.schedule == "inverse_sqrt":
        scale = warmup or TIMESCALE
        return 1.0 / math.sqrt((done - warmup + scale) / scale)
    left = max(1, total - warmup)
    if train.schedule == "cosine":
        floor = train.min_learning_rate / train.rate
        falling = 0.5 * (1.0 + math.cos(math.pi * (done - warmup) / left))
        return max(0.0, falling * (1.0 - floor) + floor)
    return max(0.0, (total - done) / left)
