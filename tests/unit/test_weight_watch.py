"""Whether a training changed the weights: what is summed, and where nothing can be said."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")


def watched(model: Any, change: Callable[[], None], *, begin: int = 0, end: int = 3) -> bool | None:
    """What a watch says of a training from step `begin` to `end` that does `change`."""
    from muster.worker.instruments.weights import WeightWatch

    watch = WeightWatch()
    watch.on_train_begin(None, SimpleNamespace(global_step=begin), None, model=model)
    change()
    watch.on_train_end(None, SimpleNamespace(global_step=end), None, model=model)
    return watch.changed


def linear(dtype: Any = None) -> Any:
    return torch.nn.Linear(3, 2).to(dtype or torch.float32)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_the_smallest_change_of_one_weight_counts(dtype: str) -> None:
    model = linear(getattr(torch, dtype))

    def nudge() -> None:
        with torch.no_grad():
            model.weight[1, 2] = torch.nextafter(model.weight[1, 2], model.weight[1, 2] + 1)

    assert watched(model, nudge) is True
    assert watched(model, lambda: None) is False


def test_a_training_without_a_step_says_nothing() -> None:
    """Not even where something else has changed the weights; one that goes on counts its own steps."""
    model = linear()

    def change() -> None:
        with torch.no_grad():
            model.weight.add_(1)

    assert watched(model, change, end=0) is None
    assert watched(model, change, begin=7, end=7) is None
    assert watched(model, change, begin=7, end=8) is True


def test_weights_on_a_disk_say_nothing() -> None:
    """ZeRO-3's: one of them there, and no rank knows."""
    model = linear()
    for parameter, status in zip(model.parameters(), ("AVAILABLE", "NOT_AVAILABLE"), strict=True):
        parameter.ds_tensor = torch.ones(2)
        parameter.ds_tensor.status = SimpleNamespace(name=status)

    def change() -> None:
        model.weight.ds_tensor.add_(1)

    assert watched(model, change) is None
    model.bias.ds_tensor.status.name = "AVAILABLE"
    assert watched(model, change) is True
    assert watched(model, lambda: None) is False


def test_frozen_weights_do_not_count() -> None:
    model = linear()
    model.weight.requires_grad = False

    def change() -> None:
        with torch.no_grad():
            model.weight.add_(1)

    assert watched(model, change) is False
    model.bias.requires_grad = False
    assert watched(model, change) is None  # nothing is trained
