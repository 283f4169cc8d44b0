"""The order of samples: similar lengths together, the same global batches on any number of ranks."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import torch
from torch.utils.data import Sampler

_GROUP = 50  # global batches sorted together: enough to find similar lengths, few enough to stay random


class GroupedSampler(Sampler[int]):  # type: ignore[misc]
    """Yields sample indices so that consecutive runs of `global_batch` have similar lengths.

    The order depends on the seed and the epoch alone, never on the number of ranks: rank r of W takes every
    W-th micro-batch, so W ranks at micro-batch m see what one rank sees at micro-batch W x m. Batches are
    shuffled within a group, since a run from long to short samples would be a schedule of its own; the
    longest batch of an epoch comes first, so that running out of memory shows at once. An epoch is filled up
    to whole global batches with its own first samples: left to accelerate, each number of ranks would fill up
    differently.

    `epoch` is asked for the epoch whenever an order is made: the trainer's own state, which a checkpoint
    restores.
    (The trainer's set_epoch does not reach the sampler behind the batches that a resumed epoch skips.)
    """

    def __init__(
        self,
        lengths: Sequence[int],
        global_batch: int,
        seed: int,
        *,
        grouped: bool = True,
        epoch: Callable[[], int] = lambda: 0,
    ) -> None:
        self.lengths = torch.tensor(list(lengths))
        self.global_batch = global_batch
        self.seed = seed
        self.grouped = grouped
        self.epoch = epoch

    def __len__(self) -> int:
        return -(-len(self.lengths) // self.global_batch) * self.global_batch

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator()
        generator.manual_seed(self.seed * 1_000_003 + self.epoch())
        order = torch.randperm(len(self.lengths), generator=generator)
        order = order.repeat(-(-len(self) // len(order)))[: len(self)]
        if not self.grouped:
            yield from order.tolist()
            return
        batches: list[torch.Tensor] = []
        size = self.global_batch * _GROUP
        for start in range(0, len(order), size):
            group = order[start : start + size]
            group = group[torch.argsort(self.lengths[group], descending=True, stable=True)]
            chunks = torch.split(group, self.global_batch)
            shuffled = torch.randperm(len(chunks), generator=generator).tolist()
            batches += [chunks[i] for i in shuffled]
        longest = max(range(len(batches)), key=lambda i: int(self.lengths[batches[i]].sum()))
        batches.insert(0, batches.pop(longest))
        for batch in batches:
            yield from batch.tolist()


class Dealt(Sampler[list[int]]):  # type: ignore[misc]
    """Cuts an order of samples into micro-steps, and each of them into one batch per rank, of that rank's
    share.

    Batches come in the order of the ranks, as accelerate deals them (rank r of W takes every W-th batch), so
    all ranks together see the micro-steps of the even split, sample for sample. Only whole micro-steps are
    dealt; GroupedSampler has no other.
    """

    batch_size = None  # accelerate's word for batches of unequal size

    def __init__(self, order: Sampler[int], shares: Sequence[int]) -> None:
        self.order = order
        self.shares = tuple(shares)

    def __len__(self) -> int:
        return len(self.order) // sum(self.shares) * len(self.shares)

    def __iter__(self) -> Iterator[list[int]]:
        indices = iter(self.order)
        for _ in range(len(self) // len(self.shares)):
            for share in self.shares:
                yield list(itertools.islice(indices, share))
