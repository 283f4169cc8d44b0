"""REINFORCE leave-one-out (Ahmadian et al. 2024), by TRL."""

from __future__ import annotations

from typing import Any

from trl import RLOOConfig, RLOOTrainer

from muster.dialogues.answer import Answerer, questions
from muster.dialogues.groups import Grouped
from muster.dialogues.groups import build as build_grouped
from muster.worker.context import Context
from muster.worker.workloads.base import Built
from muster.workloads.rloo.spec import RlooRecipe

__all__ = ["Answerer", "build", "questions"]


class _Trainer(Grouped, RLOOTrainer):  # type: ignore[misc]
    """TRL's, with Muster's prompts and rewards."""

    get_train_dataloader = RLOOTrainer.get_train_dataloader


def build(context: Context, arguments: dict[str, Any]) -> Built:
    """The trainer for the recipe. Raises DataError and RecipeError."""
    recipe = context.recipe
    assert isinstance(recipe, RlooRecipe)
    own = {"normalize_advantages": recipe.rloo.normalize, "reward_clip_range": None}
    return build_grouped(context, arguments, recipe.rloo, _Trainer, RLOOConfig, **own)
