"""T5: an encoder and a decoder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from muster.core.families.checkpoints import T5
from muster.core.families.fields import Field, depth, share, whole
from muster.core.families.stack import Stack
from muster.core.flops import Products, Shape

MODEL_TYPES = ("t5", "mt5", "umt5")
FIELDS = (
    depth("num_layers", 6, also="num_hidden_layers"),
    depth("num_decoder_layers"),
    whole("num_heads", 8, also="num_attention_heads"),
    whole("d_model", 512, also="hidden_size"),
    whole("d_kv", 64, also="head_dim"),
    whole("d_ff", 2048),
    whole("relative_attention_num_buckets", 32, least=4),  # halved twice, and something has to be left
    whole("vocab_size", 32128),
    share("dropout_rate", 0.1),
    Field("feed_forward_proj", "feed-forward", "relu"),
)
_MULTILINGUAL = {"num_layers": 8, "num_heads": 6, "d_ff": 1024, "feed_forward_proj": "gated-gelu"}
USUAL = {"mt5": {**_MULTILINGUAL, "vocab_size": 250_112}, "umt5": {**_MULTILINGUAL, "vocab_size": 250_112}}
DIVISIONS = ()  # d_kv is a head's width of its own
# Raffel et al. 2020, table in section 3.7; vocabulary and layout as in the checkpoints t5-small ... t5-11b.
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
    "t5-11b": {**_COMMON, "d_model": 1024, "d_kv": 128, "d_ff": 65536, "num_layers": 24, "num_heads": 128},
    **T5,
}


def stacks(config: Mapping[str, Any]) -> list[Stack]:
    layers, width, heads = (int(config[key]) for key in ("num_layers", "d_model", "num_heads"))
    query = heads * int(config["d_kv"])
    encoder = Stack(layers, width, heads, query, query, int(config["d_ff"]), gated(config))
    return [encoder, replace(encoder, layers=int(config.get("num_decoder_layers") or layers), attentions=2)]


def parameters(config: Mapping[str, Any]) -> int:
    """Count the trainable parameters of T5ForConditionalGeneration.

    Two stacks; per layer four d_model x (heads x d_kv) projections an attention (the decoder has two), two or
    three (gated) feed-forward matrices, and one d_model norm a sublayer; one table of relative positions,
    buckets x heads, and one final norm a stack (UMT5: a table a layer); the embedding, and an output of its
    own where tie_word_embeddings is false (see `drawn`). Source: transformers/models/{t5,umt5}/modeling_*.py.
    """
    both, width = stacks(config), int(config["d_model"])
    layers = sum(each.layers * (each.weights + (each.attentions + 1) * width) for each in both)
    tables = sum(each.layers for each in both) if config.get("model_type") == "umt5" else 2
    positions = tables * int(config["relative_attention_num_buckets"]) * both[0].heads
    matrices = 1 if config.get("tie_word_embeddings", True) else 2
    return layers + positions + 2 * width + matrices * int(config["vocab_size"]) * width


def drawn(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of a model that is drawn anew: Transformers ties the output whatever
    tie_word_embeddings says (configuration_t5.py), but for checkpoints that have another one (v1.1, mT5)."""
    return {**config, "tie_word_embeddings": True}


def gated(config: Mapping[str, Any]) -> bool:
    """Return whether the feed-forward has three matrices."""
    return str(config["feed_forward_proj"]).startswith("gated-")


def products(config: Mapping[str, Any], shape: Shape) -> Products:
    """Return, per encoder token, the encoder's matrices and the decoder's keys and values of the cross
    attention; per decoder token the other decoder matrices and the output; three attentions of source x
    source, target x target and target x source."""
    first, second = stacks(config)
    source, target, query = shape.tokens, shape.target, first.query
    crossed = 2 * second.width * query  # keys and values of the source
    encoder = source * first.layers * first.weights
    decoder = second.layers * (target * (second.weights - crossed) + source * crossed)
    head = target * second.width * int(config["vocab_size"])
    attention = 2 * query * (first.layers * source * source + second.layers * target * (target + source))
    return Products(
        weights=shape.samples * (encoder + decoder + head),
        attention=shape.samples * attention,
        outside=shape.samples * head,
    )
