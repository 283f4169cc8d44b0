"""Bandwidth of collectives as the field states it. Pure.

Source: NVIDIA nccl-tests, doc/PERFORMANCE.md. algbw = S / t. busbw = algbw x a factor of the operation, so
that it can be compared with the hardware's bandwidth whatever the number of ranks n is:

    all-reduce                    2 (n - 1) / n
    all-gather, reduce-scatter    (n - 1) / n
    broadcast, point-to-point     1

S is in bytes: the array that is reduced or broadcast; for all-gather and reduce-scatter the total over all
ranks (count per rank x element size x n).
"""

from __future__ import annotations

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "broadcast")
POINT_TO_POINT = "point-to-point"


def algbw(size: float, seconds: float) -> float:
    """Algorithm bandwidth in bytes per second. Raises ValueError where no time has passed."""
    if seconds <= 0:
        raise ValueError(f"a bandwidth needs a time above zero, not {seconds}")
    return size / seconds


def bus_factor(operation: str, ranks: int) -> float:
    """What algbw is multiplied with. Raises ValueError for an operation that is not listed above."""
    if ranks < 1:
        raise ValueError(f"a collective has at least one rank, not {ranks}")
    if operation == "all-reduce":
        return 2 * (ranks - 1) / ranks
    if operation in ("all-gather", "reduce-scatter"):
        return (ranks - 1) / ranks
    if operation in ("broadcast", POINT_TO_POINT):
        return 1.0
    raise ValueError(f"no bus bandwidth is defined for {operation!r}")


def busbw(operation: str, size: float, seconds: float, ranks: int) -> float:
    """Bus bandwidth in bytes per second."""
    return algbw(size, seconds) * bus_factor(operation, ranks)
