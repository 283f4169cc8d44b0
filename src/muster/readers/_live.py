"""From the lines of a running job to its steps, loss and speed, as soon as any reader finds them."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence

from muster.readers._feed import LineFeed
from muster.readers._frame import Frame
from muster.readers._read import contradicting, ranked
from muster.readers._user import UserFormat
from muster.readers.base import NOT_FINITE, MeasuredWindows, Reading
from muster.store.events import Progress


class Live:
    """One stream of lines, such as a rank's output."""

    def __init__(self, user: UserFormat | None = None) -> None:
        self.feed = LineFeed(Frame(user=user))

    @property
    def steps(self) -> int:
        """The last step in a line; 0: none yet."""
        return self.feed.frame.steps

    def lines(self, lines: Sequence[str]) -> None:
        """Read the next lines, without their ends."""
        self.feed.frame.arrived = time.time()
        rest = self.feed.take(iter([lines]))
        while rest is not None:  # another training begins in the same output
            self.feed = self.feed.again()
            self.feed.frame.arrived = time.time()
            rest = self.feed.take(rest)

    def seen(self, now: float) -> Progress | None:
        """Return the job's progress, and its speed without the warm-up; where nothing is timed, the tool's
        own figure at its end. None: no line has a step. Asking changes nothing."""
        if not self.steps:
            return None
        best_first = ranked([each for each in copy.deepcopy(self.feed).readings() if each.steps])
        if not best_first:
            return None
        best, figures = best_first[0]
        refuted = not best.sure and contradicting(best_first) is not None
        if figures is None:
            figures = next((_reported(each) for each, _ in best_first if each.reported), None)
        notes = (note for each, _ in best_first for note in each.notes)
        diverged = next((note for note in notes if note.startswith(NOT_FINITE)), None)
        progress = Progress(
            time=now,
            format=best.format,
            step=self.steps,
            made=best.steps or 0,
            loss=None if diverged else next((e.loss for e, _ in best_first if e.loss is not None), None),
            not_finite=diverged,
        )
        if figures is None or refuted:
            return progress
        timed = figures.timed and figures.steps
        return progress.model_copy(
            update={
                "rate": figures.rate,
                "unit": figures.unit,
                "step_seconds": figures.seconds / figures.steps if timed else None,
                "steps": figures.steps,
                "variation": figures.variation,
            }
        )


def _reported(reading: Reading) -> MeasuredWindows:
    rate = reading.reported or 0.0
    return MeasuredWindows(reading.steps or 1, 0, rate, 1.0, timed=False, unit=reading.unit)
