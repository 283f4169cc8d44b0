"""Tables of comma-separated values, such as Lightning's metrics.csv, by what a mapping says of columns."""

from __future__ import annotations

import re
from collections.abc import Sequence

from muster.readers._frame import Frame
from muster.readers._lines import LineFormat, MappedSteps
from muster.readers._mapping import Mapping, cells_of
from muster.readers.base import Reading, number

FORMAT = "table"
HINTS = ("",)

_EPOCH = 1e9  # seconds: a clock that shows more began in 1970
_HEADER_WITHIN = 20  # lines
_NAMES = {"seconds": "elapsed", "step_seconds": "seconds"}  # column -> what it is in a line


class Reader:
    """A window from each row to the next. The first row has the start-up in it and is left out."""

    def __init__(self, frame: Frame, mappings: Sequence[Mapping]) -> None:
        self.frame = frame
        self.mappings = [each for each in mappings if each.columns]
        self.steps: MappedSteps | None = None
        self.delimiter = ","
        self.columns: dict[str, int] = {}  # what -> column
        self.skipped: dict[tuple[str, str], float] = {}  # so far, by job and host
        self.seen = 0
        self.closed = not self.mappings

    def line(self, text: str) -> None:
        """A header, or a row of one value for each column."""
        if self.closed or not text.strip():
            return
        if self.steps is None:
            self.seen += 1
            self._header(text)
            self.closed = self.steps is None and self.seen >= _HEADER_WITHIN
            return
        cells = cells_of(text, self.delimiter)
        row = {what: cells[place].strip() for what, place in self.columns.items() if place < len(cells)}
        if all(
            row.get(what) and (what in ("job", "host") or number(row[what]) is not None)
            for what in self.columns
        ):
            self._row(row, self.steps)  # else it is of something else, such as Lightning's of a validation

    def readings(self) -> list[Reading]:
        """One for each job that a row names, or for each host."""
        return self.steps.readings() if self.steps else []

    def _header(self, text: str) -> None:
        for mapping in self.mappings:
            delimiter = mapping.delimiter_of(text)
            if delimiter is not None and mapping.columns:
                names = [name.strip() for name in cells_of(text, delimiter)]
                form = LineFormat(FORMAT, HINTS, re.compile(""), unit=mapping.unit)
                self.steps, self.delimiter = MappedSteps(form, self.frame, mapping), delimiter
                columns = mapping.columns.model_dump()
                self.columns = {what: names.index(name) for what, name in columns.items() if name}
                return

    def _row(self, row: dict[str, str], steps: MappedSteps) -> None:
        clock = (number(row.get("seconds")) or 0.0) * steps.mapping.unit
        if "skipped" in row:  # so far: of this row it is what came since the one before
            key = row.get("job", ""), row.get("host", "")
            before, now = self.skipped.get(key, 0.0), number(row["skipped"]) or 0.0
            self.skipped[key] = now
            row = {**row, "skipped": f"{now - before if now >= before else now}"}
        figures = {_NAMES.get(what, what): text for what, text in row.items()}
        steps.begin(figures, clock if clock >= _EPOCH else None)
