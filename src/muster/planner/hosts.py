"""Which of the hosts given a job runs on: the first so many, or as many as train fastest. Pure.

What trains fastest has most samples/s: the same samples are done soonest, whatever a step holds. Each number
of hosts is taken at its best, with all else that a recipe leaves to the plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from muster.core.batch import resolve_batch
from muster.core.errors import RecipeError
from muster.core.hostlist import fold_hosts
from muster.core.inventory import Host
from muster.core.recipe import Recipe
from muster.core.shares import check_groups
from muster.core.units import counted, format_number
from muster.inputs.read import Inputs
from muster.planner.decide import FIELD, Chosen, Decided
from muster.planner.document import Candidate
from muster.planner.memory.fit import lacking

HARDLY = 0.02  # of speed: fewer hosts are taken where more would gain less
AUTO = "auto"
MOST = 12  # numbers of hosts that are tried, beside powers of two


@dataclass(frozen=True)
class HostTrial:
    """A job on some of its hosts. `error`: why it does not work there, where nothing is decided."""

    hosts: tuple[Host, ...]
    decided: Decided | None
    error: RecipeError | None = None

    @property
    def best(self) -> Candidate | None:
        """The way that would be chosen there."""
        candidates = self.decided.candidates if self.decided else ()
        return next((each for each in candidates if each.chosen), None)

    @property
    def works(self) -> bool:
        """Whether it fits there, as far as that is known."""
        refused = self.decided is None or self.decided.refused is not None
        return not refused and self.best is not None and self.best.fits is not False

    @property
    def speed(self) -> float | None:
        """Samples/s; None: not known."""
        return self.best.samples_per_second if self.best else None


def first(hosts: Sequence[Host], wanted: int) -> Chosen:
    """The first so many, as a recipe says. Raises RecipeError where there are fewer."""
    if wanted > len(hosts):
        given = f"{len(hosts)} host{' was' if len(hosts) == 1 else 's were'} given"
        raise RecipeError(
            f"is {wanted}, and {given}", where=FIELD, hint=f"at most {len(hosts)}, auto, or more hosts"
        )
    return Chosen(tuple(hosts[:wanted]), tuple(hosts[wanted:]), "as the recipe says")


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


def numbers(recipe: Recipe, ranks: Sequence[int]) -> list[int]:
    """Numbers of hosts to try: all of a few; of many, of those with which the batch works out, powers of two,
    the most, and others between them. `ranks`: of each host."""
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
    """Whether so many ranks can share the recipe's batch."""
    batch = recipe.batch
    if isinstance(batch.split, list) and len(batch.split) != ranks:
        return False
    try:
        check_groups(recipe.engine.group or 0, ranks)
        resolve_batch(batch.micro, batch.accumulation, batch.global_, world_size=ranks)
    except RecipeError:
        return False
    return True


def pick(trials: Sequence[HostTrial], given: Sequence[Host]) -> tuple[Decided, Chosen]:
    """The number of hosts with most samples/s; of those that are nearly as fast, the fewest hosts. Where not
    all speeds are known, the most hosts that work. `trials`: with ever more hosts.

    Raises the trials' RecipeError where the job works with no number of hosts.
    """
    working = [each for each in trials if each.works]
    if not working:
        decided = [each for each in trials if each.decided is not None]
        if not decided:
            assert trials[-1].error is not None
            raise trials[-1].error
        return _taken(decided[-1], trials, given, "it does not fit on any number of them")
    if any(each.speed is None for each in working):
        why = "their speed is unknown"
        which = "all of them" if len(working[-1].hosts) == len(given) else "the largest number that works"
        return _taken(working[-1], trials, given, f"{which}: {why}")
    top = max(_speed(each) for each in working)
    chosen = next(each for each in working if _speed(each) >= (1 - HARDLY) * top)
    words = f"{'the fastest' if _speed(chosen) == top else 'as good as the fastest'} of those tried"
    words += f": {format_number(_speed(chosen))} samples/s predicted"
    others = [
        f"{counted(len(each.hosts), 'host')} {_lost(each, chosen)}" for each in trials if each is not chosen
    ]
    return _taken(chosen, trials, given, "; ".join([words, *others]), timed=True)


def _taken(
    trial: HostTrial, trials: Sequence[HostTrial], given: Sequence[Host], why: str, *, timed: bool = False
) -> tuple[Decided, Chosen]:
    assert trial.decided is not None
    used = set(trial.hosts)
    skips = trial.hosts != tuple(given[: len(used)])
    if skips:
        why += f"; the fastest hosts are {fold_hosts(host.label for host in trial.hosts)}"
    compared = [row for each in trials for row in _rows(each, trial, why)] if len(trials) > 1 else []
    idle = tuple(host for host in given if host not in used)
    return trial.decided, Chosen(trial.hosts, idle, why, tuple(compared), timed, skips)


def _rows(trial: HostTrial, chosen: HostTrial, why: str) -> list[Candidate]:
    """Every way on the chosen number of hosts; the best way on another."""
    count = {FIELD: str(len(trial.hosts))}
    decided, best = trial.decided, trial.best
    if decided is None or best is None:
        return [Candidate(changes=count, fits=False, memory=0, why=_lost(trial, chosen))]
    micro = {} if decided.recipe.batch.micro else {"batch.micro": str(decided.job.batch.micro)}
    taken = trial is chosen
    rows = []
    for each in decided.candidates if taken else (best,):
        words = each.why
        if each.chosen:  # the others have rows of their own, which say why they lost
            words = why.partition(";")[0] if taken else _lost(trial, chosen)
        update = {
            "changes": {**count, **(each.changes or micro)},
            "chosen": taken and each.chosen,
            "why": words,
        }
        rows.append(each.model_copy(update=update))
    return rows


def _lost(trial: HostTrial, chosen: HostTrial) -> str:
    """Why another number of hosts was not chosen."""
    decided = trial.decided
    if decided is None:
        return f"cannot: {trial.error.what}" if trial.error else "cannot"
    if not trial.works:
        short = lacking(decided.setting, decided.room)
        return f"does not fit: {short}" if short else "does not fit"
    if trial.speed is None or chosen.speed is None:
        return "also works"
    slower = 1 - trial.speed / chosen.speed
    if slower >= 0:
        return f"{slower:.0%} slower" if slower > 0.005 else "as fast"
    return f"{-slower:.1%} faster, which is not worth more hosts"


def _speed(trial: HostTrial) -> float:
    return trial.speed or 0.0
