"""How a model is spread over ranks, and the bytes that this comes to: what engines' accounts share. Pure.

Bytes are of storages, as an engine allocates them, padding included. Where nothing else is said, a figure is
exact; the accounts are in `memory_zero`, `memory_fsdp` and `states`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from muster.core.trace import Parameter

Parts = dict[str, int]  # what for -> bytes
Tensors = tuple[Parameter, ...]

# Transformers' Trainer.get_decay_parameter_names: these, and LayerNorms, have no weight decay and make an
# optimizer group of their own. Vectors are taken for norms and biases.
_NO_DECAY = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)")


@dataclass(frozen=True)
class Spread:
    """What decides which bytes of a model a rank holds, and what it does with them.

    `element`: bytes of a value in the chosen precision; `accumulates`: more than one micro-batch a step;
    `together`: DeepSpeed makes the optimizer, with one group of parameters, not the Trainer with two;
    `bucket`, `prefetch`, `persistence`, `live`, `reuse`, `sub_group`: elements, DeepSpeed's keys;
    `buckets`: how many at once (two where communication overlaps); `pins`: host memory is page-locked.
    """

    engine: str
    ranks: int
    element: int
    stage: int = 0
    offload: str = "none"
    device: str = "cuda"
    accumulates: bool = False
    together: bool = False
    bucket: int = 0
    buckets: int = 1
    prefetch: int = 50_000_000
    persistence: int = 100_000
    live: int = 1_000_000_000
    reuse: int = 1_000_000_000
    sub_group: int = 1_000_000_000
    pins: bool = True

    @property
    def shards(self) -> bool:
        """Whether FSDP shards: on one rank there is nothing to shard over (worker/engines/fsdp.py)."""
        return self.engine == "fsdp" and self.ranks > 1

    def pinned(self, size: int) -> int:
        """Bytes of host memory for a page-locked block: torch rounds it up to a power of two
        (ATen/core/CachingHostAllocator.h, allocate). On CPUs nothing is pinned."""
        if self.device != "cuda" or not self.pins:
            return size
        return 1 << (size - 1).bit_length() if size else 0


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
    """Parts of the same name become one; what is 0 is left out."""
    total: Parts = {}
    for parts in all_:
        for name, value in parts.items():
            total[name] = total.get(name, 0) + value
    return {name: value for name, value in total.items() if value}


def elements(tensors: Iterable[Parameter]) -> int:
    """How many there are in all."""
    return sum(each.numel for each in tensors)


def largest(tensors: Iterable[Parameter]) -> int:
    """Elements of the largest tensor; 0 where there is none."""
    return max((each.numel for each in tensors), default=0)


def up(number: int, multiple: int) -> int:
    """Rounded up to a multiple."""
    return -(-number // multiple) * multiple


def trained(tensors: Tensors) -> Tensors:
    """Those that the optimizer changes."""
    return tuple(each for each in tensors if each.trained and each.numel)


def optimizer_groups(tensors: Tensors, *, together: bool) -> list[Tensors]:
    """The optimizer's groups of trained parameters, in the model's order: with weight decay, and without.

    Source: transformers/trainer.py, create_optimizer; with DeepSpeed's own optimizer there is one group
    (transformers/integrations/deepspeed.py, deepspeed_optim_sched).
    """
    all_ = trained(tensors)
    if together:
        return [all_] if all_ else []
    plain = tuple(each for each in all_ if len(each.shape) < 2 or _NO_DECAY.search(each.name.lower()))
    names = {each.name for each in plain}
    return [group for group in (tuple(each for each in all_ if each.name not in names), plain) if group]
