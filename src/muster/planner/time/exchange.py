"""The terms of what ranks exchange: a step's calls in their order. Pure data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from muster.core.trace import Parameter
from muster.planner.spread import ModelSpread
from muster.planner.time.collective import Call

COUNT_BYTES = 8  # per rank: how many tokens the loss is divided by


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
    library: str = "nccl"

    def calls(self) -> Iterator[Call]:
        """Every call of an optimizer step."""
        for passes, times in ((self.early, self.micro_steps - 1), (self.last, 1)):
            for _ in range(times):
                for segment in (*passes.forward, *passes.backward):
                    yield from segment.gathers
                    yield from segment.reduces
        yield from self.step


def step_calls(parameters: Sequence[Parameter], spread: ModelSpread) -> tuple[Call, ...]:
    """The small ones: how many tokens a step has; the gradients' norm, to clip them; whether half precision
    overflowed. DeepSpeed makes a norm per group of its optimizer, FSDP one of every tensor's norm."""
    trained = [p for p in parameters if p.trained]
    found = [Call("all-gather", COUNT_BYTES * spread.ranks)] if spread.counts else []
    if spread.clips and spread.engine == "fsdp":
        found.append(Call("all-reduce", 4 * len(trained)))
    if spread.clips and spread.engine == "deepspeed":
        norms = len(spread.optimizer_groups(tuple(trained))) if spread.stage else 1
        found += [Call("all-reduce", 8 if spread.stage == 3 else 4)] * norms
    if spread.engine == "deepspeed" and spread.stage in (1, 2) and spread.exchanged == 2:
        found.append(Call("all-reduce", 1))
    return tuple(found)


def buckets(sizes: Sequence[int], most: int) -> list[int]:
    """DeepSpeed's: a bucket is sent before the tensor that would overfill it."""
    found, filled = [], 0
    for size in sizes:
        if filled and filled + size > most:
            found.append(filled)
            filled = 0
        filled += size
    return [*found, filled] if filled else found
