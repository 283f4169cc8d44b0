"""Sizes and recipes have the settings that were published with them, number by number."""

from __future__ import annotations

import pytest

from muster.core import families
from muster.core.batch import Batch
from muster.core.recipes import load_recipe
from muster.dialogues.spec import DialogueData
from muster.engines.deepspeed.config import deepspeed_config
from muster.inputs.read import read_recipe
from muster.planner.machines import UserFigures
from muster.planner.plan import plan_on
from muster.workloads.image_classification.spec import ImageData
from muster.workloads.ppo.spec import PpoRecipe

# Zhang et al. 2022, table 1, and metaseq's opt_baselines: layers, width, heads.
OPT = {
    "8m": (4, 128, 2),
    "125m": (12, 768, 12),
    "350m": (24, 1024, 16),
    "760m": (24, 1536, 16),
    "1.3b": (24, 2048, 32),
    "2.7b": (32, 2560, 32),
    "6.7b": (32, 4096, 32),
    "13b": (40, 5120, 40),
    "30b": (48, 7168, 56),
    "66b": (64, 9216, 72),
    "175b": (96, 12288, 96),
}


@pytest.mark.parametrize("size", OPT)
def test_opts_table(size: str) -> None:
    """And what all sizes share: a feed-forward of four widths, 2048 positions, the benchmark's vocabulary."""
    layers, width, heads = OPT[size]
    ours = families.size(f"opt-{size}")
    assert ours is not None
    assert ours["model_type"] == "opt"
    shape = (ours["num_hidden_layers"], ours["hidden_size"], ours["num_attention_heads"])
    assert shape == (layers, width, heads)
    assert ours["ffn_dim"] == 4 * width
    assert (ours["max_position_embeddings"], ours["vocab_size"]) == (2048, 51_200)
    hub = families.size(f"facebook/opt-{size}")
    assert hub is not None
    assert (hub["num_hidden_layers"], hub["hidden_size"], hub["num_attention_heads"]) == shape


def test_every_opt_size_is_in_the_table() -> None:
    names = {name.removeprefix("facebook/").removeprefix("opt-") for name in families.sizes("opt")}
    assert names == set(OPT)


def test_vit_b16_on_cifar10() -> None:
    """AdamW 1e-4, ten epochs, 224 pixels from -1 to 1; Dosovitskiy et al. 2021, table 1, patches of 16."""
    recipe = load_recipe("vit-b16-cifar10")
    assert (recipe.train.learning_rate, recipe.train.epochs) == (1e-4, 10)
    assert isinstance(recipe.data, ImageData)
    assert recipe.data.size == 224
    assert recipe.data.mean == recipe.data.std == [0.5, 0.5, 0.5]
    model = families.size(recipe.model.name)
    assert model is not None
    assert (model["num_hidden_layers"], model["hidden_size"], model["num_attention_heads"]) == (12, 768, 12)
    assert (model["intermediate_size"], model["image_size"], model["patch_size"]) == (3072, 224, 16)


@pytest.mark.parametrize("name", ["gpt2-micro", "gpt2-small"])
def test_mistrals_zero_2(name: str) -> None:
    """z2-small.json of Mistral: what DeepSpeed gets has all of it."""
    recipe = load_recipe(name)
    made = deepspeed_config(recipe, Batch(4, 2, 32), "fp16")
    assert made["zero_optimization"] == {
        "stage": 2,
        "allgather_partitions": True,
        "allgather_bucket_size": 200_000_000,
        "overlap_comm": True,
        "reduce_scatter": True,
        "reduce_bucket_size": 200_000_000,
        "contiguous_gradients": True,
    }
    assert made["fp16"]["enabled"] is True
    assert (recipe.train.learning_rate, recipe.train.schedule, recipe.train.warmup) == (6e-4, "linear", 4000)


# Lambda's benchmark of DeepSpeed-Chat: step, micro-batch per GPU, ZeRO, rank of LoRA on the decoder's layers.
S1 = {
    "s1-opt-350m": ("causal-lm", 24, 0, None),
    "s1-opt-13b": ("causal-lm", 16, 0, 128),
    "s1-opt-66b": ("causal-lm", 4, 3, 128),
    "s1-opt-350m-reward": ("reward", 4, 0, None),
    "s1-opt-13b-ppo": ("ppo", 16, 3, 128),
}
STEPS = [f"s1-opt-{size}{step}" for size in ("350m", "1.3b", "13b", "66b") for step in ("", "-ppo")]


@pytest.mark.parametrize("name", [*STEPS, "s1-opt-350m-reward"])
def test_lambdas_settings(name: str) -> None:
    """fp16, 512 tokens, AdamW 0.9 and 0.95 with a weight decay of 0.1, cosine, no accumulation, seed 1234."""
    recipe = load_recipe(name)
    train, lengths = recipe.train, recipe.lengths(families.size(recipe.model.name))
    assert lengths is not None
    assert (recipe.precision, recipe.batch.accumulation, lengths.tokens) == ("fp16", 1, 512)
    assert (train.beta1, train.beta2, train.weight_decay) == (0.9, 0.95, 0.1)
    assert (train.schedule, train.clip, train.seed) == ("cosine", 1.0, 1234)
    if name in S1:
        rank = recipe.lora.rank if recipe.lora else None
        assert (recipe.workload, recipe.batch.micro, recipe.engine.zero, rank) == S1[name]
        assert train.gradient_checkpointing is (rank is not None)
        assert recipe.lora is None or len(recipe.lora.targets or ()) == 6  # all matrices of a layer


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
    assert larger.startswith("GPUs of 20")
    ran = plan_on(read_recipe("s1-opt-13b-ppo", []), "a100-80gb:8", told, traced=False).plan
    assert ran is not None
    assert ran.memory is not None
    assert ran.memory.lacking is None
