"""Choose which of the given hosts a job runs on: the first ones, or the number that trains fastest. Pure.

What trains fastest has most samples/s: the same samples are done soonest, whatever a step holds. Each number
of hosts is taken at its best, with all else that a recipe leaves to the plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

from muster.core.batch import check_groups, resolve_batch
from muster.core.errors import RecipeError
from muster.core.hostlist import fold_hosts
from muster.core.inventory import Host
from muster.core.recipe import Recipe
from muster.core.units import counted, format_number
from muster.inputs.read import Inputs
from muster.planner.decide import FIELD, Chosen, Decided
from muster.planner.document import Candidate

HARDLY = 0.02  # of speed: fewer hosts are taken where more would gain less
AUTO = "auto"
MOST = 12  # numbers of hosts that are tried, beside powers of two
Trials = Sequence[tuple[tuple[Host, ...], Decided | RecipeError]]  # hosts; the job there, or why it cannot be


def first(hosts: Sequence[Host], wanted: int) -> Chosen:
    """Choose the first `wanted` hosts. Raises RecipeError where there are fewer."""
    if wanted > len(hosts):
        given = f"{len(hosts)} host{' was' if len(hosts) == 1 else 's were'} given"
        raise RecipeError(
            f"is {wanted}, and {given}", where=FIELD, hint=f"at most {len(hosts)}, auto, or more hosts"
        )
    return Chosen(tuple(hosts[:wanted]), tuple(hosts[wanted:]), "as the recipe says")


def first_hosts(inputs: Inputs) -> tuple[Inputs, Chosen | None]:
    """Return the inputs with the hosts that the recipe's number leaves; the others are not even asked.

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
    """Return the same recipe on these of its hosts."""
    recipe = inputs.recipe.choosing(hosts=len(hosts))
    return replace(inputs, recipe=recipe, inventory=replace(inputs.inventory, hosts=hosts))


def numbers(recipe: Recipe, ranks: Sequence[int]) -> list[int]:
    """Return the numbers of hosts to try: all of a few; of many, of those with which the batch works out,
    powers of two, the most, and others between them. `ranks`: of each host."""
    whole = len(ranks)
    if whole <= MOST:
        return list(range(1, whole + 1))
    together = list(accumulate(ranks))
    possible = [count for count in range(1, whole + 1) if _works_out(recipe, together[count - 1])] or [whole]
    if len(possible) <= MOST:
        return possible
    chosen = {count for count in possible if count & (count - 1) == 0} | {possible[0], possible[-1]}
    while len(chosen) < MOST:  # the one that is nearest to the middle of the widest gap, as ratios go
        gaps = [
            (low, high) for low, high in pairwise(sorted(chosen)) if any(low < n < high for n in possible)
        ]
        low, high = max(gaps, key=lambda gap: gap[1] / gap[0])
        between = [n for n in possible if low < n < high]
        chosen.add(min(between, key=lambda n: (abs(n * n - low * high), n)))
    return sorted(chosen)


def _works_out(recipe: Recipe, ranks: int) -> bool:
    """Return whether so many ranks can share the recipe's batch."""
    batch = recipe.batch
    if isinstance(batch.split, list) and len(batch.split) != ranks:
        return False
    try:
        check_groups(recipe.engine.group or 0, ranks)
        resolve_batch(batch.micro, batch.accumulation, batch.global_, world_size=ranks)
    except RecipeError:
        return False
    return True


def pick(trials: Trials, given: Sequence[Host]) -> Decided:
    """Return the job on the number of hosts with most samples/s; of those that are nearly as fast, on the
    fewest. Where not all speeds are known, on the most hosts that work. `trials`: of increasing numbers of
    hosts.

    Raises the trials' RecipeError where the job works with no number of hosts.
    """
    decided = [(hosts, each) for hosts, each in trials if isinstance(each, Decided)]
    if not decided:
        assert isinstance(trials[-1][1], RecipeError)
        raise trials[-1][1]
    working, timed = [pair for pair in decided if pair[1].works], False
    if not working:
        (hosts, taken), why = decided[-1], "it does not fit on any number of them"
    elif any(not each.way.speed for _, each in working):
        hosts, taken = working[-1]
        which = "all of them" if len(hosts) == len(given) else "the largest number that works"
        why = f"{which}: their speed is unknown"
    else:
        top, timed = max(each.way.speed for _, each in working), True
        hosts, taken = next(pair for pair in working if pair[1].way.speed >= (1 - HARDLY) * top)
        why = f"{'the fastest' if taken.way.speed == top else 'as good as the fastest'} of those tried"
        others = [
            f"{counted(len(some), 'host')} {_lost(each, taken)}" for some, each in trials if each is not taken
        ]
        why = "; ".join([f"{why}: {format_number(taken.way.speed)} samples/s predicted", *others])
    skips = hosts != tuple(given[: len(hosts)])
    if skips:
        why += f"; the fastest hosts are {fold_hosts(host.label for host in hosts)}"
    idle = tuple(host for host in given if host not in hosts)
    rows = [row for some, each in trials for row in _rows(len(some), each, taken, why)]
    compared = tuple(rows) if len(trials) > 1 else ()
    return replace(taken, chosen=Chosen(hosts, idle, why, timed, skips, compared))


def _rows(hosts: int, trial: Decided | RecipeError, taken: Decided, why: str) -> list[Candidate]:
    """Return every way on the chosen number of hosts; the best way on another."""
    count = {FIELD: str(hosts)}
    if isinstance(trial, RecipeError):
        return [Candidate(changes=count, fits=False, memory=0, why=_lost(trial, taken))]
    micro = {} if trial.recipe.batch.micro else {"batch.micro": str(trial.job.batch.micro)}
    rows = []
    for each in trial.candidates:
        if trial is not taken and not each.chosen:
            continue
        words = each.why
        if each.chosen:  # the others have rows of their own, which say why they lost
            words = why.partition(";")[0] if trial is taken else _lost(trial, taken)
        chosen = trial is taken and each.chosen
        changes = {**count, **(each.changes or micro)}
        rows.append(each.model_copy(update={"changes": changes, "chosen": chosen, "why": words}))
    return rows


def _lost(trial: Decided | RecipeError, taken: Decided) -> str:
    """Return why another number of hosts was not chosen."""
    if isinstance(trial, RecipeError):
        return f"cannot: {trial.what}"
    if not trial.works:
        return f"does not fit: {trial.way.lacks}" if trial.way.lacks else "does not fit"
    if not (trial.way.speed and taken.way.speed):
        return "also works"
    slower = 1 - trial.way.speed / taken.way.speed
    if slower >= 0:
        return f"{slower:.0%} slower" if slower > 0.005 else "as fast"
    return f"{-slower:.1%} faster, which is not worth more hosts"
