"""A rank's work from the first import to its last event."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import time
import traceback
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from muster.core.errors import MusterError, UsageError, WorkerError
from muster.core.registry import load_plugin
from muster.store import events
from muster.store.sealed import files_of, hashes
from muster.worker.arguments import training_arguments
from muster.worker.context import Context, read_context
from muster.worker.explain import explain, from_checkpoint
from muster.worker.locks import clear_stale_locks
from muster.worker.started import started
from muster.worker.workloads.base import HeldOut


def run(spec: dict[str, Any]) -> int:
    """Train as the spec says. The exit code: 0, 1 for a breakdown, 2 for bad input."""
    context = read_context(spec)
    try:
        _run(context)
    except Exception as error:
        known = error if isinstance(error, MusterError) else explain(error)
        step = context.resume_step if context.resume_step and from_checkpoint(error) else None
        if step:
            known = WorkerError(f"checkpoint-{step} cannot be loaded: {known.what}", hint=known.hint)
        _say_why(context, known, step)
        return known.exit_code
    return 0


def _say_why(context: Context, known: MusterError, step: int | None) -> None:
    """In the events and in the log. On a full disk there is room for neither: the agent says so then."""
    with contextlib.suppress(OSError):
        context.emit(
            events.Failed,
            what=known.what,
            where=known.where,
            hint=known.hint,
            usage=isinstance(known, UsageError),
            checkpoint=step,
            traceback=traceback.format_exc(),
        )
    with contextlib.suppress(OSError):
        traceback.print_exc()


def _run(context: Context) -> None:
    context.emit(events.Phase, name="load")
    from muster.worker.together import leave  # with torch, which may fail to load, and then it is said

    prepare_process(context)
    workload = load_plugin("muster.worker.workloads", context.recipe.workload)
    if hasattr(workload, "measure"):  # nothing is trained: it forms its own group, and says what it finds
        workload.measure(context)
        context.emit(events.Done, step=0)
        return
    engine = load_plugin("muster.worker.engines", context.recipe.engine.name)
    clear_stale_locks(context)
    engine.join(context)
    trained = _train(context, workload, engine)
    if context.recipe.evaluate.after and context.recipe.checkpoint.model and trained.held_out:
        from muster.worker.answering import answer

        context.emit(events.Phase, name="answer")
        answer(context, workload, trained.held_out)
    leave()
    context.emit(events.Done, step=trained.step, skipped=trained.skipped, seconds=trained.seconds)


@dataclass(frozen=True)
class _Trained:
    """What stays of the training when its trainer and its memory are gone."""

    step: int
    skipped: int
    seconds: dict[str, float]
    held_out: list[HeldOut]


def _train(context: Context, workload: ModuleType, engine: ModuleType) -> _Trained:
    from muster.worker.uneven import settle_shares

    built = workload.build(context, {**training_arguments(context), **engine.arguments(context)})
    if hasattr(engine, "adapt") and context.world_size > 1:
        engine.adapt(built.trainer.model)
    set_loss_scale(context, built.trainer)
    settle_shares(context, built.trainer)  # before the instruments: what it tries out is nobody's figure
    trainer, meter = _instrument(context, built)
    started(context, built)
    context.emit(events.Phase, name="train")
    with contextlib.ExitStack() as stack:
        resume = context.checkpoints / f"checkpoint-{context.resume_step}" if context.resume_step else None
        if resume and hasattr(engine, "readable"):
            resume = stack.enter_context(engine.readable(context, resume))
        trainer.train(resume_from_checkpoint=str(resume) if resume else None)
    if context.recipe.evaluate.after and built.held_samples and not evaluated_last(trainer.state):
        context.emit(events.Phase, name="evaluate")
        trainer.evaluate()
    saving = 0.0
    if context.recipe.checkpoint.model:
        context.emit(events.Phase, name="save")
        saving = _save(context, workload, trainer)
    seconds = {
        "training": meter.training_seconds,
        "evaluation": meter.evaluation_seconds,
        "saving": meter.saving_seconds + saving,
    }
    return _Trained(int(trainer.state.global_step), meter.total_skipped, seconds, built.held_out)


def evaluated_last(state: Any) -> bool:
    """Whether the held-out loss was measured after the last step."""
    return any("eval_loss" in entry and entry["step"] == state.global_step for entry in state.log_history)


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
    """The recipe's initial loss scale for fp16 under DDP and FSDP; DeepSpeed has it in its configuration."""
    scaler = getattr(trainer.accelerator, "scaler", None)
    scale = context.recipe.loss_scale
    if scale is None or scaler is None or not scaler.state_dict():
        return
    scaler.load_state_dict({**scaler.state_dict(), "scale": float(scale)})


def _instrument(context: Context, built: Any) -> tuple[Any, Any]:
    from muster.worker.instruments.attention import AttentionMonitor
    from muster.worker.instruments.computing import Computing
    from muster.worker.instruments.flops import Flops
    from muster.worker.instruments.keeper import Keeper
    from muster.worker.instruments.logbook import Logbook
    from muster.worker.instruments.meter import Meter
    from muster.worker.instruments.profile import Profiler
    from muster.worker.schedule import ScheduleWatch

    recipe, measure = context.recipe, context.recipe.measure
    trainer = built.trainer
    again = recipe.train.checkpointing
    flops = (
        Flops(context.emit, trainer.model, checkpointing=again, main=context.main) if measure.flops else None
    )
    # What a compiled model is called by is no longer Python's; a GPU's own waiting cannot be told apart.
    apart = context.device != "cuda" or not recipe.engine.may_shard_weights
    own = Computing(context.device) if apart and not recipe.train.compile else None
    meter = Meter(context.emit, built.count, measure.window, context.device, flops, measure.profiled, own)
    trainer.add_callback(Keeper(context))
    trainer.add_callback(ScheduleWatch(context))
    if recipe.measure.attention:
        every = recipe.measure.window
        monitor = AttentionMonitor(context.emit, main=context.main, window=every, device=context.device)
        monitor.attach(trainer)
    trainer.add_callback(Logbook(context.emit, main=context.main, max_minutes=recipe.train.max_minutes))
    if measure.profiled:
        Profiler(context).attach(trainer)
    meter.attach(trainer)  # last: what the others do after a step is not the step's
    return trainer, meter


def _save(context: Context, workload: ModuleType, trainer: Any) -> float:
    """The trained model in the Hugging Face format, whole, on the first host. -> seconds."""
    from muster.worker.adapters import has_adapters, save_merged
    from muster.worker.together import barrier

    began = time.perf_counter()
    partial = context.model.with_name("model.partial")
    if has_adapters(trainer):
        save_merged(trainer, partial, main=context.main)
    else:
        trainer.save_model(str(partial))
    barrier()
    if context.main:
        for pickled in partial.rglob("training_args.bin"):
            pickled.unlink()
        if hasattr(workload, "saved"):
            workload.saved(partial)
        shutil.rmtree(context.model, ignore_errors=True)  # of an earlier attempt
        partial.replace(context.model)
        written = time.perf_counter()
        files = hashes(str(context.model), files_of(str(context.model)))
        now = time.perf_counter()
        context.emit(
            events.Saved,
            step=None,
            path=str(context.model),
            bytes=sum(int(about["bytes"]) for about in files.values()),
            seconds=now - began,
            sealing=now - written,
            files=files,
        )
    barrier()
    return time.perf_counter() - began
