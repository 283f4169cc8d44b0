"""How ranks meet, and how they find out who is missing."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from muster.worker.fabric.place import Place
from muster.worker.rendezvous import open_store

_SETTLE = 0.05  # seconds in which a group's thread drops its last tensors: see worker/together.py, leave


@dataclass(frozen=True)
class RollCall:
    """Who did not come, and how many of those who came have failed."""

    missing: list[int]
    unwell: int


class Meeting:
    """The store on the first host, and one process group at a time on top of it.

    The store is a line of its own beside the group: when an operation hangs, the ranks that gave up call the
    roll there, and who does not answer is named.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self.patience = place.asked.patience
        self.store: Any = None
        self.complete = False  # whether every rank answered the last roll call
        self._groups = 0
        self._calls = 0

    def connect(self) -> None:
        """Reach the store: rank 0 opens it. Raises WorkerError with the system's own reason."""
        place = self.place
        self.store = open_store(place.address, place.port, timedelta(seconds=place.asked.arrival))

    def roll_call(self, name: str, *, well: bool = True, patience: float | None = None) -> RollCall:
        """Wait for every rank. `well`: what this rank tells the others about itself.

        Where the store itself is gone, the first rank is what is missing.
        """
        if self.store is None:
            return RollCall([0], 0)
        self._calls += 1
        key = f"{self._calls}:{name}"
        world = self.place.world_size
        missing: list[int] = []
        unwell = 0
        try:
            self.store.set(f"{key}/{self.place.rank}", b"1")
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
        return RollCall(missing, unwell)

    def open_group(self) -> None:
        """A fresh process group of all ranks. Raises what torch raises."""
        self.close_group()
        self._groups += 1
        dist.init_process_group(
            "gloo" if self.place.device == "cpu" else "nccl",
            store=dist.PrefixStore(f"group{self._groups}", self.store),
            rank=self.place.rank,
            world_size=self.place.world_size,
            timeout=timedelta(seconds=self.patience),
        )

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
            if left == self.place.world_size:
                self.store.set("all-left", b"1")
            if self.place.rank == 0:
                patience = self.patience if self.complete else 5.0
                self.store.wait(["all-left"], timedelta(seconds=patience))
        except Exception:  # the others are gone, or will go by themselves
            pass


class Team:
    """All ranks, in a process group: what collectives need to know."""

    def __init__(self, place: Place) -> None:
        self.rank = place.rank
        self.world_size = place.world_size
        self.on_gpu = place.device == "cuda"
        self.device = torch.device("cuda", place.local_rank) if self.on_gpu else torch.device("cpu")
        self.place = place

    def sync(self) -> None:
        """Wait until the device has done everything it was told."""
        if self.on_gpu:
            torch.cuda.synchronize(self.device)

    def barrier(self) -> None:
        """Wait for all ranks."""
        dist.all_reduce(torch.zeros(1, device=self.device))
        self.sync()

    def agree(self, *values: float) -> list[float]:
        """The largest of every value over all ranks, the same on each: what all of them decide by."""
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return [float(value) for value in tensor.cpu()]
