"""What the pictures show: series out of a run's events. Pure."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from muster.report.charts import Chart, Point, Series, style_of, usable
from muster.report.gather import RunData
from muster.store import events
from muster.supervise.fold import percentile

MOST_LINES = 16
GIB, MIB = 1024.0**3, 1024.0**2


@dataclass(frozen=True)
class Clock:
    """Seconds since the run began, in a unit that suits its length."""

    start: float
    unit: str
    seconds: float

    def at(self, time: float) -> float:
        """A moment on the x axis."""
        return (time - self.start) / self.seconds


def charts(data: RunData) -> list[Chart]:
    """Every picture of a report, in its order."""
    windows = data.folder.ordered_windows()
    clock = clock_of(data)
    return [
        loss(data),
        throughput(data, windows),
        step_time(windows),
        *rank_memory(data, windows, clock),
        host_memory(data, clock),
        cpu_use(data, clock),
        gpu_use(data, clock),
    ]


def clock_of(data: RunData) -> Clock:
    """Time zero is the launch of the first attempt."""
    folder = data.folder
    times = [sample.time for samples in folder.hardware.values() for sample in samples]
    times += [window.time for ranks in folder.windows.values() for window in ranks.values()]
    times = [time for time in times if usable(time)]
    start = folder.began if folder.began is not None else min(times, default=0.0)
    length = max(times, default=start) - start
    if length < 180:
        return Clock(start, "seconds since launch", 1)
    return Clock(start, "minutes since launch", 60) if length < 10800 else Clock(start, "hours since launch", 3600)


def loss(data: RunData) -> Chart:
    """The training loss, and the held-out loss where it was measured."""
    logs = data.folder.logs
    series = (
        Series("train", tuple((float(step), logs[step].loss) for step in sorted(logs)), "c0"),
        Series("held-out", tuple((float(each.step), each.loss) for each in data.folder.evaluated), "c1"),
    )
    return Chart(
        "Loss",
        "loss",
        "step",
        tuple(each for each in series if each.points),
        zero=False,
        nothing="No loss was logged.",
    )


def throughput(data: RunData, windows: Sequence[Sequence[events.Window]]) -> Chart:
    """Samples per second: of all ranks together, and of each where they are few."""
    world = data.world_size or max((len(each) for each in windows), default=0)
    total: list[Point] = []
    ranks: dict[int, list[Point]] = defaultdict(list)
    for each in windows:
        step = float(each[0].step)
        seconds = max(window.seconds for window in each)
        whole = len(each) == world and seconds > 0
        total.append((step, sum(window.samples for window in each) / seconds if whole else None))
        for window in each:
            if window.seconds > 0:
                ranks[window.rank if window.rank is not None else -1].append((step, window.samples / window.seconds))
    series = [Series("all ranks" if world > 1 else "rank 0", tuple(total), "c0 thick")] if total else []
    if 1 < len(ranks) <= MOST_LINES:
        series += [Series(f"rank {rank}", tuple(ranks[rank]), style_of(i + 1)) for i, rank in enumerate(sorted(ranks))]
    shade = warm_up(data, windows, world)
    return Chart(
        "Throughput",
        "samples/s",
        "step",
        tuple(series),
        shade=shade,
        note="Shaded: warm-up, which no figure counts." if shade else "",
        nothing="No window of optimizer steps was finished.",
    )


def warm_up(
    data: RunData, windows: Sequence[Sequence[events.Window]], world: int
) -> tuple[float, float] | None:
    """The steps that the fold leaves out of the figures (the same rule as muster.supervise.fold.throughput)."""
    warmup = data.measure("warmup")
    whole = [each for each in windows if len(each) == world]
    if not isinstance(warmup, int) or len(whole) < 2:
        return None
    skip = min(warmup, sum(each[0].steps for each in whole) // 3)
    passed, last = 0, None
    for each in whole:
        if passed >= skip:
            break
        passed += each[0].steps
        last = each[0].step
    return None if last is None else (float(whole[0][0].step - whole[0][0].steps), float(last))


def step_time(windows: Sequence[Sequence[events.Window]]) -> Chart:
    """Median and 95th percentile of each window's steps, on the rank that was slowest in it."""
    median: list[Point] = []
    high: list[Point] = []
    for each in windows:
        slowest = max(each, key=lambda window: window.seconds)
        steps = sorted(1000 * value for value in slowest.step_seconds if usable(value))
        mean = 1000 * slowest.seconds / slowest.steps if slowest.steps else None
        median.append((float(slowest.step), statistics.median(steps) if steps else mean))
        high.append((float(slowest.step), percentile(steps, 0.95) if steps else None))
    series = (Series("median", tuple(median), "c0"), Series("95th percentile", tuple(high), "c1"))
    return Chart(
        "Step time",
        "milliseconds",
        "step",
        series if windows else (),
        note="Of the slowest rank in each window.",
        nothing="No window of optimizer steps was finished.",
    )


def rank_memory(data: RunData, windows: Sequence[Sequence[events.Window]], clock: Clock) -> list[Chart]:
    """The peaks that each rank reported: its process's, and its GPU's where it has one."""
    wanted: list[tuple[str, Callable[[events.Window], int | None], str]] = [
        ("Host memory per rank (peak so far)", lambda window: window.resident_peak, "No rank told its memory.")
    ]
    if data.job.get("device") != "cpu":
        wanted.insert(
            0, ("GPU memory per rank (allocator's peak)", lambda window: window.allocator_peak, "No rank told of a GPU.")
        )
    made = []
    for title, figure, nothing in wanted:
        lines: dict[str, list[Point]] = defaultdict(list)
        attempts: dict[str, int] = {}
        for each in windows:
            for window in sorted(each, key=lambda one: one.rank if one.rank is not None else -1):
                name = f"rank {window.rank}"
                _add(lines[name], attempts, name, window.attempt, clock.at(window.time), figure(window))
        made.append(_of_memory(title, lines, clock, "ranks", nothing))
    return made


def host_memory(data: RunData, clock: Clock) -> Chart:
    """What is in use on each host, by everything on it."""
    lines = _samples(data, clock, lambda sample: sample.memory_used)
    return _of_memory("Memory in use per host", lines, clock, "hosts", "No host told its memory.")


def cpu_use(data: RunData, clock: Clock) -> Chart:
    """Per cent of all cores of a host."""
    lines = _samples(data, clock, lambda sample: sample.cpu_percent)
    return _lines("CPU use per host", "% of all cores", lines, clock, "hosts", "No host told its CPU use.", top=100.0)


def gpu_use(data: RunData, clock: Clock) -> Chart:
    """Per cent of time in which a GPU of the host worked: the mean of its GPUs."""
    lines = _samples(data, clock, gpu_percent)
    return _lines("GPU use per host", "%, mean of its GPUs", lines, clock, "hosts", "No host told of a GPU.", top=100.0)


def gpu_percent(sample: events.Hardware) -> float | None:
    """The mean of a host's GPUs, or None without one."""
    found = [float(gpu["percent"]) for gpu in sample.gpus if gpu.get("percent") is not None]  # type: ignore[arg-type]
    return statistics.mean(found) if found else None


def _samples(
    data: RunData, clock: Clock, figure: Callable[[events.Hardware], float | int | None]
) -> dict[str, list[Point]]:
    lines: dict[str, list[Point]] = {}
    attempts: dict[str, int] = {}
    for host in sorted(data.folder.hardware):
        lines[host] = []
        for sample in data.folder.hardware[host]:
            _add(lines[host], attempts, host, sample.attempt, clock.at(sample.time), figure(sample))
    return lines


def _add(
    line: list[Point], attempts: dict[str, int], name: str, attempt: int, at: float, value: float | int | None
) -> None:
    """A point; between two attempts nothing was measured, so the line breaks there."""
    if attempts.get(name, attempt) != attempt:
        line.append((at, None))
    attempts[name] = attempt
    line.append((at, None if value is None else float(value)))


def _of_memory(title: str, lines: Mapping[str, list[Point]], clock: Clock, what: str, nothing: str) -> Chart:
    most = max((y for line in lines.values() for _, y in line if y is not None and usable(y)), default=0.0)
    unit, size = ("GiB", GIB) if most >= GIB else ("MiB", MIB)
    scaled = {name: [(x, None if y is None else y / size) for x, y in line] for name, line in lines.items()}
    return _lines(title, unit, scaled, clock, what, nothing)


def _lines(
    title: str,
    unit: str,
    lines: Mapping[str, list[Point]],
    clock: Clock,
    what: str,
    nothing: str,
    top: float | None = None,
) -> Chart:
    """A line for each of a few; the median and the range of many."""
    there = {name: line for name, line in lines.items() if any(usable(y) for _, y in line)}
    if len(there) <= MOST_LINES:
        series = tuple(Series(name, tuple(line), style_of(i)) for i, (name, line) in enumerate(there.items()))
        return Chart(title, unit, clock.unit, series, top=top, nothing=nothing)
    middle, band = summarise(list(there.values()))
    return Chart(
        title,
        unit,
        clock.unit,
        (Series(f"median of {len(there)} {what}", tuple(middle), "c0"),),
        band=tuple(band),
        band_name=f"lowest to highest of {len(there)} {what}",
        top=top,
        nothing=nothing,
    )


def summarise(
    lines: Sequence[Sequence[Point]], most: int = 120
) -> tuple[list[Point], list[tuple[float, float, float]]]:
    """Many lines -> their median, and (x, lowest, highest), over equal stretches of x."""
    points = [(x, y) for line in lines for x, y in line if y is not None and usable(x) and usable(y)]
    if not points:
        return [], []
    left, right = min(x for x, _ in points), max(x for x, _ in points)
    count = max(1, min(most, max(len(line) for line in lines) // 2))
    width = (right - left) / count or 1.0
    stretches: dict[int, list[float]] = defaultdict(list)
    for x, y in points:
        stretches[min(count - 1, int((x - left) / width))].append(y)
    middle: list[Point] = []
    band = []
    for index in range(count):
        at = left + (index + 0.5) * width
        values = stretches.get(index)
        middle.append((at, statistics.median(values) if values else None))
        if values:
            band.append((at, min(values), max(values)))
    return middle, band
