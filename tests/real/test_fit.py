"""The closed forms of activations against what Transformers' models keep for their backward pass."""

from __future__ import annotations

from typing import Any

import pytest

from muster.planner.activations import Kept, Lengths, layer_bytes, stacks
from tests.support import needs_torch

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

SAMPLES, TOKENS, WIDTH, HEADS = 2, 64, 128, 4
FAMILIES: dict[str, dict[str, Any]] = {
    "opt": {
        "hidden_size": WIDTH, "ffn_dim": 4 * WIDTH, "num_attention_heads": HEADS, "dropout": 0.0,
        "word_embed_proj_dim": WIDTH, "vocab_size": 300,
    },
    "gpt2": {
        "n_embd": WIDTH, "n_head": HEADS, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
        "vocab_size": 300,
    },
    "llama": {
        "hidden_size": WIDTH, "intermediate_size": 3 * WIDTH, "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS // 2, "vocab_size": 300,
    },
    "t5": {
        "d_model": WIDTH, "d_ff": 4 * WIDTH, "d_kv": WIDTH // HEADS, "num_heads": HEADS, "dropout_rate": 0.1,
        "vocab_size": 300,
    },
    "vit": {
        "hidden_size": WIDTH, "intermediate_size": 4 * WIDTH, "num_attention_heads": HEADS, "image_size": 32,
        "patch_size": 4, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    },
}  # fmt: skip
LAYERS = {"gpt2": "n_layer", "t5": "num_layers"}


def kept_bytes(kind: str, fields: dict[str, Any], attention: str, precision: str) -> int:
    """Bytes of the distinct tensors that a forward pass keeps, without the parameters."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageClassification
    from transformers import AutoModelForSeq2SeqLM as Translator

    config = AutoConfig.for_model(kind, **fields)
    config._attn_implementation = attention
    makers = {"t5": Translator, "vit": AutoModelForImageClassification}
    model = makers.get(kind, AutoModelForCausalLM).from_config(config, dtype=torch.float32).train()
    if precision == "bf16":
        model = model.bfloat16()
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    found: dict[int, int] = {}
    alive = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            found[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)  # else its address is given out again
        return tensor

    tokens = torch.randint(0, 300, (SAMPLES, TOKENS))
    inputs: dict[str, Any] = {"input_ids": tokens}
    if kind == "t5":
        inputs |= {"decoder_input_ids": tokens}
    elif kind == "vit":
        inputs = {"pixel_values": torch.rand(SAMPLES, 3, 32, 32, dtype=model.dtype)}
    else:
        inputs |= {"use_cache": False}
    mixed = torch.autocast("cpu", torch.bfloat16, enabled=precision == "mixed")
    with mixed, torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        model(**inputs)
    return sum(found.values())


@pytest.mark.parametrize("precision", ["fp32", "bf16", "mixed"])
@pytest.mark.parametrize(
    ("kind", "attention"),
    [
        ("opt", "sdpa"),
        ("opt", "eager"),
        ("gpt2", "sdpa"),
        ("llama", "sdpa"),
        ("t5", "eager"),
        ("vit", "sdpa"),
    ],
)
def test_a_layer_keeps_what_the_closed_form_says(kind: str, attention: str, precision: str) -> None:
    needs_torch()
    name = LAYERS.get(kind, "num_hidden_layers")
    measured = []
    for layers in (2, 4):  # what is outside the layers falls out of the difference
        fields = {**FAMILIES[kind], name: layers}
        measured.append(kept_bytes(kind, fields, attention, precision))
    config = {"model_type": kind, **FAMILIES[kind]}
    element = 4 if precision == "fp32" else 2
    kept = Kept(element, mixed=precision == "mixed", fused=attention == "sdpa", mask=element)
    found = stacks(config, Lengths(TOKENS, TOKENS)) or []
    predicted = 2 * SAMPLES * sum(layer_bytes(stack, kept) for stack in found)
    weights = sum(
        stack.width * (2 * (stack.query + stack.keys) * len(stack.attentions)
        + stack.inner * (3 if kind == "llama" else 2)) for stack in found
    )  # fmt: skip
    copies = 2 * 2 * weights if precision == "mixed" else 0  # of the weights, which the planner counts apart
    assert predicted + copies == pytest.approx(measured[1] - measured[0], rel=0.08)
