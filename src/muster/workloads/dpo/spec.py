"""Direct preference optimization, as the control side knows it."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from muster.core.recipe import WORKLOAD
from muster.core.section import Section
from muster.core.workload import HeldModel, Output
from muster.dialogues.spec import DialogueRecipe


class Dpo(Section):
    """The objective."""

    beta: Annotated[float, Field(gt=0)] = Field(
        0.1, description="How strongly the model is held to the one that it starts from."
    )
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = Field(
        0.0, description="Probability that a pair is in the wrong order."
    )


class DpoRecipe(DialogueRecipe):
    """A decoder learns from pairs of answers, held to the model that it starts from. A sample is a pair."""

    packages: ClassVar[tuple[str, ...]] = ("trl",)
    pairs: ClassVar[bool] = True
    dropout: ClassVar[bool] = False
    traced: ClassVar[bool | str] = "muster.dialogues.tracing:PAIRS"
    output: ClassVar[Output] = "log-probs"

    workload: str = Field("dpo", description=WORKLOAD)
    dpo: Dpo = Field(default_factory=Dpo, description="The objective of direct preference optimization.")

    def held_models(self) -> tuple[HeldModel, ...]:
        """Name the model that it starts from; with adapters that is the model without them."""
        return (HeldModel("reference model", output=self.output, shared=self.lora is not None),)


RECIPE = DpoRecipe
