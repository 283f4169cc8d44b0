"""Write a plan's choice as a recipe, and DeepSpeed's JSON beside it."""

from __future__ import annotations

from pathlib import Path

from muster.core.errors import UsageError
from muster.core.zero import deepspeed_config
from muster.planner.decide import Decided
from muster.store.atomic import write_json, write_text
from muster.store.values import recipe_file


def write_plan(decided: Decided, file: Path) -> list[Path]:
    """The decided recipe, which `muster train` takes as it is. -> what was written. Raises UsageError."""
    recipe, batch = decided.recipe, decided.batch
    data = recipe.as_dict()
    data["precision"] = decided.precision
    data["batch"] |= {"micro": batch.micro, "accumulation": batch.accumulation, "global": batch.global_}
    data["batch"]["tokens"] = None
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, recipe_file(data))
        if recipe.engine.name != "deepspeed" or recipe.engine.config:  # whose own file it is
            return [file]
        beside = file.with_suffix(".deepspeed.json")
        write_json(beside, deepspeed_config(recipe, batch, decided.precision))
    except OSError as error:
        raise UsageError(f"cannot be written: {error.strerror}", where=str(file)) from None
    return [file, beside]
