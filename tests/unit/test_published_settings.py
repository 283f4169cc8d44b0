"""Sizes and recipes have the settings that were published with them, number by number."""

from __future__ import annotations

import pytest

from muster.core import families
from muster.core.batch import Batch
from muster.core.recipes import load_recipe
from muster.engines.deepspeed.config import deepspeed_config
from muster.workloads.image_classification.spec import ImageData

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
