"""The lines of a job that runs -> its steps, loss and speed, as soon as any reader knows them."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass

from muster.readers._mapping import Mapping
from muster.readers._read import LineFeed, contradicting, ranked
from muster.readers.base import MeasuredWindows, Reading


@dataclass(frozen=True)
class JobProgress:
    """How far a job is. `steps`: the last one that a line tells; `measured`: over the steps so far, without
    the warm-up; where nothing is timed, what the tool itself says at its end."""

    format: str
    steps: int
    loss: float | None
    measured: MeasuredWindows | None

    @property
    def step_seconds(self) -> float | None:
        """Mean seconds of a step; None: there is no time of its own, or a step's size is not known."""
        figures = self.measured
        if figures is None or not figures.timed or not figures.steps:
            return None
        return figures.seconds / figures.steps


class Live:
    """One stream of lines, such as a rank's output."""

    def __init__(self, mappings: Sequence[Mapping] = ()) -> None:
        self.feed = LineFeed(mappings)

    @property
    def steps(self) -> int:
        """The last step that a line told; 0: none yet."""
        return self.feed.frame.steps

    def lines(self, lines: Sequence[str]) -> None:
        """The next ones, without their ends."""
        self.feed.frame.arrived = time.time()
        rest = self.feed.take(iter([lines]))
        while rest is not None:  # another training begins in the same output
            self.feed = self.feed.again()
            self.feed.frame.arrived = time.time()
            rest = self.feed.take(rest)

    def seen(self) -> JobProgress | None:
        """What is known so far; None: no line told a step. Asking changes nothing."""
        if not self.steps:
            return None
        best_first = ranked([each for each in copy.deepcopy(self.feed).readings() if each.steps])
        if not best_first:
            return None
        readings = [reading for reading, _ in best_first]
        best, figures = best_first[0]
        refuted = not best.sure and contradicting(best_first) is not None
        if figures is None:
            figures = next((_reported(each) for each in readings if each.reported), None)
        return JobProgress(
            format=best.format,
            steps=self.steps,
            loss=next((each.loss for each in readings if each.loss is not None), None),
            measured=None if refuted else figures,
        )


def _reported(reading: Reading) -> MeasuredWindows:
    rate = reading.reported or 0.0
    return MeasuredWindows(rate, 1.0, reading.steps or 1, 1, None, None, timed=False, unit=reading.unit)
