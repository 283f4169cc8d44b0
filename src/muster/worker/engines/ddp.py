"""PyTorch DistributedDataParallel: every rank holds everything, gradients are averaged."""

from __future__ import annotations

from typing import Any

from muster.worker.context import Context
from muster.worker.together import backend, join_group


def join(context: Context) -> None:
    """The ranks meet."""
    join_group(context, backend(context))


def arguments(context: Context) -> dict[str, Any]:
    """TrainingArguments for DDP. Every parameter takes part in every step, so none is searched for."""
    return {"ddp_find_unused_parameters": False, "ddp_backend": backend(context)}
