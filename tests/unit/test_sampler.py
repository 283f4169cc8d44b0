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


def padded(pairs: list[tuple[int, int]], indices: list[int], batch: int) -> int:
    """Tokens with padding, both parts of a sample padded by themselves."""
    batches = [[pairs[i] for i in indices[at : at + batch]] for at in range(0, len(indices), batch)]
    return sum(len(each) * (max(a for a, _ in each) + max(b for _, b in each)) for each in batches)


@pytest.mark.parametrize("unlike", [7919, 1])
def test_two_parts_are_both_similar(unlike: int) -> None:
    """Where they have nothing to do with each other, sums say little; where one follows the other, all."""
    from muster.worker.data.sampler import GroupedSampler

    pairs = [(5 + (7919 * i) % 90, 5 + (7919 * i * (31 if unlike > 1 else 1)) % 90) for i in range(6400)]
    both, sums = (list(GroupedSampler(lengths, 32, 1)) for lengths in (pairs, [a + b for a, b in pairs]))
    assert set(both) == set(range(6400)) and len(both) == 6400
    real = sum(a + b for a, b in pairs)
    waste, by_sums = padded(pairs, both, 32) / real - 1, padded(pairs, sums, 32) / real - 1
    assert waste <= by_sums
    assert waste < (0.25 if unlike > 1 else 0.03), (waste, by_sums)
    assert unlike == 1 or by_sums > 1.5 * waste


@pytest.mark.parametrize(("parts", "unlike"), [(1, 1), (2, 1), (2, 31)])
@pytest.mark.parametrize(("batch", "tail"), [(8, 0), (64, 0), (64, 200), (3200, 200)])
def test_padding_is_estimated_from_some_samples(parts: int, unlike: int, batch: int, tail: int) -> None:
    """As the sampler pads them, within 6 %; also where parts have nothing to do with each other, where few
    samples are long, and where an epoch has two batches."""
    from muster.core.batch import mean_padded
    from muster.store.tokens import some_of
    from muster.worker.data.sampler import GroupedSampler

    longer = [tail if i % 20 == 9 else 0 for i in range(6400)]
    pairs = [(5 + more + (7919 * i) % 90, 3 + (7919 * i * unlike) % 90 // 2) for i, more in enumerate(longer)]
    lengths = [pair[:parts] for pair in pairs]
    batches = torch.tensor([lengths[i] for i in GroupedSampler(lengths, batch, 1)]).reshape(-1, batch, parts)
    for multiple in (1, 8):
        longest = (batches.amax(1) + multiple - 1) // multiple * multiple
        some = some_of(lengths, lambda _: ())
        assert len(some) == 1000
        padded = float(longest.sum(1).float().mean())
        assert mean_padded(some, len(batches), multiple) == pytest.approx(padded, rel=0.06)
    assert mean_padded([(1, 9), (9, 1)] * 50, 50) == 10  # as long in all
    assert mean_padded([(4,), (6,)], 9) == 5 and mean_padded([(4, 1)], 9) == 5 and mean_padded([], 9) is None
    assert mean_padded([(4,), (6,)], 1) == 6 and mean_padded([(4,), (6,)], 2, 8) == 8


@pytest.mark.parametrize(("count", "batch"), [(7, 16), (33, 16), (401, 16)])
def test_few_samples_of_two_parts(count: int, batch: int) -> None:
    from muster.worker.data.sampler import GroupedSampler

    indices = list(GroupedSampler([(1 + i % 7, 1 + i % 5) for i in range(count)], batch, 1))
    assert set(indices) == set(range(count)) and len(indices) == -(-count // batch) * batch


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


@pytest.mark.parametrize(
    ("count", "shares", "accumulation"), [(401, (11, 5), 1), (415, (1, 9, 2), 2), (130, (8, 8), 3)]
)
def test_unequal_shares_are_cuts_of_the_same_micro_steps(
    count: int, shares: tuple[int, ...], accumulation: int
) -> None:
    """Rank by rank in the order of the even split, to the end of the epoch; also from the middle, as after a
    resume, and with other shares from there on."""
    from accelerate.data_loader import BatchSamplerShard, SkipBatchSampler

    from muster.worker.data.sampler import GroupedSampler, RankBatches

    step = sum(shares)
    lengths = [5 + (7919 * i) % 90 for i in range(count)]
    sampler = GroupedSampler(lengths, step * accumulation, 1)
    indices = list(sampler)
    whole = [indices[i : i + step] for i in range(0, len(indices), step)]

    def together(cut: tuple[int, ...], skip: int = 0) -> list[list[int]]:
        dealt = RankBatches(sampler, cut)
        shards = [BatchSamplerShard(dealt, len(cut), rank) for rank in range(len(cut))]
        rest = [list(SkipBatchSampler(shard, skip)) for shard in shards]
        assert [len(shard) - skip for shard in shards] == [len(batches) for batches in rest]
        for share, batches in zip(cut, rest, strict=True):
            assert {len(batch) for batch in batches} == {share}
        return [[index for batch in parts for index in batch] for parts in zip(*rest, strict=True)]

    assert together(shares) == whole
    other = (shares[0] - 1 or shares[0], *shares[1:-1], shares[-1] + (shares[0] > 1))
    assert together(shares)[:accumulation] + together(other, accumulation) == whole
