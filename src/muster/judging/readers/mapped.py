"""Logs that no other reader knows: a mapping says by one regular expression what stands where in a line."""

from __future__ import annotations

import re
from collections.abc import Sequence

from muster.judging.readers._frame import Frame, stamp, uncoloured
from muster.judging.readers._lines import LineFormat, Steps, of_jobs
from muster.judging.readers._mapping import LONGEST, Mapping
from muster.judging.readers.base import Reading

FORMAT = "mapped lines"
HINTS = ("",)

_MOST = 20_000  # hosts and jobs of a file


class Reader:
    """The lines that the first mapping matches which matches any."""

    def __init__(self, frame: Frame, mappings: Sequence[Mapping]) -> None:
        self.frame = frame
        self.mappings = [each for each in mappings if each.line]
        self.forms = [
            LineFormat(FORMAT, HINTS, re.compile(each.line), unit=each.unit) for each in self.mappings
        ]
        self.mapping: Mapping | None = None
        self.steps: dict[tuple[str, str], Steps] = {}  # by job and host
        self.closed = not self.mappings

    def line(self, text: str) -> None:
        """Any line."""
        if len(text) > LONGEST:
            return
        text = uncoloured(text)
        for mapping, form in zip(self.mappings, self.forms, strict=True):
            if self.mapping in (None, mapping) and (match := form.step.search(text)):
                self.mapping = mapping
                self._step(text, match.groupdict(), mapping, form)
                return

    def readings(self) -> list[Reading]:
        """One for each job that a line names, or for each host."""
        found = {key: reading for key, steps in self.steps.items() for reading in steps.readings()}
        return of_jobs(found, self.mapping) if self.mapping else []

    def _step(self, text: str, groups: dict[str, str | None], mapping: Mapping, form: LineFormat) -> None:
        key = (groups.get("job") or "", groups.get("host") or "")
        if key not in self.steps and len(self.steps) < _MOST:
            self.steps[key] = Steps(form, self.frame)
            if mapping.batch:
                self.steps[key].facts["batch"] = mapping.batch
        if key in self.steps:
            time = groups.get("time")
            self.steps[key].begin(groups, mapping.moment(time) if time else stamp(text))
