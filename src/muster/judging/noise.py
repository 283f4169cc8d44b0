"""How far healthy jobs scatter: the shape of the noise, learned from the jobs themselves. Pure.

A normal distribution is an assumption that networks do not keep: their jobs have long tails on the slow side.
With too thin a tail, one unlucky job accuses a host; with too thick a one, a slow host passes. So the tail is
learned, separately for each side: Student's t of several degrees of freedom and widths, each with the weight
that the readings give it (the posterior of a prior that favours the normal one). The cost of a reading is
then minus the log of the mean density, relative to its peak, in nats.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

DEGREES = (math.inf, 8.0, 4.0, 3.0, 2.0)  # of freedom
WIDTHS = (0.7, 0.85, 1.0, 1.2, 1.45)  # of the distribution, in deviations of the baseline
NORMAL = 0.6  # prior of a normal distribution; the others share the rest
FLOOR = 2e-4  # density, per deviation, of what has another cause than noise: it tells nothing of the tail
STEP, FAR = 0.25, 20.0  # of the table of costs, in deviations
_BINS = [0.25 * i for i in range(33)] + [9.0, 10.0, 12.0, 15.0, 20.0, 30.0, 50.0]  # where values are counted
_MIDDLES = [(a + b) / 2 for a, b in zip(_BINS, [*_BINS[1:], 80.0], strict=True)]
_GRID = [STEP * i for i in range(round(FAR / STEP) + 1)]


def _density(value: float, degrees: float, width: float) -> float:
    """Return the density of half a Student's t, at a value of at least 0."""
    z = value / width
    if math.isinf(degrees):
        return 2.0 / width * math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    scale = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2))
    scale /= math.sqrt(degrees * math.pi)
    return 2.0 / width * scale * math.pow(1.0 + z * z / degrees, -(degrees + 1) / 2)


_SHAPES = tuple((degrees, width) for degrees in DEGREES for width in WIDTHS)
_PRIOR = tuple(
    math.log((NORMAL if math.isinf(degrees) else (1 - NORMAL) / (len(DEGREES) - 1)) / len(WIDTHS))
    for degrees, _ in _SHAPES
)
_LOGS = tuple(tuple(math.log(_density(z, *shape) + FLOOR) for z in _MIDDLES) for shape in _SHAPES)
_DENSITIES = tuple(tuple(_density(z, *shape) for z in _GRID) for shape in _SHAPES)


@dataclass(frozen=True)
class NoiseTail:
    """One side of the noise: the cost of a value so many deviations from the middle, in nats. `beyond`: how
    fast the cost grows with the logarithm of the value, past the end of the table."""

    costs: tuple[float, ...]
    beyond: float

    def cost(self, deviations: float) -> float:
        """Return the cost of a value of at least 0; it grows with the value."""
        place = deviations / STEP
        index = int(place)
        if index >= len(self.costs) - 1:
            return self.costs[-1] + self.beyond * math.log(deviations / FAR)
        low = self.costs[index]
        return low + (place - index) * (self.costs[index + 1] - low)


def learn(deviations: Iterable[float]) -> NoiseTail:
    """Learn a tail from the distances of healthy jobs on one side of the middle, in deviations of their
    baseline."""
    counts = [0] * len(_BINS)
    for each in deviations:
        counts[bisect_right(_BINS, each) - 1] += 1
    filled = [(index, count) for index, count in enumerate(counts) if count]
    posterior = [
        prior + sum([count * logs[index] for index, count in filled])
        for prior, logs in zip(_PRIOR, _LOGS, strict=True)
    ]
    best = max(posterior)
    kept = [(math.exp(each - best), shape) for shape, each in enumerate(posterior) if each > best - 14.0]
    total = [0.0] * len(_GRID)
    for weight, shape in kept:
        total = [sum_ + weight * one for sum_, one in zip(total, _DENSITIES[shape], strict=True)]
    peak = total[0]
    costs: list[float] = []
    highest = 0.0
    for one in total:
        highest = max(highest, math.log(peak / one) if one > 0 else 800.0)
        costs.append(highest)
    thickest = min([_SHAPES[shape][0] for _, shape in kept])
    return NoiseTail(tuple(costs), 1600.0 if math.isinf(thickest) else thickest + 1.0)


PRIOR = learn(())

# A job can be slowed by something that does not last: 1 in 4,500, until more are seen (slow jobs whose hosts
# have no other one; the assumption counts for 900 jobs, and for the fewer the more are seen), by more than y
# with a probability of (0.05 / (0.05 + y))^2, until sizes are seen (the assumption counts for three). So a
# larger slowdown is always the stronger evidence: what a hiccup costs grows faster than what a fault's own
# variation costs.
HICCUPS, ASSUMED, SIZE, SIZES = 0.2, 900.0, 0.05, 3.0
ALIKE = 0.15  # hiccups of one cause differ by so much of their size
_PLACES = 120  # of the table, in equal steps of log(1 + y / SIZE)
_PACE = 0.05


def _lomax(size: float) -> float:
    """Return the density that is assumed of a hiccup's size."""
    return 2.0 * SIZE**2 / (SIZE + size) ** 3


_SIZES = tuple(SIZE * math.expm1(_PACE * i) for i in range(_PLACES))
_PEAK = 0.5 * math.log(2.0 * math.pi)


@dataclass(frozen=True)
class Hiccups:
    """How often jobs are slowed by what does not last, and by how much. `costs`: minus the log of the density
    per unit of log(time), of sizes in equal steps of log(1 + size / SIZE); it grows with the size."""

    costs: tuple[float, ...]

    def cost(self, size: float, sigma: float) -> float:
        """Return the cost of a hiccup, relative to the peak of a noise of this deviation."""
        place = math.log1p(size / SIZE) / _PACE
        index = int(place)
        if index >= _PLACES - 1:  # as assumed, from the end of the table on
            base = self.costs[-1] + 3.0 * (math.log(SIZE + size) - math.log(SIZE + _SIZES[-1]))
        else:
            low = self.costs[index]
            base = low + (place - index) * (self.costs[index + 1] - low)
        return base - _PEAK - math.log(sigma)


def learn_hiccups(sizes: Sequence[tuple[float, float]], jobs: int, count: float) -> Hiccups:
    """Learn from hiccups among so many jobs: each one's size, and the deviation of its noise; `count`: the
    estimated number of all."""
    rate = (HICCUPS + count) / (ASSUMED / (1.0 + count) + jobs)
    total = [SIZES * _lomax(at) for at in _SIZES]
    for size, sigma in sizes:
        wide = max(ALIKE * size, sigma)
        for index, at in enumerate(_SIZES):
            off = (at - size) / wide
            if abs(off) < 5.0:
                total[index] += math.exp(-0.5 * off * off) / (wide * math.sqrt(2.0 * math.pi))
    costs, least = [], math.inf
    for each in reversed(total):  # a smaller one is never the less likely
        least = min(least, -math.log(rate * each / (SIZES + len(sizes))))
        costs.append(least)
    return Hiccups(tuple(reversed(costs)))


RARE = learn_hiccups((), 0, 0.0)
