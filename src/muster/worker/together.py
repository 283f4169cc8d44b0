"""Ranks that wait for each other."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from muster.core.errors import DataError
from muster.core.hostlist import fold_hosts
from muster.worker.context import Context

PATIENCE = timedelta(minutes=30)  # for the slowest rank to load what it needs


def backend(context: Context) -> str:
    """Choose the library that moves tensors between ranks: gloo for CPUs, NCCL for GPUs."""
    return "gloo" if context.device == "cpu" else "nccl"


def join_group(context: Context, backend: str) -> None:
    """Meet the other ranks; one rank alone needs no group."""
    if context.grouped:
        dist.init_process_group(backend, timeout=PATIENCE)


def initialised() -> bool:
    """Return whether there is a process group."""
    return bool(dist.is_available() and dist.is_initialized())


@contextmanager
def first_on_disk(context: Context) -> Iterator[bool]:
    """Let the saver of each disk go first, and the others when it is done. Yields whether this rank is it.

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
    """Gather every rank's value, in the order of the ranks, on every rank."""
    if not initialised():
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def check_alike(context: Context, what: str, digest: Callable[[], str]) -> None:
    """Raise DataError on every rank unless all have the same data: ranks that deal different samples among
    themselves repeat and lose some, or wait for each other without end.

    `what`: a name for the data; `digest`: gives what this rank has of it, in words for a reader; one rank
    alone is not asked.
    """
    if context.world_size > 1:
        own = (name for name, first, slots in context.hosts if first <= context.rank < first + slots)
        compare(what, gather((next(own, socket.gethostname()), digest())))


def compare(what: str, answers: Sequence[tuple[str, str]]) -> None:
    """Raise DataError unless all `answers` are the same: each its host, and what it has."""
    hosts_with: dict[str, set[str]] = {}
    for host, has in answers:
        hosts_with.setdefault(has, set()).add(host)
    if len(hosts_with) > 1:
        parts = (f"{fold_hosts(hosts)} has {has}" for has, hosts in hosts_with.items())
        raise DataError(
            f"{what} not the same on all hosts: {'; '.join(parts)}",
            where="data",
            hint="the same files and versions on every host; `muster prepare` copies data.path",
        )


def short_digest(texts: Iterable[str]) -> str:
    """Hash texts in their order into eight hexadecimal digits."""
    made = hashlib.sha256()
    for text in texts:
        content = text.encode("utf-8", "surrogatepass")
        made.update(b"%d:" % len(content) + content)
    return made.hexdigest()[:8]


_LEFT: list[Any] = []  # groups, for as long as the process lives


def leave() -> None:
    """Say goodbye to the other ranks in good order.

    The groups' objects stay. Where the last reference to one goes, PyTorch 2.13 waits for the group's thread
    with the interpreter's lock in its hand, and that thread for the lock, to drop the tensors of its last
    operation: one of a hundred short runs never ended.
    """
    if initialised():
        barrier()
        _LEFT.extend(dist.distributed_c10d._world.pg_map)
        dist.destroy_process_group()
