"""What is known here of a recipe's model, without torch and without weights: its configuration as the run
will have it, and what is wrong with it."""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import Any

from muster.core import families
from muster.core.data import ImageData
from muster.core.errors import RecipeError
from muster.core.families.checking import (
    MISSPELT,
    FieldSource,
    check_config,
    check_workload,
    closed_form_missing,
)
from muster.core.recipe import Recipe
from muster.store.image_tables import classes_in


def is_t5(recipe: Recipe) -> bool:
    """Whether the model is of the T5 family, as far as can be told without loading it."""
    config = model_config(recipe)
    kind = str((config or {}).get("model_type", "")).lower()
    return (
        "t5" in (recipe.model.name or "").lower()
        or "t5" in kind
        or (recipe.workload == "text2sql" and not kind)
    )


def model_config(recipe: Recipe) -> dict[str, Any] | None:
    """The model's configuration where it is known here: a size by name, a local folder, the recipe's own."""
    base = families.size(recipe.model.name)
    file = config_file(recipe)
    if base is None and recipe.model.name:
        if file is None:
            return None
        try:
            base = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RecipeError(f"cannot be read: {error}", where=str(file)) from None
        if not isinstance(base, dict):
            raise RecipeError("is not a JSON object", where=str(file))
    if base is None and recipe.model.config is None:
        return None
    return {**(base or {}), **(recipe.model.config or {})}


def config_file(recipe: Recipe) -> Path | None:
    """The file of a model that is a folder here."""
    if not recipe.model.name or families.size(recipe.model.name):
        return None
    file = Path(recipe.model.name).expanduser() / "config.json"
    return file if file.is_file() else None


def whole_config(recipe: Recipe) -> dict[str, Any] | None:
    """The model's configuration as the run will have it, with what a recipe leaves to workload and data, and
    every usual value. Whose vocabulary is that of a tokenizer yet to be trained has none.

    Raises DataError for images that cannot be read.
    """
    config = _typed_config(recipe)
    if config is None:
        return None
    if is_t5(recipe):
        config = {"vocab_size": recipe.model.vocab_size, **config}
    if isinstance(recipe.data, ImageData):
        config |= {"image_size": recipe.data.size} if recipe.data.size else {}
        classes = classes_of(recipe)
        config |= {"num_labels": classes} if classes else {}
    filled = families.filled(config)
    return filled if "vocab_size" in config else {k: v for k, v in filled.items() if k != "vocab_size"}


def _typed_config(recipe: Recipe) -> dict[str, Any] | None:
    """With a model type: where the configuration says none, the workload's usual one."""
    config = model_config(recipe)
    usual = "t5" if is_t5(recipe) else families.USUAL.get(recipe.workload.replace("_", "-"))
    return {"model_type": usual, **config} if config is not None and usual else config


def classes_of(recipe: Recipe) -> int | None:
    """How many classes the run's images have, which decides the classifier's size; None: not known here, or
    there are no images. Raises DataError for images that cannot be read."""
    if not isinstance(recipe.data, ImageData):
        return None
    number = (recipe.model.config or {}).get("num_labels")
    found = classes_in(recipe.data, number if isinstance(number, int) and number > 0 else None)
    return found or None


def check_model(recipe: Recipe) -> None:
    """Raise RecipeError where the configuration is known here and makes no model for the workload: what is
    wrong, where, and the nearest that works."""
    config = _typed_config(recipe) if recipe.trains else None
    if config is None:
        _check_name(recipe.model.name or "")
        return
    own, base, elsewhere = recipe.model.config or {}, config_file(recipe), {}
    named = "model.name" if recipe.model.name and "model_type" not in own else "model.config.model_type"
    check_workload(config, recipe.workload, named)
    if isinstance(recipe.data, ImageData) and recipe.data.size:
        elsewhere = {"image_size": "data.size"}
        config |= {"image_size": recipe.data.size}
    check_config(config, FieldSource(own, str(base) if base else None, elsewhere))


def _check_name(name: str) -> None:
    """Raise RecipeError for a known size that is misspelt: no hub has models of such names."""
    bare = "/" not in name and not Path(name).expanduser().exists()
    near = difflib.get_close_matches(name, families.sizes(), n=1, cutoff=MISSPELT) if bare else []
    if near:
        raise RecipeError(
            f"there is no model named {name}", where="model.name", hint=f"did you mean model.name={near[0]}?"
        )


def check_closed_form(recipe: Recipe) -> None:
    """Raise RecipeError where the model is of no family that closed forms are known for."""
    config = _typed_config(recipe)
    if config is not None and families.family_of(config) is None:
        raise closed_form_missing(config)


def model_notes(recipe: Recipe) -> list[str]:
    """What a plan assumes of the model."""
    config = whole_config(recipe) if isinstance(recipe.data, ImageData) else None
    if config is None or classes_of(recipe) or config.get("num_labels"):
        return []
    return [
        f"the number of the images' classes is unknown: {families.vit.labels(config)} are counted; "
        "model.config.num_labels=N says it"
    ]


def parameters(recipe: Recipe) -> int | None:
    """The number of parameters, or None where it cannot be told without loading the model."""
    config = whole_config(recipe)
    return None if config is None else families.parameters(config)
