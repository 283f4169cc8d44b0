"""Work of the libraries that every step would repeat with the same outcome."""

from __future__ import annotations

import functools
from typing import Any

import accelerate.accelerator
import accelerate.optimizer

ASKED = "is_lomo_available"  # twice in every step (accelerate 1.15), each time a search of the disk


def remember_packages() -> None:
    """Have accelerate search the disk once for an optimizer's package. A release without the question goes on
    as it is."""
    for module in (accelerate.accelerator, accelerate.optimizer):
        question = getattr(module, ASKED, None)
        if question is not None and not hasattr(question, "cache_info"):
            setattr(module, ASKED, functools.lru_cache(maxsize=None)(question))


def keep_mode(model: Any) -> None:
    """Have `model.train()`, which Transformers calls in every micro-step, look whether there is anything to
    change before it walks through the modules and sets an attribute of each. It is replaced on the instance:
    Transformers makes the call itself. A module with a `train` of its own (worker/models.py:
    without_layer_drop) keeps its own mode."""
    inner = getattr(model, "_orig_mod", model)  # what is set on a compiled model is set on the one inside
    modules = [each for each in inner.modules() if each is inner or "train" not in vars(each)]
    inner.train = functools.partial(_train, inner, modules)


def _train(model: Any, modules: list[Any], mode: bool = True) -> Any:
    """Call torch.nn.Module.train, or the class's own, where a module has another mode."""
    if all(each.training is mode for each in modules):
        return model
    return type(model).train(model, mode)
