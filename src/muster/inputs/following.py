"""Recipes that take the models of others: checked before the first one trains, with models that stand in."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from muster.core.errors import MusterError
from muster.core.recipe import Recipe
from muster.core.recipes import validate
from muster.inputs.entries import models_taken, with_models
from muster.inputs.model import NUMBERS, decided_config, whole_config


def resolved(recipe: Recipe, models: Mapping[str, str], name: str) -> Recipe:
    """Return an entry's recipe with these models of others."""
    data = recipe.as_dict()
    made = with_models(data, models)
    return recipe if made == data else validate(made, where=name)


def standing_in(recipes: Mapping[str, Recipe], folder: Path) -> Iterator[tuple[str, Recipe]]:
    """Yield each entry's recipe before anything is trained. `recipes`: in the order in which they run. Below
    `folder` stands a model for each that another one takes: its configuration, without weights; or the one
    that it starts from, where that is not known here."""
    taken = {name for recipe in recipes.values() for _, name in models_taken(recipe)}
    models: dict[str, str] = {}
    for name, recipe in recipes.items():
        with in_entry(name, folder):
            made = resolved(recipe, models, name)
            yield name, made
            if name in taken:
                models[name] = _stand_in(made, folder / name / "model")


def _stand_in(recipe: Recipe, folder: Path) -> str:
    config = whole_config(recipe)
    if config is None:
        return recipe.model.name or str(folder)
    made = decided_config(recipe, config)
    made["architectures"] = [NUMBERS] if recipe.output == "numbers" else []
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(made), encoding="utf-8")
    (folder / "model.safetensors").touch()
    return str(folder)


@contextmanager
def in_entry(name: str, folder: Path) -> Iterator[None]:
    """Make an error inside one of this entry; models that stand in have their names in braces."""
    try:
        yield
    except MusterError as error:
        error.what, where = renamed((error.what, error.where or ""), folder, "{{{}}}")
        if not where.startswith(name):
            error.where = f"{name}: {where}" if where else name
        raise


def renamed(value: Any, folder: Path, to: str) -> Any:
    """Return data in which models that stand in below `folder` are called otherwise: `{}` in `to` is the
    entry."""
    if isinstance(value, Mapping):
        return {key: renamed(inner, folder, to) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [renamed(inner, folder, to) for inner in value]
    if not isinstance(value, str):
        return value
    return re.sub(rf"{re.escape(str(folder))}/([^/]+)/model", lambda match: to.format(match[1]), value)
