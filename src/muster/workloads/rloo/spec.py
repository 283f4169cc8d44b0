"""REINFORCE leave-one-out, as the control side knows it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from muster.core.recipe import WORKLOAD
from muster.core.workload import Survey
from muster.dialogues.rl import Group, RolloutRecipe, check_held


class Rloo(Group):
    """The objective."""

    answers: Annotated[int, Field(ge=2)] = Field(
        4, description="Answers to each prompt. The global batch, in answers, is a multiple of it."
    )
    normalize: bool = Field(
        False, description="Divide the advantages of a batch by their standard deviation."
    )


class RlooRecipe(RolloutRecipe):
    """A decoder learns from each answer's reward beside the others' to the same prompt. A sample is an
    answer."""

    workload: str = Field("rloo", description=WORKLOAD)
    rloo: Rloo = Field(default_factory=Rloo, description="The objective of REINFORCE leave-one-out.")

    @property
    def held(self) -> bool:
        """Where beta is above 0."""
        return self.rloo.beta > 0

    @property
    def per_prompt(self) -> int:
        """Its answers."""
        return self.rloo.answers

    def check_data(self, path: Path | None, config: Mapping[str, Any]) -> Survey | None:
        """As all that generate."""
        check_held(self.rloo.beta, "rloo.beta", self)
        return super().check_data(path, config)


RECIPE = RlooRecipe
