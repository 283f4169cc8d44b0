"""Proximal policy optimization, as the control side knows it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field

from muster.core.errors import RecipeError
from muster.core.recipe import WORKLOAD
from muster.core.section import Fraction, PositiveInt, Section
from muster.core.workload import Drawing, HeldModel, Output, Survey
from muster.dialogues.rl import RolloutRecipe
from muster.engines.base import spec_of

Positive = Annotated[float, Field(gt=0)]


class Ppo(Section):
    """The objective. The usual values are those of DeepSpeed-Chat's third step."""

    kl: Annotated[float, Field(ge=0)] = Field(
        0.1,
        description="Reward that a token costs for each nat that it is likelier to the model than to the "
        "reference, which is the model as it was at the start. 0: there is no reference.",
    )
    clip: Positive = Field(
        0.2, description="How far the probability of a token may move from where it was when it was drawn."
    )
    value_clip: Positive = Field(
        0.2, description="How far a value may move from where it was when its token was drawn."
    )
    value_weight: Positive = Field(
        0.1,
        description="Weight of the critic's loss. It counts where the gradient is clipped: actor and critic "
        "share one norm.",
    )
    gamma: Fraction = Field(1.0, description="What a reward is worth one token earlier.")
    lam: Fraction = Field(
        0.95,
        description="How far advantages look past the next value. 1: to the answer's end, 0: no further.",
    )
    reward_clip: Positive | None = Field(
        5.0, description="Rewards above it, and below its negative, are cut. Null: none is."
    )
    whiten: bool = Field(
        False, description="Give the advantages of every global batch mean 0 and variance 1."
    )
    critic: str | None = Field(
        None,
        description="The model that the critic starts from: a run's id, a folder, or a hub name. Its "
        "tokenizer must be the model's own. Null: the reward model; without one, the model with a new layer "
        "on top.",
    )
    critic_learning_rate: Positive | None = Field(
        None, description="Learning rate of the critic at its peak. Null: train.learning_rate."
    )
    epochs: PositiveInt = Field(1, description="Optimizer steps on each batch of answers.")


class PpoRecipe(RolloutRecipe):
    """A decoder draws answers, and learns which tokens of them led to more reward than a critic expected. A
    sample is an answer. Adapters are the decoder's alone: the critic is trained whole."""

    other_models: ClassVar[tuple[tuple[str, str], ...]] = (*RolloutRecipe.other_models, ("ppo", "critic"))

    traced: ClassVar[bool | str] = True
    output: ClassVar[Output] = "all logits"
    workload: str = Field("ppo", description=WORKLOAD)
    ppo: Ppo = Field(default_factory=Ppo, description="The objective of proximal policy optimization.")

    def check_data(self, path: Path | None, config: Mapping[str, Any]) -> Survey | None:
        """Check as all that generate, and refuse what its trainer cannot do. Raises RecipeError."""
        if spec_of(self.engine.name).shards_weights(0):  # module by module, and those of both at once
            raise RecipeError(
                f"is {self.engine.name}, which would take ppo's actor and critic apart in one model",
                where="engine.name",
                hint="engine.name=deepspeed with engine.zero=3 shards both",
            )
        if self.batch.split != "even":
            raise RecipeError(
                "is not even, and ppo cannot deal its prompts unevenly",
                where="batch.split",
                hint="batch.split=even",
            )
        return super().check_data(path, config)

    @property
    def held(self) -> bool:
        """Where kl is above 0."""
        return self.ppo.kl > 0

    def held_models(self) -> tuple[HeldModel, ...]:
        """Name the critic beside the models of all that generate; and both once more, before the step."""
        start = self.ppo.critic or self.reward.model
        return (
            HeldModel("critic", source=start, output="numbers", trained=True),
            HeldModel("actor before the step", output=self.output, shared=True),
            HeldModel("critic before the step", source=start, output="numbers", shared=True),
            *super().held_models(),
        )

    def drawing(self) -> Drawing:
        """Draw a micro-batch of answers after the other."""
        return Drawing(self.generation.prompt, self.generation.answer, at_once=False)

    @property
    def per_prompt(self) -> int:
        """As many as there are steps on an answer."""
        return self.ppo.epochs


RECIPE = PpoRecipe
