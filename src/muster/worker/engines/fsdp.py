"""PyTorch FSDP2: parameters, gradients and optimizer states are sharded over the ranks."""

from __future__ import annotations

from typing import Any

from muster.core.errors import RecipeError
from muster.worker.context import Context
from muster.worker.together import backend, join_group


def join(context: Context) -> None:
    """The ranks meet; what is offloaded to host memory is reduced there, over gloo."""
    offloads = context.recipe.engine.offload != "none" and context.device == "cuda"
    join_group(context, "cpu:gloo,cuda:nccl" if offloads else backend(context))


def arguments(context: Context) -> dict[str, Any]:
    """TrainingArguments for FSDP2; the model's own transformer blocks are the units (its
    _no_split_modules)."""
    engine = context.recipe.engine
    if engine.offload == "optimizer":
        raise RecipeError(
            "FSDP offloads parameters and optimizer together",
            where="engine.offload",
            hint="engine.offload=optimizer+param, or engine.name=deepspeed",
        )
    if context.world_size == 1:
        return {}  # nothing to shard over: one rank holds everything
    config = {
        "version": 2,
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "state_dict_type": "FULL_STATE_DICT",
        "reshard_after_forward": True,
        "cpu_offload": engine.offload == "optimizer+param",
        "cpu_ram_efficient_loading": context.recipe.model.create == "sharded",
        "activation_checkpointing": context.recipe.train.gradient_checkpointing,
    }
    return {
        "fsdp": True,
        "fsdp_config": config,
        "ddp_backend": backend(context),
        "gradient_checkpointing": False,  # FSDP's own, above
    }
