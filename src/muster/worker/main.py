"""A rank from its first import to its last event: the table of contents of a training.

A step is one call. What it does stands in the file that its import names; what a workload's `build` makes, in
`workloads/NAME/train.py`, which ends in `wired` of worker/trainer.py.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from contextlib import nullcontext
from types import ModuleType
from typing import Any

from muster.core.errors import MusterError, WorkerError
from muster.core.registry import WORKLOADS, load_plugin
from muster.store import events
from muster.worker.arguments import training_arguments, with_engine
from muster.worker.context import Context, read_context
from muster.worker.explain import explain, from_checkpoint
from muster.worker.locks import clear_stale_locks
from muster.worker.report import report_failure, report_files, report_start
from muster.worker.workloads.base import HeldOut


def run(spec: dict[str, Any]) -> int:
    """Train as the spec says. The exit code: 0, 1 for a breakdown, 2 for bad input."""
    context = read_context(spec)
    try:
        _run(context)
    except Exception as error:
        user_error = error if isinstance(error, MusterError) else explain(error)
        step = context.resume_step if context.resume_step and from_checkpoint(error) else None
        if step:
            what = f"{context.checkpoint(step).name} cannot be loaded: {user_error.what}"
            user_error = WorkerError(what, hint=user_error.hint, failure=user_error.failure)
        report_failure(context, user_error, step)
        return user_error.exit_code
    return 0


def _run(context: Context) -> None:
    """Join the group, train, answer the held-out questions, leave the group."""
    context.emit(events.Phase, name="load")
    from muster.worker.together import leave  # with torch, whose failure to load is then an event

    prepare_process(context)
    workload = load_plugin(WORKLOADS, context.recipe.workload, "train")
    if not context.recipe.trains:  # it forms its own group, and emits what it measures
        workload.measure(context)
        context.emit(events.Done, step=0)
        return
    from muster.worker.rendezvous import reach_store

    store = reach_store()
    clear_stale_locks(context)
    context.engine.join(context)
    held_out, done = _train(context, workload)
    if context.recipe.evaluate.after and context.recipe.checkpoint.model and held_out:
        from muster.worker.answering import answer

        context.emit(events.Phase, name="answer")
        answer(context, workload, held_out)
    leave()
    del store
    context.emit(events.Done, **done)


def _train(context: Context, workload: ModuleType) -> tuple[Sequence[HeldOut], dict[str, Any]]:
    """Train, in the order in which every rank goes through it. -> what stays when the trainer and its memory
    are gone: the questions that are held out, and the content of the last event."""
    from muster.worker.arithmetic import hold_arithmetic
    from muster.worker.instruments.attach import attach_instruments
    from muster.worker.saving import save_model
    from muster.worker.uneven import settle_shares

    recipe, engine = context.recipe, context.engine

    # Data, tokenizer, model, loss and trainer, as the workload, the recipe and the engine want them.
    arguments = with_engine(training_arguments(context), engine.arguments(context))
    built = workload.build(context, arguments)
    trainer = built.trainer
    if context.grouped:
        engine.adapt(trainer.model)

    # What libraries have set since, as the recipe says it.
    set_loss_scale(context, trainer)
    hold_arithmetic(context)

    # Each rank's share of a batch; before the instruments, which shall not measure the trial.
    settle_shares(context, trainer)
    weights, meter, log = attach_instruments(context, built)
    report_start(context, built)

    # The steps. Before the first one `SettingsWatch` compares the recipe with what the libraries hold.
    context.emit(events.Phase, name="train")
    resumed = context.resumed
    with engine.readable(context, resumed) if resumed else nullcontext() as checkpoint:
        trainer.train(resume_from_checkpoint=checkpoint and str(checkpoint))
    report_files(context)

    # The held-out loss, where the last step had none; the model.
    if recipe.evaluate.after and trainer.eval_dataset is not None and not evaluated_last(trainer.state):
        context.emit(events.Phase, name="evaluate")
        trainer.evaluate()
    saving = 0.0
    if recipe.checkpoint.model:
        context.emit(events.Phase, name="save")
        saving = save_model(context, built)
    return built.held_out, {
        "step": int(trainer.state.global_step),
        "skipped": meter.total_skipped,
        "seconds": {
            "training": meter.training_seconds,
            "evaluation": meter.evaluation_seconds,
            "saving": meter.saving_seconds + saving,
        },
        "weights_changed": weights.changed,
        "out_of_time": log.out_of_time,
    }


def prepare_process(context: Context) -> None:
    """Seed, and choose the device."""
    import torch

    random.seed(context.recipe.train.seed)
    own = context.base / "tensorboard" / "transformers"  # beside what the controller writes
    os.environ.setdefault("TENSORBOARD_LOGGING_DIR", str(own))
    if context.device == "cuda":
        torch.cuda.set_device(context.local_rank)
    else:
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))


def set_loss_scale(context: Context, trainer: Any) -> None:
    """Set the recipe's initial loss scale for fp16, where accelerate scales; else the engine's configuration
    has it."""
    scaler = trainer.accelerator.scaler
    scale = context.recipe.loss_scale
    if scale is None or scaler is None or not scaler.state_dict():
        return
    scaler.load_state_dict({**scaler.state_dict(), "scale": float(scale)})


def evaluated_last(state: Any) -> bool:
    """Return whether the held-out loss was measured after the last step."""
    return any("eval_loss" in entry and entry["step"] == state.global_step for entry in state.log_history)
