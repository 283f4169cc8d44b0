"""Line charts and a stacked bar as inline SVG. Pure. Colours come from the page's style, by class.

A value that is missing, NaN or infinite leaves a gap; it never appears in the SVG.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

Point = tuple[float, float | None]

WIDTH, HEIGHT = 480.0, 250.0
LEFT, RIGHT, TOP, BOTTOM = 52.0, 14.0, 30.0, 40.0
MOST_POINTS = 400
MOST_DOTS = 60
FEW = 12  # points that are marked one by one
HUGE = 1e100  # beyond this the arithmetic of an axis overflows; no measured figure is there
COLOURS = 8


@dataclass(frozen=True)
class ChartSeries:
    """One line. `style`: classes of the page's style, see `style_of`."""

    name: str
    points: tuple[Point, ...]
    style: str = "c0"


@dataclass(frozen=True)
class Chart:
    """A chart before it is drawn."""

    title: str
    unit: str
    x_label: str
    series: tuple[ChartSeries, ...] = ()
    band: tuple[tuple[float, float, float], ...] = ()  # (x, lowest, highest), in the first series' colour
    band_name: str = ""
    zero: bool = True  # the y axis starts at zero
    top: float | None = None  # the y axis reaches at least here
    span: tuple[float, float] | None = None  # the x axis reaches at least from here to there
    shade: tuple[tuple[float, float], ...] = ()  # steps that no figure counts
    note: str = ""
    nothing: str = "Nothing was measured."
    x_names: tuple[tuple[float, str], ...] = ()  # places on the x axis with words, instead of numbers

    @property
    def legend(self) -> list[tuple[str, str]]:
        """Name and style of its lines, and of the band."""
        band = [(self.band_name, f"{self.series[0].style} faint")] if self.band else []
        return [*((each.name, each.style) for each in self.series), *band]


@dataclass(frozen=True)
class Scale:
    """A linear axis from values to places on the chart."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """Return the place of a value."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def style_of(index: int) -> str:
    """Return colour and dash of the n-th line: eight colours, then the same ones dashed."""
    return f"c{index % COLOURS}" + (" dash" if index // COLOURS % 2 else "")


def usable(value: float | None) -> bool:
    """Return whether a value can be drawn."""
    return value is not None and math.isfinite(value) and abs(value) < HUGE


def has_points(chart: Chart) -> bool:
    """Return whether there is anything to draw."""
    return any(usable(x) and usable(y) for series in chart.series for x, y in series.points)


def line_chart(chart: Chart) -> Markup:
    """Return the chart as SVG; a sentence where there is nothing to draw."""
    if not has_points(chart):
        return Markup('<p class="nothing">{}</p>').format(chart.nothing)
    lines = [ChartSeries(each.name, thin(each.points), each.style) for each in chart.series]
    x, x_ticks, y, y_ticks = _axes(chart, lines)
    parts = []
    for edges in chart.shade:
        left, right = (min(max(x.at(edge), LEFT), WIDTH - RIGHT) for edge in edges)
        parts.append(
            element("rect", "shade", x=left, y=TOP, width=right - left, height=HEIGHT - TOP - BOTTOM)
        )
    parts += _grid(chart, x, x_ticks, y, y_ticks)
    parts += _band(chart, x, y)
    for each in reversed(lines):  # the first one is drawn last: on top
        parts += _line(each, x, y)
    dots = sum(len(each.points) for each in lines)
    if dots <= MOST_DOTS * 2:
        for each in lines:
            parts += _hover(chart, each, x, y)
    box = f"0 0 {WIDTH:.0f} {HEIGHT:.0f}"
    return element("svg", "chart", parts, viewBox=box, role="img", aria_label=describe(chart))


def element(tag: str, style: str, inner: Iterable[str] | str = (), **attributes: float | str) -> Markup:
    """Return an element of class `style`, escaped but for what is Markup. Figures have one decimal."""
    pairs = [
        Markup(' {}="{}"').format(
            name.replace("_", "-"), f"{value:.1f}" if isinstance(value, float) else value
        )
        for name, value in attributes.items()
    ]
    begin = Markup('<{} class="{}"{}').format(tag, style, Markup("").join(pairs))
    text = escape(inner) if isinstance(inner, str) else Markup("").join(inner)
    return Markup("{}>{}</{}>").format(begin, text, tag) if text else begin + Markup("/>")


def describe(chart: Chart) -> str:
    """Return the chart in words, for those who cannot see it."""
    parts = []
    for each in chart.series[:16]:
        values = [y for x, y in each.points if usable(x) and y is not None and usable(y)]
        if values:
            parts.append(
                f"{each.name} {short(values[0])} at the start, {short(values[-1])} at the end, "
                f"between {short(min(values))} and {short(max(values))}"
            )
    return f"{chart.title}, {chart.unit}: {'; '.join(parts)}"


def thin(points: Sequence[Point], most: int = MOST_POINTS) -> tuple[Point, ...]:
    """Return about `most` points at most: the lowest and highest of each stretch, so that no spike is lost.
    """
    clean: list[Point] = [(x, y if usable(y) else None) for x, y in points if usable(x)]
    if len(clean) <= most:
        return tuple(clean)
    size = math.ceil(2 * len(clean) / most)
    kept: list[Point] = []
    for start in range(0, len(clean), size):
        stretch = clean[start : start + size]
        there = [(i, y) for i, (_, y) in enumerate(stretch) if y is not None]
        if there:
            ends = {min(there, key=lambda each: each[1])[0], max(there, key=lambda each: each[1])[0]}
            kept += [stretch[i] for i in sorted(ends)]
        if len(there) < len(stretch):
            kept.append((stretch[-1][0], None))
    return tuple(kept)


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Return round values (1, 2 or 5 times a power of ten) that cover low ... high."""
    span = high - low
    if span <= 0 or span < abs(high) * 1e-9:  # as good as one value
        span = abs(high) * 0.2 or 1.0
        low, high = low - span / 2, high + span / 2
    power = 10.0 ** math.floor(math.log10(span / about))
    step = next((m * power for m in (1, 2, 5) if span / (m * power) <= about), 10 * power)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [index * step for index in range(first, last + 1)]


def short(value: float, step: float | None = None) -> str:
    """Return a number for an axis or a hint."""
    size = abs(value)
    for limit, scale, suffix in ((1e9, 1e9, " G"), (1e6, 1e6, " M"), (1e4, 1e3, " k")):
        if size >= limit:
            return f"{value / scale:.4g}{suffix}"
    if step is not None:
        return f"{value:.{max(0, min(12, -math.floor(math.log10(step) + 1e-9)))}f}"
    return f"{value:.4g}"


def stacked_bar(parts: Sequence[tuple[str, float, str]]) -> Markup:
    """Return (name, amount, style) as one bar. Empty where there is nothing to show."""
    amounts = [(name, amount, style) for name, amount, style in parts if usable(amount) and amount > 0]
    total = sum(amount for _, amount, _ in amounts)
    if not total:
        return Markup("")
    words = ", ".join(f"{name} {100 * amount / total:.0f} %" for name, amount, _ in amounts)
    drawn, left = [], 0.0
    for name, amount, style in amounts:
        width = 1000 * amount / total
        title = titled(f"{name}: {100 * amount / total:.1f} %")
        place = {"x": f"{left:.2f}", "y": "0", "width": f"{max(width - 1.5, 0.5):.2f}", "height": "24"}
        drawn.append(element("rect", f"fill {style}", title, **place))
        left += width
    box = {"viewBox": "0 0 1000 24", "preserveAspectRatio": "none"}
    return element("svg", "bar", drawn, **box, role="img", aria_label=words)


def titled(text: str) -> Markup:
    """Return a text that is shown where its element is pointed at."""
    return Markup("<title>{}</title>").format(text)


def _axes(chart: Chart, lines: Sequence[ChartSeries]) -> tuple[Scale, list[float], Scale, list[float]]:
    there = [(x, y) for each in lines for x, y in each.points if y is not None]
    xs = [x for x, _ in there]
    ys = [y for _, y in there] + [edge for _, low, high in chart.band for edge in (low, high) if usable(edge)]
    low, high = min(ys), max(ys)
    if chart.zero:
        low, high = min(0.0, low), max(0.0, high)
    if chart.top is not None:
        high = max(high, chart.top)
    y_ticks = ticks(low, high)
    left, right = min(xs), max(xs)
    if chart.span:
        left, right = min(left, chart.span[0]), max(right, chart.span[1])
    if right <= left:
        left, right = left - 1, right + 1
    x_ticks = [tick for tick in ticks(left, right, 6) if left - 1e-9 <= tick <= right + 1e-9]
    if chart.x_label == "step":
        x_ticks = [tick for tick in x_ticks if tick == round(tick)]
    x = Scale(left, right, LEFT, WIDTH - RIGHT)
    return x, x_ticks, Scale(y_ticks[0], y_ticks[-1], HEIGHT - BOTTOM, TOP), y_ticks


def _grid(
    chart: Chart, x: Scale, x_ticks: Sequence[float], y: Scale, y_ticks: Sequence[float]
) -> Iterator[Markup]:
    step = y_ticks[1] - y_ticks[0] if len(y_ticks) > 1 else None
    for value in y_ticks:
        at = y.at(value)
        yield element("line", "grid", x1=LEFT, x2=WIDTH - RIGHT, y1=at, y2=at)
        yield element("text", "y", short(value, step), x=LEFT - 8, y=at + 4)
    x_step = x_ticks[1] - x_ticks[0] if len(x_ticks) > 1 else None
    for value, name in chart.x_names or [(value, short(value, x_step)) for value in x_ticks]:
        yield element("text", "x", name, x=x.at(value), y=HEIGHT - BOTTOM + 17)
    yield element("text", "unit", chart.unit, x=0.0, y=14)
    yield element("text", "unit end", chart.x_label, x=WIDTH - RIGHT, y=HEIGHT - 5)


def _band(chart: Chart, x: Scale, y: Scale) -> list[Markup]:
    edges = [each for each in chart.band if all(usable(value) for value in each)]
    if len(edges) < 2 or not chart.series:
        return []
    upper = [f"{x.at(at):.1f},{y.at(high):.1f}" for at, _, high in edges]
    lower = [f"{x.at(at):.1f},{y.at(low):.1f}" for at, low, _ in reversed(edges)]
    return [element("polygon", f"band {chart.series[0].style}", points=" ".join(upper + lower))]


def _line(series: ChartSeries, x: Scale, y: Scale) -> Iterator[Markup]:
    """Yield a path for each stretch without a gap; a dot for an isolated point."""
    stretch: list[str] = []
    for at, value in (*series.points, (0.0, None)):
        if value is not None:
            stretch.append(f"{x.at(at):.1f} {y.at(value):.1f}")
            continue
        if len(stretch) > 1:
            yield element("path", f"line {series.style}", d="M" + "L".join(stretch))
        if len(stretch) == 1 or len(series.points) <= FEW:
            for left, top in (point.split() for point in stretch):
                radius = "3.2" if len(stretch) == 1 else "2.4"
                yield element("circle", f"fill {series.style}", cx=left, cy=top, r=radius)
        stretch = []


def _hover(chart: Chart, series: ChartSeries, x: Scale, y: Scale) -> Iterator[Markup]:
    """Yield places that show their value when pointed at."""
    for at, value in series.points:
        if value is not None:
            where = dict(chart.x_names).get(at) or short(at)
            title = titled(f"{series.name}: {short(value)} {chart.unit} at {chart.x_label} {where}")
            yield element("circle", "touch", title, cx=x.at(at), cy=y.at(value), r=7)
