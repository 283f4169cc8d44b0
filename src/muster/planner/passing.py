"""What the passes over a micro-batch keep and need, and when a rank holds most. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from muster.core.trace import AFTER_BLOCKS, BACKWARD, Pass
from muster.planner.memory import Parts, States, added


@dataclass(frozen=True)
class Passing:
    """Bytes of the passes over a micro-batch. `basis`: traced or closed form; `top`: at their peak; `later`:
    at most, once there are gradients; `growing`: what whole gradients add to that as they come, where there
    are none before; `output`: what the output layer's own gradients add to `top`; `copies`: of weights, all
    along."""

    basis: str
    top: Parts
    later: Parts
    growing: int
    copies: Parts
    output: int = 0


def traced(at: Pass) -> Passing:
    """Between the last block and the loss the peak is the loss's, before there is any gradient. When the
    first ones come there, about as much is left as is kept for the backward pass."""
    kept = {"activations": max(0, at.saved - at.logits), "logits and loss": min(at.logits, at.saved)}
    peak = max(at.saved, at.forward_peak, at.backward_peak)
    later, growing, output = peak, max(peak, at.growing_peak), 0
    if AFTER_BLOCKS in at.peaks:
        others = [
            pair for part, pair in at.peaks.items() if part.startswith(BACKWARD) and part != AFTER_BLOCKS
        ]
        later = max(at.saved, 0, *(plain for plain, _ in others))
        growing = max(later, *(grown for _, grown in others))
        output = max(0, at.peaks[AFTER_BLOCKS][1] - peak)
    return Passing(
        "traced",
        top={**kept, "temporary tensors": peak - at.saved},
        later={**kept, "temporary tensors": later - at.saved},
        growing=growing - later,
        copies={"copies in half precision": at.copies},
        output=output,
    )


def closed(parts: Parts, copies: int) -> Passing:
    """By a formula, which has one figure for all of the backward pass."""
    return Passing("closed form", parts, parts, 0, {"copies in half precision": copies})


def moments_of(found: States, passing: Passing, *, accumulates: bool) -> dict[str, Parts]:
    """What is on the device beside what is always held, at each moment that may be the peak.

    Activations go as gradients come. Where they were traced and no gradients lie there from earlier
    micro-batches, whole gradients were traced as well, and with others the peak is at one end of the
    backward pass; else all are taken to be there at once.
    """
    quiet = added(found.passes, passing.copies)
    later = added(quiet, found.backward, passing.later)
    ending = added(quiet, found.backward if found.ending is None else found.ending, found.gradients)
    loss = added(quiet, found.loss, passing.top)
    if found.loss:  # gathered by itself: its gradients come beside it
        loss = added(loss, {"gradients in flight": passing.output})
    if passing.basis == "closed form" or accumulates:
        moments = {"backward pass": added(later, found.gradients), "loss": added(loss, found.gradients)}
        if found.ending is not None:
            moments["end of the backward pass"] = ending
        return {**moments, **found.after}
    if found.whole:
        first = later.pop("gradients in flight", 0)  # the others were traced
        gone = sum(passing.copies.values())  # with the activations
        grown = {"gradients": max(passing.growing - gone, first)}
        return {"backward pass": added(later, grown), "loss": loss, **found.after}
    return {"backward pass": later, "loss": loss, "end of the backward pass": ending, **found.after}
