"""Making models: what every workload may use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from muster.core.errors import MusterError, RecipeError
from muster.worker.context import Context


def config_for(kind: str, fields: dict[str, Any]) -> Any:
    """A configuration of Transformers' model type `kind`. Raises RecipeError."""
    from transformers import AutoConfig

    try:
        return AutoConfig.for_model(kind, **fields)
    except (ValueError, TypeError) as error:
        raise RecipeError(f"does not make a model: {error}", where="model.config") from None


def add_lora(context: Context, model: Any, task: str | None) -> Any:
    """Low-rank adapters by PEFT; the base stays as it is. `task`: PEFT's word for the kind of model."""
    from peft import LoraConfig, get_peft_model

    lora = context.recipe.lora
    assert lora is not None
    config = LoraConfig(
        task_type=task,
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=lora.targets,
    )
    if context.recipe.train.gradient_checkpointing:
        model.enable_input_require_grads()
    try:
        return get_peft_model(model, config)
    except ValueError as error:
        raise RecipeError(str(error).splitlines()[0], where="lora.targets") from None


def load_from(loader: Callable[..., Any], name: str, where: str, **fields: Any) -> Any:
    """Transformers' from_pretrained with its many errors made one."""
    try:
        return loader(name, **fields)
    except MusterError:
        raise
    except (OSError, ValueError) as error:
        raise RecipeError(
            f"{name} cannot be loaded: {str(error).strip().splitlines()[0]}",
            where=where,
            hint="a local folder works without network access; model.init=random needs no weights",
        ) from None
