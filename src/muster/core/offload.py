"""What an engine can offload to host memory. DeepSpeed's rules: core/zero.py. Pure."""

from __future__ import annotations

from muster.core.errors import RecipeError
from muster.core.recipe import Recipe


def check_offload(recipe: Recipe) -> None:
    """Raise RecipeError for what DDP or FSDP cannot offload."""
    name, offload = recipe.engine.name, recipe.engine.offload
    if name == "ddp" and offload != "none":
        raise RecipeError(
            "DDP offloads nothing", where="engine.offload", hint="engine.name=deepspeed or fsdp"
        )
    if name == "fsdp" and offload == "optimizer":
        raise RecipeError(
            "FSDP offloads parameters and optimizer together",
            where="engine.offload",
            hint="engine.offload=optimizer+param, or engine.name=deepspeed",
        )
