"""Ranks that wait for each other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from muster.worker.context import Context

PATIENCE = timedelta(minutes=30)  # for the slowest rank to load what it needs


def backend(context: Context) -> str:
    """The library that moves tensors between ranks: gloo for CPUs, NCCL for GPUs."""
    return "gloo" if context.device == "cpu" else "nccl"


def join_group(context: Context, backend: str) -> None:
    """Meet the other ranks; one rank alone needs no group."""
    if context.world_size > 1:
        dist.init_process_group(backend, timeout=PATIENCE)


def initialised() -> bool:
    """Whether there is a process group."""
    return bool(dist.is_available() and dist.is_initialized())


@contextmanager
def first_on_disk(context: Context) -> Iterator[bool]:
    """The saver of each disk goes first, the others when it is done. Yields whether this rank is it.

    Where the first one fails, the others do not wait for ever: they meet it again before they go on.
    """
    if context.saver or not initialised():
        try:
            yield context.saver
        finally:
            barrier()
    else:
        barrier()
        yield False


def barrier() -> None:
    """Wait for all ranks."""
    if initialised():
        dist.barrier()


def gather(value: Any) -> list[Any]:
    """Every rank's value, in the order of the ranks, on every rank."""
    if not initialised():
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def leave() -> None:
    """Say goodbye to the other ranks in good order."""
    if initialised():
        barrier()
        dist.destroy_process_group()
