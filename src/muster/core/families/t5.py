"""T5: an encoder and a decoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from muster.core.flops import Products, Shape

MODEL_TYPES = ("t5", "mt5", "umt5")
# Raffel et al. 2020, table in section 3.7; vocabulary and layout as in the checkpoints t5-small ... t5-3b.
_COMMON = {
    "model_type": "t5",
    "vocab_size": 32128,
    "feed_forward_proj": "relu",
    "tie_word_embeddings": True,
    "dropout_rate": 0.1,
}
SIZES: dict[str, dict[str, Any]] = {
    "t5-small": {**_COMMON, "d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 6, "num_heads": 8},
    "t5-base": {**_COMMON, "d_model": 768, "d_kv": 64, "d_ff": 3072, "num_layers": 12, "num_heads": 12},
    "t5-large": {**_COMMON, "d_model": 1024, "d_kv": 64, "d_ff": 4096, "num_layers": 24, "num_heads": 16},
    "t5-3b": {**_COMMON, "d_model": 1024, "d_kv": 128, "d_ff": 16384, "num_layers": 24, "num_heads": 32},
}


def parameters(config: Mapping[str, Any]) -> int:
    """Trainable parameters of T5ForConditionalGeneration.

    Two stacks; per layer four d_model x (heads x d_kv) projections an attention (the decoder has two), two or
    three (gated) feed-forward matrices, and one d_model norm a sublayer; one relative-position table of
    32 x heads and one final norm a stack; the embedding once more where it is not tied to the output.
    Source: transformers/models/t5/modeling_t5.py.
    """
    d_model = int(config.get("d_model", 512))
    inner = int(config.get("num_heads", 8)) * int(config.get("d_kv", 64))
    layers = int(config.get("num_layers", 6))
    decoder_layers = int(config.get("num_decoder_layers") or layers)
    vocab = int(config.get("vocab_size", 32128))
    gated = str(config.get("feed_forward_proj", "relu")).startswith("gated")
    attention = 4 * d_model * inner
    feed_forward = (3 if gated else 2) * d_model * int(config.get("d_ff", 2048))
    encoder = layers * (attention + feed_forward + 2 * d_model)
    decoder = decoder_layers * (2 * attention + feed_forward + 3 * d_model)
    positions = 2 * int(config.get("relative_attention_num_buckets", 32)) * int(config.get("num_heads", 8))
    embeddings = vocab * d_model * (1 if config.get("tie_word_embeddings", True) else 2)
    return encoder + decoder + positions + 2 * d_model + embeddings


def products(config: Mapping[str, Any], shape: Shape) -> Products:
    """Per encoder token the encoder's matrices, and the decoder's keys and values of the cross attention; per
    decoder token the other decoder matrices and the output; three attentions of source x source, target x
    target and target x source.
    """
    d_model = int(config.get("d_model", 512))
    inner = int(config.get("num_heads", 8)) * int(config.get("d_kv", 64))
    layers = int(config.get("num_layers", 6))
    decoder_layers = int(config.get("num_decoder_layers") or layers)
    gated = str(config.get("feed_forward_proj", "relu")).startswith("gated")
    feed_forward = (3 if gated else 2) * d_model * int(config.get("d_ff", 2048))
    source, target = shape.tokens, shape.target
    encoder = source * layers * (4 * d_model * inner + feed_forward)
    decoder = decoder_layers * (target * (6 * d_model * inner + feed_forward) + source * 2 * d_model * inner)
    head = target * d_model * int(config.get("vocab_size", 32128))
    attention = 2 * inner * (layers * source * source + decoder_layers * (target * target + target * source))
    return Products(
        weights=shape.samples * (encoder + decoder + head),
        attention=shape.samples * attention,
        outside=shape.samples * head,
    )
