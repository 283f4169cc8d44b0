"""Write a plan's choice as a recipe, and the engine's own configuration beside it."""

from __future__ import annotations

from pathlib import Path

from muster.core.errors import UsageError
from muster.engines.base import spec_of
from muster.planner.decide import Decided
from muster.store.atomic import write_json, write_text
from muster.store.values import recipe_file


def write_plan(decided: Decided, file: Path) -> list[Path]:
    """The decided recipe, which `muster train` takes as it is. -> what was written. Raises UsageError."""
    recipe, job = decided.recipe, decided.job
    data = recipe.as_dict()
    data["precision"] = job.precision
    data["batch"] |= {**job.batch.as_dict(), "tokens": None}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, recipe_file(data))
        config = spec_of(recipe.engine.name).config(recipe, job.batch, job.precision)
        if config is None or recipe.engine.config:  # whose own file it is
            return [file]
        own_config = file.with_suffix(f".{recipe.engine.name}.json")
        write_json(own_config, config)
    except OSError as error:
        raise UsageError(f"cannot be written: {error.strerror}", where=str(file)) from None
    return [file, own_config]
