"""Where a run's time went, from its events. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from muster.core.result import Seconds

if TYPE_CHECKING:
    from muster.supervise.fold import Folder


def spent(folder: Folder, total: float) -> Seconds:
    """`total`: of all attempts. What ranks say at their end is of the last one alone: of several, the
    events of their steps are added."""

    def slowest(name: str, of_steps: float | None) -> float | None:
        found = [done.seconds[name] for done in folder.done.values() if name in done.seconds]
        return max(found) if found and folder.attempt == 1 else of_steps

    setup = None
    if folder.stepping and folder.attempt_began is not None:
        setup = max(folder.stepping.values()) - folder.attempt_began
    windows = folder.ordered_windows()
    saved: dict[int | None, float] = {}  # by step, of the disk that took longest
    for each in folder.saved:
        saved[each.step] = max(each.seconds, saved.get(each.step, 0.0))
    evaluated = [each.seconds for each in folder.evaluated if each.seconds is not None]
    return Seconds(
        total=total,
        setup=setup if setup is not None and setup >= 0 else None,  # of old events: clocks that do not agree
        training=slowest("training", sum(max(w.seconds for w in each) for each in windows) or None),
        evaluation=slowest("evaluation", sum(evaluated) if evaluated else None),
        saving=slowest("saving", sum(saved.values()) if saved else None),
    )
