"""What can be told of a language model's recipe before a host is asked: its text, and its sequences."""

from __future__ import annotations

from pathlib import Path

from muster.core import families
from muster.core.data import TextData
from muster.core.errors import DataError, RecipeError
from muster.core.recipe import Recipe
from muster.planner.model import model_config
from muster.store.texts import check_texts

CHECKED = 1 << 30  # bytes of text that are read here; the ranks read all of it, and say the same


def check_text(recipe: Recipe, data: TextData) -> None:
    """Read data.path. Raises DataError with the file and the line, or where it cannot fill one sequence."""
    assert data.path
    tokens = check_texts(Path(data.path), data.field, data.bad, CHECKED)
    sequence = data.sequence or families.positions(model_config(recipe) or {})
    if sequence and tokens < sequence:
        raise DataError(
            f"is too short: its text is at most {tokens:,} tokens, and one sequence has {sequence:,}",
            where=data.path,
            hint="more text, or a shorter data.sequence",
        )


def check_sequence(recipe: Recipe, data: TextData) -> None:
    """Raise RecipeError where there is nothing to predict, or where the model is known here and has fewer
    positions than a sample has tokens."""
    if data.sequence == 1:
        raise RecipeError(
            "is 1, so there is no next token to predict",
            where="data.sequence",
            hint="data.sequence=2, or more",
        )
    positions = families.positions(model_config(recipe) or {})
    if data.sequence and positions and data.sequence > positions:
        raise RecipeError(
            f"is {data.sequence:,}, and the model has {positions:,} positions",
            where="data.sequence",
            hint=f"data.sequence={positions}, or a model from scratch with more of them",
        )
