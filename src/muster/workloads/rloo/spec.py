"""REINFORCE leave-one-out, as the control side knows it."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field

from muster.core.recipe import WORKLOAD
from muster.dialogues.rl import Group, GroupRecipe


class Rloo(Group):
    """The objective."""

    answers: Annotated[int, Field(ge=2)] = Field(
        4, description="Answers to each prompt. The global batch, in answers, is a multiple of it."
    )
    normalize: bool = Field(
        False, description="Divide the advantages of a batch by their standard deviation."
    )


class RlooRecipe(GroupRecipe):
    """A decoder learns from each answer's reward beside the others' to the same prompt. A sample is an
    answer."""

    trl: ClassVar[str] = "RLOO"
    workload: str = Field("rloo", description=WORKLOAD)
    rloo: Rloo = Field(default_factory=Rloo, description="The objective of REINFORCE leave-one-out.")

    def trl_arguments(self) -> dict[str, Any]:
        """Return the settings of Ahmadian et al. 2024."""
        return {"normalize_advantages": self.rloo.normalize, "reward_clip_range": None}


RECIPE = RlooRecipe
