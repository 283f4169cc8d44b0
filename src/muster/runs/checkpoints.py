"""Choose the checkpoint that a run continues from: the newest one whose every file is what the ranks saved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from muster.core.errors import UsageError
from muster.core.job import PASSED_OVER, Decision, Facts
from muster.core.recipe import Recipe
from muster.engines.base import spec_of
from muster.fleet.supervisor import Supervisor
from muster.results.fold import fold
from muster.store import events
from muster.store.runfolder import RunFolder
from muster.store.sealed import UNFINISHED

Copy = Callable[[int, str, str], None]  # a step's checkpoint, from one host to another
BEGINNING = 0
SHOWN = 4  # checkpoints of those that cannot be used


@dataclass(frozen=True)
class WantedCheckpoint:
    """What a resume asks for. `step`: this checkpoint and no other, 0: none; `copy`: send it to hosts that
    lack it; `avoid`: checkpoints that ranks failed to load, and why."""

    step: int | None = None
    copy: bool = False
    avoid: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Start:
    """Where a job begins. `step` None: at the beginning; `notes`: on checkpoints that were passed over."""

    step: int | None = None
    notes: tuple[Decision, ...] = ()


def choose(
    run: RunFolder, recipe: Recipe, supervisor: Supervisor, facts: Facts, wanted: WantedCheckpoint, copy: Copy
) -> Start:
    """Return where the run continues. Hosts read the files of the newest checkpoint, then of the one before,
    and so on.

    Raises UsageError where the one that is asked for cannot be used, or where there are or were some and none
    can.
    """
    if wanted.step == BEGINNING:
        return Start()
    seals = _RecordedCheckpoints(run)
    steps = sorted(
        {int(step) for about in facts.values() for step in (*about["checkpoints"], *_damaged(about))},
        reverse=True,
    )
    if wanted.step is not None and wanted.step not in steps:
        there = ", ".join(str(step) for step in reversed(steps)) or "none"
        raise UsageError(f"has no checkpoint of step {wanted.step}", where=run.id, hint=f"there are: {there}")
    passed = dict.fromkeys(
        (step for step in seals.sealed if wanted.step is None and step > max(steps, default=step)),
        "was sealed, and no host has it",
    )
    for step in [wanted.step] if wanted.step is not None else steps:
        why = wanted.avoid.get(step) or _sizes(step, facts)
        if why is None and wanted.step is None:
            why = seals.refusal(step, recipe)
        why = why or _absent(step, facts, copy if wanted.copy else None)
        why = why or _content(step, facts, supervisor, seals.digests(step))
        if why is None:
            decisions = [Decision(f"checkpoint-{s}", PASSED_OVER, passed[s]) for s in sorted(passed)]
            return Start(step, (*decisions, *seals.about(step)))
        passed[step] = why
    if any(UNFINISHED not in why for why in passed.values()):
        refusals = [f"checkpoint-{step}: {why}" for step, why in passed.items()]
        more = f"; and {len(refusals) - SHOWN} more" if len(refusals) > SHOWN else ""
        words = "; ".join(refusals[:SHOWN]) + more
        raise UsageError(f"cannot go on: {words}", where=run.id, hint=_hint(passed, steps, wanted))
    if seals.sealed:
        raise UsageError(
            f"sealed checkpoint-{max(seals.sealed)}, and no host has it",
            where=run.id,
            hint="is a disk not mounted, or the run's folder renamed? --step 0 starts from the first step",
        )
    return Start(None, tuple(Decision(f"checkpoint-{s}", PASSED_OVER, passed[s]) for s in sorted(passed)))


def _hint(passed: Mapping[int, str], steps: Iterable[int], wanted: WantedCheckpoint) -> str:
    if wanted.step is not None:
        there = ", ".join(map(str, sorted(steps)))
        return f"without --step, the newest one that can be used is taken; there are: {there}"
    copied = "--copy copies what is missing; " if any("is not on" in why for why in passed.values()) else ""
    return f"{copied}--step N takes the checkpoint of that step, --step 0 none: it starts from the first step"


class _RecordedCheckpoints:
    """The controller's record of checkpoints: the events of earlier attempts."""

    def __init__(self, run: RunFolder) -> None:
        stream = list(events.read_events(run.events))
        self._all = [each for each in stream if isinstance(each, events.Saved)]
        self._current = [each for each in fold(stream).saved if each.step is not None]

    @property
    def sealed(self) -> set[int]:
        """The steps whose checkpoints ranks sealed; the newest one always stays."""
        return {each.step for each in self._current if each.step is not None}

    def digests(self, step: int) -> list[str]:
        """Return the digests of the manifests that ranks wrote for a step, on any disk; where several
        attempts did, those of the attempt that the run continues."""
        current = [each for each in self._current if each.step == step]
        return sorted({each.manifest for each in current or self._of(step) if each.manifest})

    def _of(self, step: int) -> list[events.Saved]:
        return [each for each in self._all if each.step == step]

    def refusal(self, step: int, recipe: Recipe) -> str | None:
        """Return why a whole checkpoint is not taken unless its step is asked for."""
        if self._of(step) and step not in {each.step for each in self._current}:
            return "left by an attempt that the run did not go on from"
        if not self._of(step) and spec_of(recipe.engine.name).pickles:
            return "the controller has no record of it, and loading it runs what its files say"
        return None

    def about(self, step: int) -> list[Decision]:
        """Return what could not be checked of the checkpoint that is taken."""
        if self._of(step) and not self.digests(step):
            why = "saved by an earlier version without hashes: only the sizes of its files were checked"
            return [Decision(f"checkpoint-{step}", "not verified", why)]
        return []


def _damaged(about: Mapping[str, Any]) -> Mapping[str, str]:
    return about.get("damaged_checkpoints") or {}


def _sizes(step: int, facts: Facts) -> str | None:
    """Return which file is missing or short, as each host saw at once."""
    damage = ((host, _damaged(about).get(str(step))) for host, about in facts.items())
    return next((f"{wrong} on {host}" for host, wrong in damage if wrong), None)


def _absent(step: int, facts: Facts, copy: Copy | None) -> str | None:
    """Return which hosts with disks of their own have no such checkpoint. `copy`: sends it to them."""
    lacks = [host for host, about in facts.items() if step not in about["checkpoints"]]
    source = next((host for host, about in facts.items() if step in about["checkpoints"]), None)
    if not lacks or source is None:
        return None
    if copy is not None:
        for host in lacks:
            copy(step, source, host)
        return None
    name, names = f"checkpoints/checkpoint-{step}", ", ".join(lacks)
    there = ", ".join(f"{host}:{facts[host]['base']}/{name}" for host in lacks)
    return f"is not on {names} (copy {source}:{facts[source]['base']}/{name} to {there})"


def _content(step: int, facts: Facts, supervisor: Supervisor, digests: list[str]) -> str | None:
    """Return what a host found wrong when it read the files. Hosts that share the folder read a part each."""
    shared = [host for host, about in facts.items() if about["shared"]]
    orders = {
        host: {
            "step": step,
            "digests": digests,
            "part": shared.index(host) if host in shared else 0,
            "parts": len(shared) if host in shared else 1,
        }
        for host in facts
    }
    wrong = supervisor.verify(orders)
    return next((f"{words} on {host}" for host, words in wrong.items() if words), None)
