"""PyTorch DistributedDataParallel: every rank holds everything, gradients are averaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from muster.worker.context import Context
from muster.worker.together import backend, join_group


def join(context: Context) -> None:
    """The ranks meet."""
    join_group(context, backend(context))


def arguments(context: Context) -> dict[str, Any]:
    """TrainingArguments for DDP. Every parameter takes part in every step, so none is searched for."""
    return {"ddp_find_unused_parameters": False, "ddp_backend": backend(context)}


def complete(folder: Path, model: Any) -> None:
    """The weights of a checkpoint, which save_pretrained writes on rank 0 alone (transformers 5.23,
    distributed/mixin.py), though the trainer is asked to save on every disk."""
    if not any(folder.glob("*.safetensors")):
        from safetensors.torch import save_model

        save_model(model, str(folder / "model.safetensors"))
