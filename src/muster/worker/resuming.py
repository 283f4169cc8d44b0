"""Weights of a checkpoint, also where Transformers saves them under other names than the model has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


class ConvertedWeights:
    """Goes before a Transformers trainer among the base classes.

    save_pretrained of Transformers 5 gives some models' weights (ViT's, for one) the names that earlier
    versions had, and from_pretrained takes them back. The trainer, when it resumes without DeepSpeed and
    FSDP, loads the file as it is and passes over names that do not fit: the run would go on from first
    weights, with a warning (transformers 5.23, trainer.py: _load_from_checkpoint).
    """

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)  # type: ignore[misc]
        target = model or self.model  # type: ignore[attr-defined]
        names = saved_names(Path(resume_from_checkpoint))
        sharded = self.is_fsdp_enabled or self.is_deepspeed_enabled  # type: ignore[attr-defined]
        if sharded or hasattr(target, "peft_config") or names <= set(target.state_dict()):
            return
        whole = type(target).from_pretrained(resume_from_checkpoint, config=target.config, dtype=target.dtype)
        target.load_state_dict(whole.state_dict())


def saved_names(folder: Path) -> set[str]:
    """The names of the weights in a checkpoint's folder; none where it has no such file."""
    if (folder / INDEX).is_file():
        return set(json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"])
    if not (folder / WEIGHTS).is_file():
        return set()
    from safetensors import safe_open

    with safe_open(str(folder / WEIGHTS), "pt") as file:
        return set(file.keys())
