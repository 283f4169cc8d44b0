"""Many lines of one kind as one picture: each of a few, the median and the range of many. Pure."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from muster.report.charts import Chart, Point, Series, style_of, usable

MOST_LINES = 16
FEW_ALIKE = 4  # more lines than this that lie on each other say nothing one by one
ON_EACH_OTHER = "The lines coincide."


Axis = tuple[str, tuple[float, float]]


@dataclass(frozen=True)
class Clock:
    """Seconds since the run began, in a unit that suits its length."""

    start: float
    unit: str
    seconds: float
    length: float = 0.0  # of the whole run, in this unit

    def at(self, time: float) -> float:
        """A moment on the x axis."""
        return (time - self.start) / self.seconds

    @property
    def axis(self) -> Axis:
        """The name and the reach of the x axis."""
        return self.unit, (0.0, self.length)


def memory_chart(title: str, lines: Mapping[str, list[Point]], axis: Axis, what: str, nothing: str) -> Chart:
    most = max((y for line in lines.values() for _, y in line if y is not None and usable(y)), default=0.0)
    unit, size = ("GB", 1e9) if most >= 1e9 else ("MB", 1e6)
    scaled = {name: [(x, None if y is None else y / size) for x, y in line] for name, line in lines.items()}
    return lines_chart(title, unit, scaled, axis, what, nothing)


def lines_chart(
    title: str,
    unit: str,
    lines: Mapping[str, list[Point]],
    axis: Axis,
    what: str,
    nothing: str,
    top: float | None = None,
) -> Chart:
    """A line for each of a few; the median and the range of many."""
    there = {name: line for name, line in lines.items() if any(usable(y) for _, y in line)}
    x_label, span = axis
    series = tuple(Series(name, tuple(line), style_of(i)) for i, (name, line) in enumerate(there.items()))
    alike = len(series) <= MOST_LINES and coincide(series)
    if len(series) <= (FEW_ALIKE if alike else MOST_LINES):
        note = ON_EACH_OTHER if alike else ""
        return Chart(title, unit, x_label, series, top=top, span=span, note=note, nothing=nothing)
    middle, band = summarise(list(there.values()))
    return Chart(
        title,
        unit,
        x_label,
        (Series(f"median of {len(there)} {what}", tuple(middle), "c0"),),
        band=tuple(band),
        band_name=f"lowest to highest of {len(there)} {what}",
        top=top,
        span=span,
        nothing=nothing,
    )


def coincide(series: Sequence[Series]) -> bool:
    """Whether all of several lines would be drawn on each other."""
    lines = [[y for _, y in each.points if y is not None and usable(y)] for each in series]
    if len(lines) < 2 or not all(lines):
        return False
    size = max(max(abs(y) for y in line) for line in lines)
    return all(
        statistics.median(abs(a - b) for a, b in zip(lines[0], line, strict=False)) <= 0.015 * size
        for line in lines[1:]
    )


def summarise(
    lines: Sequence[Sequence[Point]], most: int = 120
) -> tuple[list[Point], list[tuple[float, float, float]]]:
    """Many lines -> their median, and (x, lowest, highest), over equal stretches of x."""
    points = [(x, y) for line in lines for x, y in line if y is not None and usable(x) and usable(y)]
    if not points:
        return [], []
    longest = max(len(line) for line in lines)
    places = sorted({x for x, _ in points})
    stretches: dict[float, list[float]] = defaultdict(list)
    if len(places) > min(most, longest):  # not measured at the same moments, or too often
        left, count = places[0], max(1, min(most, longest // 2))
        width = (places[-1] - left) / count or 1.0
        points = [(left + (min(count - 1, int((x - left) / width)) + 0.5) * width, y) for x, y in points]
        places = [left + (index + 0.5) * width for index in range(count)]
    for x, y in points:
        stretches[x].append(y)
    middle: list[Point] = []
    band = []
    for at in places:
        values = stretches.get(at)
        middle.append((at, statistics.median(values) if values else None))
        if values:
            band.append((at, min(values), max(values)))
    return middle, band
