"""What a group of hosts with real ranks measured, in bytes, seconds, bytes/s and FLOP/s.

An unknown figure is None.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from muster.core.robust import variation
from muster.core.section import Part

SCHEMA_VERSION = 1


class Spread(Part):
    """Repeats of one measurement: none is discarded."""

    seconds: list[float] = Field(description="per repeat, of one operation")
    median: float
    best: float
    variation: float | None = Field(description="coefficient of variation; None: a single repeat")


def spread(seconds: Sequence[float]) -> Spread:
    """Summarise repeats. Raises ValueError where there are none."""
    if not seconds:
        raise ValueError("no repeats")
    return Spread(
        seconds=list(seconds),
        median=statistics.median(seconds),
        best=min(seconds),
        variation=variation(seconds),
    )


class FabricHost(Part):
    """A host of the group."""

    host: str
    ranks: list[int]
    devices: list[str] = Field(default_factory=list, description="per rank that came so far, in order")
    threads: int | None = None
    torch: str | None = None


class Rendezvous(Part):
    """Connecting to the first host's port. `connect`: host -> seconds of its slowest rank's connection."""

    address: str
    port: int
    connect: dict[str, float] = Field(default_factory=dict)
    missing: list[str] = Field(default_factory=list, description="hosts that did not all arrive")


class WrongValue(Part):
    """An element with a wrong value, and the rank that saw it. `source`: the rank it came from, where known.
    """

    host: str
    rank: int
    operation: str
    dtype: str
    elements: int
    index: int
    got: float | None = Field(description="None: nan or an infinity")
    expected: float | None
    wrong_elements: int
    source: int | None = None
    source_host: str | None = None

    @property
    def words(self) -> str:
        """Which rank saw what, and where it came from."""
        source = "" if self.source is None else f", from rank {self.source} on {self.source_host}"
        return (
            f"{self.operation} of {self.elements} {self.dtype}: rank {self.rank} on {self.host} got "
            f"{self.got if self.got is not None else 'no number'} instead of {self.expected} at element "
            f"{self.index}{source} ({self.wrong_elements} wrong)"
        )


class ValueCheck(Part):
    """An operation's results, compared element by element on every rank."""

    operation: str
    method: str = Field(description="what computed it: native, or what stood in for it")
    ranks: int = Field(description="that compared")
    elements: int = Field(description="compared by all ranks together")
    wrong: int


class Sweep(Part):
    """One collective at one message size. A repeat's time is that of the slowest rank."""

    operation: str
    method: str
    bytes: int
    time: Spread
    iterations: int = Field(description="operations per repeat")
    algbw: float = Field(description="bytes/s at the median")
    busbw: float = Field(description="bytes/s at the median; nccl-tests' formula")
    busbw_best: float


class Latency(Part):
    """A small message among all ranks, repeated: the slowest rank's seconds."""

    operation: str
    bytes: int
    median: float
    mean: float | None = Field(None, description="of all, with those that waited for a core")
    best: float
    count: int

    @property
    def typical(self) -> float:
        """Seconds of one of many messages: the mean, where it is known."""
        return self.median if self.mean is None else self.mean


class TimedPair(Part):
    """Messages from one rank to another: a direction of a link. `latency`: half a round trip."""

    source: int
    target: int
    source_host: str
    target_host: str
    bytes: int
    time: Spread
    bandwidth: float = Field(description="bytes/s at the median")
    bandwidth_best: float
    latency_median: float | None = None
    latency_best: float | None = None


class Matmul(Part):
    """Square matrix products on one device, all devices at the same time. FLOPs: 2 n^3."""

    host: str
    rank: int
    device: str
    precision: str
    n: int
    threads: int | None
    best: float = Field(description="FLOP/s of the fastest product")
    sustained: float = Field(description="FLOP/s, median of the second half")
    variation: float | None = Field(None, description="coefficient of variation over windows of that half")
    windows: int = 0
    products: int
    seconds: float
    right: bool = Field(description="an exact product (small whole numbers) came out exactly")
    peak: float | None = Field(description="FLOP/s as stated by the maker")
    peak_source: str | None = None


class Copy(Part):
    """Copies between host and device, pinned memory. bytes/s at the median."""

    host: str
    rank: int
    bytes: int
    to_device: Spread
    to_host: Spread


class Disk(Part):
    """One file written, synced, and read back on a host. `cached`: the read may have come from memory."""

    host: str
    folder: str
    bytes: int
    write: float = Field(description="bytes/s, fsync included")
    read: float = Field(description="bytes/s")
    method: str
    cached: bool
    right: bool = Field(description="what was read is what was written")


class MpiHello(Part):
    """One MPI program over all hosts."""

    command: list[str]
    hosts: list[str] = Field(description="the ranks' own host names, in the order of the ranks")
    asked: int
    summed: bool | None = Field(description="MPI_Allreduce was right; None: libmpi could not be loaded")
    seconds: float
    problem: str | None = None


class FabricFailure(Part):
    """What went wrong on a host. `blamed`: it arose on this host, and does not follow from another's failure.
    """

    question: str
    what: str
    host: str
    ranks: list[int] = Field(default_factory=list)
    blamed: bool = True
    hint: str | None = None
    id: str | None = Field(None, description="in the table of failures; None: not one of them, or not known")


class Product(Part):
    """One matrix product split over all ranks: A and B (n x n, fp32) are broadcast by rank 0, every rank
    multiplies a block of A's rows with B, and all blocks are gathered on every rank. Each part begins with
    a barrier, which no figure contains. FLOPs: 2 n^3. Seconds are medians over the repeats."""

    n: int
    rows: int = Field(description="of a rank's block")
    repeats: int
    total: float = Field(description="seconds of all parts, each of the slowest rank")
    compute: float = Field(description="seconds of the multiplication, of the slowest rank")
    communication: float = Field(description="seconds of broadcasts and gathering, of the slowest rank")
    compute_by_rank: list[float] = Field(description="seconds of the multiplication, in the order of ranks")
    flops: float = Field(description="FLOP/s of all ranks together, communication included")
    method: str = Field(description="what gathered: native, or what stood in for it")


class Overlap(Part):
    """Computation and an all-reduce at the same time, each as a share of its speed alone, on the slowest
    rank; and the cost of a collective's start for ranks that have computed independently."""

    bytes: int = Field(description="of the message")
    computing: float = Field(description="speed of the computation during the exchange; 1: as alone")
    exchanging: float = Field(description="speed of the exchange during the computation; 1: as alone")
    meeting: float = Field(description="seconds of a small all-reduce after computing, beyond itself")
    apart: float = Field(description="seconds that ranks computed before each meeting")


class Figures(Part):
    """What ranks measure together and alone."""

    values: list[ValueCheck] = Field(default_factory=list)
    wrong: list[WrongValue] = Field(default_factory=list)
    sweeps: list[Sweep] = Field(default_factory=list)
    latencies: list[Latency] = Field(default_factory=list)
    matmul: list[Matmul] = Field(default_factory=list)
    products: list[Product] = Field(default_factory=list)
    beside: list[Overlap] = Field(default_factory=list)

    def of(self, operation: str) -> list[Sweep]:
        """Return the sweeps of one collective, in the order in which they were measured."""
        return [each for each in self.sweeps if each.operation == operation]


class GroupFabric(Figures):
    """Everything that a group check measured, also where something failed on the way."""

    schema_version: int = SCHEMA_VERSION
    hosts: list[FabricHost]
    world_size: int
    device: Literal["cpu", "cuda"]
    backend: str
    launcher: str
    seconds: float
    asked: list[str]
    rendezvous: Rendezvous
    pairs: list[TimedPair] = Field(default_factory=list)
    copies: list[Copy] = Field(default_factory=list)
    disks: list[Disk] = Field(default_factory=list)
    mpi: MpiHello | None = None
    failures: list[FabricFailure] = Field(default_factory=list)
    notes: list[str] = Field(default_factory=list)
    stopped: str | None = Field(None, description="what ended it early: the time limit, or the user")


class PairMatrix(Part):
    """Point to point: row = sender, column = receiver, in the order of `names`. None: not measured.

    All repeats of every pair are in events.jsonl.
    """

    names: list[str] = Field(description="hosts; ranks where there is one host alone")
    ranks: list[int] = Field(description="who spoke for each name")
    bytes: int = Field(description="of the largest message; pairs for which time was short had smaller ones")
    bandwidth: list[list[float | None]] = Field(description="bytes/s, median of the messages")
    bandwidth_best: list[list[float | None]] = Field(description="bytes/s, the fastest message")
    latency: list[list[float | None]] = Field(description="seconds, best half round trip; symmetric")


class Slowest(Part):
    """The slowest host, relative to the median of all: 1 is like the others, 0.1 a tenth of them."""

    what: Literal["pair", "links", "matmul"] = Field(
        description="pair: one direction; links: a host's best link, the worse of out and in; matmul: a "
        "host's slowest device"
    )
    name: str
    host: str = Field(description="of a pair: the sender")
    other: str | None = Field(None, description="of a pair: the receiver")
    precision: str | None = Field(None, description="of a matrix product")
    value: float = Field(description="bytes/s, or FLOP/s")
    median: float
    ratio: float = Field(description="value / median")


class FabricRun(Figures):
    """What the fabric workload measured: its own part of `result.json`."""

    device: Literal["cpu", "cuda"]
    backend: str
    devices: dict[str, list[str]] = Field(description="per host, in the order of its ranks")
    pairs: PairMatrix | None = Field(None, description="None: there is no peer, or it is not measured yet")
    slowest: list[Slowest] = Field(default_factory=list)
    seconds: dict[str, float] = Field(description="per question, from its begin to its end on rank 0")
