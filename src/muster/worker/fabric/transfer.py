"""Copies between host and device, in both directions, from pinned memory. CUDA alone."""

from __future__ import annotations

import time

import torch

from muster.core.fabric.asked import MIB
from muster.worker.fabric.place import Voice
from muster.worker.fabric.rendezvous import Team

_BYTES = 256 * MIB
_REPEATS = 10


def check_copy(team: Team, say: Voice, budget: float) -> None:
    """Each direction for half the time, or ten times. A CPU has nothing to copy to, and says nothing."""
    if not team.on_gpu:
        return
    host = torch.empty(_BYTES, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(_BYTES, dtype=torch.uint8, device=team.device)
    to_device = _repeat(team, device, host, budget / 2)
    to_host = _repeat(team, host, device, budget / 2)
    say("copy", bytes=_BYTES, to_device=to_device, to_host=to_host)


def _repeat(team: Team, target: torch.Tensor, source: torch.Tensor, seconds: float) -> list[float]:
    target.copy_(source, non_blocking=True)
    limit = time.perf_counter() + seconds
    times: list[float] = []
    while len(times) < 3 or (len(times) < _REPEATS and time.perf_counter() < limit):
        team.sync()
        began = time.perf_counter()
        target.copy_(source, non_blocking=True)
        team.sync()
        times.append(time.perf_counter() - began)
    return times
