"""The bytes that a spread model comes to: what engines' accounts share. Pure.

Bytes are of storages, as an engine allocates them, padding included. A figure is exact unless its
docstring says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from muster.core.trace import Parameter
from muster.engines.spread import ModelSpread, Tensors, trained

Parts = dict[str, int]  # what for -> bytes


@dataclass(frozen=True)
class States:
    """Bytes of one rank, from the end of its first optimizer step on.

    `held`: on the device, always; `host`: in the host's memory, always; `passes`: on the device in forward
    and backward passes; `gradients`: what grows during a backward pass (there from the start where
    gradients accumulate); `loss`: beside `passes` while there are logits; `backward`: on the device from the
    first gradient on; `ending`: in its place when the last ones come, None: the same; `after`: further
    moments by name, after the backward pass, each with all that is on the device beside `held`. `whole`:
    gradients stay as autograd makes them until the backward pass is over.
    """

    held: Parts
    host: Parts = field(default_factory=dict)
    passes: Parts = field(default_factory=dict)
    gradients: Parts = field(default_factory=dict)
    backward: Parts = field(default_factory=dict)
    after: dict[str, Parts] = field(default_factory=dict)
    whole: bool = False
    loss: Parts = field(default_factory=dict)
    ending: Parts | None = None


def added(*all_: Parts) -> Parts:
    """Add up parts of the same name; what is 0 is left out."""
    total: Parts = {}
    for parts in all_:
        for name, value in parts.items():
            total[name] = total.get(name, 0) + value
    return {name: value for name, value in total.items() if value}


def elements(tensors: Iterable[Parameter]) -> int:
    """Count all elements."""
    return sum(each.numel for each in tensors)


def largest(tensors: Iterable[Parameter]) -> int:
    """Count the elements of the largest tensor; 0 where there is none."""
    return max((each.numel for each in tensors), default=0)


def up(number: int, multiple: int) -> int:
    """Round up to a multiple."""
    return -(-number // multiple) * multiple


def unspread(spread: ModelSpread, tensors: Tensors) -> States:
    """Count a rank that trains the whole model by itself, with PyTorch alone. In half precision autocast
    keeps copies of the weights, which are the passes'; not where they are in nothing else."""
    own, kept = elements(trained(tensors)), spread.kept
    gradients = {"gradients": kept * own}
    backward = {"gradients in flight": kept * largest(trained(tensors))}  # one more, before it is added
    return States(
        {"parameters": kept * elements(tensors), "optimizer": 2 * kept * own},
        gradients=gradients,
        backward=backward,
        after={"optimizer step": dict(gradients)},
        whole=True,
    )
