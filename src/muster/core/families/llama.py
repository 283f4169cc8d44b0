"""Llama, Mistral and Qwen: a decoder with rotary positions, gated feed-forwards and grouped keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from muster.core.families.checkpoints import LLAMA, decoder
from muster.core.families.fields import Division, Field, depth, flag, share, whole
from muster.core.flops import Products, Shape

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
    """Of a query, a key or a value; even, since rotary positions turn pairs."""
    return int(config.get("head_dim") or int(config["hidden_size"]) // int(config["num_attention_heads"]))


def parameters(config: Mapping[str, Any]) -> int:
    """Embeddings and output; per layer queries, keys, values and output, three feed-forward matrices and two
    norms; a last norm. Biases of queries, keys and values in Qwen2, and where Llama is asked for them; a norm
    of queries and of keys in Qwen3.

    Source: transformers/models/{llama,mistral,qwen2,qwen3}/modeling_*.py.
    """
    width, inner, vocab = (int(config[name]) for name in ("hidden_size", "intermediate_size", "vocab_size"))
    heads = int(config["num_attention_heads"])
    keys = int(config.get("num_key_value_heads") or heads)
    query, key = heads * head_width(config), keys * head_width(config)
    attention = 2 * width * query + 2 * width * key
    kind, more = config.get("model_type"), 0
    if kind == "qwen2":
        more += query + 2 * key
    elif kind != "mistral":
        more += query + 2 * key + width if config["attention_bias"] else 0
        more += 2 * inner + width if config["mlp_bias"] and kind != "qwen3" else 0
    more += 2 * head_width(config) if kind == "qwen3" else 0
    layers = int(config["num_hidden_layers"]) * (attention + 3 * width * inner + more + 2 * width)
    embeddings = vocab * width * (1 if config["tie_word_embeddings"] else 2)
    return embeddings + layers + width


def positions(config: Mapping[str, Any]) -> int:
    """What the model is made for: rotary positions have no table that ends."""
    return int(config["max_position_embeddings"])


def products(config: Mapping[str, Any], shape: Shape) -> Products:
    """Per token all matrices of the blocks and the output; an attention of tokens x tokens a layer, over all
    heads however few keys there are.
    """
    width, inner = int(config["hidden_size"]), int(config["intermediate_size"])
    heads = int(config["num_attention_heads"])
    keys = int(config.get("num_key_value_heads") or heads)
    query, key = heads * head_width(config), keys * head_width(config)
    layers, tokens = int(config["num_hidden_layers"]), shape.samples * shape.tokens
    matrices = 2 * width * query + 2 * width * key + 3 * width * inner
    head = tokens * width * int(config["vocab_size"])
    return Products(
        weights=tokens * layers * matrices + head,
        attention=layers * 2 * tokens * shape.tokens * query,
        outside=head,
    )
