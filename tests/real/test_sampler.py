"""The order of samples: whole global batches, similar lengths together, the same for any number of ranks."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")


def order(count: int, batch: int, *, seed: int = 1, epoch: int = 0, grouped: bool = True) -> list[int]:
    """The indices of an epoch over samples of varied lengths."""
    from muster.worker.data.sampler import GroupedSampler

    lengths = [5 + (7919 * i) % 90 for i in range(count)]
    sampler = GroupedSampler(lengths, batch, seed, grouped=grouped, epoch=lambda: epoch)
    indices = list(sampler)
    assert len(indices) == len(sampler)
    return indices


@pytest.mark.parametrize(("count", "batch"), [(400, 16), (401, 16), (415, 16), (7, 16), (1, 4), (5000, 32)])
@pytest.mark.parametrize("grouped", [True, False])
def test_whole_global_batches_of_every_sample(count: int, batch: int, grouped: bool) -> None:
    """Every sample comes; the last batch is filled with as few repeats as it takes."""
    indices = order(count, batch, grouped=grouped)
    assert len(indices) % batch == 0
    assert 0 <= len(indices) - count < batch
    assert set(indices) == set(range(count))


def test_epochs_and_seeds_differ_and_repeat() -> None:
    assert order(400, 16) == order(400, 16)
    assert order(400, 16) != order(400, 16, epoch=1)
    assert order(400, 16) != order(400, 16, seed=2)


def test_lengths_of_a_batch_are_similar() -> None:
    """Far less spread within a batch than over all: that is what the grouping is for."""
    lengths = [5 + (7919 * i) % 90 for i in range(5000)]
    indices = order(5000, 32)
    batches = [indices[i : i + 32] for i in range(0, len(indices), 32)]
    spreads = [max(lengths[i] for i in batch) - min(lengths[i] for i in batch) for batch in batches]
    assert sorted(spreads)[len(spreads) // 2] < 10
    assert sum(lengths[i] for i in batches[0]) == max(sum(lengths[i] for i in batch) for batch in batches)


@pytest.mark.parametrize(("count", "world", "micro"), [(401, 2, 8), (415, 4, 4), (30, 3, 8)])
def test_ranks_share_what_one_process_sees(count: int, world: int, micro: int) -> None:
    """accelerate deals micro-batches to ranks: together they are one process's, to the end."""
    from accelerate.data_loader import BatchSamplerShard
    from torch.utils.data import BatchSampler

    indices = order(count, world * micro)
    whole = [sorted(indices[i : i + world * micro]) for i in range(0, len(indices), world * micro)]
    shards = [
        list(BatchSamplerShard(BatchSampler(indices, micro, drop_last=False), world, rank))
        for rank in range(world)
    ]
    together = [sorted(index for batch in step for index in batch) for step in zip(*shards, strict=True)]
    assert together == whole
