"""A recipe's training settings as Transformers' TrainingArguments, the same for every workload and engine."""

from __future__ import annotations

from typing import Any

from transformers.utils import is_torch_tf32_available

from muster.core.learning_rate import scheduler
from muster.core.registry import WORKLOADS, load_plugin
from muster.worker.context import Context
from muster.worker.data.loading import loader_arguments

NEVER = 1 << 62  # a step that no run reaches


def training_arguments(context: Context) -> dict[str, Any]:
    """Return the recipe's settings as keyword arguments; an engine's come on top."""
    recipe = context.recipe
    train, checkpoint, evaluate = recipe.train, recipe.checkpoint, recipe.evaluate
    arguments: dict[str, Any] = {
        "output_dir": str(context.checkpoints),
        "per_device_train_batch_size": context.batch.micro,
        "per_device_eval_batch_size": context.batch.micro,  # larger batches of logits might not fit
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


def with_engine(arguments: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Lay an engine's own training arguments over those of the recipe; of Accelerate's settings each by
    itself."""
    name = "accelerator_config"
    return {**arguments, **own, name: {**arguments[name], **own.get(name, {})}}
