"""Unequal shares: how many samples of each micro-step a rank takes, so that none waits long. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from muster.core.errors import RecipeError


def shares_by_speed(
    total: int, speeds: Sequence[float], limits: Sequence[int] | None = None
) -> tuple[int, ...]:
    """Whole numbers that sum to `total`, one per rank, at least 1 each and at most the rank's limit, such
    that the largest of share / speed is as small as it can be.

    speeds: samples per second. Every sample goes to the rank that would then be done first, the lower rank
    where two would be: for times that grow with the share, no other way has a shorter longest time. The same
    numbers give the same shares on every rank. Raises ValueError where there is no such split.
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
