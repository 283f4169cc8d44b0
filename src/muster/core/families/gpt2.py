"""GPT-2: a decoder with learned positions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from muster.core.families.fields import Division, Field, depth, flag, share, whole
from muster.core.families.stack import PER_INNER, Stack

MODEL_TYPES = ("gpt2",)
FIELDS = (
    depth("n_layer", 12, also="num_hidden_layers"),
    whole("n_head", 12, also="num_attention_heads"),
    whole("n_embd", 768, also="hidden_size"),
    whole("n_inner"),
    whole("n_positions", 1024, also="max_position_embeddings"),
    whole("vocab_size", 50257),
    share("resid_pdrop", 0.1),
    share("embd_pdrop", 0.1),
    share("attn_pdrop", 0.1),
    flag("tie_word_embeddings", True),
    Field("activation_function", "activation", "gelu_new"),
)
DIVISIONS = (Division("n_embd", "n_head"),)


def _size(layers: int, heads: int, width: int, positions: int = 1024) -> dict[str, Any]:
    return {
        "model_type": "gpt2",
        "n_layer": layers,
        "n_head": heads,
        "n_embd": width,
        "n_positions": positions,
        "vocab_size": 50257,
    }


# Radford et al. 2019, table 2, and Mistral's gpt2-micro.
SIZES: dict[str, dict[str, Any]] = {
    "gpt2-micro": _size(2, 2, 768, 256),
    "gpt2-small": _size(12, 12, 768),
    "gpt2": _size(12, 12, 768),
    "gpt2-medium": _size(24, 16, 1024),
    "gpt2-large": _size(36, 20, 1280),
    "gpt2-xl": _size(48, 25, 1600),
}


def stacks(config: Mapping[str, Any]) -> list[Stack]:
    """Return one stack: two LayerNorms a layer, of which input and output are kept, and one attention."""
    width, heads = int(config["n_embd"]), int(config["n_head"])
    stack = Stack(
        layers=int(config["n_layer"]),
        width=width,
        heads=heads,
        query=width,
        keys=width,
        inner=int(config.get("n_inner") or 4 * width),
        per_inner=PER_INNER.get(str(config["activation_function"]), 5),
        upcast=False,
        dropout=float(config["resid_pdrop"]),
        attention_dropout=float(config["attn_pdrop"]),
    )
    return [stack]


def parameters(config: Mapping[str, Any]) -> int:
    """Count token and position embeddings (the first is the output as well); per layer two norms, an
    attention of four width x width matrices and a feed-forward of two, with biases; a last norm.

    Source: transformers/models/gpt2/modeling_gpt2.py.
    """
    [stack], vocab = stacks(config), int(config["vocab_size"])
    width = stack.width
    layers = stack.layers * (stack.weights + stack.inner + 9 * width)
    untied = 0 if config["tie_word_embeddings"] else vocab * width
    return vocab * width + positions(config) * width + layers + 2 * width + untied


def tables(config: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Return the shape of the position embeddings."""
    return [(positions(config), int(config["n_embd"]))]


def positions(config: Mapping[str, Any]) -> int:
    """Return the rows of learned positions."""
    return int(config["n_positions"])
