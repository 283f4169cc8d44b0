"""What a rank says of itself before it trains."""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from muster.store import events
from muster.worker.context import Context

PACKAGES = ("torch", "transformers", "accelerate", "deepspeed", "datasets", "peft", "numpy")


def started(context: Context, built: Any) -> None:
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
