"""What ranks measure together: collectives and their values, pairs, a product over all, both at once."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist

from muster.workloads.fabric.devices import sparse
from muster.workloads.fabric.group import RankGroup, Report
from muster.workloads.fabric.request import (
    BESIDE,
    COLLECTIVES,
    MIB,
    POINT_TO_POINT,
    PRODUCT,
    rounds,
    sweep_sizes,
)

# ----------------------------------------------------------------------------------------------------
# The collectives: what each is called with, what must come out, how long it takes over message sizes.

_REPEATS = 5
_FEWEST = 3  # repeats, where time is short
_REPEAT_SECONDS = 0.02  # that one repeat should last, by as many operations as that takes
_MOST_OPERATIONS = 200  # per repeat
_GROWS = 8  # times as many operations in the next try
_SMALL_BYTES = 8
_SMALL_COUNT = 100
NATIVE = "native"
T = TypeVar("T")


def pattern(rank: int, first: int, count: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return a rank's elements first ... first + count - 1: whole numbers below 1009 that differ from rank to
    rank and place to place. Their sums over up to 16,000 ranks are exact in float32 (below 2^24)."""
    index = torch.arange(first, first + count, dtype=torch.int64, device=device)
    return ((index * 31 + rank * 7919 + index // 1009) % 1009).to(dtype)


@dataclass(frozen=True)
class Buffers:
    """What one operation reads and writes: the same tensor where it works in place. `root`: a sender."""

    source: torch.Tensor
    target: torch.Tensor
    root: int = 0

    @property
    def bytes(self) -> int:
        """The message size: of the whole array, where each rank has its own part."""
        return int(max(self.source.nbytes, self.target.nbytes))


def _in_place(group: RankGroup, count: int, dtype: torch.dtype) -> Buffers:
    tensor = torch.zeros(count, dtype=dtype, device=group.device)
    return Buffers(tensor, tensor)


def _gathering(group: RankGroup, count: int, dtype: torch.dtype) -> Buffers:
    share = max(1, count // group.world_size)
    source = torch.zeros(share, dtype=dtype, device=group.device)
    return Buffers(source, torch.zeros(share * group.world_size, dtype=dtype, device=group.device))


def _scattering(group: RankGroup, count: int, dtype: torch.dtype) -> Buffers:
    turned = _gathering(group, count, dtype)
    return Buffers(turned.target, turned.source)


def _all_reduce(group: RankGroup, buffers: Buffers) -> str:
    dist.all_reduce(buffers.target)
    return NATIVE


def _broadcast(group: RankGroup, buffers: Buffers) -> str:
    dist.broadcast(buffers.target, src=buffers.root)
    return NATIVE


def _all_gather(group: RankGroup, buffers: Buffers) -> str:
    try:
        dist.all_gather_into_tensor(buffers.target, buffers.source)
    except (RuntimeError, NotImplementedError) as error:
        _only_unsupported(error)
        dist.all_gather(list(buffers.target.chunk(group.world_size)), buffers.source)
        return "all_gather (list)"
    return NATIVE


def _reduce_scatter(group: RankGroup, buffers: Buffers) -> str:
    try:
        dist.reduce_scatter_tensor(buffers.target, buffers.source)
    except (RuntimeError, NotImplementedError) as error:
        _only_unsupported(error)
        whole = buffers.source.clone()
        dist.all_reduce(whole)
        buffers.target.copy_(whole.chunk(group.world_size)[group.rank])
        return "all_reduce + slice"
    return NATIVE


def _only_unsupported(error: Exception) -> None:
    """Allow another operation in place of one that the backend does not have; never of one that failed."""
    words = str(error).lower()
    if not any(each in words for each in ("not support", "unsupported", "not implemented", "no backend")):
        raise error


@dataclass(frozen=True)
class Operation:
    """A collective: its buffers for a count of elements in all, and the call (-> what computed it)."""

    buffers: Callable[[RankGroup, int, torch.dtype], Buffers]
    run: Callable[[RankGroup, Buffers], str]


OPERATIONS = {
    "all-reduce": Operation(_in_place, _all_reduce),
    "all-gather": Operation(_gathering, _all_gather),
    "reduce-scatter": Operation(_scattering, _reduce_scatter),
    "broadcast": Operation(_in_place, _broadcast),
}


def sweep(group: RankGroup, report: Report, name: str, budget: float) -> None:
    """Measure one collective over message sizes, as long as the budget lasts. Rank 0 reports for all.

    A repeat is timed from a barrier to the end of its last operation, device synchronised, and the slowest
    rank's time counts. What comes next is decided by times that all ranks have agreed on.
    """
    asked = group.asked
    largest = asked.largest or (1024 * MIB if group.on_gpu else 64 * MIB)
    operation = OPERATIONS[name]
    began = time.perf_counter()
    before: tuple[int, float] | None = None
    sizes = sweep_sizes(asked.smallest, max(asked.smallest, largest))
    for number, size in enumerate(sizes):
        (left,) = (budget - spent for spent in group.agree(time.perf_counter() - began))
        expected = before[1] * size / before[0] if before and before[0] >= 64 * 1024 else 0.0
        if before and expected * (_FEWEST + 2) > left:
            if group.rank == 0:
                report("curtailed", operation=name, bytes=size, seconds=budget)
            return
        buffers = operation.buffers(group, max(1, size // 4), torch.float32)
        method = operation.run(group, buffers)  # the first one connects and allocates
        iterations = _operations(group, operation, buffers)
        times: list[float] = []
        share = left / (len(sizes) - number)  # small messages leave the large ones their time
        while len(times) < _FEWEST or (len(times) < _REPEATS and sum(times) * iterations < share):
            times += group.agree(_timed(group, operation, buffers, iterations))
        if group.rank == 0:
            figures = {"bytes": buffers.bytes, "seconds": times, "iterations": iterations}
            report("sweep", operation=name, method=method, **figures)
        before = (size, statistics.median(times))


def _operations(group: RankGroup, operation: Operation, buffers: Buffers) -> int:
    """How many fill a repeat. Found by trying more and more: where hosts have a quota of their cores, one
    alone takes a fiftieth of what each of many does."""
    count = 1
    while True:
        (one,) = group.agree(_timed(group, operation, buffers, count))
        wanted = max(1, min(_MOST_OPERATIONS, int(_REPEAT_SECONDS / max(one, 1e-7))))
        if wanted <= _GROWS * count:
            return wanted
        count *= _GROWS


def _timed(group: RankGroup, operation: Operation, buffers: Buffers, iterations: int) -> float:
    """Seconds of one operation on this rank, over so many, from a barrier on."""
    group.barrier()
    began = time.perf_counter()
    for _ in range(iterations):
        operation.run(group, buffers)
    group.sync()
    return (time.perf_counter() - began) / iterations


def latency(group: RankGroup, report: Report, budget: float) -> None:
    """Measure a small all-reduce, many times: the slowest rank's median, mean and best."""
    tensor = torch.zeros(_SMALL_BYTES // 4, device=group.device)
    times: list[float] = []
    for _ in range(5):
        dist.all_reduce(tensor)
    (estimate,) = group.agree(_timed(group, OPERATIONS["all-reduce"], Buffers(tensor, tensor), 3))
    for _ in range(max(5, min(_SMALL_COUNT, int(budget / max(estimate, 1e-7))))):
        group.sync()
        began = time.perf_counter()
        dist.all_reduce(tensor)
        group.sync()
        times.append(time.perf_counter() - began)
    median, mean, best = group.agree(statistics.median(times), statistics.fmean(times), min(times))
    if group.rank == 0:
        figures = {"median": median, "mean": mean, "best": best, "count": len(times)}
        report("latency", operation="all-reduce", bytes=_SMALL_BYTES, **figures)


# ----------------------------------------------------------------------------------------------------
# Whether collectives give the right values: every element, at odd sizes, against a computed expectation.

_COUNTS = (1, 3, 1023, 65_537)  # elements; per rank where every rank has its own part
_DTYPES = (torch.int64, torch.float32)
_SHOWN = 5  # wrong elements that are told one by one


@dataclass(frozen=True)
class ValueTrial:
    """What an operation gave, and what it must give. `part`: elements that came from one rank, such as a
    gathered rank's share: its number is the source."""

    result: torch.Tensor
    expected: torch.Tensor
    method: str = NATIVE
    part: int | None = None
    source: int | None = None


def check_values(group: RankGroup, report: Report, budget: float) -> None:
    """Compare the values of every collective, whatever the budget. Report them, and the wrong ones."""
    for name in COLLECTIVES:
        _compare(report, name, _trials(group, name))


def _compare(report: Report, operation: str, trials: Iterable[ValueTrial]) -> None:
    elements, wrong, method = 0, 0, NATIVE
    shown: list[dict[str, Any]] = []
    for trial in trials:
        method = trial.method
        elements += trial.result.numel()
        differing = _wrong_elements(trial)
        wrong += differing[0]
        shown += differing[1]
    figures = {"elements": elements, "wrong": wrong, "shown": shown[:_SHOWN]}
    report("values", operation=operation, method=method, **figures)


def _trials(group: RankGroup, name: str) -> Iterator[ValueTrial]:
    """Yield trials of every type, size and, of a broadcast, some roots: all ranks of a small group, else the
    first, a middle and the last rank."""
    world, roots = group.world_size, [0]
    if name == "broadcast":
        roots = list(range(world)) if world <= 4 else [0, world // 2, world - 1]
    for dtype, count, root in itertools.product(_DTYPES, _COUNTS, roots):
        yield _trial(group, name, count, dtype, root)


def _trial(group: RankGroup, name: str, count: int, dtype: torch.dtype, root: int) -> ValueTrial:
    """Return a trial. `count`: elements, of each rank's own part where there are parts."""
    operation = OPERATIONS[name]
    whole = count * (group.world_size if name in ("all-gather", "reduce-scatter") else 1)
    buffers = replace(operation.buffers(group, whole, dtype), root=root)
    buffers.source.copy_(pattern(group.rank, 0, buffers.source.numel(), dtype, group.device))
    method = operation.run(group, buffers)
    if name == "broadcast":
        expected = pattern(root, 0, count, dtype, group.device)
        return ValueTrial(buffers.target, expected, method, source=root)
    first = group.rank * count if name == "reduce-scatter" else 0
    parts = (pattern(rank, first, count, dtype, group.device) for rank in range(group.world_size))
    if name == "all-gather":
        return ValueTrial(buffers.target, torch.cat(list(parts)), method, part=count)
    return ValueTrial(buffers.target, reduce(torch.add, parts), method)


def _wrong_elements(trial: ValueTrial) -> tuple[int, list[dict[str, Any]]]:
    """Return how many elements differ, and the first of them. nan differs from everything, itself included.
    """
    differs = (trial.result != trial.expected).nonzero().flatten()
    count = int(differs.numel())
    shown = []
    for index in differs[:_SHOWN].tolist():
        source = index // trial.part if trial.part else trial.source
        shown.append(
            {
                "dtype": str(trial.result.dtype).removeprefix("torch."),
                "elements": trial.result.numel(),
                "index": index,
                "got": _finite(trial.result[index]),
                "expected": _finite(trial.expected[index]),
                "wrong_elements": count,
                "source": source,
            }
        )
    return count, shown


def _finite(value: torch.Tensor) -> float | None:
    """Return a number that JSON knows; None for nan and infinities."""
    return float(value) if bool(torch.isfinite(value)) else None


# ----------------------------------------------------------------------------------------------------
# Point to point: every pair of a ring, or every pair there is, in rounds of disjoint pairs.
#
# Each direction is measured apart. A message counts as arrived when the receiver's answer is back.

_FIRST_BYTES = 256 * 1024  # the first message: compared element by element, and a guess at the speed
_PASSES = 2  # over all rounds: what disturbed a pair for a moment is over when its turn comes again
_ROUNDS = 5
_PINGS = 50
_WARM_PINGS = 3
_LATENCY_SHARE = 0.15  # of a pair's time


def check_points(group: RankGroup, report: Report, budget: float) -> None:
    """Measure the pairs that this rank is part of. Every rank keeps the rounds together."""
    asked = group.asked
    plan = rounds(group.speakers, asked.pairs)
    seconds = min(3.0, budget / max(1, len(plan))) / _PASSES
    size = asked.point_bytes or (64 * MIB if group.on_gpu else 4 * MIB)
    sizes: dict[int, int] = {}
    for pairs in plan * _PASSES:
        group.barrier()
        for first, second in pairs:
            if group.rank in (first, second):
                other = second if group.rank == first else first
                half = _Pair(group, report, first, second)
                sizes[other] = half.measure(sizes.get(other, size), seconds, fixed=other in sizes)


class _Pair:
    """One rank's half of a conversation. Both halves run the same steps in the same order."""

    def __init__(self, group: RankGroup, report: Report, first: int, second: int) -> None:
        self.group = group
        self.report = report
        self.first, self.second = first, second
        self.other = second if group.rank == first else first
        self.word = torch.zeros(1, dtype=torch.int64, device=group.device)

    def measure(self, size: int, seconds: float, *, fixed: bool) -> int:
        """Measure the latency, then each direction. Return the bytes of this rank's messages.

        `fixed`: they have `size`, and not less where the time is short.
        """
        latencies = self._latency(seconds * _LATENCY_SHARE)
        for source, target in ((self.first, self.second), (self.second, self.first)):
            if self.group.rank == source:
                size, times = self._send(size, seconds * (1 - _LATENCY_SHARE) / 2, fixed=fixed)
                facts = {"source": source, "target": target, "bytes": size, "seconds": times}
                self.report("pair", **facts, latencies=latencies)
            else:
                self._receive()
        return size

    def _tell(self, number: int) -> None:
        self.word.fill_(number)
        dist.send(self.word, self.other)

    def _hear(self) -> int:
        dist.recv(self.word, self.other)
        return int(self.word.item())  # waits for the device

    def _latency(self, seconds: float) -> list[float]:
        """Return half round trips, as many as there is time for, on the side that began them; none on the
        other."""
        if self.group.rank != self.first:
            for _ in range(_WARM_PINGS):
                self._tell(self._hear())
            for _ in range(self._hear()):
                self._tell(self._hear())
            return []
        for _ in range(_WARM_PINGS):
            one = self._ping()
        count = max(5, min(_PINGS, int(seconds / max(2 * one, 1e-7))))
        self._tell(count)
        return [self._ping() for _ in range(count)]

    def _ping(self) -> float:
        began = time.perf_counter()
        self._tell(1)
        self._hear()
        return (time.perf_counter() - began) / 2

    def _send(self, size: int, seconds: float, *, fixed: bool) -> tuple[int, list[float]]:
        """Send messages, each behind its size; 0 ends. Return the bytes of a timed message, and the seconds
        of each."""
        began = time.perf_counter()
        guess = self._send_one(min(size, _FIRST_BYTES))
        if not fixed:
            size = min(size, max(_FIRST_BYTES, int(_FIRST_BYTES / guess * seconds / 3) // 4 * 4))
        times: list[float] = []
        while not times or (len(times) < _ROUNDS and time.perf_counter() - began + times[-1] < seconds):
            times.append(self._send_one(size))
        self._tell(0)
        return size, times

    def _send_one(self, size: int) -> float:
        payload = pattern(self.group.rank, 0, size // 4, torch.float32, self.group.device)
        self._tell(payload.numel())
        self._hear()  # the receiver is ready
        self.group.sync()
        began = time.perf_counter()
        dist.send(payload, self.other)
        self._hear()  # it has arrived
        return time.perf_counter() - began

    def _receive(self) -> None:
        compared = False
        while True:
            elements = self._hear()
            if elements == 0:
                return
            payload = torch.empty(elements, dtype=torch.float32, device=self.group.device)
            self._tell(1)
            dist.recv(payload, self.other)
            self.group.sync()
            self._tell(1)
            if not compared:
                compared = True
                right = pattern(self.other, 0, elements, torch.float32, self.group.device)
                _compare(self.report, POINT_TO_POINT, [ValueTrial(payload, right, source=self.other)])


# ----------------------------------------------------------------------------------------------------
# One matrix product split over all ranks: inputs broadcast, a block of rows each, the result gathered.

_CPU_SIZES = (256, 4096)  # the smallest, and the largest where time allows
_GPU_SIZES = (1024, 8192)
_PRODUCTS = 5
_OTHER = 3  # further repeats' worth of time: making the matrices, and comparing


class ProductTimes(NamedTuple):
    """Seconds of one product: of the slowest rank in each part, and every rank's own multiplication."""

    compute: float
    communication: float
    by_rank: list[float]


class SplitProduct:
    """A x B = C on one rank: all of A and B, this rank's rows, and all of C. n is a multiple of the ranks.

    A and B hold -1, 0 and 1, so that every product and sum is exact in fp32. Every rank can make them from
    the same seed; only rank 0 uses its own, the others use what is broadcast.
    """

    def __init__(self, group: RankGroup, wanted: int) -> None:
        self.group = group
        self.rows = -(-wanted // group.world_size)
        self.n = self.rows * group.world_size
        generator = torch.Generator().manual_seed(self.n)
        self.own = [sparse(self.n, generator).to(group.device) for _ in range(2)]
        self.vector = torch.randint(1, 10, (self.n, 1), generator=generator).to(group.device, torch.float64)
        mine = self.own if group.rank == 0 else [torch.zeros_like(each) for each in self.own]
        self.left, self.right = (each.clone() for each in mine)
        self.block = torch.zeros(self.rows, self.n, device=group.device)
        self.whole = torch.zeros(self.n, self.n, device=group.device)
        self.method = NATIVE  # of gathering

    def run(self) -> ProductTimes:
        """Multiply once."""
        group, first = self.group, self.group.rank * self.rows
        mine = self.left[first : first + self.rows]
        gather = Buffers(self.block.view(-1), self.whole.view(-1))
        self.whole.zero_()
        sent, _ = self._timed(lambda: [dist.broadcast(each, src=0) for each in (self.left, self.right)])
        computed, _ = self._timed(lambda: torch.mm(mine, self.right, out=self.block))
        gathered, self.method = self._timed(lambda: _all_gather(group, gather))
        by_rank = torch.zeros(group.world_size, dtype=torch.float64, device=group.device)
        by_rank[group.rank] = computed
        dist.all_reduce(by_rank)
        slowest, sent, gathered = group.agree(computed, sent, gathered)
        return ProductTimes(slowest, sent + gathered, by_rank.tolist())

    def _timed(self, work: Callable[[], T]) -> tuple[float, T]:
        """Return the seconds until the device has done the work, and its result. A barrier comes first, so
        that waiting for a slow rank's multiplication is not taken for communication."""
        self.group.barrier()
        began = time.perf_counter()
        made = work()
        self.group.sync()
        return time.perf_counter() - began, made

    def trial(self) -> ValueTrial:
        """Check C by its effect on a vector of whole numbers above 0 in float64 (Freivalds' check), row by
        row. A row's source is the rank that multiplied it."""
        left, right = self.own
        expected = left.double() @ (right.double() @ self.vector)
        result = self.whole.double() @ self.vector
        return ValueTrial(result.flatten(), expected.flatten(), self.method, self.rows)


def check_product(group: RankGroup, report: Report, budget: float) -> None:
    """Multiply matrices over all ranks, of the largest size for which the budget allows `_PRODUCTS` repeats,
    by the time of the smallest one.

    Every rank compares the whole result of the last repeat; rank 0 reports the times for all.
    """
    smallest, largest = _GPU_SIZES if group.on_gpu else _CPU_SIZES
    with torch.inference_mode():
        product = SplitProduct(group, smallest)
        product.run()  # the first one connects, chooses its kernels and allocates
        size = _size(product.run(), smallest, largest, budget)
        if size != smallest:
            product = SplitProduct(group, size)
            product.run()
        times = [product.run() for _ in range(_PRODUCTS)]
        _compare(report, PRODUCT, [product.trial()])
    if group.rank == 0:
        report(
            PRODUCT,
            n=product.n,
            rows=product.rows,
            repeats=len(times),
            total=statistics.median(each.compute + each.communication for each in times),
            compute=statistics.median(each.compute for each in times),
            communication=statistics.median(each.communication for each in times),
            compute_by_rank=[
                statistics.median(own) for own in zip(*(each.by_rank for each in times), strict=True)
            ],
            method=product.method,
        )
    if group.on_gpu:
        torch.cuda.empty_cache()


def _size(small: ProductTimes, smallest: int, largest: int, budget: float) -> int:
    """Return the largest size within the budget: twice the size is at most 8 times the multiplication and 4
    times the rest. All ranks agree, since they have the same times."""
    size, compute, rest = smallest, small.compute, small.communication
    while size * 2 <= largest and (8 * compute + 4 * rest) * (_PRODUCTS + _OTHER) <= budget:
        size, compute, rest = size * 2, 8 * compute, 4 * rest
    return size


# ----------------------------------------------------------------------------------------------------
# Computation and an exchange beside each other: what each loses to the other, and what a meeting of ranks
# costs that have computed apart.
#
# Ranks of a host and the library that moves their data share cores (CPUs) or multiprocessors and memory
# (GPUs), and ranks that compute the same never take quite the same time. A plan that knows neither is too
# optimistic.

_APART = 0.02  # seconds that ranks compute between two meetings: about a layer of a small model on a CPU
_FEWEST_MEETINGS, _MOST = 3, 50  # exchanges
_MEETINGS = (10, 200)


class Unit:
    """A little of what training does: a product of matrices, and a pass over memory. About 2 ms on a core."""

    def __init__(self, group: RankGroup) -> None:
        n, count = (2048, 64 * MIB) if group.on_gpu else (256, MIB)
        self.group = group
        self.left = torch.ones(n, n, device=group.device)
        self.product = torch.empty(n, n, device=group.device)
        self.memory = torch.zeros(count, device=group.device)

    def run(self, times: int = 1) -> None:
        """Compute it, to its end on the device."""
        for _ in range(times):
            torch.mm(self.left, self.left, out=self.product)
            self.memory.add_(1.0)
        self.group.sync()

    def seconds(self, span: float) -> float:
        """Return the seconds of one, the mean over about `span` seconds."""
        done, began = 0, time.perf_counter()
        while done == 0 or time.perf_counter() - began < span:
            self.run()
            done += 1
        return (time.perf_counter() - began) / done


def check_beside(group: RankGroup, report: Report, budget: float) -> None:
    """Measure computation and an all-reduce at once; rank 0 reports for all. The message is the largest that
    the sweep may use, or as large as the budget allows."""
    part = budget / 5
    with torch.inference_mode():
        unit = Unit(group)
        unit.run()
        group.barrier()
        (alone,) = group.agree(unit.seconds(part))
        message, exchange = _message(group, part)
        times = max(_FEWEST_MEETINGS, min(_MOST, int(part / exchange)))
        (exchange,) = group.agree(_timed(group, OPERATIONS["all-reduce"], message, times))
        computed, together = _together(group, unit, message, times)
        meeting = _meeting(group, unit, alone, part)
    (longest,) = group.agree(together)
    slowest = -group.agree(-computed)[0]  # the fewest units that a rank had done
    if group.rank == 0:
        report(
            BESIDE,
            bytes=message.bytes,
            computing=min(1.0, slowest * alone / longest),
            exchanging=min(1.0, exchange * times / longest),
            meeting=meeting,
            apart=_APART,
        )
    if group.on_gpu:
        torch.cuda.empty_cache()


def _message(group: RankGroup, span: float) -> tuple[Buffers, float]:
    """Return the largest message that fits into the span several times, and the seconds of its all-reduce."""
    largest = group.asked.largest or (256 if group.on_gpu else 16) * MIB
    operation, size = OPERATIONS["all-reduce"], min(largest, 64 * 1024)
    while True:
        buffers = operation.buffers(group, max(1, size // 4), torch.float32)
        operation.run(group, buffers)
        (took,) = group.agree(_timed(group, operation, buffers, 1))
        if size * 4 > largest or 4 * took * _FEWEST_MEETINGS > span:
            return buffers, max(took, 1e-7)
        size *= 4


def _together(group: RankGroup, unit: Unit, buffers: Buffers, times: int) -> tuple[float, float]:
    """Return the units computed while so many all-reduces went on, and their seconds."""
    computed, spent = 0, 0.0
    for _ in range(times):
        group.barrier()
        began = time.perf_counter()
        work = dist.all_reduce(buffers.target, async_op=True)
        while not work.is_completed():
            unit.run()
            computed += 1
        work.wait()
        spent += time.perf_counter() - began
    return computed, spent


def _meeting(group: RankGroup, unit: Unit, alone: float, span: float) -> float:
    """Seconds that a small all-reduce takes beyond itself where every rank has computed before it."""
    tensor = torch.zeros(2, device=group.device)
    units = max(1, round(_APART / alone))
    count = max(_MEETINGS[0], min(_MEETINGS[1], int(span / (units * alone))))
    (bare,) = group.agree(_timed(group, OPERATIONS["all-reduce"], Buffers(tensor, tensor), 2 * count))
    group.barrier()
    began = time.perf_counter()
    for _ in range(count):
        unit.run(units)
        dist.all_reduce(tensor)
        group.sync()
    (took,) = group.agree((time.perf_counter() - began) / count)
    return max(0.0, took - units * alone - bare)
