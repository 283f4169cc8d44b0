"""What is asked of a group of hosts with real ranks, who talks with whom, and what a bandwidth is. Pure.

Without pydantic: ranks read it on hosts that have torch alone.

Bandwidths are as NVIDIA nccl-tests states them (doc/PERFORMANCE.md): algbw = S / t, and busbw = algbw x a
factor of the operation, which can be compared with the hardware's bandwidth whatever the number of ranks is.
S is in bytes: the array that is reduced or broadcast; for all-gather and reduce-scatter the total over all
ranks (count per rank x element size x n).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from muster.core.errors import UsageError
from muster.core.near import did_you_mean

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "broadcast")
POINT_TO_POINT = "point-to-point"
# In the order in which they are asked. What a rank can answer alone comes early, but for the disk: whoever
# hangs on it holds no other up.
QUESTIONS = ("matmul", "copy", "values", "latency", *COLLECTIVES, "points", "disk", "mpi")
PRODUCT = "product"  # one matrix product split over all ranks: the fabric workload asks it, a check does not
BESIDE = "beside"  # computation beside an exchange: the fabric workload asks it, for plans
ANSWERABLE = (*QUESTIONS, PRODUCT, BESIDE)
TOGETHER = ("values", "latency", *COLLECTIVES, "points", PRODUCT, BESIDE)  # need all ranks
_SHARES = {
    "matmul": 0.15,
    "copy": 0.04,
    "latency": 0.04,
    "all-reduce": 0.25,
    "all-gather": 0.08,
    "reduce-scatter": 0.08,
    "broadcast": 0.08,
    "points": 0.18,
    "disk": 0.10,
    PRODUCT: 0.12,
    BESIDE: 0.20,
}
_FORMING = 0.1  # seconds that each rank adds to the forming of an NCCL group, with a wide margin
MIB = 1 << 20


@dataclass(frozen=True)
class FabricRequest:
    """Which questions, how large, and how long. Sizes in bytes, times in seconds."""

    questions: Sequence[str] = QUESTIONS
    pairs: str = "ring"  # or "all": the whole point-to-point matrix
    smallest: int = 1024
    largest: int | None = None  # of the sweeps; None: 64 MiB on CPUs, 1 GiB on GPUs
    point_bytes: int | None = None  # of one message; None: 4 MiB on CPUs, 64 MiB on GPUs
    seconds: float = 25.0  # of measuring, divided among the questions
    arrival: float = 45.0  # for all ranks to come: torch is slow to load from some disks
    patience: float = 20.0  # for the others to come to a question, and for one operation to end
    disk_folder: str | None = None  # None: where checkpoints go on hosts that share no folder
    disk_bytes: int = 256 * MIB

    def __post_init__(self) -> None:
        for name in self.questions:
            if name not in ANSWERABLE:
                hint = did_you_mean(name, ANSWERABLE) or f"known: {', '.join(ANSWERABLE)}"
                raise UsageError(f"unknown question {name!r}", where="fabric", hint=hint)
        if self.pairs not in ("ring", "all"):
            raise UsageError(f"pairs are ring or all, not {self.pairs!r}", where="fabric")
        for name in ("smallest", "seconds", "arrival", "patience", "disk_bytes"):
            if getattr(self, name) <= 0:
                raise UsageError(f"{name} must be above zero", where="fabric")

    @property
    def limit(self) -> float:
        """Seconds after which everything is ended: measuring, starting, and two waits for one that hangs."""
        return 2 * self.seconds + self.arrival + 2 * self.patience + 60

    def grown(self, ranks: int) -> FabricRequest:
        """Return the same for so many ranks on GPUs: 0.1 s more patience for each.

        A new group's first operation also forms it in NCCL: every rank meets the root and connects, which
        takes longer the more there are. So 8 ranks have 20.8 s, 1,024 have 122 s.
        """
        return replace(self, patience=self.patience + _FORMING * ranks)

    def share(self, question: str) -> float:
        """Return the seconds that a question may take."""
        return self.seconds * _SHARES.get(question, 0.0)


def algbw(size: float, seconds: float) -> float:
    """Algorithm bandwidth in bytes per second. Raises ValueError where no time has passed."""
    if seconds <= 0:
        raise ValueError(f"a bandwidth needs a time above zero, not {seconds}")
    return size / seconds


def bus_factor(operation: str, ranks: int) -> float:
    """Return what algbw is multiplied with. Raises ValueError for an operation without one."""
    if ranks < 1:
        raise ValueError(f"a collective has at least one rank, not {ranks}")
    if operation == "all-reduce":
        return 2 * (ranks - 1) / ranks
    if operation in ("all-gather", "reduce-scatter"):
        return (ranks - 1) / ranks
    if operation in ("broadcast", POINT_TO_POINT):
        return 1.0
    raise ValueError(f"no bus bandwidth is defined for {operation!r}")


def busbw(operation: str, size: float, seconds: float, ranks: int) -> float:
    """Bus bandwidth in bytes per second."""
    return algbw(size, seconds) * bus_factor(operation, ranks)


def sweep_sizes(smallest: int, largest: int) -> list[int]:
    """Message sizes in bytes: powers of 4 times the smallest, up to the largest."""
    sizes = [smallest]
    while sizes[-1] * 4 <= largest:
        sizes.append(sizes[-1] * 4)
    return sizes


def rounds(members: Sequence[int], pairs: str) -> list[list[tuple[int, int]]]:
    """Who talks with whom, in rounds of disjoint pairs: a ring's neighbours, or everyone with everyone.

    A ring takes two rounds (three where the number is odd); all pairs take n - 1 (n where it is odd), by the
    circle method.
    """
    count = len(members)
    if count < 2:
        return []
    if count == 2:
        return [[(members[0], members[1])]]
    if pairs == "ring":
        links = [(members[i], members[(i + 1) % count]) for i in range(count)]
        even, odd = links[0 : count - 1 : 2], links[1::2]
        last = [] if count % 2 == 0 else [links[-1]]
        return [each for each in (even, odd, last) if each]
    seats: list[int | None] = list(members)
    if count % 2:
        seats.append(None)
    listed = []
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        facing = zip(seats[:half], reversed(seats[half:]), strict=True)
        listed.append([(a, b) for a, b in facing if a is not None and b is not None])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return listed
