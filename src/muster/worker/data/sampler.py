"""The order of samples: similar lengths together, the same global batches on any number of ranks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch.utils.data import Sampler

from muster.core.batch import GROUP


class GroupedSampler(Sampler[int]):  # type: ignore[misc]
    """Yields sample indices so that consecutive runs of `global_batch` have similar lengths.

    `lengths`: of every sample, or of its two parts, which are padded apart (question and answer).
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
        lengths: Sequence[int] | Sequence[tuple[int, int]],
        global_batch: int,
        seed: int,
        *,
        grouped: bool = True,
        epoch: Callable[[], int] = lambda: 0,
    ) -> None:
        given = torch.tensor(list(lengths))
        self.lengths = given[:, None] if given.ndim == 1 else given  # (samples, parts)
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
        size = self.global_batch * GROUP
        for start in range(0, len(order), size):
            group = order[start : start + size]
            chunks = torch.split(self._similar(group), self.global_batch)
            shuffled = torch.randperm(len(chunks), generator=generator).tolist()
            batches += [chunks[i] for i in shuffled]
        sizes = [(self._padded(self.lengths[each]), int(self.lengths[each].sum())) for each in batches]
        longest = sizes.index(max(sizes))
        batches.insert(0, batches.pop(longest))
        for batch in batches:
            yield from batch.tolist()

    def _similar(self, group: torch.Tensor) -> torch.Tensor:
        """Order a group so that similar samples stand together. Of samples with two parts, each padded by
        itself, the order that pads least: by the sum, or by one part, in bands, and by the other within a
        band."""
        lengths = self.lengths[group]

        def by(values: torch.Tensor) -> torch.Tensor:
            return torch.argsort(values, descending=True, stable=True)

        orders = [by(lengths.sum(1))]
        if lengths.shape[1] == 2:
            batches = len(group) // self.global_batch
            band = -(-batches // round(math.sqrt(batches))) * self.global_batch
            for part in (0, 1):
                bands = torch.split(by(lengths[:, part]), band)
                orders.append(torch.cat([each[by(lengths[each, 1 - part])] for each in bands]))
        return group[min(orders, key=lambda order: self._padded(lengths[order]))]

    def _padded(self, lengths: torch.Tensor) -> int:
        """Count the tokens of whole batches with padding."""
        return int(lengths.reshape(-1, self.global_batch, lengths.shape[1]).amax(1).sum())


class RankBatches(Sampler[list[int]]):  # type: ignore[misc]
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
