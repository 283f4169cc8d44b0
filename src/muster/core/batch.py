"""Batch arithmetic: global batch = micro-batch x gradient accumulation x world size, and unequal shares of a
micro-step, so that no rank waits long. Pure."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter

from muster.core.errors import RecipeError
from muster.core.units import counted

DEFAULT_MICRO = 8
GROUP = 50  # global batches sorted together: enough to find similar lengths, few enough to stay random
MULTIPLE = 8  # of padded lengths on GPUs: tensor cores want it; on a CPU it is only work


@dataclass(frozen=True)
class Batch:
    """Samples per rank and forward pass, forward passes per optimizer step, and samples per optimizer step.
    """

    micro: int
    accumulation: int
    global_: int

    def as_dict(self) -> dict[str, int]:
        """Return plain data, with a recipe's keys."""
        return {"micro": self.micro, "accumulation": self.accumulation, "global": self.global_}


def resolve_batch(
    micro: int | None,
    accumulation: int | None,
    global_: int | None,
    *,
    world_size: int,
    largest: int = DEFAULT_MICRO,
) -> Batch:
    """Derive what is not given (None), so that micro x accumulation x world_size == global.

    With fewer than two given, accumulation is 1 where that works out, and the micro-batch is `largest` or, of
    a given global batch, its largest divisor up to that. Raises RecipeError, with numbers that would fit,
    where no batch is exact.
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


def shares_by_speed(
    total: int, speeds: Sequence[float], limits: Sequence[int] | None = None
) -> tuple[int, ...]:
    """Return whole numbers that sum to `total`, one per rank, at least 1 each and at most the rank's limit,
    such that the largest of share / speed is as small as possible.

    speeds: samples per second. Every sample goes to the rank that would then be done first, the lower rank
    where two would be: for times that grow with the share, no other split has a shorter longest time. The
    same numbers give the same shares on every rank. Raises ValueError where there is no such split.
    """
    count = len(speeds)
    most = list(limits) if limits is not None else [total] * count
    if total < count or len(most) != count:
        raise ValueError(f"{total} samples for {count} ranks with {len(most)} limits")
    if any(not speed > 0 for speed in speeds):
        raise ValueError(f"a speed is not above 0: {list(speeds)}")
    if any(limit < 1 for limit in most) or sum(most) < total:
        raise ValueError(f"limits {most} do not hold {total} samples")
    shares = [1] * count
    queue = [(2 / speed, rank) for rank, speed in enumerate(speeds) if most[rank] > 1]
    heapq.heapify(queue)
    for _ in range(total - count):
        _, rank = queue[0]
        shares[rank] += 1
        if shares[rank] < most[rank]:
            heapq.heapreplace(queue, ((shares[rank] + 1) / speeds[rank], rank))
        else:
            heapq.heappop(queue)
    return tuple(shares)


def check_given_shares(shares: Sequence[int], *, world_size: int, micro: int) -> None:
    """Raise RecipeError where shares that a recipe gives do not fit its ranks and its micro-batch."""
    if len(shares) != world_size:
        raise RecipeError(
            f"has {len(shares)} shares, and the job has {world_size} ranks",
            where="batch.split",
            hint="one share per rank in their order, or batch.split=measured",
        )
    if sum(shares) != micro * world_size:
        raise RecipeError(
            f"the shares sum to {sum(shares)}, and micro-batch {micro} x {world_size} ranks = "
            f"{micro * world_size}",
            where="batch.split",
            hint="shares that sum to it, or another batch.micro or batch.global",
        )


def check_groups(group: int, world_size: int) -> None:
    """Raise RecipeError where ranks do not make whole groups. `group`: ranks of each, 0: there are none."""
    if 0 < group < world_size and world_size % group:
        raise RecipeError(
            f"{world_size} ranks do not make whole groups of {group}",
            where="engine.group",
            hint="the ranks of a host, or another divisor of the number of ranks; DeepSpeed's own key is "
            "zero_hpz_partition_size",
        )


def mean_padded(lengths: Sequence[tuple[int, ...]], batches: int, multiple: int = 1) -> float | None:
    """Return the mean tokens of a sample, padding included, where an epoch's `batches` are of similar
    samples; None: there are none. `lengths`: of some samples, for each of the parts that are padded apart,
    such as question and answer, to a multiple of `multiple`. Of more batches GROUP are sorted together, in
    the order that pads least, as GroupedSampler does."""
    if not lengths:
        return None
    size = -(-len(lengths) // max(1, min(batches, GROUP)))
    band = round(math.sqrt(-(-len(lengths) // size))) * size
    orders = [sorted(lengths, key=sum)]
    for part in (0, 1) if len(lengths[0]) == 2 else ():
        bands = _cut(sorted(lengths, key=itemgetter(part)), band)
        orders.append([row for each in bands for row in sorted(each, key=itemgetter(1 - part))])

    def padded(batch: Sequence[tuple[int, ...]]) -> int:
        longest: list[int] = [max(each) for each in zip(*batch, strict=True)]
        return len(batch) * multiple * sum(-(-length // multiple) for length in longest)

    return min(sum(map(padded, _cut(order, size))) for order in orders) / len(lengths)


def _cut(rows: Sequence[tuple[int, ...]], size: int) -> list[Sequence[tuple[int, ...]]]:
    return [rows[start : start + size] for start in range(0, len(rows), size)]
