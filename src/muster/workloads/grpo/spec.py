"""Group relative policy optimization, as the control side knows it."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from muster.core.recipe import WORKLOAD
from muster.dialogues.rl import Group, GroupRecipe


class Grpo(Group):
    """The objective."""

    loss: Literal["dapo", "grpo", "dr_grpo", "bnpo"] = Field(
        "dapo",
        description="How the losses of tokens become one, by TRL's names. dapo: the mean over the tokens of "
        "the global batch. grpo: the mean over the tokens of an answer, then over answers.",
    )
    scale: Literal["group", "batch", "none"] = Field(
        "group", description="What the rewards' differences are divided by: their standard deviation."
    )


class GrpoRecipe(GroupRecipe):
    """A decoder learns from the rewards of several answers to one prompt. A sample is an answer."""

    trl: ClassVar[str] = "GRPO"
    workload: str = Field("grpo", description=WORKLOAD)
    grpo: Grpo = Field(
        default_factory=Grpo, description="The objective of group relative policy optimization."
    )

    def trl_arguments(self) -> dict[str, Any]:
        """Return the settings of Shao et al. 2024."""
        return {
            "loss_type": self.grpo.loss,
            "scale_rewards": self.grpo.scale,
            "importance_sampling_level": "token",
            "use_bias_correction_kl": False,  # as equation 4 of Shao et al. has it
            "top_entropy_quantile": 1.0,
            "entropy_coef": 0.0,
            "delta": None,
        }


RECIPE = GrpoRecipe
