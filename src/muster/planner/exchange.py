"""The terms of what ranks exchange: how a model is spread, and a step's calls in their order. Pure data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from muster.core.trace import Parameter
from muster.planner.collective import Call

COUNT_BYTES = 8  # per rank: how many tokens the loss is divided by


@dataclass(frozen=True)
class Spread:
    """How a model is spread over ranks. `element`: bytes of a value as it is exchanged; `micro_steps`: of an
    optimizer step; `bucket`, `prefetch`, `persistence`, `reuse`: DeepSpeed's sizes, in elements (`reuse`: of
    ZeRO-3, max_reuse_distance). `overlap`: DeepSpeed's overlap_comm; `device`: cpu or cuda."""

    engine: str
    ranks: int
    micro_steps: int = 1
    stage: int = 0
    element: int = 4
    device: str = "cuda"
    offload: str = "none"
    bucket: int = 500_000_000
    prefetch: int = 50_000_000
    persistence: int = 100_000
    reuse: int = 1_000_000_000
    overlap: bool = False
    clips: bool = True
    counts: bool = True  # the ranks agree on the number of tokens of a step

    @property
    def shards(self) -> int:
        """Ranks that share the optimizer's states."""
        sharded = self.engine == "fsdp" or (self.engine == "deepspeed" and self.stage > 0)
        return self.ranks if sharded else 1


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


def step_calls(parameters: Sequence[Parameter], spread: Spread) -> tuple[Call, ...]:
    """The small ones: how many tokens a step has; the gradients' norm, to clip them; whether half precision
    overflowed. DeepSpeed makes a norm per group of its optimizer, FSDP one of every tensor's norm."""
    trained = [p for p in parameters if p.trained]
    found = [Call("all-gather", COUNT_BYTES * spread.ranks)] if spread.counts else []
    if spread.clips and spread.engine == "fsdp":
        found.append(Call("all-reduce", 4 * len(trained)))
    if spread.clips and spread.engine == "deepspeed":
        norms = len(groups_of(trained, spread)) if spread.stage else 1
        found += [Call("all-reduce", 8 if spread.stage == 3 else 4)] * norms
    if spread.engine == "deepspeed" and spread.stage in (1, 2) and spread.element == 2:
        found.append(Call("all-reduce", 1))
    return tuple(found)


def groups_of(trained: Sequence[Parameter], spread: Spread) -> list[list[Parameter]]:
    """Those of the optimizer: Transformers decays matrices in one, and not norms and biases in another;
    DeepSpeed's own optimizer, which offloading takes, has one."""
    if spread.offload != "none":
        return [list(trained)] if trained else []
    decayed = [p for p in trained if len(p.shape) > 1 or "." not in p.name]
    names = {p.name for p in decayed}
    return [group for group in (decayed, [p for p in trained if p.name not in names]) if group]


def buckets(sizes: Sequence[int], most: int) -> list[int]:
    """DeepSpeed's: a bucket is sent before the tensor that would overfill it."""
    found, filled = [], 0
    for size in sizes:
        if filled and filled + size > most:
            found.append(filled)
            filled = 0
        filled += size
    return [*found, filled] if filled else found
