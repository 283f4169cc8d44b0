"""What the attention monitor saw, over the whole run. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from muster.core.result import Attention, Extreme
from muster.store import events


def attention_report(seen: Sequence[events.Attention], training: float | None) -> Attention | None:
    """The run's extremes and the monitor's share of `training` seconds; None where nothing was seen."""
    if not seen:
        return None
    seconds = sum(each.seconds for each in seen)
    return Attention(
        largest=max(_extremes(seen, "largest"), key=lambda each: each.logit, default=None),
        smallest=min(_extremes(seen, "smallest"), key=lambda each: each.logit, default=None),
        windows=len(seen),
        seconds=seconds,
        share=seconds / training if training else None,
    )


def _extremes(seen: Sequence[events.Attention], name: str) -> Iterable[Extreme]:
    for each in seen:
        for layer, logit in zip(each.layers, getattr(each, name), strict=False):
            if logit is not None:
                yield Extreme(logit=logit, layer=layer, step=each.step)
