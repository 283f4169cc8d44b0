"""Settle: everything that a recipe leaves open is decided, the number of its hosts among it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from muster.core.errors import JobError, RecipeError, UsageError
from muster.core.hardware.machines import Machines
from muster.core.inventory import Host
from muster.core.recipe import Recipe
from muster.core.trace import Trace
from muster.inputs.model import whole_config
from muster.inputs.read import Inputs
from muster.planner.choose import Tracer
from muster.planner.decide import Decided, decide
from muster.planner.hosts import FIELD, Chosen, HostTrial, by_speed, first, numbers, pick
from muster.planner.outlook import Ground
from muster.planner.placing import ranks_of
from muster.planner.tracing import request_of, trace

AUTO = "auto"


@dataclass(frozen=True)
class Settled:
    """A decided job. `refused`: the error where it does not fit; `machines`: that its time rests on, None:
    not known; `reach`: how many hosts there are like them; `chosen`: None where all hosts given are used."""

    decided: Decided
    refused: UsageError | None
    machines: Machines | None
    reach: int
    chosen: Chosen | None = None


def first_hosts(inputs: Inputs) -> tuple[Inputs, Chosen | None]:
    """With the hosts that the recipe's number leaves; the others are not even asked.

    Raises RecipeError where they are too few, or where there is nothing to choose a number by.
    """
    wanted = inputs.recipe.launch.hosts
    if wanted == AUTO and not inputs.recipe.trains:
        raise RecipeError(
            f"is auto, and {inputs.recipe.workload} trains nothing that could be faster",
            where=FIELD,
            hint="a number, or null for all hosts given",
        )
    if not isinstance(wanted, int):
        return inputs, None
    chosen = first(inputs.inventory.hosts, wanted)
    return on_hosts(inputs, chosen.hosts), chosen if chosen.idle else None


def on_hosts(inputs: Inputs, hosts: tuple[Host, ...]) -> Inputs:
    """The same recipe on these of its hosts."""
    recipe = inputs.recipe.choosing(hosts=len(hosts))
    return replace(inputs, recipe=recipe, inventory=replace(inputs.inventory, hosts=hosts))


def settle(inputs: Inputs, ground: Ground, with_tracer: Tracer) -> Settled:
    """Everything that was open. Raises RecipeError and InventoryError where nothing can work."""
    with_tracer = _once(with_tracer)
    given = inputs.inventory.hosts
    if inputs.recipe.launch.hosts != AUTO:
        decided, refused = decided_for(inputs, ground, with_tracer)
        machines = ground.on(decided.slots, decided.device, decided.precision)
        return Settled(decided, refused, machines, len(given))
    device = inputs.recipe.launch.device
    ordered = by_speed(given, ground.facts, device, ground.env, inputs.recipe.precision)
    ranks = [ranks_of(host, ground.facts[host.label], device) for host in ordered]
    trials = []
    for number in numbers(inputs.recipe, ranks):
        labels = {host.label for host in ordered[:number]}
        some = tuple(host for host in given if host.label in labels)
        try:
            trials.append(HostTrial(some, *decided_for(on_hosts(inputs, some), ground.of(some), with_tracer)))
        except RecipeError as error:
            if not (error.where or "").startswith("batch."):  # what no number of hosts would change
                raise
            trials.append(HostTrial(some, None, error))
    taken, chosen = pick(trials, given)
    assert taken.decided is not None
    precision = taken.decided.precision
    machines = ground.of(taken.hosts).on(taken.decided.slots, taken.decided.device, precision)
    in_order = [ranks_of(host, ground.facts[host.label], device) for host in given]
    machines, reach = _beside(machines, ground.on(in_order, taken.decided.device, precision))
    return Settled(taken.decided, taken.refused, machines, reach, chosen)


def _beside(machines: Machines | None, whole: Machines | None) -> tuple[Machines | None, int]:
    """The chosen machines as a part of all, and how many hosts there are like them: none but themselves where
    the others are slower, or not all have as many slots. A single host has the link to the others that it
    leaves idle."""
    if machines is None:
        return None, 1
    alike = whole is not None and replace(whole, hosts=machines.hosts, link=machines.link) == machines
    if whole is None or not alike or (machines.hosts > 1 and whole.link != machines.link):
        return machines, machines.hosts
    return whole.on(machines.hosts), whole.hosts


def decided_for(inputs: Inputs, ground: Ground, with_tracer: Tracer) -> tuple[Decided, UsageError | None]:
    """Everything that was open on these hosts, and the error where it does not fit.

    Raises RecipeError and InventoryError where nothing can work.
    """
    recipe, one_machine = inputs.recipe, inputs.launcher.ONE_MACHINE

    def decided(recipe: Recipe) -> Decided:
        return decide(
            recipe,
            inputs.inventory,
            ground.facts,
            one_machine=one_machine,
            tracer=with_tracer,
            clock=ground.clock,
        )

    try:
        return decided(recipe), None
    except UsageError as error:
        if error.where != "memory":
            raise
        found = decided(recipe.model_copy(update={"force": True}))
        return replace(found, recipe=found.recipe.model_copy(update={"force": recipe.force})), error


def tracer(
    recipe: Recipe, precision: str, device: str, ranks: int, *, say: Callable[[str], None] | None = None
) -> Trace | None:
    """The recipe's real model, traced here or remembered; None where that cannot be done. `say`: what takes
    seconds."""
    request = request_of(recipe, whole_config(recipe), precision=precision, device=device, ranks=ranks)

    def starting() -> None:
        if say is not None:
            again = " with gradient checkpointing" if recipe.train.checkpointing else ""
            name = recipe.model.name or "the model"
            say(f"tracing {name} in {precision}{again}, without its weights (once; about 10 s)")

    try:
        return None if request is None else trace(request, starting=starting)
    except JobError:
        return None  # closed forms will do, and the plan says so


def _once(with_tracer: Tracer) -> Tracer:
    """Each trace is asked for once: numbers of hosts and stages of ZeRO need the same ones."""
    known: dict[tuple[bool, str, str, bool], Trace | None] = {}

    def found(recipe: Recipe, precision: str, device: str, ranks: int) -> Trace | None:
        key = (recipe.train.checkpointing, precision, device, ranks > 1)
        if key not in known:
            known[key] = with_tracer(recipe, precision, device, ranks)
        return known[key]

    return found
