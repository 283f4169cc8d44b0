"""Whether collectives give the right values: every element, at odd sizes, against a computed expectation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from muster.core.fabric.busbw import COLLECTIVES
from muster.worker.fabric.collectives import NATIVE, OPERATIONS, Buffers, broadcast_from, pattern
from muster.worker.fabric.place import Voice
from muster.worker.fabric.rendezvous import Team

_COUNTS = (1, 3, 1023, 65_537)  # elements; per rank where every rank has its own part
_DTYPES = (torch.int64, torch.float32)
_SHOWN = 5  # wrong elements that are told one by one


@dataclass(frozen=True)
class ValueTrial:
    """One call: what to do, and what must be in the result. `part`: elements that came from one rank."""

    result: torch.Tensor
    expected: torch.Tensor
    method: str
    part: int | None = None  # such as a gathered rank's share: its number is the source
    source: int | None = None


def check_values(team: Team, say: Voice) -> None:
    """Every collective. Each rank says what it compared, and what was wrong."""
    for name in COLLECTIVES:
        elements, wrong, method = 0, 0, NATIVE
        shown: list[dict[str, Any]] = []
        for dtype in _DTYPES:
            for trial in _trials(team, name, dtype):
                method = trial.method
                elements += trial.result.numel()
                found = wrong_elements(trial, dtype)
                wrong += found[0]
                shown += found[1]
        say(
            "values",
            operation=name,
            method=method,
            elements=elements,
            wrong=wrong,
            shown=shown[:_SHOWN],
        )


def _trials(team: Team, name: str, dtype: torch.dtype) -> Iterator[ValueTrial]:
    for count in _COUNTS:
        if name == "all-reduce":
            yield _all_reduced(team, count, dtype)
        elif name == "all-gather":
            yield _all_gathered(team, count, dtype)
        elif name == "reduce-scatter":
            yield _reduce_scattered(team, count, dtype)
        else:
            for root in roots(team.world_size):
                yield _broadcast(team, count, dtype, root)


def roots(world_size: int) -> list[int]:
    """Who broadcasts: everyone in a small group, else the first, a middle and the last rank."""
    if world_size <= 4:
        return list(range(world_size))
    return [0, world_size // 2, world_size - 1]


def _sum(team: Team, first: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    total = torch.zeros(count, dtype=dtype, device=team.device)
    for rank in range(team.world_size):
        total += pattern(rank, first, count, dtype, team.device)
    return total


def _all_reduced(team: Team, count: int, dtype: torch.dtype) -> ValueTrial:
    tensor = pattern(team.rank, 0, count, dtype, team.device)
    method = OPERATIONS["all-reduce"].run(team, Buffers(tensor, tensor))
    return ValueTrial(tensor, _sum(team, 0, count, dtype), method)


def _all_gathered(team: Team, count: int, dtype: torch.dtype) -> ValueTrial:
    gathered = torch.zeros(count * team.world_size, dtype=dtype, device=team.device)
    mine = pattern(team.rank, 0, count, dtype, team.device)
    method = OPERATIONS["all-gather"].run(team, Buffers(mine, gathered))
    parts = [pattern(rank, 0, count, dtype, team.device) for rank in range(team.world_size)]
    return ValueTrial(gathered, torch.cat(parts), method, part=count)


def _reduce_scattered(team: Team, count: int, dtype: torch.dtype) -> ValueTrial:
    whole = pattern(team.rank, 0, count * team.world_size, dtype, team.device)
    share = torch.zeros(count, dtype=dtype, device=team.device)
    method = OPERATIONS["reduce-scatter"].run(team, Buffers(whole, share))
    return ValueTrial(share, _sum(team, team.rank * count, count, dtype), method)


def _broadcast(team: Team, count: int, dtype: torch.dtype, root: int) -> ValueTrial:
    tensor = pattern(team.rank, 0, count, dtype, team.device)
    method = broadcast_from(root)(team, Buffers(tensor, tensor))
    return ValueTrial(tensor, pattern(root, 0, count, dtype, team.device), method, source=root)


def wrong_elements(trial: ValueTrial, dtype: torch.dtype) -> tuple[int, list[dict[str, Any]]]:
    """-> (how many differ, the first of them). nan differs from everything, itself included."""
    differs = (trial.result != trial.expected).nonzero().flatten()
    count = int(differs.numel())
    found = []
    for index in differs[:_SHOWN].tolist():
        source = index // trial.part if trial.part else trial.source
        found.append(
            {
                "dtype": str(dtype).removeprefix("torch."),
                "elements": trial.result.numel(),
                "index": index,
                "got": finite(trial.result[index]),
                "expected": finite(trial.expected[index]),
                "wrong_elements": count,
                "source": source,
            }
        )
    return count, found


def finite(value: torch.Tensor) -> float | None:
    """A number that JSON knows; None for nan and infinities."""
    return float(value) if bool(torch.isfinite(value)) else None
