"""Reward models, as the control side knows them."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from muster.core.recipe import WORKLOAD
from muster.core.workload import Output
from muster.dialogues.spec import DialogueRecipe


class RewardRecipe(DialogueRecipe):
    """A decoder with one number on top learns which of two answers is better. A sample is a pair."""

    packages: ClassVar[tuple[str, ...]] = ("trl",)
    pairs: ClassVar[bool] = True
    output: ClassVar[Output] = "numbers"
    metric: ClassVar[str] = "pair accuracy"
    loading: ClassVar[str] = """\
from transformers import AutoModelForSequenceClassification, AutoTokenizer
words = AutoTokenizer.from_pretrained({model})
model = AutoModelForSequenceClassification.from_pretrained({model})
print(model(**words({question}, return_tensors="pt")).logits.item())  # prompt and answer as one text"""

    workload: str = Field("reward", description=WORKLOAD)


RECIPE = RewardRecipe
