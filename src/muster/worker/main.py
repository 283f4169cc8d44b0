"""A rank's work from the first import to its last event."""

from __future__ import annotations

import gc
import os
import random
import shutil
import time
import traceback
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any

from muster.core.errors import JobError, MusterError, RecipeError, UsageError, WorkerError
from muster.core.registry import load_plugin
from muster.store import events
from muster.worker.arguments import training_arguments
from muster.worker.context import Context, read_context
from muster.worker.locks import clear_stale_locks
from muster.worker.workloads.base import HeldOut

PACKAGES = ("torch", "transformers", "accelerate", "deepspeed", "datasets", "peft", "numpy")


def run(spec: dict[str, Any]) -> int:
    """Train as the spec says. The exit code: 0, 1 for a breakdown, 2 for bad input."""
    context = read_context(spec)
    try:
        _run(context)
    except Exception as error:
        known = error if isinstance(error, MusterError) else explain(error)
        context.emit(
            events.Failed,
            what=known.what,
            where=known.where,
            hint=known.hint,
            usage=isinstance(known, UsageError),
            traceback=traceback.format_exc(),
        )
        traceback.print_exc()
        return known.exit_code
    return 0


def explain(error: Exception) -> MusterError:
    """An error of a library as what a user can act on."""
    text = str(error).strip()
    first = text.splitlines()[0] if text else type(error).__name__
    if "out of memory" in text.lower():
        return JobError(
            f"out of memory: {first}",
            hint="halve batch.micro and double batch.accumulation; then train.gradient_checkpointing=true, "
            "a higher engine.zero",
        )
    if "DeepSpeed config values that mismatch" in first:  # "- ds KEY=VALUE vs hf NAME=VALUE" lines follow
        found = [line[len("- ds ") :] for line in text.splitlines() if line.startswith("- ds ")]
        return RecipeError(
            "; ".join(found).replace(" vs hf ", ", but here "),
            where="engine.config",
            hint='"auto" in that file, or the same number in the recipe',
        )
    if isinstance(error, OSError) and error.errno == 28:
        return JobError(
            f"the disk is full: {first}", hint="lower checkpoint.keep, or choose another --output"
        )
    return WorkerError(f"{type(error).__name__}: {first}")


def _run(context: Context) -> None:
    context.emit(events.Phase, name="load")
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
        context.emit(events.Phase, name="answer")
        _answer(context, workload, trained.held_out)
    _leave()
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
    set_loss_scale(context, built.trainer)
    settle_shares(context, built.trainer)  # before the instruments: what it tries out is nobody's figure
    trainer, meter = _instrument(context, built)
    _started(context, built)
    context.emit(events.Phase, name="train")
    resume = str(context.checkpoints / f"checkpoint-{context.resume_step}") if context.resume_step else None
    trainer.train(resume_from_checkpoint=resume)
    if context.recipe.evaluate.after and built.held_samples and not evaluated_last(trainer.state):
        context.emit(events.Phase, name="evaluate")
        trainer.evaluate()
    saving = 0.0
    if context.recipe.checkpoint.model:
        context.emit(events.Phase, name="save")
        saving = _save(context, trainer)
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
    from muster.worker.instruments.flops import Flops
    from muster.worker.instruments.keeper import Keeper
    from muster.worker.instruments.logbook import Logbook
    from muster.worker.instruments.meter import Meter
    from muster.worker.instruments.profile import Profiler
    from muster.worker.schedule import ScheduleWatch

    recipe, measure = context.recipe, context.recipe.measure
    trainer = built.trainer
    again = recipe.train.gradient_checkpointing
    flops = Flops(context.emit, trainer.model, checkpointing=again, main=context.main) if measure.flops else None
    meter = Meter(context.emit, built.count, measure.window, context.device, flops, measure.profiled)
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


def _started(context: Context, built: Any) -> None:
    parameters = [
        (int(getattr(p, "ds_numel", p.numel())), p.requires_grad) for p in built.trainer.model.parameters()
    ]
    context.emit(
        events.Started,
        device=_device_name(context),
        parameters=sum(count for count, _ in parameters),
        trainable=sum(count for count, trained in parameters if trained),
        arithmetic=_arithmetic(context),
        total_steps=_total_steps(context, built.train_samples),
        versions=_versions(),
        notes=built.notes,
    )
    if context.main:
        context.emit(
            events.DataRead,
            train=built.train_samples,
            validation=len(built.held_out) if built.held_samples is None else built.held_samples,
            cut=built.cut,
            skipped=built.skipped,
        )


def _total_steps(context: Context, samples: int) -> int:
    train = context.recipe.train
    if train.max_steps:
        return train.max_steps
    micro_steps = -(-samples // (context.batch.micro * context.world_size))
    per_epoch = max(1, -(-micro_steps // context.batch.accumulation))
    return max(1, -int(-train.epochs * per_epoch // 1))


def _device_name(context: Context) -> str:
    if context.device == "cuda":
        import torch

        return str(torch.cuda.get_device_name())
    return "cpu"


def _arithmetic(context: Context) -> str:
    """What matrix products compute in; fp32 on a GPU may be the faster TF32."""
    if context.precision != "fp32" or context.device != "cuda":
        return context.precision
    import torch

    forced = {"0": "fp32", "1": "tf32"}.get(os.environ.get("NVIDIA_TF32_OVERRIDE", ""))
    return forced or ("fp32" if torch.get_float32_matmul_precision() == "highest" else "tf32")


def _versions() -> dict[str, str]:
    import platform

    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _save(context: Context, trainer: Any) -> float:
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
        shutil.rmtree(context.model, ignore_errors=True)  # of an earlier attempt
        partial.replace(context.model)
        size = sum(path.stat().st_size for path in context.model.rglob("*") if path.is_file())
        seconds = time.perf_counter() - began
        context.emit(events.Saved, step=None, path=str(context.model), bytes=size, seconds=seconds)
    barrier()
    return time.perf_counter() - began


def _answer(context: Context, workload: Any, held_out: list[Any]) -> None:
    """Every rank that sees the saved model answers its share of the held-out questions with it.

    The training is over and its model is saved: what goes wrong from here on is told, and
    costs the answers alone.
    """
    from muster.worker.together import gather

    sees = (context.model / "config.json").is_file()
    seeing = [rank for rank, rank_sees in enumerate(gather(sees)) if rank_sees]
    _leave()  # nobody waits in a collective while others answer
    if context.rank not in seeing:
        return
    mine = list(range(seeing.index(context.rank), len(held_out), len(seeing)))
    try:
        _answer_share(context, workload, [(index, held_out[index]) for index in mine])
    except Exception as error:
        known = error if isinstance(error, MusterError) else explain(error)
        traceback.print_exc()
        context.emit(
            events.Noted, text=f"held-out questions were not answered by rank {context.rank}: {known}"
        )


def _answer_share(context: Context, workload: Any, share: list[tuple[int, HeldOut]]) -> None:
    from transformers.integrations import unset_hf_deepspeed_config

    from muster.worker.quality import judge

    unset_hf_deepspeed_config()  # else ZeRO-3 would cut the saved model into shards while it is loaded
    gc.collect()
    if context.device == "cuda":
        import torch

        torch.cuda.empty_cache()
    answerer = workload.Answerer(context.model, context.recipe, context.device)
    answers, seconds = answerer.answer([question.question for _, question in share])
    judged = judge([question for _, question in share], answers)
    for (index, question), each in zip(share, judged, strict=True):
        context.emit(
            events.Answer,
            index=index,
            question=question.question,
            predicted=each.predicted,
            expected=question.expected,
            exact=each.exact,
            executed=each.executed,
        )
    executed = [each.executed for each in judged if each.executed is not None]
    context.emit(
        events.Answered,
        metric=getattr(workload, "METRIC", "exact match"),
        questions=len(judged),
        exact=sum(each.exact for each in judged),
        executed=sum(executed) if len(executed) == len(judged) and judged else None,
        seconds=seconds,
    )


def _leave() -> None:
    """Say goodbye to the other ranks in good order."""
    from muster.worker.together import barrier, initialised

    if initialised():
        import torch.distributed as dist

        barrier()
        dist.destroy_process_group()
