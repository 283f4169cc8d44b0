"""Llama and its like: a decoder with rotary positions, gated feed-forwards and grouped keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from muster.core.flops import Products, Shape

MODEL_TYPES = ("llama", "mistral")


def _size(
    layers: int, width: int, heads: int, keys: int, inner: int, vocab: int, positions: int
) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "num_hidden_layers": layers,
        "hidden_size": width,
        "num_attention_heads": heads,
        "num_key_value_heads": keys,
        "intermediate_size": inner,
        "vocab_size": vocab,
        "max_position_embeddings": positions,
        "tie_word_embeddings": False,
    }


# Touvron et al. 2023, table 1; Llama 3 Herd 2024, table 3.
SIZES: dict[str, dict[str, Any]] = {
    "llama-2-7b": _size(32, 4096, 32, 32, 11008, 32000, 4096),
    "llama-2-13b": _size(40, 5120, 40, 40, 13824, 32000, 4096),
    "llama-3-8b": _size(32, 4096, 32, 8, 14336, 128256, 8192),
    "llama-3-70b": _size(80, 8192, 64, 8, 28672, 128256, 8192),
}


def parameters(config: Mapping[str, Any]) -> int:
    """Embeddings and output; per layer queries, keys, values and output, three feed-forward matrices and two
    norms; a last norm. No biases.

    Source: transformers/models/llama/modeling_llama.py.
    """
    width = int(config.get("hidden_size", 4096))
    heads = int(config.get("num_attention_heads", 32))
    keys = int(config.get("num_key_value_heads") or heads)
    head = int(config.get("head_dim") or width // heads)
    inner = int(config.get("intermediate_size", 11008))
    vocab = int(config.get("vocab_size", 32000))
    attention = 2 * width * heads * head + 2 * width * keys * head
    layers = int(config.get("num_hidden_layers", 32)) * (attention + 3 * width * inner + 2 * width)
    embeddings = vocab * width * (1 if config.get("tie_word_embeddings", False) else 2)
    return embeddings + layers + width


def positions(config: Mapping[str, Any]) -> int:
    """What the model is made for: rotary positions have no table that ends.

    Source: transformers/models/{llama,mistral}/configuration_*.py.
    """
    usual = 131_072 if config.get("model_type") == "mistral" else 2048
    return int(config.get("max_position_embeddings") or usual)


def products(config: Mapping[str, Any], shape: Shape) -> Products:
    """Per token all matrices of the blocks and the output; an attention of tokens x tokens a layer, over all
    heads however few keys there are.
    """
    width = int(config.get("hidden_size", 4096))
    heads = int(config.get("num_attention_heads", 32))
    keys = int(config.get("num_key_value_heads") or heads)
    head_width = int(config.get("head_dim") or width // heads)
    inner = int(config.get("intermediate_size", 11008))
    layers, tokens = int(config.get("num_hidden_layers", 32)), shape.samples * shape.tokens
    matrices = 2 * width * heads * head_width + 2 * width * keys * head_width + 3 * width * inner
    head = tokens * width * int(config.get("vocab_size", 32000))
    return Products(
        weights=tokens * layers * matrices + head,
        attention=layers * 2 * tokens * shape.tokens * heads * head_width,
        outside=head,
    )
