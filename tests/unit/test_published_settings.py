"""Sizes and recipes have the settings that were published with them, number by number."""

from __future__ import annotations

import pytest

from muster.core.recipes import load_recipe
from muster.dialogues.spec import DialogueData
from muster.inputs.read import read_recipe
from muster.planner.machines import UserFigures
from muster.planner.plan import plan_on
from muster.workloads.ppo.spec import PpoRecipe


@pytest.mark.parametrize("size", ["350m", "1.3b", "13b", "66b"])
def test_lambdas_third_step(size: str) -> None:
    """256 tokens of prompt and of answer, one epoch on each answer; critic and reward model are OPT-350m; a
    pair of the second step is two sequences."""
    recipe = load_recipe(f"s1-opt-{size}-ppo")
    assert isinstance(recipe, PpoRecipe)
    assert (recipe.generation.prompt, recipe.generation.answer, recipe.ppo.epochs) == (256, 256, 1)
    held = {each.role: each for each in recipe.held_models()}
    assert held["critic"].trained
    assert held["critic"].source == held["reward model"].source == "facebook/opt-350m"
    assert held["reference model"].shared  # the actor without its adapters
    reward = load_recipe("s1-opt-350m-reward")
    assert reward.lengths(None).sequences == 2
    assert isinstance(recipe.data, DialogueData)
    assert isinstance(reward.data, DialogueData)
    assert [each.name for each in recipe.data.mix or ()] == [each.name for each in reward.data.mix or ()]
    assert (reward.data.split, reward.data.part, recipe.data.part) == ([2, 4, 4], 2, 3)


def test_why_the_third_step_of_opt_66b_was_left_out() -> None:
    """It did not fit eight GPUs of 80 GB: the actor is gathered whole to draw answers. OPT-13b's ran."""
    told = UserFigures(host_memory=1_800_000_000_000)
    made = plan_on(read_recipe("s1-opt-66b-ppo", []), "a100-80gb:8", told, traced=False).plan
    assert made is not None
    assert made.memory is not None
    assert made.memory.lacking == "device"
    assert made.memory.moment == "drawing answers"
    assert made.memory.device["gathered parameters"] > 2 * 65e9
    smaller, larger = made.would_fit
    assert smaller == "model.name=facebook/opt-13b"
    assert larger.startswith("GPUs of 197.9 GB")
    ran = plan_on(read_recipe("s1-opt-13b-ppo", []), "a100-80gb:8", told, traced=False).plan
    assert ran is not None
    assert ran.memory is not None
    assert ran.memory.lacking is None
