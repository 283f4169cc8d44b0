"""Logs that no other reader knows: a mapping says by one regular expression what stands where in a line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from muster.core.units import counted
from muster.readers._frame import Frame, stamp, uncoloured
from muster.readers._lines import LineFormat, MappedSteps
from muster.readers._mapping import LONGEST, Mapping
from muster.readers.base import Reading

FORMAT = "mapped lines"
HINTS = ("",)


class Reader:
    """The lines that the first mapping matches which matches any."""

    def __init__(self, frame: Frame, mappings: Sequence[Mapping]) -> None:
        self.frame = frame
        self.known = [
            MappedSteps(LineFormat(FORMAT, HINTS, re.compile(each.line), unit=each.unit), frame, each)
            for each in mappings
            if each.line
        ]
        self.closed = not self.known
        self.long = 0  # lines that were not searched

    def line(self, text: str) -> None:
        """Any line."""
        if len(text) > LONGEST:
            self.long += 1
            return
        text = uncoloured(text)
        for steps in self.known:
            if match := steps.form.step.search(text):
                self.known = [steps]
                groups = match.groupdict()
                time = groups.get("time")
                at = steps.mapping.moment(time) if time else stamp(text)
                steps.begin(groups, self.frame.arrived if at is None else at)
                return

    def readings(self) -> list[Reading]:
        """One for each job that a line names, or for each host."""
        listed = [reading for steps in self.known for reading in steps.readings()]
        if not self.long:
            return listed
        note = f"{counted(self.long, 'line')} of more than {LONGEST:,} characters not searched by the mapping"
        return [replace(each, notes=(*each.notes, note)) for each in listed]
