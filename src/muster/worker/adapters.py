"""A model that was trained with adapters is saved whole: merged into its base, so that it loads without it.

The base may be nowhere else (built from a configuration), or on a hub that cannot be reached. The adapter
lies beside, in `adapter/`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any


def has_adapters(trainer: Any) -> bool:
    """Whether what is trained is a PEFT model."""
    return hasattr(trainer.model, "peft_config")


def save_merged(trainer: Any, folder: Path, *, main: bool) -> None:
    """Every rank takes part, since parameters may be sharded; the main one writes."""
    trainer.save_model(str(folder / "adapter"))
    sharded = trainer.deepspeed if trainer.is_deepspeed_enabled else trainer.model
    weights = trainer.accelerator.get_state_dict(sharded)
    if not main:
        return
    from peft import get_peft_model

    base = trainer.model.get_base_model()
    twin = get_peft_model(type(base)(base.config), trainer.model.peft_config["default"])
    twin.load_state_dict(weights)
    whole = twin.merge_and_unload()
    whole.generation_config = base.generation_config
    whole.save_pretrained(str(folder))
    if trainer.processing_class is not None:
        trainer.processing_class.save_pretrained(str(folder))
