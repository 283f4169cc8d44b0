"""All ranks of a measurement, as one of them sees them: how they meet, and find out who is missing."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from muster.worker.rendezvous import open_store
from muster.workloads.fabric.request import FabricRequest

_SETTLE = 0.05  # seconds in which a group's thread drops its last tensors: see worker/together.py, leave

Report = Callable[..., None]  # an event's kind, and what belongs to it by name


@dataclass(frozen=True)
class RankGroup:
    """All ranks, as one of them sees them. `hosts`: (label, first rank, slots) of every host, in order."""

    rank: int
    local_rank: int
    hosts: tuple[tuple[str, int, int], ...]
    device: torch.device
    address: str
    port: int
    base: Path  # this host's scratch folder
    folder: Path  # where this rank's event file is
    asked: FabricRequest

    @property
    def world_size(self) -> int:
        """Ranks on all hosts."""
        return sum(slots for _, _, slots in self.hosts)

    @property
    def on_gpu(self) -> bool:
        """Whether ranks compute on GPUs, and meet over NCCL."""
        return bool(self.device.type == "cuda")

    @property
    def speakers(self) -> list[int]:
        """Who talks in the point-to-point round: one rank per host; on one host, all ranks."""
        if len(self.hosts) == 1:
            return list(range(self.world_size))
        return [first for _, first, _ in self.hosts]

    def host_of(self, rank: int) -> str:
        """Return the label of a rank's host."""
        return next(label for label, first, slots in self.hosts if first <= rank < first + slots)

    def sync(self) -> None:
        """Wait until the device has done everything that was launched."""
        if self.on_gpu:
            torch.cuda.synchronize(self.device)

    def barrier(self) -> None:
        """Wait for all ranks."""
        dist.all_reduce(torch.zeros(1, device=self.device))
        self.sync()

    def agree(self, *values: float) -> list[float]:
        """Return the largest of every value over all ranks, the same on each: what all of them decide by."""
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return [float(value) for value in tensor.cpu()]


def device_of(kind: str, local_rank: int) -> torch.device:
    """Return a rank's device: `kind` is cpu or cuda."""
    return torch.device(kind, local_rank) if kind == "cuda" else torch.device(kind)


class GroupStore:
    """The store on the first host, and one process group at a time on top of it.

    The store is a line of its own beside the group: when an operation hangs, the ranks that gave up call the
    roll there, and who does not answer is named.
    """

    def __init__(self, group: RankGroup) -> None:
        self.group = group
        self.patience = group.asked.patience
        self.store: Any = None
        self.complete = False  # whether every rank answered the last roll call
        self._groups = 0
        self._calls = 0

    def connect(self) -> None:
        """Reach the store: rank 0 opens it. Raises WorkerError with the system's own reason."""
        group = self.group
        self.store = open_store(group.address, group.port, timedelta(seconds=group.asked.arrival))

    def roll_call(
        self, name: str, *, well: bool = True, patience: float | None = None
    ) -> tuple[list[int], int]:
        """Wait for every rank. Return those who did not come, and how many of the others have failed. `well`:
        what this rank tells the others about itself.

        Where the store itself is gone, the first rank is what is missing.
        """
        if self.store is None:
            return [0], 0
        self._calls += 1
        key = f"{self._calls}:{name}"
        world = self.group.world_size
        missing: list[int] = []
        unwell = 0
        try:
            self.store.set(f"{key}/{self.group.rank}", b"1")
            self.store.add(f"{key}/unwell", 0 if well else 1)
            if self.store.add(f"{key}/count", 1) == world:
                self.store.set(f"{key}/all", b"1")
            try:
                self.store.wait([f"{key}/all"], timedelta(seconds=patience or self.patience))
                unwell = self.store.add(f"{key}/unwell", 0)
            except Exception:  # a timeout, or the store is gone: the next line tells which
                missing = [rank for rank in range(world) if not self.store.check([f"{key}/{rank}"])]
        except Exception:
            missing = [0]
            self.store = None
        self.complete = not missing
        return missing, unwell

    def open_group(self) -> None:
        """Open a fresh process group of all ranks. Raises what torch raises."""
        self.close_group()
        self._groups += 1
        dist.init_process_group(
            "nccl" if self.group.on_gpu else "gloo",
            store=dist.PrefixStore(f"group{self._groups}", self.store),
            rank=self.group.rank,
            world_size=self.group.world_size,
            timeout=timedelta(seconds=self.patience),
        )
        self.group.barrier()

    def close_group(self) -> None:
        """Leave the group, also a broken one: the others' connections to this rank end with it."""
        if dist.is_initialized():
            time.sleep(_SETTLE)
            try:
                dist.destroy_process_group()
            except Exception:  # what is broken need not be left in good order
                pass

    def leave(self) -> None:
        """Say goodbye. The first rank stays until all have: it holds the store."""
        self.close_group()
        if self.store is None:
            return
        try:
            left = self.store.add("left", 1)
            if left == self.group.world_size:
                self.store.set("all-left", b"1")
            if self.group.rank == 0:
                patience = self.patience if self.complete else 5.0
                self.store.wait(["all-left"], timedelta(seconds=patience))
        except Exception:  # the others are gone, or will go by themselves
            pass
