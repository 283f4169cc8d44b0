"""Fields of a recipe that mean nothing to its workload. Pure."""

from __future__ import annotations

from typing import Any

from muster.core.errors import RecipeError
from muster.core.recipe import Recipe

_MEANINGFUL = ("workload", "fabric", "launch", "env", "force")
_HINTS = {
    "precision": "every precision that a device supports is measured",
    "measure": "only measure.hardware_seconds means something here",
}


def check_idle(recipe: Recipe) -> None:
    """What is not trained has no model, engine or batch. Raises RecipeError for a field that would be
    ignored."""
    if recipe.trains:
        return
    changed: dict[str, Any] = recipe.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    for section, value in changed.items():
        left = {k: v for k, v in value.items() if k != "hardware_seconds"} if section == "measure" else value
        if section in _MEANINGFUL or not left:
            continue
        where = section
        while isinstance(left, dict) and left:
            key, left = next(iter(left.items()))
            where = f"{where}.{key}"
        raise RecipeError(
            f"means nothing to {recipe.workload}, which trains nothing",
            where=where,
            hint=_HINTS.get(section, "leave it out; fabric.* and launch.* are what counts"),
        )
