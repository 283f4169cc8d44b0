"""The terms of what ranks exchange: a step's calls in their order. Pure data.

b in engines' accounts: bytes of a value, Psi: parameters, a: micro-steps. "all-reduce" counts twice on a
ring.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from muster.engines.spread import ModelSpread

COUNT_BYTES = 8  # per rank: how many tokens the loss is divided by


@dataclass(frozen=True)
class Call:
    """A collective. `size`: bytes of the whole array, as nccl-tests count: what all ranks gather together,
    what is reduced, what is scattered. `operation`: as workloads/fabric/request.py names it. `group`: it is
    made by so many neighbouring ranks, all groups at once, or `across` them by one rank of each; 0: by
    all."""

    operation: str
    size: int
    group: int = 0
    across: bool = False


@dataclass(frozen=True)
class Segment:
    """A part of a pass. `share`: of the pass's computation; `gathers` are needed before it, and can start
    when the segment before it starts; `reduces` can start when it is done."""

    share: float
    gathers: tuple[Call, ...] = ()
    reduces: tuple[Call, ...] = ()


@dataclass(frozen=True)
class Passes:
    """A micro-step's forward and backward pass; empty: nothing is exchanged in it."""

    forward: tuple[Segment, ...] = ()
    backward: tuple[Segment, ...] = ()


@dataclass(frozen=True)
class Traffic:
    """An optimizer step. `early`: each micro-step but the last; `step`: after the last backward pass.

    `gathers_hide`, `reduces_hide`: they run beside the computation.
    """

    early: Passes
    last: Passes
    step: tuple[Call, ...]
    micro_steps: int
    gathers_hide: bool = False
    reduces_hide: bool = False

    def calls(self) -> Iterator[Call]:
        """Yield every call of an optimizer step."""
        for call, times in self.counted():
            yield from [call] * times

    def counted(self) -> Iterator[tuple[Call, int]]:
        """Yield the calls of an optimizer step, and how often each is made."""
        for passes, times in ((self.early, self.micro_steps - 1), (self.last, 1)):
            for segment in (*passes.forward, *passes.backward) if times else ():
                yield from ((call, times) for call in (*segment.gathers, *segment.reduces))
        yield from ((call, 1) for call in self.step)


def counting(spread: ModelSpread) -> list[Call]:
    """List what the trainer itself exchanges in a step, whatever the engine: how many tokens it has."""
    return [Call("all-gather", COUNT_BYTES * spread.ranks)] if spread.counts else []


def reducing(size: int, whole: int) -> Segment:
    """Make the segment of a bucket of so many bytes of the `whole` that a backward pass reduces."""
    return Segment(size / whole, (), (Call("all-reduce", size),))
