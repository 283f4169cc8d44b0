"""Group relative policy optimization, as the control side knows it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from muster.core.recipe import WORKLOAD
from muster.core.workload import Survey
from muster.dialogues.rl import Group, RolloutRecipe, check_held


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


class GrpoRecipe(RolloutRecipe):
    """A decoder learns from the rewards of several answers to one prompt. A sample is an answer."""

    workload: str = Field("grpo", description=WORKLOAD)
    grpo: Grpo = Field(
        default_factory=Grpo, description="The objective of group relative policy optimization."
    )

    @property
    def held(self) -> bool:
        """Where beta is above 0."""
        return self.grpo.beta > 0

    @property
    def per_prompt(self) -> int:
        """Its answers."""
        return self.grpo.answers

    def check_data(self, path: Path | None, config: Mapping[str, Any]) -> Survey | None:
        """As all that generate."""
        check_held(self.grpo.beta, "grpo.beta", self)
        return super().check_data(path, config)


RECIPE = GrpoRecipe
