"""Group relative policy optimization (Shao et al. 2024), by TRL."""

from __future__ import annotations

from typing import Any

from trl import GRPOConfig, GRPOTrainer

from muster.dialogues.answer import Answerer, questions
from muster.dialogues.groups import Grouped
from muster.dialogues.groups import build as build_grouped
from muster.worker.context import Context
from muster.worker.workloads.base import Built
from muster.workloads.grpo.spec import GrpoRecipe

__all__ = ["Answerer", "build", "questions"]


class _Trainer(Grouped, GRPOTrainer):  # type: ignore[misc]
    """TRL's, with Muster's prompts and rewards."""

    get_train_dataloader = GRPOTrainer.get_train_dataloader


def build(context: Context, arguments: dict[str, Any]) -> Built:
    """The trainer for the recipe. Raises DataError and RecipeError."""
    recipe = context.recipe
    assert isinstance(recipe, GrpoRecipe)
    own = {
        "loss_type": recipe.grpo.loss,
        "scale_rewards": recipe.grpo.scale,
        "importance_sampling_level": "token",
        "use_bias_correction_kl": False,  # the estimator of Shao et al., equation 4; TRL's own is another's
        "top_entropy_quantile": 1.0,
        "entropy_coef": 0.0,
        "delta": None,
    }
    return build_grouped(context, arguments, recipe.grpo, _Trainer, GRPOConfig, **own)
