"""ViT: an encoder over patches of an image, with a classifier on its class token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from muster.core.flops import Products, Shape

MODEL_TYPES = ("vit",)


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


def tokens(config: Mapping[str, Any]) -> int:
    """Patches of an image, and the class token."""
    side = int(config.get("image_size", 224)) // int(config.get("patch_size", 16))
    return side * side + 1


def parameters(config: Mapping[str, Any]) -> int:
    """Patch projection, class token and positions; per layer two norms, an attention of four width x width
    matrices and a feed-forward of two, with biases; a last norm and the classifier.

    Source: transformers/models/vit/modeling_vit.py (ViTForImageClassification, no pooler).
    """
    width = int(config.get("hidden_size", 768))
    inner = int(config.get("intermediate_size", 3072))
    patch, channels = int(config.get("patch_size", 16)), int(config.get("num_channels", 3))
    labels = int(config.get("num_labels") or len(config.get("id2label") or ()) or 2)
    embeddings = channels * patch * patch * width + width + width + tokens(config) * width
    bias = 1 if config.get("qkv_bias", True) else 0
    attention = 4 * width * width + (3 * bias + 1) * width
    feed_forward = 2 * width * inner + inner + width
    layers = int(config.get("num_hidden_layers", 12)) * (attention + feed_forward + 4 * width)
    return embeddings + layers + 2 * width + labels * width + labels


def products(config: Mapping[str, Any], shape: Shape) -> Products:
    """The projection of every patch; per token (patches and the class) all matrices of the blocks; an
    attention of tokens x tokens a layer; the classifier of the class token.
    """
    width = int(config.get("hidden_size", 768))
    inner = int(config.get("intermediate_size", 3072))
    patch, channels = int(config.get("patch_size", 16)), int(config.get("num_channels", 3))
    labels = int(config.get("num_labels") or len(config.get("id2label") or ()) or 2)
    layers, length = int(config.get("num_hidden_layers", 12)), tokens(config)
    patches = shape.samples * (length - 1) * channels * patch * patch * width
    classifier = shape.samples * width * labels
    blocks = shape.samples * length * layers * (4 * width * width + 2 * width * inner)
    return Products(
        weights=patches + blocks + classifier,
        attention=layers * 2 * shape.samples * length * length * width,
        outside=patches + classifier,
        entry=patches,
    )
