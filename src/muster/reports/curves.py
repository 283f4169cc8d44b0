"""The series of the charts, from a run's events. Pure."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from muster.reports.charts import Chart, ChartSeries, Point, style_of, usable
from muster.reports.rundata import RunData
from muster.results.speed import percentile
from muster.store import events
from muster.store.windows import seconds_of, warm_ups

UNITS = (("seconds", 1, 180.0), ("minutes", 60, 10800.0), ("hours", 3600, math.inf))


def charts(data: RunData) -> list[Chart]:
    """Return every chart of a report, in its order."""
    windows = data.folded.ordered_windows()
    clock = clock_of(data)
    if data.result and data.result.command:
        return [loss(data), speed(data, windows), *host_charts(data)]
    return [
        loss(data),
        *learned(data),
        throughput(data, windows),
        *rank_throughput(data, windows),
        step_time(data, windows),
        *attention(data),
        *rank_memory(data, windows, clock),
        *host_charts(data),
    ]


def host_charts(data: RunData) -> list[Chart]:
    """Return charts of the hosts' hardware, whatever ran on them."""
    clock = clock_of(data)
    axis = clock.axis
    memory = _samples(data, clock, lambda sample: sample.memory_used)
    cpu = _samples(data, clock, lambda sample: sample.cpu_percent)
    gpu = _samples(data, clock, gpu_percent)
    none, no_cpu = "No host reported its memory.", "No host reported its CPU use."
    return [
        memory_chart("Memory in use per host", memory, axis, "hosts", none),
        lines_chart("CPU use per host", "% of all cores", cpu, axis, "hosts", no_cpu, top=100.0),
        lines_chart(
            "GPU use per host", "%, mean of its GPUs", gpu, axis, "hosts", "No GPUs found.", top=100.0
        ),
    ]


def clock_of(data: RunData) -> Clock:
    """Return a clock whose zero is the launch of the first attempt."""
    folded = data.folded
    times = [sample.time for samples in folded.hardware.values() for sample in samples]
    times += [window.time for ranks in folded.windows.values() for window in ranks.values()]
    times = [time for time in times if usable(time)]
    began = folded.began
    start = began if began is not None and usable(began) else min(times, default=0.0)
    length = max(times, default=start) - start
    unit, size = next(((u, s) for u, s, most in UNITS if length < most), UNITS[-1][:2])
    return Clock(start, f"{unit} since launch", size, length / size)


def steps_of(data: RunData) -> tuple[float, float]:
    """Return the range from before the first step to the last one: all charts over steps share it."""
    steps = [*data.folded.windows, *data.folded.logs, *(each.step for each in data.folded.evaluated)]
    return 0.0, float(max(steps, default=0))


def loss(data: RunData) -> Chart:
    """Return the training loss, and the held-out loss where it was measured."""
    logs = data.folded.logs
    train = tuple((float(step), logs[step].loss) for step in sorted(logs))
    held = tuple((float(each.step), each.loss) for each in data.folded.evaluated if each.loss is not None)
    return _course(data, "Loss", "loss", train, held)


def _course(data: RunData, title: str, unit: str, train: tuple[Point, ...], held: tuple[Point, ...]) -> Chart:
    """Return a figure in training and held out, as far as it was measured."""
    series = (ChartSeries("train", train, "c0"), ChartSeries("held-out", held, "c1"))
    there = tuple(each for each in series if each.points)
    return Chart(title, unit, "step", there, zero=False, span=steps_of(data), nothing="No loss was logged.")


# Figures of workloads that get a picture, where they were measured.
PICTURED = {"reward": "Reward", "pair_accuracy": "Pairs in the right order"}


def learned(data: RunData) -> list[Chart]:
    """Return the workload's own figures, in training and held out."""
    logs, drawn = data.folded.logs, []
    for name, title in PICTURED.items():
        own = [logs[step] for step in sorted(logs) if name in logs[step].figures]
        train = tuple((float(each.step), each.figures[name]) for each in own)
        held = tuple((float(e.step), e.figures[name]) for e in data.folded.evaluated if name in e.figures)
        if train or held:
            drawn.append(_course(data, title, name.replace("_", " "), train, held))
    return drawn


def throughput(data: RunData, windows: Sequence[Sequence[events.Window]]) -> Chart:
    """Return samples per second of all ranks together; a gap where a rank did not report its share, and where
    a profiler ran."""
    points: list[Point] = []
    for each in windows:
        seconds = seconds_of(each)
        whole = len(each) == data.world_size and usable(seconds) and seconds > 0 and not each[0].profiled
        points.append(
            (float(each[0].step), sum(window.samples for window in each) / seconds if whole else None)
        )
    shade = shaded(data, windows)
    return Chart(
        "Throughput, all ranks",
        "samples/s",
        "step",
        (ChartSeries("all ranks", tuple(points), "c0 thick"),),
        span=steps_of(data),
        shade=shade,
        note="Shaded: warm-up, which no figure includes." if shade else "",
        nothing="No measured window has figures from every rank.",
    )


def speed(data: RunData, windows: Sequence[Sequence[events.Window]]) -> Chart:
    """Return steps per second of a command: of its windows, or else between two readings of its output."""
    points: list[Point] = []
    for each in windows:
        seconds = seconds_of(each)
        if usable(seconds) and seconds > 0:
            points.append((float(each[0].step), each[0].steps / seconds))
    logs = [data.folded.logs[step] for step in sorted(data.folded.logs)] if not points else []
    for before, now in pairwise(logs):
        if now.time > before.time:
            points.append((float(now.step), (now.step - before.step) / (now.time - before.time)))
    return Chart(
        "Speed",
        "steps/s",
        "step",
        (ChartSeries("steps/s", tuple(points), "c0 thick"),),
        span=steps_of(data),
        nothing="Its output told no two steps.",
    )


def rank_throughput(data: RunData, windows: Sequence[Sequence[events.Window]]) -> list[Chart]:
    """Return samples per second of each rank, where there are several."""
    lines: dict[int, list[Point]] = defaultdict(list)
    for each in windows:
        for window in each:
            good = usable(window.seconds) and window.seconds > 0 and not window.profiled
            rank = window.rank if window.rank is not None else -1
            lines[rank].append((float(window.step), window.samples / window.seconds if good else None))
    if len(lines) < 2:
        return []
    named = {f"rank {rank}": lines[rank] for rank in sorted(lines)}
    nothing = "No measured window was completed."
    chart = lines_chart(
        "Throughput of each rank", "samples/s", named, ("step", steps_of(data)), "ranks", nothing
    )
    return [replace(chart, shade=shaded(data, windows))]


def shaded(data: RunData, windows: Sequence[Sequence[events.Window]]) -> tuple[tuple[float, float], ...]:
    """Return the steps that the figures leave out, of each attempt."""
    warmup, ranks = data.measure("warmup"), data.world_size
    if not isinstance(warmup, int) or ranks is None:
        return ()
    return tuple((float(first), float(to)) for first, to in warm_ups(windows, warmup, ranks))


def step_time(data: RunData, windows: Sequence[Sequence[events.Window]]) -> Chart:
    """Return median and 95th percentile of each window's steps, on the rank that was slowest in it."""
    median: list[Point] = []
    high: list[Point] = []
    for each in windows:
        slowest = max(each, key=lambda window: window.seconds)
        steps = sorted(value for value in slowest.step_seconds if usable(value))
        mean = slowest.seconds / slowest.steps if slowest.steps else None
        median.append((float(slowest.step), statistics.median(steps) if steps else mean))
        high.append((float(slowest.step), percentile(steps, 0.95) if steps else None))
    times = [y for _, y in (*median, *high) if y is not None and usable(y)]
    unit, size = ("seconds", 1.0) if max(times, default=0) >= 2 else ("milliseconds", 1000.0)
    series = tuple(
        ChartSeries(name, tuple((x, None if y is None else y * size) for x, y in line), style)
        for name, line, style in (("median", median, "c0"), ("95th percentile", high, "c1"))
    )
    return Chart(
        "Step time",
        unit,
        "step",
        series if windows else (),
        span=steps_of(data),
        shade=shaded(data, windows),
        note="The slowest rank of each window.",
        nothing="No measured window was completed.",
    )


def attention(data: RunData) -> list[Chart]:
    """Return the largest and the smallest attention logit of each layer, where the run sampled them."""
    seen = [data.folded.attention[step] for step in sorted(data.folded.attention)]
    about = data.result.attention if data.result else None
    cost = f"Recording this took {100 * about.share:.2g} % of the training." if about and about.share else ""
    made = []
    for name, values in (("Largest", "largest"), ("Smallest", "smallest")) if seen else ():
        lines: dict[str, list[Point]] = {}
        for each in seen:
            for layer, value in zip(each.layers, getattr(each, values), strict=False):
                lines.setdefault(layer, []).append((float(each.step), value))
        axis, nothing = ("step", steps_of(data)), "No attention logit was finite."
        title = f"{name} attention logit of each layer"
        chart = lines_chart(title, "before mask and softmax", lines, axis, "layers", nothing)
        made.append(replace(chart, zero=False, note=f"{chart.note} {cost}".strip()))
    return made


def rank_memory(data: RunData, windows: Sequence[Sequence[events.Window]], clock: Clock) -> list[Chart]:
    """Return the peaks that each rank reported: its process's, and its GPU's where it has one."""
    wanted: list[tuple[str, Callable[[events.Window], int | None], str]] = [
        ("GPU memory per rank (allocator's peak)", lambda each: each.allocator_peak, "No rank used a GPU."),
        (
            "Host memory per rank (peak so far)",
            lambda each: each.resident_peak,
            "No rank reported its memory.",
        ),
    ]
    if data.job.get("device") == "cpu":
        del wanted[0]
    made = []
    for title, figure, nothing in wanted:
        lines: dict[str, list[Point]] = defaultdict(list)
        attempts: dict[str, int] = {}
        for each in windows:
            for window in sorted(each, key=lambda one: one.rank if one.rank is not None else -1):
                name = f"rank {window.rank}"
                _add(lines[name], attempts, name, window.attempt, clock.at(window.time), figure(window))
        made.append(memory_chart(title, lines, clock.axis, "ranks", nothing))
    return made


def gpu_percent(sample: events.Hardware) -> float | None:
    """Return the mean of a host's GPUs, or None without one."""
    percents = [float(gpu["percent"]) for gpu in sample.gpus if gpu.get("percent") is not None]  # type: ignore[arg-type]
    return statistics.mean(percents) if percents else None


def _samples(
    data: RunData, clock: Clock, figure: Callable[[events.Hardware], float | int | None]
) -> dict[str, list[Point]]:
    lines: dict[str, list[Point]] = {}
    attempts: dict[str, int] = {}
    for host in sorted(data.folded.hardware):
        lines[host] = []
        for sample in data.folded.hardware[host]:
            _add(lines[host], attempts, host, sample.attempt, clock.at(sample.time), figure(sample))
    return lines


def _add(
    line: list[Point], attempts: dict[str, int], name: str, attempt: int, at: float, value: float | int | None
) -> None:
    """Add a point; between two attempts nothing was measured, so the line breaks there."""
    if attempts.get(name, attempt) != attempt:
        line.append((at, None))
    attempts[name] = attempt
    line.append((at, None if value is None else float(value)))


# ----------------------------------------------------------------------------------------------------
# Many lines of one kind as one picture: each of a few, the median and the range of many. Pure.

MOST_LINES = 16
FEW_ALIKE = 4  # more lines than this that lie on each other say nothing one by one
ON_EACH_OTHER = "The lines coincide."
MOST_PLACES = 120  # of the median and the range of many


Axis = tuple[str, tuple[float, float]]


@dataclass(frozen=True)
class Clock:
    """Seconds since the run began, in a unit that suits its length."""

    start: float
    unit: str
    seconds: float
    length: float = 0.0  # of the whole run, in this unit

    def at(self, time: float) -> float:
        """Return a moment on the x axis."""
        return (time - self.start) / self.seconds

    @property
    def axis(self) -> Axis:
        """The name and the range of the x axis."""
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
    """Return a line for each of a few; the median and the range of many."""
    there = {name: line for name, line in lines.items() if any(usable(y) for _, y in line)}
    x_label, span = axis
    series = tuple(
        ChartSeries(name, tuple(line), style_of(i)) for i, (name, line) in enumerate(there.items())
    )
    alike = len(series) <= MOST_LINES and coincide(series)
    if len(series) <= (FEW_ALIKE if alike else MOST_LINES):
        note = ON_EACH_OTHER if alike else ""
        return Chart(title, unit, x_label, series, top=top, span=span, note=note, nothing=nothing)
    middle, band = summarise(list(there.values()))
    return Chart(
        title,
        unit,
        x_label,
        (ChartSeries(f"median of {len(there)} {what}", tuple(middle), "c0"),),
        band=tuple(band),
        band_name=f"lowest to highest of {len(there)} {what}",
        top=top,
        span=span,
        nothing=nothing,
    )


def coincide(series: Sequence[ChartSeries]) -> bool:
    """Return whether several lines would all be drawn on top of each other."""
    lines = [[y for _, y in each.points if y is not None and usable(y)] for each in series]
    if len(lines) < 2 or not all(lines):
        return False
    size = max(max(abs(y) for y in line) for line in lines)
    return all(
        statistics.median(abs(a - b) for a, b in zip(lines[0], line, strict=False)) <= 0.015 * size
        for line in lines[1:]
    )


def summarise(lines: Sequence[Sequence[Point]]) -> tuple[list[Point], list[tuple[float, float, float]]]:
    """Return the median of many lines, and (x, lowest, highest), over equal stretches of x."""
    points = [(x, y) for line in lines for x, y in line if y is not None and usable(x) and usable(y)]
    if not points:
        return [], []
    longest = max(len(line) for line in lines)
    places = sorted({x for x, _ in points})
    stretches: dict[float, list[float]] = defaultdict(list)
    if len(places) > min(MOST_PLACES, longest):  # not measured at the same moments, or too often
        left, count = places[0], max(1, min(MOST_PLACES, longest // 2))
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
