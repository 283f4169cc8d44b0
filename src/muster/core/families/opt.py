"""OPT: a decoder with learned positions and ReLU, from 8 million to 175 billion parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from muster.core.families.fields import Division, Field, depth, flag, share, whole
from muster.core.families.published import PublishedTraining
from muster.core.families.stack import PER_INNER, Stack

MODEL_TYPES = ("opt",)
FIELDS = (
    depth("num_hidden_layers", 12),
    whole("num_attention_heads", 12),
    whole("hidden_size", 768),
    whole("ffn_dim", 3072),
    whole("word_embed_proj_dim"),
    whole("max_position_embeddings", 2048),
    whole("vocab_size", 50272),
    share("dropout", 0.1),
    share("attention_dropout", 0.0),
    share("layerdrop", 0.0),
    flag("do_layer_norm_before", True),
    flag("_remove_final_layer_norm", False),
    flag("layer_norm_elementwise_affine", True),
    flag("enable_bias", True),
    flag("tie_word_embeddings", True),
    Field("activation_function", "activation", "relu"),
)
DIVISIONS = (Division("hidden_size", "num_attention_heads"),)


def _size(layers: int, width: int, heads: int, **others: Any) -> dict[str, Any]:
    return {
        "model_type": "opt",
        "num_hidden_layers": layers,
        "hidden_size": width,
        "ffn_dim": 4 * width,
        "num_attention_heads": heads,
        "word_embed_proj_dim": width,
        "max_position_embeddings": 2048,
        "vocab_size": 51200,
        **others,
    }


# metaseq's table (opt_baselines), with the vocabulary of its benchmark; and what the hub's checkpoints have.
SIZES: dict[str, dict[str, Any]] = {
    "opt-8m": _size(4, 128, 2),
    "opt-125m": _size(12, 768, 12),
    "opt-350m": _size(24, 1024, 16),
    "opt-760m": _size(24, 1536, 16),
    "opt-1.3b": _size(24, 2048, 32),
    "opt-2.7b": _size(32, 2560, 32),
    "opt-6.7b": _size(32, 4096, 32),
    "opt-13b": _size(40, 5120, 40),
    "opt-30b": _size(48, 7168, 56),
    "opt-66b": _size(64, 9216, 72),
    "opt-175b": _size(96, 12288, 96),
    "facebook/opt-125m": _size(12, 768, 12, vocab_size=50272),
    "facebook/opt-350m": _size(
        24, 1024, 16, vocab_size=50272, word_embed_proj_dim=512, do_layer_norm_before=False
    ),
    "facebook/opt-1.3b": _size(24, 2048, 32, vocab_size=50272),
    "facebook/opt-2.7b": _size(32, 2560, 32, vocab_size=50272),
    "facebook/opt-6.7b": _size(32, 4096, 32, vocab_size=50272),
    "facebook/opt-13b": _size(40, 5120, 40, vocab_size=50272),
    "facebook/opt-30b": _size(48, 7168, 56, vocab_size=50272),
    "facebook/opt-66b": _size(64, 9216, 72, vocab_size=50272),
}

# Learning rate and tokens per optimizer step of each size (Zhang et al. 2022, table 1; metaseq's
# opt_baselines); the hub's checkpoints of a size share them.
PUBLISHED: dict[str, PublishedTraining] = {
    "opt-8m": PublishedTraining(1e-3, 2**17),
    "opt-125m": PublishedTraining(6e-4, 2**19),
    "opt-350m": PublishedTraining(3e-4, 2**19),
    "opt-760m": PublishedTraining(2.5e-4, 2**19),
    "opt-1.3b": PublishedTraining(2e-4, 2**20),
    "opt-2.7b": PublishedTraining(1.6e-4, 2**20),
    "opt-6.7b": PublishedTraining(1.2e-4, 2**21),
    "opt-13b": PublishedTraining(1e-4, 2**22),
    "opt-30b": PublishedTraining(1e-4, 2**22),
    "opt-66b": PublishedTraining(8e-5, 2**21),
    "opt-175b": PublishedTraining(3e-5, 2**21),
}


def stacks(config: Mapping[str, Any]) -> list[Stack]:
    """Return one stack: two LayerNorms a layer, of which input and output are kept, and one attention."""
    width, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
    stack = Stack(
        layers=int(config["num_hidden_layers"]),
        width=width,
        heads=heads,
        query=width,
        keys=width,
        inner=int(config["ffn_dim"]),
        per_inner=PER_INNER.get(str(config["activation_function"]), 5),
        dropout=float(config["dropout"]),
        attention_dropout=float(config["attention_dropout"]),
    )
    return [stack]


def parameters(config: Mapping[str, Any]) -> int:
    """Count token embeddings (the output as well), two matrices where they are narrower than the model,
    positions (two more than are used); per layer two norms, an attention of four width x width matrices and a
    feed-forward of two, with biases; a last norm where norms come first.

    Source: transformers/models/opt/modeling_opt.py.
    """
    [stack], vocab = stacks(config), int(config["vocab_size"])
    width = stack.width
    narrow = int(config.get("word_embed_proj_dim") or width)
    bias = 1 if config["enable_bias"] else 0
    norm = 2 * width if config["layer_norm_elementwise_affine"] else 0
    layers = stack.layers * (stack.weights + bias * (stack.inner + 5 * width) + 2 * norm)
    embeddings = vocab * narrow * (1 if config["tie_word_embeddings"] else 2)
    before = config["do_layer_norm_before"] and not config["_remove_final_layer_norm"]
    outside = sum(rows * columns for rows, columns in tables(config))
    return embeddings + outside + layers + (norm if before else 0)


def tables(config: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Return the shapes of the position embeddings, and of the matrices to and from narrower embeddings."""
    width = int(config["hidden_size"])
    narrow = int(config.get("word_embed_proj_dim") or width)
    projections = [(width, narrow), (narrow, width)] if narrow != width else []
    return [(positions(config) + 2, width), *projections]


def positions(config: Mapping[str, Any]) -> int:
    """Return the rows of learned positions, less two."""
    return int(config["max_position_embeddings"])
