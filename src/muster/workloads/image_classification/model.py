"""Vision models for a number of classes, and how their images are to be prepared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import (
    MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING,
    AutoConfig,
    AutoModelForImageClassification,
)
from transformers.integrations import unset_hf_deepspeed_config

from muster.core import families
from muster.core.errors import RecipeError
from muster.core.recipe import Recipe
from muster.core.trace import TraceRequest
from muster.worker.context import Context
from muster.worker.models import add_lora, check_kind, config_for, create, load, load_from
from muster.worker.tracing.tasks import Inputs, TraceTask
from muster.workloads.image_classification.images import Preparation
from muster.workloads.image_classification.spec import ImageData

GREY = (0.299, 0.587, 0.114)  # of red, green and blue (ITU-R 601, as Pillow does it)
HEADS = ("classifier", "head", "fc")  # what models call their last layer


def data_of(recipe: Recipe) -> ImageData:
    """Return the recipe's data section, which is this workload's."""
    assert isinstance(recipe.data, ImageData)
    return recipe.data


def make_model(context: Context, names: Sequence[str]) -> Any:
    """Make the network with a class per name: pretrained, or from a configuration. Raises RecipeError."""
    recipe = context.recipe
    labels = {
        "num_labels": len(names),
        "id2label": dict(enumerate(names)),
        "label2id": {name: number for number, name in enumerate(names)},
    }
    if recipe.model.init == "pretrained" and recipe.model.name:
        model = _pretrained(context, labels)
    else:
        config = make_config(recipe, labels)
        kind = AutoModelForImageClassification
        model = create(context, lambda: kind.from_config(config, dtype=torch.float32))
    if recipe.lora:
        model = add_lora(context, model, None, whole=[name for name in HEADS if hasattr(model, name)])
    return model


def _pretrained(context: Context, labels: Mapping[str, Any]) -> Any:
    """Load the model with its weights; the classifier is drawn anew where it has another number of
    classes."""
    recipe = context.recipe
    name = str(recipe.model.name)
    if name in families.sizes("vit"):  # no hub has weights by these names
        raise RecipeError(
            f"{name} is a size, and no weights have this name",
            where="model.name",
            hint="model.init=random, or such as model.name=google/vit-base-patch16-224",
        )
    fields = {**_own_fields(recipe), **labels, "ignore_mismatched_sizes": True}
    model = load(context, AutoModelForImageClassification, name, **fields)
    size, own = data_of(recipe).size, _image_size(model.config)
    if size and own and size != own:
        raise RecipeError(
            f"is {size}, and the pretrained model takes {own} x {own} pixels",
            where="data.size",
            hint="leave data.size out",
        )
    return model


def _own_fields(recipe: Recipe) -> dict[str, Any]:
    return {key: value for key, value in (recipe.model.config or {}).items() if key != "num_labels"}


def make_config(recipe: Recipe, labels: Mapping[str, Any]) -> Any:
    """Make a configuration from a size's name, a folder or hub name, and the recipe's own fields on top."""
    spec, fields = recipe.model, _own_fields(recipe)
    size_fields = families.size(spec.name)
    if size_fields is None and spec.name:
        config = load_from(AutoConfig.from_pretrained, spec.name, "model.name", **fields, **labels)
    else:
        fields = {"model_type": "vit", **(size_fields or {}), **fields, **labels}
        config = config_for(fields.pop("model_type"), fields)
    size = data_of(recipe).size
    if size and _image_size(config):
        config.image_size = size
    size, patch = _image_size(config), getattr(config, "patch_size", None)
    if size and isinstance(patch, int) and size % patch:
        raise RecipeError(
            f"{size} pixels are no whole number of patches of {patch}",
            where="data.size" if data_of(recipe).size else "model.config.image_size",
        )
    mapping = MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING
    check_kind(config, mapping, "does not classify images", "such as vit-base")
    return config


def _image_size(config: Any) -> int | None:
    """Return the pixels of a side, where the model is made for one size."""
    size = getattr(config, "image_size", None)
    return int(size[0] if isinstance(size, list | tuple) else size) if size else None


def preparation_for(recipe: Recipe, config: Any) -> Preparation:
    """Choose the recipe's size, mean and standard deviation; else the pretrained model's own; else 0.5."""
    data = data_of(recipe)
    own: dict[str, Any] = {}
    if recipe.model.init == "pretrained" and recipe.model.name:
        own = _own_preparation(recipe.model.name)
    channels = int(getattr(config, "num_channels", 3))
    mean = data.mean or own.get("image_mean") or [0.5] * channels
    std = data.std or own.get("image_std") or [0.5] * channels
    for field, values in (("mean", mean), ("std", std)):
        if len(values) != channels:
            raise RecipeError(f"has {len(values)} values for {channels} channels", where=f"data.{field}")
    if channels not in (1, 3):
        raise RecipeError("images have 1 or 3 channels", where="model.config.num_channels")
    return Preparation(data.size or _image_size(config) or 224, tuple(mean), tuple(std))


def _own_preparation(name: str) -> dict[str, Any]:
    """Read how a published model's images are prepared; nothing where it does not say."""
    from transformers import ImageProcessingMixin

    try:
        return dict(ImageProcessingMixin.get_image_processor_dict(name)[0])
    except (OSError, ValueError):
        return {}


def tokens_per_image(config: Any) -> int:
    """Count patches and the class token, for ViT; 0 where a model's tokens are not known."""
    family = families.family_of({"model_type": config.model_type})
    return family.tokens(config.to_dict()) if family is families.vit else 0


def accept_colour(folder: Path) -> None:
    """Let a saved model of one channel take images of three, as Transformers' pipelines hand them over.

    Its first layer gets the weights by which Pillow makes grey of red, green and blue, so that a grey image
    gives what it gave before. What has another use for its channels stays as it is.
    """
    config = AutoConfig.from_pretrained(folder)
    if getattr(config, "num_channels", None) != 1:
        return
    unset_hf_deepspeed_config()  # else ZeRO-3 would cut the saved model into shards while it is loaded
    kind = AutoModelForImageClassification
    model = kind.from_pretrained(folder)
    weights = model.state_dict()
    config.num_channels = len(GREY)
    with torch.device("meta"):
        shapes = {name: each.shape for name, each in kind.from_config(config).state_dict().items()}
    for name, shape in shapes.items():
        if weights[name].shape != shape and weights[name].dim() > 1:
            weights[name] = weights[name] * torch.tensor(GREY).view(1, -1, *[1] * (len(shape) - 2))
    if shapes != {name: each.shape for name, each in weights.items()}:
        return
    type(model).from_pretrained(None, config=config, state_dict=weights).save_pretrained(folder)
    own = Preparation.from_saved(folder)
    replace(own, mean=own.mean * len(GREY), std=own.std * len(GREY)).save_pretrained(str(folder))


def _traced_model(context: Context, request: TraceRequest, config: dict[str, Any]) -> Any:
    classes = int(config.get("num_labels") or len(config.get("id2label") or ()) or 2)
    return make_model(context, [str(number) for number in range(classes)])


def _traced_batch(request: TraceRequest, model: Any, samples: int) -> Inputs:
    """Make a batch as images.py collates it."""
    # A model that takes any size does not say one; the request has it where the recipe does.
    size = getattr(model.config, "image_size", None) or request.config.get("image_size") or 224
    height, width = size if isinstance(size, list | tuple) else (size, size)
    shape = (samples, int(getattr(model.config, "num_channels", 3)), int(height), int(width))
    return {
        "pixel_values": torch.zeros(shape, dtype=torch.uint8),
        "labels": torch.zeros(samples, dtype=torch.long),
    }


def _traced_input(request: TraceRequest, batch: Inputs) -> Inputs:
    """Prepare a batch as Preparation normalises it, whose numbers do not matter; DeepSpeed's trainer casts
    that to the model's type."""
    pixels = batch["pixel_values"].float().mul_(1.0).sub_(0.5)
    kind = torch.bfloat16 if request.arithmetic == "half" else torch.float32
    return {**batch, "pixel_values": pixels.to(kind)}


TRACED = TraceTask(_traced_model, _traced_batch, prepare=_traced_input)
