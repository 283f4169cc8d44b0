"""A rank's work from the first import to its last event."""

from __future__ import annotations

import contextlib
import itertools
import os
import platform
import random
import shutil
import time
import traceback
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from transformers.utils import is_torch_tf32_available

from muster.core.errors import MusterError, UsageError, WorkerError
from muster.core.registry import WORKLOADS, load_plugin
from muster.core.schedule import scheduler, steps_of, warmup_note
from muster.core.versions import versions_of
from muster.engines.base import packages
from muster.store import events
from muster.store.sealed import files_of, hashes
from muster.worker.context import Context, read_context
from muster.worker.data.loading import loader_arguments
from muster.worker.explain import explain, from_checkpoint
from muster.worker.locks import clear_stale_locks
from muster.worker.workloads.base import HeldOut

# ----------------------------------------------------------------------------------------------------
# What a rank says of itself before it trains.

PACKAGES = ("torch", "transformers", "accelerate", *packages(), "datasets", "peft", "trl", "numpy")


def started(context: Context, built: Any) -> None:
    from muster.worker.arithmetic import arithmetic_of

    batch, train = context.batch, context.recipe.train
    total_steps = steps_of(train, built.train_samples, batch.global_, batch.accumulation)
    warming = warmup_note(train, total_steps)
    parameters = [
        (int(getattr(p, "ds_numel", p.numel())), p.requires_grad) for p in built.trainer.model.parameters()
    ]
    context.emit(
        events.Started,
        device=_device_name(context),
        parameters=sum(count for count, _ in parameters),
        trainable=sum(count for count, trained in parameters if trained),
        arithmetic=arithmetic_of(context),
        total_steps=total_steps,
        versions={"python": platform.python_version(), **versions_of(PACKAGES)},
        notes=[*built.notes, *_unused(context, built.trainer), *filter(None, [warming])],
    )
    if context.main:
        context.emit(
            events.DataRead,
            train=built.train_samples,
            validation=len(built.held_out) if built.held_samples is None else built.held_samples,
            cut=built.cut,
            skipped=built.skipped,
        )


def _unused(context: Context, trainer: Any) -> list[str]:
    """What the recipe asks for and this model cannot do."""
    loss, train = getattr(trainer, "compute_loss_func", None), context.recipe.train
    if loss is None:
        asked = {"train.fused_loss": train.fused_loss is True, "train.label_smoothing": train.label_smoothing}
        return [
            f"{name} does nothing here: {context.recipe.workload} has a loss of its own"
            for name, given in asked.items()
            if given
        ]
    if context.recipe.train.fused_loss is not True or getattr(loss, "head", None) is not None:
        return []
    return ["train.fused_loss=true does nothing here: the logits are more than what the output layer gives"]


def _device_name(context: Context) -> str:
    if context.device == "cuda":
        import torch

        return str(torch.cuda.get_device_name())
    return "cpu"


# ----------------------------------------------------------------------------------------------------
# A recipe's training settings as Transformers' TrainingArguments, the same for every workload and engine.

_HEAD_LINES, _HEAD_WIDTH = 40, 160  # of a file that the engine wrote
NEVER = 1 << 62  # a step that no run reaches


def training_arguments(context: Context) -> dict[str, Any]:
    """Keyword arguments; an engine's come on top."""
    recipe = context.recipe
    train, checkpoint, evaluate = recipe.train, recipe.checkpoint, recipe.evaluate
    arguments: dict[str, Any] = {
        "output_dir": str(context.checkpoints),
        "per_device_train_batch_size": context.batch.micro,
        "per_device_eval_batch_size": max(context.batch.micro, evaluate.batch),
        "gradient_accumulation_steps": context.batch.accumulation,
        "num_train_epochs": train.epochs,
        "max_steps": train.max_steps or -1,
        "learning_rate": train.rate,
        **scheduler(train),
        "warmup_steps": train.warmup if train.warmup < 1 else int(train.warmup),
        **({"optim": "adamw_bnb_8bit"} if train.optimizer == "adamw-8bit" else {}),
        "weight_decay": train.weight_decay,
        "adam_beta1": train.beta1,
        "adam_beta2": train.beta2,
        "adam_epsilon": train.epsilon,
        "max_grad_norm": train.clip,
        "seed": train.seed,
        "bf16": context.precision in ("bf16", "fp8")
        and not recipe.computes_half,  # else autocast has nothing to do
        "fp16": context.precision == "fp16",
        # Said on every GPU that can: Transformers switches it on by itself where a model is compiled, and so
        # does Accelerate, later (worker/arithmetic.py).
        "tf32": context.precision != "fp32"
        if context.device == "cuda" and is_torch_tf32_available()
        else None,
        "gradient_checkpointing": train.checkpointing,
        "torch_compile": train.compiled,
        **({"torch_compile_mode": "reduce-overhead"} if train.cuda_graphs else {}),
        "use_cpu": context.device == "cpu",
        "dataloader_pin_memory": context.device == "cuda",
        "accelerator_config": {"non_blocking": context.device == "cuda"},  # of copies from that memory
        "logging_strategy": "steps",
        "logging_steps": recipe.measure.window,
        "logging_nan_inf_filter": False,  # a loss that is nan is to be seen
        "save_strategy": "steps" if checkpoint.every else "no",
        "save_steps": NEVER,  # the keeper asks for what is due; the trainer for the last step alone
        "save_on_each_node": not context.shared,  # each disk gets all that its ranks need to resume
        "eval_strategy": "epoch" if evaluate.every == "epoch" else "steps" if evaluate.every else "no",
        "eval_steps": None if evaluate.every == "epoch" else evaluate.every,
        "prediction_loss_only": True,
        "remove_unused_columns": False,
        "report_to": recipe.measure.report_to,
        "run_name": context.base.name,
        "disable_tqdm": True,
        "log_level": "warning",
    }
    module = load_plugin(WORKLOADS, recipe.workload, "train").__name__
    arguments |= loader_arguments(train.loaders, module)
    if train.checkpointing:
        arguments["gradient_checkpointing_kwargs"] = {"use_reentrant": False}
    return arguments


# ----------------------------------------------------------------------------------------------------
# A rank's work from the first import to its last event.


def run(spec: dict[str, Any]) -> int:
    """Train as the spec says. The exit code: 0, 1 for a breakdown, 2 for bad input."""
    context = read_context(spec)
    try:
        _run(context)
    except Exception as error:
        user_error = error if isinstance(error, MusterError) else explain(error)
        step = context.resume_step if context.resume_step and from_checkpoint(error) else None
        if step:
            what = f"checkpoint-{step} cannot be loaded: {user_error.what}"
            user_error = WorkerError(what, hint=user_error.hint, failure=user_error.failure)
        _say_why(context, user_error, step)
        return user_error.exit_code
    return 0


def _say_why(context: Context, user_error: MusterError, step: int | None) -> None:
    """In the events and in the log. On a full disk there is room for neither: the agent says so then."""
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


def _run(context: Context) -> None:
    context.emit(events.Phase, name="load")
    from muster.worker.together import leave  # with torch, which may fail to load, and then it is said

    prepare_process(context)
    workload = load_plugin(WORKLOADS, context.recipe.workload, "train")
    if hasattr(workload, "measure"):  # nothing is trained: it forms its own group, and says what it finds
        workload.measure(context)
        context.emit(events.Done, step=0)
        return
    from muster.worker.rendezvous import reach_store

    store = reach_store()
    clear_stale_locks(context)
    context.engine.join(context)
    trained = _train(context, workload)
    if context.recipe.evaluate.after and context.recipe.checkpoint.model and trained.held_out:
        from muster.worker.answering import answer

        context.emit(events.Phase, name="answer")
        answer(context, workload, trained.held_out)
    leave()
    del store
    context.emit(
        events.Done,
        step=trained.step,
        skipped=trained.skipped,
        seconds=trained.seconds,
        weights_changed=trained.changed,
    )


@dataclass(frozen=True)
class _Trained:
    """What stays of the training when its trainer and its memory are gone."""

    step: int
    skipped: int
    seconds: dict[str, float]
    held_out: list[HeldOut]
    changed: bool | None


def _train(context: Context, workload: ModuleType) -> _Trained:
    from muster.worker.arithmetic import hold_arithmetic
    from muster.worker.instruments.weights import WeightWatch
    from muster.worker.uneven import settle_shares

    engine = context.engine
    built = workload.build(context, _with_engine(training_arguments(context), engine.arguments(context)))
    if hasattr(engine, "adapt") and context.grouped:
        engine.adapt(built.trainer.model)
    set_loss_scale(context, built.trainer)
    hold_arithmetic(context)
    settle_shares(context, built.trainer)  # before the instruments: what it tries out is nobody's figure
    weights = WeightWatch()
    built.trainer.add_callback(weights)  # before the meter: what it adds up is no step's time
    trainer, meter = _instrument(context, built)
    started(context, built)
    context.emit(events.Phase, name="train")
    with contextlib.ExitStack() as stack:
        resume = context.checkpoints / f"checkpoint-{context.resume_step}" if context.resume_step else None
        if resume and hasattr(engine, "readable"):
            resume = stack.enter_context(engine.readable(context, resume))
        trainer.train(resume_from_checkpoint=str(resume) if resume else None)
    _tell_files(context)
    if (
        context.recipe.evaluate.after
        and trainer.eval_dataset is not None
        and not evaluated_last(trainer.state)
    ):
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
    step = int(trainer.state.global_step)
    return _Trained(step, meter.total_skipped, seconds, built.held_out, weights.changed)


def _tell_files(context: Context) -> None:
    """Say what the engine wrote by itself; the first rank does that."""
    written = getattr(context.engine, "written", None)
    for what, path in written(context).items() if written and context.main else ():
        head = []
        with contextlib.suppress(OSError):  # the trained model is not saved yet: no such file may end the run
            if path.is_file():
                with path.open(encoding="utf-8", errors="replace") as file:
                    head = [line.rstrip()[:_HEAD_WIDTH] for line in itertools.islice(file, _HEAD_LINES)]
        context.emit(events.Wrote, what=what, path=str(path), head=head)


def _with_engine(arguments: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Training arguments with an engine's own on top; of Accelerate's settings each by itself."""
    name = "accelerator_config"
    return {**arguments, **own, name: {**arguments[name], **own.get(name, {})}}


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
    """The recipe's initial loss scale for fp16, where accelerate scales; else the engine's configuration has
    it."""
    scaler = getattr(trainer.accelerator, "scaler", None)
    scale = context.recipe.loss_scale
    if scale is None or scaler is None or not scaler.state_dict():
        return
    scaler.load_state_dict({**scaler.state_dict(), "scale": float(scale)})


def _instrument(context: Context, built: Any) -> tuple[Any, Any]:
    from muster.worker.feed import Feed
    from muster.worker.instruments.attention import AttentionMonitor
    from muster.worker.instruments.checkpoint_callback import Keeper
    from muster.worker.instruments.computing import Computing
    from muster.worker.instruments.flops import FlopsCounter
    from muster.worker.instruments.logbook import Heart, Logbook
    from muster.worker.instruments.meter import Meter
    from muster.worker.instruments.profile import Profiler
    from muster.worker.settings import SettingsWatch

    recipe, measure = context.recipe, context.recipe.measure
    trainer = built.trainer
    again = recipe.train.checkpointing
    flops = (
        FlopsCounter(context.emit, trainer.model, checkpointing=again, main=context.main)
        if measure.flops and built.flops
        else None
    )
    # What a compiled model is called by is no longer Python's; a GPU's own waiting cannot be told apart.
    apart = context.device != "cuda" or not context.spec.shards_weights(recipe.engine.stage)
    own = Computing(context.device) if apart and not recipe.train.compiled else None
    skipped = getattr(context.engine, "skipped_steps", None)
    window, profiled = measure.window, measure.profiled
    count = built.count
    feed = Feed(context.device)
    feed.attach(trainer)
    meter = Meter(
        context.emit,
        count,
        window,
        context.device,
        flops,
        profiled,
        own,
        skipped,
        feed=feed,
        after=built.after,
    )
    trainer.add_callback(Keeper(context))
    trainer.add_callback(SettingsWatch(context, trainer))
    if recipe.measure.attention:
        every = recipe.measure.window
        monitor = AttentionMonitor(context.emit, main=context.main, window=every, device=context.device)
        monitor.attach(trainer)
    trainer.add_callback(Logbook(context.emit, main=context.main, max_minutes=recipe.train.max_minutes))
    if context.emit.pulse:
        trainer.add_callback(Heart(context.emit.pulse))
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
