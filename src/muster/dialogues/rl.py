"""Recipes of reinforcement learning, as the control side knows them: answers are generated, and rewarded."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field

from muster.core import families
from muster.core.errors import DataError, RecipeError
from muster.core.section import PositiveInt, Section
from muster.core.workload import Drawing, HeldModel, Lengths, Output, Survey
from muster.dialogues.rows import Dialogue
from muster.dialogues.spec import DialogueRecipe


class Reward(Section):
    """What an answer is worth. At least one is given; several are added up."""

    model: str | None = Field(
        None,
        description="A reward model that `reward` has trained: a run's id, a folder, or a hub name. Its "
        "tokenizer must be the model's own.",
    )
    function: str | None = Field(
        None,
        description="A Python function, as FILE.py:NAME or package.module:NAME. It takes the prompts, the "
        "answers and the expected answers, three lists of texts, and returns a number for each. Never code "
        "from a hub.",
    )
    execution: bool | None = Field(
        None,
        description="1 for an answer that is SQL with the same rows as the expected one, in its sample's "
        "SQLite file; 0 for any other. Where the expected rows are none, 1 for the same SQL alone. "
        "Null: where neither a model nor a function is given.",
    )

    @property
    def executes(self) -> bool:
        """Whether answers are run."""
        return not (self.model or self.function) if self.execution is None else self.execution

    @property
    def given(self) -> bool:
        """Whether there is any."""
        return bool(self.model or self.function or self.executes)


class Generation(Section):
    """How answers are drawn."""

    prompt: PositiveInt = Field(256, description="Longest prompt in tokens; longer ones are an error.")
    answer: PositiveInt = Field(256, description="Longest answer in tokens.")
    temperature: Annotated[float, Field(gt=0)] = Field(1.0, description="Temperature of sampling.")
    top_p: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0, description="Draw from the likeliest tokens that have this probability together."
    )
    top_k: Annotated[int, Field(ge=0)] = Field(
        0, description="Draw from so many of the likeliest tokens; 0: from all."
    )


class RolloutRecipe(DialogueRecipe):
    """A decoder generates answers to prompts, and learns which ones are rewarded. A sample is an answer."""

    split_words: ClassVar[tuple[str, ...]] = ("gen",)
    packages: ClassVar[tuple[str, ...]] = ("trl",)
    answered: ClassVar[bool] = False
    dropout: ClassVar[bool] = False
    traced: ClassVar[bool | str] = "muster.dialogues.tracing:ANSWERS"
    output: ClassVar[Output] = "log-probs"
    metric: ClassVar[str] = "exact match"
    other_models: ClassVar[tuple[tuple[str, str], ...]] = (("reward", "model"),)

    reward: Reward = Field(default_factory=Reward, description="What an answer is worth.")
    generation: Generation = Field(
        default_factory=Generation, description="How long answers may be, and how each token is drawn."
    )

    def check_data(self, path: Path | None, config: Mapping[str, Any]) -> Survey | None:
        """Check as all dialogues do, and whether there is a reward. Raises DataError and RecipeError."""
        if not self.reward.given:
            raise RecipeError(
                "is missing: nothing says what an answer is worth",
                where="reward",
                hint="reward.model=RUN, reward.function=FILE.py:NAME, or reward.execution=true",
            )
        if self.reward.function:
            check_function(self.reward.function)
        positions = families.positions(config)
        if positions and self.sequence(config) > positions:
            raise RecipeError(
                f"prompt and answer have {self.sequence(config):,} tokens, and the model has {positions:,} "
                "positions",
                where="generation",
                hint="a shorter generation.prompt or generation.answer",
            )
        return super().check_data(path, config)

    def check_rows(self, samples: Sequence[Dialogue]) -> None:
        """Raise DataError where SQL is to be run and a sample has none, or no database."""
        for sample in samples if self.reward.executes else ():
            if not sample.database or not sample.answer:
                raise DataError(
                    "has no SQLite file or no expected SQL, so no answer can be judged by running it",
                    where=sample.where,
                    hint="reward.model=RUN or reward.function=FILE.py:NAME; or a field database next to it",
                )

    @property
    def per_prompt(self) -> int:
        """Samples that an epoch trains on for each prompt."""
        return 1

    def survey(self, config: Mapping[str, Any] | None, checked: Survey | None = None) -> Survey:
        """Count the answers that are drawn as samples, else as all dialogues do."""
        read = super().survey(config, checked)
        return replace(read, samples=read.samples and read.samples * self.per_prompt)

    def longest_prompt(self, config: Mapping[str, Any]) -> tuple[int, str]:
        """Return the limit of generation.prompt, and that key."""
        return self.generation.prompt, f"generation.prompt={self.generation.prompt:,}"

    def files(self) -> tuple[str, ...]:
        """Name the file of reward.function."""
        place = (self.reward.function or "").rpartition(":")[0]
        return (place,) if place.endswith(".py") else ()

    def sequence(self, config: Mapping[str, Any] | None) -> int:
        """Count the tokens of a prompt with its answer."""
        return self.generation.prompt + self.generation.answer

    def lengths(self, config: Mapping[str, Any] | None) -> Lengths:
        """Return the length of prompt and answer together."""
        return Lengths(self.sequence(config))

    @property
    def held(self) -> bool:
        """Whether the model is held to the one that it starts from."""
        return False

    def held_models(self) -> tuple[HeldModel, ...]:
        """Name what the model is held to, and what rewards its answers."""
        reference = HeldModel("reference model", output=self.output, shared=self.lora is not None)
        reward = HeldModel("reward model", source=self.reward.model, output="numbers", sharded=False)
        return (*[reference] * self.held, *[reward] * (self.reward.model is not None))

    def drawing(self) -> Drawing:
        """Draw all answers of a rank's step at once, as TRL does."""
        return Drawing(self.generation.prompt, self.generation.answer)

    @property
    def new_tokens(self) -> int:
        """As many as in training."""
        return self.evaluate.max_new_tokens or self.generation.answer


def check_function(name: str) -> None:
    """Raise RecipeError unless it may be a function's name, and its file is here."""
    place, colon, function = name.rpartition(":")
    if not colon or not place or not function.isidentifier():
        raise RecipeError(
            f"{name!r} is not FILE.py:NAME",
            where="reward.function",
            hint="such as rewards.py:short_answers, or package.module:short_answers",
        )
    if place.endswith(".py"):
        if not os.path.isfile(place):  # noqa: PTH113 - never raises
            raise RecipeError(f"no such file: {place}", where="reward.function")
    elif not all(part.isidentifier() for part in place.split(".")):
        raise RecipeError(f"{place!r} is not a module's name", where="reward.function")
    elif "." not in place and importlib.util.find_spec(place) is None:
        raise RecipeError(f"no module is named {place!r}", where="reward.function", hint="FILE.py:NAME")


class Group(Section):
    """An objective that compares several answers to one prompt."""

    answers: Annotated[int, Field(ge=2)] = Field(
        8, description="Answers to each prompt. The global batch, in answers, is a multiple of it."
    )
    beta: Annotated[float, Field(ge=0)] = Field(
        0.0, description="How strongly the model is held to the one that it starts from; 0: not at all."
    )
    clip: Annotated[float, Field(gt=0)] = Field(
        0.2, description="How far the probability of a token may move from where it was when it was drawn."
    )
    epochs: PositiveInt = Field(1, description="Optimizer steps on each batch of answers.")


class GroupRecipe(RolloutRecipe):
    """A decoder learns from the rewards of several answers to one prompt, by one of TRL's trainers. The
    objective's section is called as the workload."""

    trl: ClassVar[str]  # names of TRL's classes, before Trainer and Config

    @property
    def group(self) -> Group:
        """The objective."""
        objective: Group = getattr(self, self.workload)
        return objective

    def trl_arguments(self) -> dict[str, Any]:
        """Return what TRL's configuration takes beside what all objectives of groups have."""
        raise NotImplementedError

    @property
    def held(self) -> bool:
        """Where beta is above 0."""
        return self.group.beta > 0

    @property
    def per_prompt(self) -> int:
        """Its answers."""
        return self.group.answers

    def check_data(self, path: Path | None, config: Mapping[str, Any]) -> Survey | None:
        """Check as all that generate, and whether there is a model that it could be held to. Raises
        RecipeError."""
        model = self.model
        if self.held and self.lora is None and not (model.name and model.init == "pretrained"):
            where = f"{self.workload}.beta"
            raise RecipeError(
                "is above 0, and a model from scratch has nothing that it could be held to",
                where=where,
                hint=f"model.name=RUN of an earlier step, or {where}=0",
            )
        return super().check_data(path, config)
