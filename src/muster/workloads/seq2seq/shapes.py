"""Few shapes for batches of pairs, chosen so that padding to them adds as little as can be. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache

Shape = tuple[int, int]  # tokens of the source and of the target, with padding

SHAPES = 8  # of a run: each is compiled, and recorded as a CUDA graph, by itself
EDGES = 24  # different lengths of a side among which shapes are chosen


def choose_shapes(
    batches: Sequence[Shape], most: Shape, count: int = SHAPES, multiple: int = 1
) -> tuple[Shape, ...]:
    """Choose at most `count` shapes that these batches are padded to, the smallest first; the last one is
    `most`, which no batch exceeds, and each side is a multiple of `multiple`.

    Sources are cut into ranges, and each range's targets into ranges of their own: of all ways to do so the
    one with the fewest tokens, padding included. Two dynamic programmes, one in the other (optimal
    histograms: Jagadish et al. 1998). Of more than EDGES lengths of a side the evenly
    spread ones are taken.
    """
    whole = (round_up(most[0], multiple), round_up(most[1], multiple))
    rounded = [(round_up(source, multiple), round_up(target, multiple)) for source, target in batches]
    sources = _edges([source for source, _ in rounded], whole[0])
    targets = _edges([target for _, target in rounded], whole[1])
    cells = Counter(
        (bisect_left(sources, source), bisect_left(targets, target)) for source, target in rounded
    )

    @cache
    def cut(first: int, last: int, parts: int) -> tuple[int, tuple[Shape, ...]]:
        """Cut batches of sources first to last into at most so many ranges of targets: tokens and shapes."""
        # The last range is open to whatever comes: a later epoch has other batches.
        return _cut_targets(_slab(cells, first, last, len(targets)), sources[last], targets, parts)

    @cache
    def best(last: int, parts: int) -> tuple[int, tuple[Shape, ...]]:
        """Divide all batches of sources up to `last` into at most so many shapes."""
        if last < 0:
            return 0, ()
        ways = []
        for first in range(last + 1):
            for used in range(1, parts + 1 if first == 0 else parts):
                before, shapes = best(first - 1, parts - used)
                tokens, more = cut(first, last, used)
                ways.append((before + tokens, shapes + more))
        return min(ways, key=lambda each: (each[0], len(each[1])))

    return tuple(sorted(best(len(sources) - 1, count)[1]))


def shape_of(batch: Shape, shapes: Sequence[Shape]) -> Shape:
    """Return the shape with the fewest tokens that a batch fits into."""
    fitting = [shape for shape in shapes if shape[0] >= batch[0] and shape[1] >= batch[1]]
    return min(fitting, key=sum)


def round_up(length: int, multiple: int) -> int:
    """Return the smallest multiple of `multiple` that is no less than `length`."""
    return -(-length // multiple) * multiple


def _edges(lengths: Sequence[int], most: int) -> list[int]:
    """Choose lengths of a side at which ranges may end, rising; the last one is `most`."""
    different = sorted({*lengths, most})
    if len(different) <= EDGES:
        return different
    rows = sorted(lengths)
    return sorted({rows[len(rows) * part // EDGES] for part in range(1, EDGES)} | {most})


def _slab(cells: Mapping[Shape, int], first: int, last: int, width: int) -> list[int]:
    """Count how many batches of these sources have each target."""
    counts = [0] * width
    for (source, target), count in cells.items():
        if first <= source <= last:
            counts[target] += count
    return counts


def _cut_targets(
    counts: Sequence[int], source: int, targets: Sequence[int], parts: int
) -> tuple[int, tuple[Shape, ...]]:
    """Cut the targets of one range of sources into at most so many ranges; the last one has no upper edge."""
    # tokens, shapes: of the targets before `end`, in 0, 1, ... ranges
    best: list[dict[int, tuple[int, tuple[Shape, ...]]]] = [{0: (0, ())}]
    for end in range(1, len(targets) + 1):
        ways: dict[int, tuple[int, tuple[Shape, ...]]] = {}
        for begin in range(end):
            inside = sum(counts[begin:end]) * (source + targets[end - 1])
            for used, (tokens, shapes) in best[begin].items():
                made = (tokens + inside, (*shapes, (source, targets[end - 1])))
                if used < parts and (used + 1 not in ways or made[0] < ways[used + 1][0]):
                    ways[used + 1] = made
        best.append(ways)
    return min(best[-1].values(), key=lambda each: each[0])
