"""What a plan says beside its memory: for whom, with which choices, how full, and what would help."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from muster.core.errors import RecipeError
from muster.core.hardware.devices import ambiguous
from muster.core.recipes import load_recipe
from muster.inputs.model import check_model
from muster.planner.document import NEARLY_FULL
from tests.support import plan

GPT2 = ["model.name=gpt2-large", "data.sequence=1024", "engine.name=ddp", "precision=bf16", "batch.micro=1"]


def device_of(share: float, *settings: str) -> str:
    """A device of which the plan's memory is such a share."""
    memory = plan("a100-80gb:1", *GPT2, *settings, recipe="causal-lm").memory
    assert memory is not None
    return f"gpu{{memory={memory.device_bytes / share / 1e9:.4f}GB,bf16=300,capability=8.0}}:1"


@pytest.mark.parametrize(("share", "full"), [(0.86, False), (0.90, True)])
def test_nearly_full_and_what_helps(share: float, full: bool) -> None:
    made = plan(device_of(share), *GPT2, recipe="causal-lm")
    assert made.memory and made.memory.lacking is None and made.memory.nearly_full is full
    assert bool(made.roomier) is full and not made.would_fit
    if full:
        words = made.roomier[0].split()
        again = plan(device_of(share), *GPT2, *words, recipe="causal-lm").memory
        assert again and again.device_room
        assert again.device_bytes <= NEARLY_FULL * again.device_room


def test_the_model_that_is_planned_is_not_offered() -> None:
    """Adapters make it larger than its own size in the table."""
    lora = ["lora.rank=512", "lora.targets=all-linear"]
    made = plan(device_of(1.02, *lora), *GPT2, *lora, recipe="causal-lm")
    assert made.would_fit and "model.name=gpt2-large" not in made.would_fit


def test_adapters_beside_weights_in_bf16() -> None:
    lora = ["lora.rank=8", "lora.targets=all-linear", "model.name=facebook/opt-6.7b", "engine.name=ddp"]
    base = ["data.sequence=512", "precision=bf16", "batch.micro=1", "train.gradient_checkpointing=true"]
    made = plan("rtx-3090:1", *lora, *base, recipe="causal-lm")
    assert "train.optimizer=adamw-bf16" in made.would_fit
    again = plan("rtx-3090:1", *lora, *base, "train.optimizer=adamw-bf16", recipe="causal-lm")
    assert again.memory and again.memory.lacking is None


def test_a_name_of_two_sizes_is_said() -> None:
    (said,) = ambiguous("a100:8x4,hdr")
    assert "40gb" in said and "80gb" in said
    assert not ambiguous("a10:1")  # whose name also begins those of the A100s
    assert not ambiguous("a100-80gb:8") and not ambiguous("h200:8") and not ambiguous("l4:1")
    assert said in plan("a100:1", *GPT2, recipe="causal-lm").notes


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_an_encoder_is_no_language_model(kind: str, tmp_path: Path) -> None:
    shape = {"model_type": kind, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    settings = ["model.init=random", f"model.config={json.dumps(shape)}", "data.sequence=16"]
    with pytest.raises(RecipeError) as caught:
        check_model(load_recipe("causal-lm", settings))
    assert caught.value.where == "model.config.model_type"
    decoder = json.dumps({**shape, "is_decoder": True})
    check_model(load_recipe("causal-lm", ["model.init=random", f"model.config={decoder}"]))
