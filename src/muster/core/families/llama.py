"""Llama, Mistral and Qwen: a decoder with rotary positions, gated feed-forwards and grouped keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from muster.core.families.checkpoints import LLAMA, decoder
from muster.core.families.fields import Division, Field, depth, flag, share, whole
from muster.core.families.stack import Stack

MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")
FIELDS = (
    depth("num_hidden_layers", 32),
    whole("num_attention_heads", 32),
    whole("num_key_value_heads"),
    whole("hidden_size", 4096),
    whole("head_dim"),
    whole("intermediate_size", 11008),
    whole("max_position_embeddings", 2048),
    whole("vocab_size", 32000),
    share("attention_dropout", 0.0),
    flag("attention_bias", False),
    flag("mlp_bias", False),
    flag("tie_word_embeddings", False),
    Field("hidden_act", "activation", "silu"),
)
_QWEN = {
    "num_key_value_heads": 32, "intermediate_size": 22016, "max_position_embeddings": 32768,
    "vocab_size": 151_936,
}  # fmt: skip
USUAL = {
    "mistral": {
        "num_key_value_heads": 8, "intermediate_size": 14336, "max_position_embeddings": 131_072,
    },
    "qwen2": _QWEN,
    "qwen3": {**_QWEN, "head_dim": 128},
}  # fmt: skip
# Llama's configuration asks for the first, whatever head_dim says; the others' do not.
DIVISIONS = (
    Division("hidden_size", "num_attention_heads", even=True, types=("llama",)),
    Division("num_attention_heads", "num_key_value_heads"),
)


# Touvron et al. 2023, table 1; Llama 3 Herd 2024, table 3.
SIZES: dict[str, dict[str, Any]] = {
    "llama-2-7b": decoder(32, 4096, 32, 32, 11008, 32000, 4096),
    "llama-2-13b": decoder(40, 5120, 40, 40, 13824, 32000, 4096),
    "llama-3-8b": decoder(32, 4096, 32, 8, 14336, 128256, 8192),
    "llama-3-70b": decoder(80, 8192, 64, 8, 28672, 128256, 8192),
    **LLAMA,
}


def head_width(config: Mapping[str, Any]) -> int:
    """Return the width of a query, a key or a value; even, since rotary positions turn pairs."""
    return int(config.get("head_dim") or int(config["hidden_size"]) // int(config["num_attention_heads"]))


def stacks(config: Mapping[str, Any]) -> list[Stack]:
    heads = int(config["num_attention_heads"])
    head = head_width(config)
    stack = Stack(
        layers=int(config["num_hidden_layers"]),
        width=int(config["hidden_size"]),
        heads=heads,
        query=heads * head,
        keys=int(config.get("num_key_value_heads") or heads) * head,
        inner=int(config["intermediate_size"]),
        gated=True,
        per_inner=4,
        norm=3,
        norm_bytes=8,  # an RMS norm computes in fp32: its input there, the normed values, the output
        normed=config["model_type"] == "qwen3",
        attention_dropout=float(config["attention_dropout"]),
    )
    return [stack]


def parameters(config: Mapping[str, Any]) -> int:
    """Count embeddings and output; per layer queries, keys, values and output, three feed-forward matrices
    and two norms; a last norm. Biases of queries, keys and values in Qwen2, and where Llama is asked for
    them; a norm of queries and of keys in Qwen3.

    Source: transformers/models/{llama,mistral,qwen2,qwen3}/modeling_*.py.
    """
    [stack], vocab = stacks(config), int(config["vocab_size"])
    width, inner, query, key = stack.width, stack.inner, stack.query, stack.keys
    kind, more = config.get("model_type"), 0
    if kind == "qwen2":
        more += query + 2 * key
    elif kind != "mistral":
        more += query + 2 * key + width if config["attention_bias"] else 0
        more += 2 * inner + width if config["mlp_bias"] and kind != "qwen3" else 0
    more += 2 * head_width(config) if kind == "qwen3" else 0
    layers = stack.layers * (stack.weights + more + 2 * width)
    embeddings = vocab * width * (1 if config["tie_word_embeddings"] else 2)
    return embeddings + layers + width


def positions(config: Mapping[str, Any]) -> int:
    """Return the length that the model is made for: rotary positions have no table that ends."""
    return int(config["max_position_embeddings"])
