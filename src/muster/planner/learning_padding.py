"""What a run with dynamic padding was about: its batches are as long as their longest sample, not as long as
samples may be. Pure.

A run tells how many tokens its batches had, and how many operations were counted over them. Its computation
is taken at the mean lengths, source and target shortened alike, and then with the operations that were
counted: attention grows with the square of a length, and source and target need not be shortened alike. Both
together are a few percent; where they are more, the lengths are not known well enough to learn from.
"""

from __future__ import annotations

from dataclasses import replace

from muster.core.data import TextToSqlData
from muster.core.recipe import Recipe
from muster.core.result import Result
from muster.planner.steptime import Case

EXACT = 0.1  # by which operations at the mean lengths may miss those that were counted


def varies(recipe: Recipe) -> bool:
    """Whether batches are of different lengths."""
    return isinstance(recipe.data, TextToSqlData) and recipe.data.padding == "dynamic"


def at_mean_lengths(recipe: Recipe, result: Result) -> Recipe:
    """The recipe with fixed lengths: those that its measured batches had on average, padding included."""
    data, speed = recipe.data, result.throughput
    if not isinstance(data, TextToSqlData) or speed is None or not varies(recipe):
        return recipe
    tokens = speed.padded_tokens_per_second / speed.samples_per_second
    share = tokens / (data.max_source + data.max_target)
    lengths = {name: max(1, round(share * getattr(data, name))) for name in ("max_source", "max_target")}
    return recipe.model_copy(update={"data": data.model_copy(update={**lengths, "padding": "fixed"})})


def as_counted(case: Case, result: Result) -> Case | None:
    """The case with the operations that were counted, and with as much more of what moves; None where none
    were counted, or they are further from those of the case than EXACT."""
    counted, speed = result.flops, result.throughput
    if counted is None or speed is None:
        return None
    a_sample = counted.hardware_per_second * result.world_size / speed.samples_per_second
    work = case.work
    times = a_sample * work.samples / work.flops
    if abs(times - 1) > EXACT:
        return None
    return replace(
        case,
        work=replace(work, forward=times * work.forward, flops=times * work.flops, moved=times * work.moved),
    )
