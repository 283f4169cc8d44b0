"""Tables of comma-separated values, such as Lightning's metrics.csv, by what a mapping says of columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from muster.judging.readers._frame import Frame
from muster.judging.readers._lines import STEPS_ONLY, of_jobs
from muster.judging.readers._mapping import Mapping, cells_of
from muster.judging.readers.base import LogWindow, Reading, Series, number

FORMAT = "table"
HINTS = ("",)

_EPOCH = 1e9  # seconds: a clock that shows more began in 1970
_HEADER_WITHIN = 20  # lines
_MOST_HOSTS = 20_000


@dataclass
class _Rows:
    """The rows of one host, or job."""

    series: Series = field(default_factory=Series)
    last: dict[str, float] | None = None
    skipped: float = 0.0
    batch: float | None = None
    first: float | None = None  # seconds since 1970, where its clock is that


class Reader:
    """A window from each row to the next. The first row has the start-up in it and is left out."""

    def __init__(self, frame: Frame, mappings: Sequence[Mapping]) -> None:
        self.frame = frame
        self.mappings = mappings
        self.mapping: Mapping | None = None
        self.delimiter = ","
        self.places: dict[str, int] = {}  # what -> column
        self.rows: dict[tuple[str, str], _Rows] = {}  # by job and host
        self.seen = 0
        self.closed = not any(each.columns for each in mappings)

    def line(self, text: str) -> None:
        """A header, or a row of one value for each column."""
        if self.closed or not text.strip():
            return
        if self.mapping is None:
            self.seen += 1
            self._header(text)
            self.closed = self.mapping is None and self.seen >= _HEADER_WITHIN
            return
        cells = cells_of(text, self.delimiter)
        named = {what: cells[place] for what, place in self.places.items() if cells and place < len(cells)}
        key = (named.pop("job", "").strip(), named.pop("host", "").strip())
        values = {what: number(cell) for what, cell in named.items()}
        told = {what: value for what, value in values.items() if value is not None}
        if len(told) + sum(map(bool, key)) < len(self.places):
            return  # a row of something else, such as Lightning's of a validation
        if key in self.rows or len(self.rows) < _MOST_HOSTS:
            self._row(self.rows.setdefault(key, _Rows()), told, self.mapping)

    def readings(self) -> list[Reading]:
        """One for each job that a row names, or for each host."""
        if self.mapping is None:
            return []
        return of_jobs(
            {key: self._reading(rows, self.mapping) for key, rows in self.rows.items()}, self.mapping
        )

    def _reading(self, rows: _Rows, mapping: Mapping) -> Reading:
        batch = mapping.batch or rows.batch
        counts = "samples" in self.places or "batch" in self.places or "samples_per_second" in self.places
        steps = rows.last.get("step") if rows.last else None
        return Reading(
            format=FORMAT,
            series=rows.series,
            per_step=not counts,
            unit="samples" if counts else "steps",
            timed=self._timed(mapping),
            batch=batch,
            steps=int(steps) if steps is not None else rows.series.total + 1,
            span=(rows.first, rows.last["seconds"] * mapping.unit) if rows.first and rows.last else None,
            skipped=int(rows.skipped) if "skipped" in self.places else None,
            notes=() if counts or batch else (STEPS_ONLY,),
        )

    def _header(self, text: str) -> None:
        for mapping in self.mappings:
            delimiter = mapping.delimiter_of(text)
            if delimiter is not None and mapping.columns:
                names = [name.strip() for name in cells_of(text, delimiter)]
                self.mapping, self.delimiter = mapping, delimiter
                columns = mapping.columns.model_dump()
                self.places = {what: names.index(name) for what, name in columns.items() if name}
                return

    def _row(self, rows: _Rows, told: dict[str, float], mapping: Mapping) -> None:
        last, rows.last = rows.last, told
        steps = told["step"] - last["step"] if last and "step" in told else 1.0
        rows.batch = told.get("batch", rows.batch)
        if rows.first is None and told.get("seconds", 0.0) * mapping.unit >= _EPOCH:
            rows.first = told["seconds"] * mapping.unit
        if last is None or steps < 1:
            rows.series.before += max(0, int(told.get("step", 1))) if last is None else 0
            rows.skipped = told.get("skipped", 0.0)
            return
        lost = min(max(0.0, told.get("skipped", 0.0) - last.get("skipped", 0.0)), steps)
        rows.skipped += lost
        samples = told["samples"] - last["samples"] if "samples" in told else None
        if "seconds" in told:
            seconds = (told["seconds"] - last["seconds"]) * mapping.unit
        elif "step_seconds" in told:
            seconds = told["step_seconds"] * mapping.unit * steps
        else:
            seconds = self._of_rate(told, mapping, steps, samples)
        if samples is None and "samples_per_second" in told:
            samples = told["samples_per_second"] * seconds
        elif samples is None:
            samples = (steps - lost) * told.get("batch", 1.0)
        tokens = told["tokens"] - last["tokens"] if "tokens" in told else None
        rows.series.add(LogWindow(int(steps), int(lost), samples, seconds, tokens))
        self.frame.progress(int(told.get("step", rows.series.total)))

    def _of_rate(
        self, told: dict[str, float], mapping: Mapping, steps: float, samples: float | None
    ) -> float:
        """Seconds of a row that has a rate and no time; 0: it has none either, and is left out."""
        rate = told["samples_per_second"]
        if not self._timed(mapping):
            return 1.0  # each row counts as much as any other
        done = samples if samples is not None else steps * (told.get("batch") or mapping.batch or 0.0)
        return done / rate if rate > 0 and done > 0 else 0.0

    def _timed(self, mapping: Mapping) -> bool:
        """Whether rows tell how long something took: a rate does where it is known of how many samples."""
        return bool(mapping.batch) or not {"seconds", "step_seconds", "samples", "batch"}.isdisjoint(
            self.places
        )
