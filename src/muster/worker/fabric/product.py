"""One matrix product split over all ranks: inputs broadcast, a block of rows each, the result gathered."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from muster.core.fabric.asked import PRODUCT
from muster.worker.fabric.collectives import NATIVE, OPERATIONS, Buffers
from muster.worker.fabric.matmul import sparse
from muster.worker.fabric.place import Voice
from muster.worker.fabric.rendezvous import Team
from muster.worker.fabric.values import ValueTrial, wrong_elements

_CPU_SIZES = (256, 4096)  # the smallest, and the largest where time allows
_GPU_SIZES = (1024, 8192)
_REPEATS = 5
_OTHER = 3  # further repeats' worth of time: making the matrices, and comparing


@dataclass(frozen=True)
class Took:
    """Seconds of one product: of the slowest rank in each part, and every rank's own multiplication."""

    compute: float
    communication: float
    by_rank: list[float]

    @property
    def total(self) -> float:
        """The parts after each other: no rank begins one before all have ended the last."""
        return self.compute + self.communication


class Matrices:
    """A x B = C on one rank: all of A and B, this rank's rows, and all of C. n is a multiple of the ranks.

    A and B hold -1, 0 and 1, so that every product and sum is exact in fp32. Every rank can make them from
    the same seed; only rank 0 uses its own, the others use what is broadcast.
    """

    def __init__(self, team: Team, wanted: int) -> None:
        self.rows = -(-wanted // team.world_size)
        self.n = self.rows * team.world_size
        generator = torch.Generator().manual_seed(self.n)
        self.known = [sparse(self.n, generator).to(team.device) for _ in range(2)]
        self.vector = torch.randint(1, 10, (self.n, 1), generator=generator).to(team.device, torch.float64)
        mine = self.known if team.rank == 0 else [torch.zeros_like(each) for each in self.known]
        self.left, self.right = (each.clone() for each in mine)
        self.block = torch.zeros(self.rows, self.n, device=team.device)
        self.whole = torch.zeros(self.n, self.n, device=team.device)

    def compare(self, method: str) -> ValueTrial:
        """C by its effect on a vector of whole numbers above 0 in float64 (Freivalds' check), row by row.
        A row's source is the rank that multiplied it."""
        left, right = self.known
        expected = left.double() @ (right.double() @ self.vector)
        return ValueTrial(
            (self.whole.double() @ self.vector).flatten(), expected.flatten(), method, self.rows
        )


def check_product(team: Team, say: Voice, budget: float) -> None:
    """The largest size for which the budget gives `_REPEATS` repeats, by how long the smallest one took.

    Every rank compares the whole result of the last repeat; rank 0 speaks for all about the times.
    """
    smallest, largest = _GPU_SIZES if team.on_gpu else _CPU_SIZES
    with torch.inference_mode():
        matrices = Matrices(team, smallest)
        _multiply(team, matrices)  # the first one connects, chooses its kernels and allocates
        size = _size(_multiply(team, matrices)[0], smallest, largest, budget)
        if size != smallest:
            matrices = Matrices(team, size)
            _multiply(team, matrices)
        took, method = [], NATIVE
        for _ in range(_REPEATS):
            one, method = _multiply(team, matrices)
            took.append(one)
        _tell_values(team, say, matrices.compare(method))
    if team.rank == 0:
        say(
            PRODUCT,
            n=matrices.n,
            rows=matrices.rows,
            repeats=len(took),
            total=statistics.median(each.total for each in took),
            compute=statistics.median(each.compute for each in took),
            communication=statistics.median(each.communication for each in took),
            compute_by_rank=[
                statistics.median(times) for times in zip(*(each.by_rank for each in took), strict=True)
            ],
            method=method,
        )
    if team.on_gpu:
        torch.cuda.empty_cache()


def _size(small: Took, smallest: int, largest: int, budget: float) -> int:
    """Twice the size is at most 8 times the multiplication and 4 times the rest. All ranks agree, for they
    have the same times."""
    size, compute, rest = smallest, small.compute, small.communication
    while size * 2 <= largest and (8 * compute + 4 * rest) * (_REPEATS + _OTHER) <= budget:
        size, compute, rest = size * 2, 8 * compute, 4 * rest
    return size


def _multiply(team: Team, matrices: Matrices) -> tuple[Took, str]:
    """-> (how long it took, what gathered). A barrier before each part, so that waiting for a slow rank's
    multiplication is not taken for communication."""
    first = team.rank * matrices.rows
    mine = matrices.left[first : first + matrices.rows]
    gather = Buffers(matrices.block.view(-1), matrices.whole.view(-1))
    method = [NATIVE]

    def spread() -> None:
        dist.broadcast(matrices.left, src=0)
        dist.broadcast(matrices.right, src=0)

    def collect() -> None:
        method[0] = OPERATIONS["all-gather"].run(team, gather)

    matrices.whole.zero_()
    team.barrier()
    sent = _timed(team, spread)
    team.barrier()
    computed = _timed(team, lambda: torch.mm(mine, matrices.right, out=matrices.block))
    team.barrier()
    gathered = _timed(team, collect)
    by_rank = torch.zeros(team.world_size, dtype=torch.float64, device=team.device)
    by_rank[team.rank] = computed
    dist.all_reduce(by_rank)
    slowest, sent, gathered = team.agree(computed, sent, gathered)
    return Took(slowest, sent + gathered, [float(each) for each in by_rank.cpu()]), method[0]


def _timed(team: Team, work: Callable[[], object]) -> float:
    """Seconds until the device has done it."""
    began = time.perf_counter()
    work()
    team.sync()
    return time.perf_counter() - began


def _tell_values(team: Team, say: Voice, trial: ValueTrial) -> None:
    wrong, shown = wrong_elements(trial, torch.float64)
    count = trial.result.numel()
    say("values", operation=PRODUCT, method=trial.method, elements=count, wrong=wrong, shown=shown)
