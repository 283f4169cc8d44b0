"""Logs that no other reader knows, by a user's expressions for their lines."""

from __future__ import annotations

from muster.readers._frame import Frame, moment, stamp, uncoloured
from muster.readers._lines import PlacedSteps
from muster.readers._user import PACES
from muster.readers.base import Reading

FORMAT = "own lines"
HINTS = ("",)


class Reader:
    """Lines that begin a step, and others with more of its figures.

    Those with a group `step` begin one; where none has it, those with a group of PACES. Of these the first
    that matches any line is the one of the file.
    """

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.steps = PlacedSteps(FORMAT, frame, frame.user.workload, frame.user.work)
        lines = frame.user.lines
        groups = [{name for name, _ in each.groups} for each in lines]
        begins = {"step"} if any("step" in names for names in groups) else set(PACES)
        self.begin = [each for each, names in zip(lines, groups, strict=True) if names & begins]
        self.more = [each for each in lines if each not in self.begin]
        self.closed = not lines

    def line(self, text: str) -> None:
        """Read any line."""
        text = uncoloured(text)
        for expression in self.begin:
            if fields := expression.search(text):
                self.begin = [expression]
                at = moment(fields["time"]) if "time" in fields else stamp(text)
                self.steps.begin(fields, self.frame.arrived if at is None else at)
                break
        for expression in self.more:
            if fields := expression.search(text):
                self.steps.learn(fields)

    def readings(self) -> list[Reading]:
        """Return one reading for each job that a line names, or for each host."""
        return self.steps.readings()
