"""PyTorch DistributedDataParallel: every rank holds everything, gradients are averaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from muster.worker.context import Context
from muster.worker.engine import EngineRuntime
from muster.worker.together import backend, join_group


class DdpRuntime(EngineRuntime):
    """Let PyTorch average the gradients of whole models."""

    def join(self, context: Context) -> None:
        """Meet the other ranks."""
        join_group(context, backend(context))

    def arguments(self, context: Context) -> dict[str, Any]:
        """Return TrainingArguments for DDP. Every parameter takes part in every step, so that DDP need not
        look for unused ones."""
        return {"ddp_find_unused_parameters": False, "ddp_backend": backend(context)}

    def complete(self, folder: Path, model: Any) -> None:
        """Write a checkpoint's weights, which save_pretrained writes on rank 0 alone (transformers 5.23,
        distributed/mixin.py), though the trainer is asked to save on every disk."""
        if not any(folder.glob("*.safetensors")):
            from safetensors.torch import save_model

            save_model(model, str(folder / "model.safetensors"))


RUNTIME = DdpRuntime
