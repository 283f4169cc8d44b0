"""DistributedDataParallel: every rank holds everything, gradients are averaged. Pure.

Sources: torch 2.13, torch/nn/parallel/distributed.py and reducer.cpp. The optimizer is the Trainer's fused
AdamW, which works in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from muster.core.trace import Parameter
from muster.engines.base import EngineSpec
from muster.engines.spread import ModelSpread, Tensors
from muster.engines.states import States, elements, unspread
from muster.engines.traffic import Passes, Segment, Traffic, counting, reducing

FIRST_BUCKET = 2**20  # bytes


class DdpSpec(EngineSpec):
    """Everything in fp32 on every rank, whatever autocast computes in."""

    title: ClassVar[str] = "DDP"
    plain: ClassVar[bool] = True
    keeps_half: ClassVar[bool] = True
    float8: ClassVar[bool] = True
    pickles: ClassVar[bool] = False
    whole_checkpoints: ClassVar[bool] = True
    bucket: ClassVar[int] = 25 * 2**20  # bytes, at least

    def states(self, spread: ModelSpread, tensors: Tensors, rank: int | None = None) -> States:
        """Count a whole model; with several ranks the reducer keeps the gradients once more, in buckets
        (gradient_as_bucket_view is off)."""
        own = unspread(spread, tensors)
        if spread.casts and spread.element < spread.kept:
            own = replace(own, passes={"copies in half precision": spread.element * elements(tensors)})
        if spread.ranks == 1:
            return own
        return replace(own, held={**own.held, "buckets": own.gradients["gradients"]})

    def traffic(self, parameters: Sequence[Parameter], spread: ModelSpread) -> Traffic:
        """List the buckets of gradients, the first one of at least 1 MiB, in the order in which they are
        ready; only the last micro-step of an optimizer step exchanges (accelerate's no_sync)."""
        segments: list[Segment] = []
        filled, most, kept = 0, FIRST_BUCKET, spread.kept
        whole = kept * sum(p.numel for p in parameters if p.trained) or 1
        for parameter in reversed([p for p in parameters if p.trained]):
            filled += kept * parameter.numel
            if filled >= most:
                segments.append(reducing(filled, whole))
                filled, most = 0, self.bucket
        if filled:
            segments.append(reducing(filled, whole))
        step = tuple(counting(spread))
        return Traffic(Passes(), Passes((), tuple(segments)), step, spread.micro_steps, reduces_hide=True)


SPEC = DdpSpec
