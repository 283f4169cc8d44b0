"""Computation and an exchange beside each other: what each loses to the other, and what a meeting of ranks
costs that have computed apart.

Ranks of a host and the library that moves their data share cores (CPUs) or multiprocessors and memory
(GPUs), and ranks that compute the same never take quite the same time. A plan that knows neither is too
optimistic.
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from muster.core.fabric.asked import BESIDE
from muster.worker.fabric.collectives import OPERATIONS, Buffers
from muster.worker.fabric.place import Voice
from muster.worker.fabric.rendezvous import Team

_APART = 0.02  # seconds that ranks compute between two meetings: about a layer of a small model on a CPU
_FEWEST, _MOST = 3, 50  # exchanges
_MEETINGS = (10, 200)
_MIB = 1 << 20


class Unit:
    """A little of what training does: a product of matrices, and a pass over memory. About 2 ms on a core."""

    def __init__(self, team: Team) -> None:
        n, count = (2048, 64 * _MIB) if team.on_gpu else (256, _MIB)
        self.team = team
        self.left = torch.ones(n, n, device=team.device)
        self.product = torch.empty(n, n, device=team.device)
        self.memory = torch.zeros(count, device=team.device)

    def run(self, times: int = 1) -> None:
        """Compute it, to its end on the device."""
        for _ in range(times):
            torch.mm(self.left, self.left, out=self.product)
            self.memory.add_(1.0)
        self.team.sync()

    def seconds(self, span: float) -> float:
        """Of one, the mean over about `span` seconds."""
        done, began = 0, time.perf_counter()
        while done == 0 or time.perf_counter() - began < span:
            self.run()
            done += 1
        return (time.perf_counter() - began) / done


def check_beside(team: Team, say: Voice, budget: float) -> None:
    """Rank 0 speaks for all. The largest message that the sweep may use, or as large as the budget allows."""
    part = budget / 5
    with torch.inference_mode():
        unit = Unit(team)
        unit.run()
        team.barrier()
        (alone,) = team.agree(unit.seconds(part))
        message, exchange = _message(team, part)
        times = max(_FEWEST, min(_MOST, int(part / exchange)))
        (exchange,) = team.agree(_exchange(team, message, times))
        computed, together = _together(team, unit, message, times)
        meeting = _meeting(team, unit, alone, part)
    (longest,) = team.agree(together)
    slowest = -team.agree(-computed)[0]  # the fewest units that a rank had done
    if team.rank == 0:
        say(
            BESIDE,
            bytes=message.target.numel() * 4,
            computing=min(1.0, slowest * alone / longest),
            exchanging=min(1.0, exchange * times / longest),
            meeting=meeting,
            apart=_APART,
        )
    if team.on_gpu:
        torch.cuda.empty_cache()


def _message(team: Team, span: float) -> tuple[Buffers, float]:
    """-> (the largest message of which some fit into the span, seconds of its all-reduce)."""
    largest = team.place.asked.largest or (256 if team.on_gpu else 16) * _MIB
    operation, size = OPERATIONS["all-reduce"], min(largest, 64 * 1024)
    while True:
        buffers = operation.buffers(team, max(1, size // 4), torch.float32)
        operation.run(team, buffers)
        (took,) = team.agree(_exchange(team, buffers, 1))
        if size * 4 > largest or 4 * took * _FEWEST > span:
            return buffers, max(took, 1e-7)
        size *= 4


def _exchange(team: Team, buffers: Buffers, times: int) -> float:
    """Seconds of one all-reduce alone."""
    team.barrier()
    began = time.perf_counter()
    for _ in range(times):
        dist.all_reduce(buffers.target)
    team.sync()
    return (time.perf_counter() - began) / times


def _together(team: Team, unit: Unit, buffers: Buffers, times: int) -> tuple[float, float]:
    """-> (units computed while so many all-reduces went on, their seconds)."""
    computed, spent = 0, 0.0
    for _ in range(times):
        team.barrier()
        began = time.perf_counter()
        work = dist.all_reduce(buffers.target, async_op=True)
        while not work.is_completed():
            unit.run()
            computed += 1
        work.wait()
        spent += time.perf_counter() - began
    return computed, spent


def _meeting(team: Team, unit: Unit, alone: float, span: float) -> float:
    """Seconds that a small all-reduce takes beyond itself where every rank has computed before it."""
    tensor = torch.zeros(2, device=team.device)
    units = max(1, round(_APART / alone))
    count = max(_MEETINGS[0], min(_MEETINGS[1], int(span / (units * alone))))
    (bare,) = team.agree(_exchange(team, Buffers(tensor, tensor), 2 * count))
    team.barrier()
    began = time.perf_counter()
    for _ in range(count):
        unit.run(units)
        dist.all_reduce(tensor)
        team.sync()
    (took,) = team.agree((time.perf_counter() - began) / count)
    return max(0.0, took - units * alone - bare)
