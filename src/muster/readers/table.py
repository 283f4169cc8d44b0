"""Tables of separated values: Lightning's metrics.csv, and those whose columns a user names."""

from __future__ import annotations

from muster.readers._frame import Frame, moment
from muster.readers._lines import PlacedSteps
from muster.readers._user import LIGHTNING, TableLayout, cells_of, layout_of
from muster.readers.base import Reading, number

FORMAT = "table"
HINTS = ("",)

_HEADER_WITHIN = 20  # lines
_TEXTS = ("time", "host", "rank", "job")


class Reader:
    """A window from each row to the next. The first row includes the start-up and is left out."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.steps: PlacedSteps | None = None
        self.layout = TableLayout(",", {})
        self.seen = 0
        self.closed = False

    def line(self, text: str) -> None:
        """Read a header, or a row of one value for each column."""
        if not text.strip():
            return
        if self.steps is None:
            self.seen += 1
            self._header(text)
            self.closed = self.steps is None and self.seen >= _HEADER_WITHIN
            return
        cells = cells_of(text, self.layout.delimiter)
        row = {name: cells[place] for name, place in self.layout.columns.items() if place < len(cells)}
        if all(
            row.get(name) and (name in _TEXTS or number(row[name]) is not None)
            for name in self.layout.columns
        ):  # else it is of something else, such as Lightning's of a validation
            self.steps.begin(row, moment(row.get("time") or row.get("elapsed") or ""))

    def readings(self) -> list[Reading]:
        """Return one reading for each job that a row names, or for each host."""
        return self.steps.readings() if self.steps else []

    def _header(self, text: str) -> None:
        user = self.frame.user
        if layout := layout_of(text, user.columns):
            self.steps, self.layout = PlacedSteps(FORMAT, self.frame, user.workload, user.work), layout
        elif layout := next(filter(None, (layout_of(text, each) for each in LIGHTNING)), None):
            self.steps, self.layout = PlacedSteps(FORMAT, self.frame), layout
