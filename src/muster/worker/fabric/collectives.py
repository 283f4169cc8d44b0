"""The collectives: what each is called with, what must come out, how long it takes over message sizes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from muster.core.fabric.asked import MIB, sweep_sizes
from muster.core.fabric.busbw import COLLECTIVES
from muster.worker.fabric.place import Voice
from muster.worker.fabric.rendezvous import Team

_REPEATS = 5
_FEWEST = 3  # repeats, where time is short
_REPEAT_SECONDS = 0.02  # that one repeat should last, by as many operations as that takes
_MOST_OPERATIONS = 200  # per repeat
_SMALL_BYTES = 8
_SMALL_COUNT = 100
NATIVE = "native"


def pattern(rank: int, first: int, count: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A rank's elements first ... first + count - 1: whole numbers below 1009 that differ from rank to rank
    and place to place. Their sums over up to 16,000 ranks are exact in float32 (below 2^24)."""
    index = torch.arange(first, first + count, dtype=torch.int64, device=device)
    return ((index * 31 + rank * 7919 + index // 1009) % 1009).to(dtype)


@dataclass(frozen=True)
class Buffers:
    """What one operation reads and writes: the same tensor where it works in place."""

    source: torch.Tensor
    target: torch.Tensor


def _in_place(team: Team, count: int, dtype: torch.dtype) -> Buffers:
    tensor = torch.zeros(count, dtype=dtype, device=team.device)
    return Buffers(tensor, tensor)


def _gathering(team: Team, count: int, dtype: torch.dtype) -> Buffers:
    share = max(1, count // team.world_size)
    source = torch.zeros(share, dtype=dtype, device=team.device)
    return Buffers(source, torch.zeros(share * team.world_size, dtype=dtype, device=team.device))


def _scattering(team: Team, count: int, dtype: torch.dtype) -> Buffers:
    turned = _gathering(team, count, dtype)
    return Buffers(turned.target, turned.source)


def _all_reduce(team: Team, buffers: Buffers) -> str:
    dist.all_reduce(buffers.target)
    return NATIVE


def _broadcast(team: Team, buffers: Buffers, root: int = 0) -> str:
    dist.broadcast(buffers.target, src=root)
    return NATIVE


def _all_gather(team: Team, buffers: Buffers) -> str:
    try:
        dist.all_gather_into_tensor(buffers.target, buffers.source)
    except (RuntimeError, NotImplementedError) as error:
        _only_unsupported(error)
        dist.all_gather(list(buffers.target.chunk(team.world_size)), buffers.source)
        return "all_gather (list)"
    return NATIVE


def _reduce_scatter(team: Team, buffers: Buffers) -> str:
    try:
        dist.reduce_scatter_tensor(buffers.target, buffers.source)
    except (RuntimeError, NotImplementedError) as error:
        _only_unsupported(error)
        whole = buffers.source.clone()
        dist.all_reduce(whole)
        share = buffers.target.numel()
        buffers.target.copy_(whole[team.rank * share : (team.rank + 1) * share])
        return "all_reduce + slice"
    return NATIVE


def _only_unsupported(error: Exception) -> None:
    """Another operation may stand in where the backend has none; never where it failed."""
    words = str(error).lower()
    if not any(each in words for each in ("not support", "unsupported", "not implemented", "no backend")):
        raise error


@dataclass(frozen=True)
class Operation:
    """A collective: its buffers for a count of elements in all, and the call (-> what computed it)."""

    buffers: Callable[[Team, int, torch.dtype], Buffers]
    run: Callable[[Team, Buffers], str]
    whole: Callable[[Buffers], torch.Tensor]  # the tensor whose size is the message size


OPERATIONS = dict(
    zip(
        COLLECTIVES,
        (
            Operation(_in_place, _all_reduce, lambda buffers: buffers.target),
            Operation(_gathering, _all_gather, lambda buffers: buffers.target),
            Operation(_scattering, _reduce_scatter, lambda buffers: buffers.source),
            Operation(_in_place, _broadcast, lambda buffers: buffers.target),
        ),
        strict=True,
    )
)


def sweep(team: Team, say: Voice, name: str, budget: float) -> None:
    """One collective over message sizes, as long as the budget lasts. Rank 0 speaks for all.

    A repeat is timed from a barrier to the end of its last operation, device synchronised, and the slowest
    rank's time counts. What comes next is decided by times that all ranks have agreed on.
    """
    asked = team.place.asked
    largest = asked.largest or (1024 * MIB if team.on_gpu else 64 * MIB)
    operation = OPERATIONS[name]
    began = time.perf_counter()
    before: tuple[int, float] | None = None
    for size in sweep_sizes(asked.smallest, max(asked.smallest, largest)):
        (left,) = (budget - spent for spent in team.agree(time.perf_counter() - began))
        expected = before[1] * size / before[0] if before and before[0] >= 64 * 1024 else 0.0
        if before and expected * (_FEWEST + 2) > left:
            if team.rank == 0:
                say("curtailed", operation=name, bytes=size, seconds=budget)
            return
        buffers = operation.buffers(team, max(1, size // 4), torch.float32)
        method = operation.run(team, buffers)  # the first one connects and allocates
        (estimate,) = team.agree(_timed(team, operation, buffers, 1))
        iterations = max(1, min(_MOST_OPERATIONS, int(_REPEAT_SECONDS / max(estimate, 1e-7))))
        repeats = _REPEATS if estimate * iterations * _REPEATS < left else _FEWEST
        times = team.agree(*[_timed(team, operation, buffers, iterations) for _ in range(repeats)])
        exact = operation.whole(buffers).numel() * 4
        if team.rank == 0:
            say("sweep", operation=name, method=method, bytes=exact, seconds=times, iterations=iterations)
        before = (size, statistics.median(times))


def _timed(team: Team, operation: Operation, buffers: Buffers, iterations: int) -> float:
    """Seconds of one operation on this rank, over so many, from a barrier on."""
    team.barrier()
    began = time.perf_counter()
    for _ in range(iterations):
        operation.run(team, buffers)
    team.sync()
    return (time.perf_counter() - began) / iterations


def latency(team: Team, say: Voice, budget: float) -> None:
    """A small all-reduce, many times: the slowest rank's median, mean and best."""
    tensor = torch.zeros(_SMALL_BYTES // 4, device=team.device)
    times: list[float] = []
    for _ in range(5):
        dist.all_reduce(tensor)
    (estimate,) = team.agree(_timed(team, OPERATIONS["all-reduce"], Buffers(tensor, tensor), 3))
    for _ in range(max(5, min(_SMALL_COUNT, int(budget / max(estimate, 1e-7))))):
        team.sync()
        began = time.perf_counter()
        dist.all_reduce(tensor)
        team.sync()
        times.append(time.perf_counter() - began)
    median, mean, best = team.agree(statistics.median(times), statistics.fmean(times), min(times))
    if team.rank == 0:
        figures = {"median": median, "mean": mean, "best": best, "count": len(times)}
        say("latency", operation="all-reduce", bytes=_SMALL_BYTES, **figures)


def broadcast_from(root: int) -> Callable[[Team, Buffers], Any]:
    """A broadcast from another rank than 0."""
    return lambda team, buffers: _broadcast(team, buffers, root)
