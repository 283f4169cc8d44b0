"""Choose what a recipe leaves to the plan: ZeRO's stage and gradient checkpointing, with the micro-batch that
each way allows. The fastest that fits; where speeds are not known, the mildest that fits. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from muster.core.errors import RecipeError
from muster.core.job import Decision
from muster.core.recipe import Recipe
from muster.core.trace import Trace
from muster.core.units import format_number
from muster.engines.base import spec_of
from muster.planner.document import Candidate
from muster.planner.memory.fit import Room, Setting, Shortage, lacking, need
from muster.planner.remedies import refusal
from muster.planner.sizing import Sized, said_of, size
from muster.planner.time.steptime import Step

Tracer = Callable[[Recipe, str, str, int], "Trace | None"]  # recipe, precision, device, ranks
Timer = Callable[[Setting], "Step | None"]


@dataclass(frozen=True)
class Where:
    """What a job runs on, and in what precision."""

    precision: str
    device: str
    slots: Sequence[int]
    room: Room


def nothing_traced(recipe: Recipe, precision: str, device: str, ranks: int) -> Trace | None:
    """A tracer for where closed forms will do."""
    return None


def not_timed(setting: Setting) -> Step | None:
    """A timer for where speeds are not known."""
    return None


def choose(
    recipe: Recipe,
    config: Mapping[str, Any] | None,
    where: Where,
    decisions: list[Decision],
    tracer: Tracer = nothing_traced,
    timer: Timer = not_timed,
) -> tuple[Sized, list[Candidate]]:
    """The recipe with everything decided, and the ways that were compared, the chosen one among them.

    Raises RecipeError for numbers that contradict each other, UsageError for what cannot fit.
    """

    tried = []
    refused: RecipeError | None = None
    for way, made in _ways(recipe):
        try:
            tried.append(_try(way, made, config, where, tracer, timer))
        except RecipeError as error:  # what the recipe wants does not go this way (model.create=sharded)
            refused = error
    if not tried:
        assert refused is not None
        raise refused
    best, reason = _best(tried)
    chosen = tried[best]
    if not recipe.force:
        _check_fit(chosen, config, where.room)
    decisions.extend([*chosen.decisions, *_told(chosen, reason)])
    made = chosen.sized.recipe.model_copy(update={"force": recipe.force})
    return replace(chosen.sized, recipe=made), [
        _as_candidate(each, chosen, reason, index == best) for index, each in enumerate(tried)
    ]


@dataclass(frozen=True)
class _Tried:
    """A way, what it comes to, and what was decided on it. `setting`: None where its memory is not known,
    and so whether it fits."""

    way: dict[str, str]
    sized: Sized
    decisions: Sequence[Decision]
    setting: Setting | None
    memory: int
    lacks: Shortage | None
    step: Step | None

    @property
    def fits(self) -> bool:
        return self.setting is not None and self.lacks is None


def _ways(recipe: Recipe) -> list[tuple[dict[str, str], Recipe]]:
    """Every combination of what is open, mildest first: without recomputation, at low stages."""
    stages = spec_of(recipe.engine.name).open_stages(recipe)
    again = recipe.train.gradient_checkpointing
    found = []
    for checkpointing, stage in itertools.product([False, True] if again == "auto" else [again], stages):
        way = {"engine.zero": str(stage)} if recipe.engine.zero == "auto" else {}
        way |= {"train.gradient_checkpointing": str(checkpointing).lower()} if again == "auto" else {}
        found.append((way, recipe.choosing(zero=stage, checkpointing=checkpointing)))
    return found


def _try(
    way: dict[str, str],
    recipe: Recipe,
    config: Mapping[str, Any] | None,
    where: Where,
    tracer: Tracer,
    timer: Timer,
) -> _Tried:
    """A way as it would be, whether it fits or not. Raises RecipeError where it cannot be gone."""
    room, decisions = where.room, list[Decision]()
    trace = tracer(recipe, where.precision, where.device, sum(where.slots))
    forced = recipe.model_copy(update={"force": True})  # not refused
    sized = size(forced, config, where.precision, where.device, where.slots, room, decisions, trace)
    setting = sized.setting
    found = need(setting) if setting is not None else None
    if setting is None or found is None:
        return _Tried(way, sized, decisions, None, 0, None, None)
    return _Tried(
        {**way, "batch.micro": str(setting.micro)} if way else way,
        sized,
        decisions,
        setting,
        sum(found.device.values()),
        lacking(found, setting, room),
        timer(setting),
    )


def _check_fit(chosen: _Tried, config: Mapping[str, Any] | None, room: Room) -> None:
    """Raise UsageError, with what would fit, where even the chosen way does not."""
    setting = chosen.setting
    found = need(setting) if setting is not None and chosen.lacks and room.device is not None else None
    if setting is not None and found is not None:
        recipe = chosen.sized.recipe
        raise refusal(setting, room, found, recipe.model.name or "the model", said_of(recipe, config))


def _best(tried: Sequence[_Tried]) -> tuple[int, str]:
    """Which way, and why: of those that fit the fastest; the mildest where one's speed is not known. None
    fits: the smallest. A way of which nobody knows what it needs is taken only where that is so of all."""
    known = [index for index, each in enumerate(tried) if each.setting is not None]
    if not known:
        return 0, "the mildest: whether it fits is unknown"
    fitting = [index for index in known if tried[index].fits]
    among = f"of {len(fitting)} settings that fit (of {len(tried)})"
    if not fitting:
        return min(known, key=lambda index: tried[index].memory), "needs the least memory, and does not fit"
    if any(tried[index].step is None for index in fitting):
        return fitting[0], f"the mildest {among}; some speeds are unknown"
    best = max(fitting, key=lambda index: (_speed(tried[index]), -index))
    return best, f"the fastest {among}: {format_number(_speed(tried[best]))} samples/s predicted"


def _speed(tried: _Tried) -> float:
    return tried.step.samples_per_second if tried.step else 0.0


def _told(chosen: _Tried, reason: str) -> list[Decision]:
    """Why what was open came to what it is."""
    return [
        Decision(name, int(value) if value.isdigit() else value == "true", reason)
        for name, value in chosen.way.items()
        if name != "batch.micro"
    ]


def _as_candidate(tried: _Tried, chosen: _Tried, reason: str, is_chosen: bool) -> Candidate:
    step = tried.step
    return Candidate(
        changes=tried.way,
        fits=None if tried.setting is None else tried.fits,
        memory=tried.memory,
        step=step.seconds if step else None,
        samples_per_second=step.samples_per_second if step else None,
        chosen=is_chosen,
        why=reason if is_chosen else _lost(tried, chosen),
    )


def _lost(tried: _Tried, chosen: _Tried) -> str:
    """Why a way was not chosen."""
    if tried.setting is None:
        return "whether it fits is unknown"
    if not tried.fits:
        return f"does not fit: {tried.lacks}"
    if tried.step is None or chosen.step is None:
        return "fits as well; costs more computation or communication"
    slower = 1 - _speed(tried) / _speed(chosen)
    return f"{slower:.0%} slower" if slower > 0.005 else "as fast, but not milder"
