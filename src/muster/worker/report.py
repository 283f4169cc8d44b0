"""What a rank reports of itself: what it trains with, what its engine wrote, why it failed."""

from __future__ import annotations

import contextlib
import itertools
import platform
import traceback
from typing import Any

from muster.core.errors import MusterError, UsageError
from muster.core.learning_rate import steps_of, warmup_note
from muster.core.registry import versions_of
from muster.engines.base import packages
from muster.store import events
from muster.worker.context import Context
from muster.worker.workloads.base import Built

PACKAGES = ("torch", "transformers", "accelerate", *packages(), "datasets", "peft", "trl", "numpy")
HEAD_LINES, HEAD_WIDTH = 40, 160  # of a file that the engine wrote


def report_start(context: Context, built: Built) -> None:
    """Emit what is about to be trained, and on what; the first rank adds what was read."""
    import torch

    from muster.worker.arithmetic import arithmetic_of

    batch, train = context.batch, context.recipe.train
    total_steps = steps_of(train, built.train_samples, batch.global_, batch.accumulation)
    warming = warmup_note(train, total_steps, context.spec.fixed(context.engine_config or {}).rise)
    parameters = [
        (int(getattr(p, "ds_numel", p.numel())), p.requires_grad) for p in built.trainer.model.parameters()
    ]
    context.emit(
        events.Started,
        device=torch.cuda.get_device_name() if context.device == "cuda" else "cpu",
        parameters=sum(count for count, _ in parameters),
        trainable=sum(count for count, trained in parameters if trained),
        arithmetic=arithmetic_of(context),
        total_steps=total_steps,
        versions={"python": platform.python_version(), **versions_of(PACKAGES)},
        notes=[
            *built.notes,
            *built.skipped.notes,
            *_unused(context, built.trainer),
            *filter(None, [warming]),
        ],
    )
    if context.main:
        context.emit(
            events.DataRead,
            train=built.train_samples,
            validation=len(built.held_out) if built.held_samples is None else built.held_samples,
            cut=built.cut,
            skipped=built.skipped.count,
        )


def _unused(context: Context, trainer: Any) -> list[str]:
    """Name what the recipe asks for and this model cannot do."""
    loss, train = trainer.compute_loss_func, context.recipe.train
    if loss is None:
        asked = {"train.fused_loss": train.fused_loss is True, "train.label_smoothing": train.label_smoothing}
        return [
            f"{name} does nothing here: {context.recipe.workload} has a loss of its own"
            for name, given in asked.items()
            if given
        ]
    if train.fused_loss is not True or getattr(loss, "head", None) is not None:
        return []
    return ["train.fused_loss=true does nothing here: the logits are more than what the output layer gives"]


def report_files(context: Context) -> None:
    """Emit what the engine wrote by itself; the first rank does that."""
    for what, path in context.engine.written(context).items() if context.main else ():
        head = []
        with contextlib.suppress(OSError):  # the trained model is not saved yet: no such file may end the run
            if path.is_file():
                with path.open(encoding="utf-8", errors="replace") as file:
                    head = [line.rstrip()[:HEAD_WIDTH] for line in itertools.islice(file, HEAD_LINES)]
        context.emit(events.Wrote, what=what, path=str(path), head=head)


def report_failure(context: Context, user_error: MusterError, step: int | None) -> None:
    """Emit a failure, and print it into the log. A full disk has room for neither: the agent reports it
    then."""
    with contextlib.suppress(OSError):
        context.emit(
            events.Failed,
            what=user_error.what,
            where=user_error.where,
            hint=user_error.hint,
            usage=isinstance(user_error, UsageError),
            id=user_error.failure,
            checkpoint=step,
            traceback=traceback.format_exc(),
        )
    with contextlib.suppress(OSError):
        traceback.print_exc()
