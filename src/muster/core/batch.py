"""Batch arithmetic: global batch = micro-batch x gradient accumulation x world size. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from muster.core.errors import RecipeError
from muster.core.units import counted

DEFAULT_MICRO = 8


@dataclass(frozen=True)
class Batch:
    """Samples per rank and forward pass, forward passes per optimizer step, and samples per optimizer
    step."""

    micro: int
    accumulation: int
    global_: int

    def as_dict(self) -> dict[str, int]:
        """Plain data, by a recipe's names."""
        return {"micro": self.micro, "accumulation": self.accumulation, "global": self.global_}


def resolve_batch(
    micro: int | None,
    accumulation: int | None,
    global_: int | None,
    *,
    world_size: int,
    largest: int = DEFAULT_MICRO,
) -> Batch:
    """Derive what is not given (None). The result is exact: micro x accumulation x world_size == global.

    With fewer than two given, accumulation is 1 where that works out, and the micro-batch is `largest` or, of
    a given global batch, its largest divisor up to that. Raises RecipeError, with numbers that would fit,
    where none can.
    """
    for name, value in (("micro", micro), ("accumulation", accumulation), ("global", global_)):
        if value is not None and value < 1:
            raise RecipeError(f"must be at least 1, not {value}", where=f"batch.{name}")
    if world_size < 1:
        raise ValueError(f"world_size must be at least 1, not {world_size}")
    if global_ is None:
        micro, accumulation = micro or largest, accumulation or 1
        return Batch(micro, accumulation, micro * accumulation * world_size)
    share, rest = divmod(global_, world_size)  # samples per rank and optimizer step
    part = (micro or 1) * (accumulation or 1)
    if rest or share % part or (micro is not None and accumulation is not None and part != share):
        raise _impossible(micro, accumulation, global_, world_size)
    if micro is None and accumulation is None:
        micro = next(size for size in range(min(largest, share), 0, -1) if share % size == 0)
    micro = micro or share // part
    return Batch(micro, share // micro, global_)


def _divisors(number: int) -> list[int]:
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


def _impossible(micro: int | None, accumulation: int | None, global_: int, world_size: int) -> RecipeError:
    unit = (micro or 1) * (accumulation or 1) * world_size
    parts = [counted(world_size, "rank")]
    if micro is not None:
        parts.insert(0, f"micro-batch {micro}")
    if accumulation is not None:
        parts.insert(len(parts) - 1, f"accumulation {accumulation}")
    product = " x ".join(parts)
    below, above = global_ // unit * unit, -(-global_ // unit) * unit
    if micro is not None and accumulation is not None:
        fits = f"batch.global={unit}"
        if global_ % world_size == 0 and (global_ // world_size) % micro == 0:
            fits += f", or batch.accumulation={global_ // world_size // micro}"
        elif global_ % world_size == 0 and (global_ // world_size) % accumulation == 0:
            fits += f", or batch.micro={global_ // world_size // accumulation}"
        fits += ", or one of the three as auto"
    else:
        sizes = [size for size in (below, above) if size > 0]
        fits = " or ".join(f"batch.global={size}" for size in sizes)
        if micro is not None and global_ % world_size == 0:
            near = [d for d in _divisors(global_ // world_size) if d <= micro]
            fits += f", or batch.micro={near[-1]}"
    return RecipeError(
        f"a global batch of {global_} cannot be made of {product} (= {unit} per step)",
        where="batch.global",
        hint=f"would fit: {fits}",
    )
