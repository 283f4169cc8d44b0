"""ViT: an encoder over patches of an image, with a classifier on its class token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from muster.core.families.fields import Division, Field, depth, flag, share, whole
from muster.core.families.stack import Stack
from muster.core.flops import Products, Shape

MODEL_TYPES = ("vit",)
FIELDS = (
    depth("num_hidden_layers", 12),
    whole("num_attention_heads", 12),
    whole("hidden_size", 768),
    whole("intermediate_size", 3072),
    Field("image_size", "pair", 224),
    Field("patch_size", "pair", 16),
    whole("num_channels", 3),
    whole("num_labels"),
    share("hidden_dropout_prob", 0.0),
    share("attention_probs_dropout_prob", 0.0),
    flag("qkv_bias", True),
    Field("hidden_act", "activation", "gelu"),
)
DIVISIONS = (Division("hidden_size", "num_attention_heads"), Division("image_size", "patch_size"))


def _size(width: int, layers: int, heads: int, image: int = 224, patch: int = 16) -> dict[str, Any]:
    return {
        "model_type": "vit",
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": 4 * width,
        "image_size": image,
        "patch_size": patch,
    }


# Dosovitskiy et al. 2021, table 1 (base, large, huge); Touvron et al. 2021 (DeiT), table 1 (tiny, small).
# vit-micro is ours, for images of 32 x 32 on CPUs. Names with a patch and a size are those of the hub.
SIZES: dict[str, dict[str, Any]] = {
    "vit-micro": _size(128, 6, 4, image=32, patch=4),
    "vit-tiny": _size(192, 12, 3),
    "vit-small": _size(384, 12, 6),
    "vit-base": _size(768, 12, 12),
    "vit-large": _size(1024, 24, 16),
    "vit-huge": _size(1280, 32, 16, patch=14),
    "vit-base-patch16-224": _size(768, 12, 12),
    "vit-base-patch16-224-in21k": _size(768, 12, 12),
    "vit-base-patch16-384": _size(768, 12, 12, image=384),
    "vit-base-patch32-384": _size(768, 12, 12, image=384, patch=32),
    "vit-large-patch16-224": _size(1024, 24, 16),
    "vit-large-patch32-384": _size(1024, 24, 16, image=384, patch=32),
    "vit-huge-patch14-224-in21k": _size(1280, 32, 16, patch=14),
}


def pair(value: Any) -> tuple[int, int]:
    """Return height and width; one number stands for both."""
    height, width = value if isinstance(value, list | tuple) else (value, value)
    return int(height), int(width)


def tokens(config: Mapping[str, Any]) -> int:
    """Return the patches of an image, and the class token."""
    image, patch = pair(config["image_size"]), pair(config["patch_size"])
    return (image[0] // patch[0]) * (image[1] // patch[1]) + 1


def labels(config: Mapping[str, Any]) -> int:
    """Return the number of classes: the configuration's, else Transformers' two."""
    return int(config.get("num_labels") or len(config.get("id2label") or ()) or 2)


def _patch(config: Mapping[str, Any]) -> int:
    """Return the number of values of a patch."""
    height, width = pair(config["patch_size"])
    return int(config["num_channels"]) * height * width


def stacks(config: Mapping[str, Any]) -> list[Stack]:
    layers, width, heads, inner = (
        int(config[key])
        for key in ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")
    )
    return [Stack(layers, width, heads, width, width, inner)]


def parameters(config: Mapping[str, Any]) -> int:
    """Count patch projection, class token and positions; per layer two norms, an attention of four width x
    width matrices and a feed-forward of two, with biases; a last norm and the classifier.

    Source: transformers/models/vit/modeling_vit.py (ViTForImageClassification, no pooler).
    """
    [stack] = stacks(config)
    width = stack.width
    outside = width + sum(rows * columns for rows, columns in tables(config)) + 2 * width + labels(config)
    bias = 1 if config["qkv_bias"] else 0
    return outside + stack.layers * (stack.weights + stack.inner + (3 * bias + 6) * width)


def tables(config: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Return the shapes of patch projection, class token, positions and classifier."""
    width = int(config["hidden_size"])
    return [(width, _patch(config)), (1, width), (tokens(config), width), (labels(config), width)]


def products(config: Mapping[str, Any], shape: Shape) -> Products:
    """Return the projection of every patch; per token (patches and the class) all matrices of the blocks; an
    attention of tokens x tokens a layer; the classifier of the class token."""
    [stack], length = stacks(config), tokens(config)
    layers, width = stack.layers, stack.width
    patches = shape.samples * (length - 1) * _patch(config) * width
    classifier = shape.samples * width * labels(config)
    blocks = shape.samples * length * layers * stack.weights
    return Products(
        weights=patches + blocks + classifier,
        attention=layers * 2 * shape.samples * length * length * width,
        outside=patches + classifier,
        entry=patches,
    )
