"""Machines of different speeds in one job: what a step and an epoch take, and which hosts are worth having.

Pure arithmetic on speeds and bytes; `planner/advice.py` gets those from what hosts say of themselves.
A step takes as long as the slowest rank computes, and then as long as the slowest link moves what the ranks
exchange, less what an engine hides behind the backward pass. Not in it: evaluation, saving, reading data,
traffic within a host, and other people's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from muster.planner.collective import RINGS
from muster.planner.spread import Spread
from muster.planner.traffic import lump, traffic_of

BUCKET = 25 * 2**20  # bytes: DDP's, of which each is a message of its own
SEARCHED = 12  # hosts of which every choice is looked at; of more, those above a speed and a bandwidth
BACKWARD = 2 / 3  # of a step's computation, behind which gradients can travel
LUMP = 12 * 2**20  # parameters, where their number does not matter


@dataclass(frozen=True)
class Machine:
    """A host's part of a job. speed: samples/s of all its ranks without communication; link: bytes/s."""

    host: str
    speed: float
    link: float
    ranks: int = 1


@dataclass(frozen=True)
class Load:
    """What a job does on any hosts.

    `batch`: samples of an optimizer step; None: `per_rank` times the ranks that there are.
    `volume`: bytes of all gradients or weights, once; `rounds`: how many times (n - 1) / n of that goes over
    a rank's link per step (`rounds_of`); `hidden`: the backward pass hides it; `latency`: of a message.
    """

    samples: int  # of an epoch
    per_rank: float
    volume: float
    batch: float | None = None
    rounds: float = 2.0
    hidden: bool = False
    latency: float = 0.0


@dataclass(frozen=True)
class Predicted:
    """Seconds of a step (computation, communication that is waited for) and of an epoch."""

    hosts: tuple[str, ...]
    compute: float
    communication: float
    epoch: float

    @property
    def step(self) -> float:
        """Seconds of an optimizer step."""
        return self.compute + self.communication


@dataclass(frozen=True)
class Worth:
    """A host, and what an epoch takes with it and without it (all other hosts stay)."""

    host: str
    with_it: float
    without_it: float


def rounds_of(engine: str, zero: int, accumulation: int, parameters: int | None = None) -> float:
    """How many times (n - 1) / n of a model's bytes each rank sends per optimizer step, along a ring.

    A ring moves (n - 1) / n of them for a reduce-scatter or an all-gather, twice that for an all-reduce
    (Patarasuk and Yuan 2009); which of them, and when: planner/traffic.py. `parameters`: ZeRO-3 gathers the
    weights of a small model once per micro-step instead of twice; None: not known, so twice.
    """
    spread = Spread(
        engine, ranks=2, micro_steps=accumulation, stage=zero, clips=False, counts=False, persistence=0,
    )  # fmt: skip
    if parameters is None:
        spread = replace(spread, reuse=0)
    layers = lump(parameters or LUMP)
    moved = sum(RINGS[call.operation] * call.size for call in traffic_of(layers, spread).calls())
    return moved / (spread.exchanged * sum(each.numel for each in layers))


def predict(machines: Sequence[Machine], load: Load, *, measured: bool = False) -> Predicted:
    """A step and an epoch on these hosts. `measured`: shares follow speeds, in fractions."""
    ranks = sum(machine.ranks for machine in machines)
    batch = load.batch if load.batch is not None else load.per_rank * ranks
    if measured:
        compute = batch / sum(machine.speed for machine in machines)
    else:
        compute = max(batch / ranks * machine.ranks / machine.speed for machine in machines)
    moved = 0.0
    if len(machines) > 1:
        bandwidth = min(machine.link for machine in machines)
        messages = load.rounds * (ranks - 1) * math.ceil(load.volume / BUCKET)
        moved = load.rounds * (ranks - 1) / ranks * load.volume / bandwidth + messages * load.latency
    waited = max(0.0, moved - BACKWARD * compute) if load.hidden else moved
    epoch = load.samples / batch * (compute + waited)
    return Predicted(tuple(machine.host for machine in machines), compute, waited, epoch)


def best(machines: Sequence[Machine], load: Load, *, measured: bool = False) -> Predicted:
    """The choice of hosts with the shortest epoch; of equals the smaller."""
    found = (predict(chosen, load, measured=measured) for chosen in _choices(machines))
    return min(found, key=lambda predicted: (predicted.epoch, len(predicted.hosts)))


def worths(machines: Sequence[Machine], load: Load, *, measured: bool = False) -> list[Worth]:
    """For each host of several, an epoch with all and an epoch without it."""
    if len(machines) < 2:
        return []
    whole = predict(machines, load, measured=measured).epoch
    return [
        Worth(out.host, whole, predict([m for m in machines if m is not out], load, measured=measured).epoch)
        for out in machines
    ]


def _choices(machines: Sequence[Machine]) -> Iterator[Sequence[Machine]]:
    """Every choice of few hosts; of many, each alone and all above a speed per rank and a bandwidth: only
    the slowest speed and the slowest link of a choice set its pace."""
    if len(machines) <= SEARCHED:
        for count in range(1, len(machines) + 1):
            yield from combinations(machines, count)
        return
    yield from ([machine] for machine in machines)
    for speed in sorted({machine.speed / machine.ranks for machine in machines}):
        for link in sorted({machine.link for machine in machines}):
            chosen = [m for m in machines if m.speed / m.ranks >= speed and m.link >= link]
            if chosen:
                yield chosen
