"""precision=fp8: a decoder's linear layers compute in float8, by torchao's rowwise recipe."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from typing import Any

import torch

from muster.core import float8
from muster.core.errors import RecipeError
from muster.core.hardware.devices import capability_for
from muster.core.registry import versions_of
from muster.store import events
from muster.worker.context import Context

RECIPE = "rowwise"


def convert(context: Context, model: Any) -> None:
    """Convert the linear layers of a model in place, before an engine wraps it: names, weights and
    checkpoints stay as they are. The output layer, and layers with a side that is no multiple of 16, stay in
    bf16. On CPUs the products are emulated. How many layers were converted becomes a note of the run.

    Raises RecipeError where the package or the device is not there, or there is no such layer.
    """
    _check(context)
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    emulated = context.device == "cpu"
    # Sides of weights are multiples of 16, and rows of a batch padded to one for the weights' gradients.
    config = replace(Float8LinearConfig.from_recipe_name(RECIPE), pad_inner_dim=True, emulate=emulated)
    output = model.get_output_embeddings()
    linear = [each for each in model.modules() if type(each) is torch.nn.Linear and each is not output]
    chosen = {id(each) for each in linear if float8.converts(each.weight.shape)}
    if not chosen:
        raise RecipeError(
            f"is {float8.NAME}, and no linear layer has sides that are multiples of {float8.SIDE}",
            where="precision",
            hint=f"precision={float8.BESIDE}",
        )
    convert_to_float8_training(model, config=config, module_filter_fn=lambda layer, name: id(layer) in chosen)
    if emulated:
        for layer in model.modules():
            if is_float8(layer):
                layer.register_forward_pre_hook(_cast)
    if context.main:
        version = versions_of([float8.PACKAGE])[float8.PACKAGE]
        words = f"{len(chosen):,} of {len(linear):,} linear layers other than the output layer compute in fp8"
        how = ", emulated in fp32 on CPUs" if emulated else ""
        text = f"{words} (torchao {version}, {RECIPE} scales{how}), all else in {float8.BESIDE}"
        context.emit(events.Noted, text=text)


def is_float8(layer: Any) -> bool:
    """Return whether a layer was converted."""
    return isinstance(layer, torch.nn.Linear) and hasattr(layer, "linear_mm_config")


def _check(context: Context) -> None:
    if importlib.util.find_spec(float8.PACKAGE) is None:
        raise RecipeError(
            f"is {float8.NAME}, and {float8.PACKAGE} is not installed",
            where="precision",
            hint=f"pip install {float8.PACKAGE}",
        )
    if context.device != "cuda" or context.recipe.force:
        return
    name, capability = torch.cuda.get_device_name(), torch.cuda.get_device_capability()
    if capability < (needed := capability_for(float8.NAME, name) or capability):
        raise RecipeError(  # the host did not say what its GPU can do, else it were refused before the start
            f"is {float8.NAME}, which needs compute capability {needed[0]}.{needed[1]}; {name} has "
            f"{capability[0]}.{capability[1]}",
            where="precision",
            hint=f"precision={float8.BESIDE}",
        )


def _cast(layer: Any, given: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Cast a layer's input as autocast does: torchao 0.18 looks at the GPUs' autocast alone."""
    if not torch.is_autocast_enabled("cpu"):
        return None
    return (given[0].to(torch.get_autocast_dtype("cpu")), *given[1:])
