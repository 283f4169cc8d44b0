"""DeepSpeed ZeRO 0 to 3, with offload, from the JSON that the control side wrote."""

from __future__ import annotations

from typing import Any

from muster.core.errors import RecipeError
from muster.worker.context import Context


def arguments(context: Context) -> dict[str, Any]:
    """TrainingArguments for DeepSpeed."""
    try:
        import deepspeed  # noqa: F401
    except ImportError as error:
        raise RecipeError(
            f"DeepSpeed cannot be imported: {error}", where="engine.name", hint="pip install 'passmuster[train]'"
        ) from None
    config = dict(context.deepspeed or {})
    arguments: dict[str, Any] = {"deepspeed": config}
    if "scheduler" in config:
        arguments["lr_scheduler_type"] = "linear"  # Transformers wants one; DeepSpeed's own is used
    return arguments
