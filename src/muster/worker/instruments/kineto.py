"""Read the trace of PyTorch's profiler (Kineto's Chrome trace, .json or .json.gz): where a step's time goes.

The file is read as a stream: of a large trace only times and names stay in memory.
"""

from __future__ import annotations

import bisect
import gzip
import json
import math
import re
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from muster.core.profile import DeviceWait, KernelTime, StepProfile

LINE = "line "  # how the mark of a Python line begins: "line train.py:31"
STEP = re.compile(r"ProfilerStep#(\d+)")
FETCH = "enumerate(DataLoader)#"  # PyTorch marks each fetch of a batch so
TEN = 10

_CHUNK = 1 << 20  # characters that are read at a time
_MOST = 64 << 20  # characters of one event: beyond them the file is no trace
_SLACK = 5.0  # µs that the clocks of host and device may differ
# Categories have been named in two ways: "Kernel" until 2022, "kernel" since.
_DEVICE = {"kernel": "kernel", "gpu_memcpy": "copy", "memcpy": "copy", "gpu_memset": "set", "memset": "set"}
_RUNTIME = {"cuda_runtime", "cuda_driver", "runtime"}
_OPERATOR = {"cpu_op", "operator"}
_FRAME = re.compile(r"(.+\.py)\((\d+)\): ")  # of `with_stack`: a function, and the line at which it begins
# A copy that is not asynchronous waits, and so does freeing memory.
_WAITING = re.compile(
    r"(cuda|hip)(Stream|Device|Event|Thread)Synchronize|cu(Stream|Ctx|Event)Synchronize"
    r"|(cuda|hip)(Memcpy|Free)|hipMemcpyWithStream|cuMemcpy\w*_v2(?<!Async_v2)|cuMemFree_v2"
)
_DIRECTIONS = {
    "HtoD": "host to device", "DtoH": "device to host", "DtoD": "device to device", "PtoP": "between devices",
}  # fmt: skip


class NoSummary(ValueError):
    """The trace cannot be summed up; the text says why."""


class Span(NamedTuple):
    """Something that takes a time, in µs."""

    start: float
    end: float
    name: str


class Work(NamedTuple):
    """A kernel, a copy or a memset on the device."""

    start: float
    end: float
    name: str
    kind: str
    launch: int  # correlation with the host's call; 0: not known
    size: int


@dataclass
class KernelTrace:
    """What counts of a trace. Keys are threads, or correlations."""

    steps: dict[int, tuple[Span, str]] = field(default_factory=dict)
    device: list[Work] = field(default_factory=list)
    calls: dict[int, tuple[Span, str]] = field(default_factory=dict)  # with their threads
    waits: list[tuple[Span, str]] = field(default_factory=list)
    operators: dict[str, list[Span]] = field(default_factory=lambda: defaultdict(list))
    fetches: dict[str, list[Span]] = field(default_factory=lambda: defaultdict(list))
    lines: dict[str, list[Span]] = field(default_factory=lambda: defaultdict(list))
    overheads: list[Span] = field(default_factory=list)  # what the profiler itself does

    def add(self, event: dict[str, Any]) -> None:
        """Take an event; one that is not complete does not count."""
        if event.get("ph") != "X":
            return
        try:
            start, name, thread = float(event["ts"]), str(event["name"]), str(event["tid"])
            end = start + float(event["dur"])
        except (KeyError, TypeError, ValueError):
            return
        if not math.isfinite(start) or not start <= end < math.inf:
            return
        kind, span = str(event.get("cat", "")).lower(), Span(start, end, name)
        if kind in _OPERATOR or kind == "user_annotation":
            self._host(kind, span, thread)
        elif kind == "python_function":
            match = _FRAME.match(name)
            if match and not match[1].startswith(("torch/", "<")):
                self.lines[thread].append(span._replace(name=f"{match[1]}:{match[2]}"))
        elif kind == "overhead":
            self.overheads.append(span)
        elif kind in _RUNTIME or kind in _DEVICE:
            args = event.get("args")
            args = args if isinstance(args, dict) else {}
            launch, size = _whole(args.get("correlation")), _whole(args.get("bytes"))
            if kind in _DEVICE:
                self.device.append(Work(*span, _DEVICE[kind], launch, size))
                return
            if launch:
                self.calls.setdefault(launch, (span, thread))
            if _WAITING.fullmatch(name):
                self.waits.append((span, thread))

    def _host(self, kind: str, span: Span, thread: str) -> None:
        if match := STEP.fullmatch(span.name):
            self.steps.setdefault(int(match[1]), (span, thread))
        elif span.name.startswith(FETCH):
            self.fetches[thread].append(span)
        elif span.name.startswith(LINE):
            self.lines[thread].append(span._replace(name=span.name[len(LINE) :]))
        elif kind != "user_annotation":
            self.operators[thread].append(span)

    def finish(self) -> None:
        """Put all in order, and add the copies that are called asynchronous and wait."""
        self.device.sort()
        for each in self.device:
            # The host's memory is not pinned: the call returns only when the copy is done.
            if each.kind == "copy" and "Pageable" in each.name and "DtoH" in each.name:
                call = self.calls.get(each.launch)
                if call and not _WAITING.fullmatch(call[0].name):
                    self.waits.append(call)
        self.waits.sort()


def _whole(value: Any) -> int:
    return int(value) if isinstance(value, (int, float)) and math.isfinite(value) else 0


def read(path: Path) -> KernelTrace:
    """Read what counts of a trace. Raises NoSummary where it is none, or ends early."""
    trace = KernelTrace()
    try:
        with (gzip.open if path.suffix == ".gz" else open)(
            path, "rt", encoding="utf-8", errors="replace"
        ) as stream:
            for event in _events(stream):
                trace.add(event)
    except (OSError, EOFError, zlib.error) as error:
        raise NoSummary(f"{path.name} cannot be read: {error}") from None
    except NoSummary as error:
        raise NoSummary(f"{path.name} {error}") from None
    trace.finish()
    return trace


def _events(stream: TextIO) -> Iterator[dict[str, Any]]:
    """Yield the objects of `traceEvents`, one at a time."""
    decoder, text, at = json.JSONDecoder(strict=False), "", -1
    while at < 0:
        more = stream.read(_CHUNK)
        if not more:
            raise NoSummary("is no trace")
        text = text[-20:] + more
        match = re.search(r'"traceEvents"\s*:\s*\[', text)
        at = match.end() if match else -1
    blank = re.compile(r"[\s,]*")
    while True:
        at = blank.match(text, at).end()  # type: ignore[union-attr]
        if text[at : at + 1] == "]":
            return
        try:
            event, at = decoder.raw_decode(text, at)
        except ValueError:
            more = stream.read(_CHUNK)
            if not more or len(text) - at > _MOST:
                raise NoSummary("ends early") from None
            text, at = text[at:] + more, 0
        else:
            if isinstance(event, dict):
                yield event


# ----------------------------------------------------------------------------------------------------


def summarize(trace: KernelTrace, lines: KernelTrace | None = None) -> StepProfile:
    """Sum up the steps of a trace. `lines`: of a further step, in which Python's lines are marked: it names
    the places of the same waits. Raises NoSummary where no step is marked."""
    if not trace.steps:
        raise NoSummary("no step is marked in the trace")
    steps = TraceSteps(trace)
    waits = steps.waits()
    places = TraceSteps(lines).places() if lines is not None and lines.steps else steps.places()
    idle = steps.idle() if trace.device else _Idle(batches=steps.fetching())
    idle.launching += _cut_blame(waits, idle.after)
    return StepProfile(
        first_step=min(trace.steps),
        last_step=max(trace.steps),
        step_seconds=steps.whole / steps.count / 1e6,
        busy=steps.busy() / steps.whole if trace.device else None,
        exchanging=steps.alone(lambda each: "nccl" in each.name.lower()) / steps.whole,
        copying=steps.alone(lambda each: each.kind == "copy") / steps.whole,
        batches=idle.batches / steps.whole,
        launching=idle.launching / steps.whole,
        between=idle.between / steps.whole,
        profiling=idle.profiling / steps.whole,
        kernels=steps.kernels() if trace.device else steps.operators(),
        launches=steps.launches() if trace.device else None,
        waits=_grouped(waits, places, idle.after, steps),
        copied=steps.copied(),
    )


class Wait(NamedTuple):
    """A call that waits, with what is around it."""

    span: Span
    step: int  # index
    call: str  # the outermost operator
    whole: float  # when that operator begins: calls within one are one wait
    place: str | None


@dataclass
class _Idle:
    """µs in which the device has nothing to do, by cause; `after`: by the wait in which it ran dry."""

    batches: float = 0.0
    launching: float = 0.0
    between: float = 0.0
    profiling: float = 0.0
    after: dict[Span, float] = field(default_factory=lambda: defaultdict(float))


class TraceSteps:
    """The marked steps of a trace: from the first one's begin to the end of what they launch."""

    def __init__(self, trace: KernelTrace) -> None:
        self.trace = trace
        self.marks = sorted(span for span, _ in trace.steps.values())
        self.thread = min(trace.steps.values())[1]
        self.count = len(self.marks)
        self.begin, self.marked = self.marks[0].start, max(each.end for each in self.marks)
        self.own = [each for each in trace.device if self.begin <= self._launched(each) < self.marked]
        self.end = max([self.marked, *(each.end for each in self.own)])
        self.whole = max(self.end - self.begin, 1e-9)
        self.device = [each for each in trace.device if each.start < self.end and each.end > self.begin]

    def _launched(self, work: Work) -> float:
        call = self.trace.calls.get(work.launch)
        return call[0].start if call else work.start

    def busy(self) -> float:
        """Return the µs in which anything runs on the device."""
        return self._covered(self.device)

    def alone(self, kind: Callable[[Work], bool]) -> float:
        """Return the µs in which nothing but this kind runs."""
        return max(0.0, self.busy() - self._covered([each for each in self.device if not kind(each)]))

    def _covered(self, work: Sequence[Work]) -> float:
        return _length(_union(work, self.begin, self.end))

    def kernels(self) -> list[KernelTime]:
        """Return the longest kernels that the steps launch."""
        return self._longest((each.name, each.end - each.start) for each in self.own if each.kind == "kernel")

    def operators(self) -> list[KernelTime]:
        """Return the operators on the CPU that take longest, without those that they call."""
        return self._longest(
            (span.name, span.end - span.start - inner)
            for thread in self.trace.operators.values()
            for span, inner in _own_time(thread)
            if self.begin <= span.start < self.marked
        )

    def _longest(self, times: Iterable[tuple[str, float]]) -> list[KernelTime]:
        spent: dict[str, list[float]] = defaultdict(list)
        for name, time in times:
            spent[name].append(time)
        order = sorted(spent, key=lambda name: (-sum(spent[name]), name))[:TEN]
        return [
            KernelTime(name=name, share=sum(spent[name]) / self.whole, calls=len(spent[name]) / self.count)
            for name in order
        ]

    def launches(self) -> float:
        """Count the calls of a step that launch kernels: a graph's kernels have one."""
        kernels = [each.launch for each in self.own if each.kind == "kernel"]
        return (len(set(kernels) - {0}) + kernels.count(0)) / self.count

    def copied(self) -> dict[str, float]:
        """Return bytes of a step by direction; of host memory that is not pinned apart."""
        sizes: dict[str, float] = {}
        for each in self.own:
            if each.kind == "copy":
                word = next((word for word in _DIRECTIONS if word in each.name), None)
                name = _DIRECTIONS[word] if word else each.name
                name += " (not pinned)" if "Pageable" in each.name else ""
                sizes[name] = sizes.get(name, 0.0) + each.size / self.count
        return dict(sorted(sizes.items(), key=lambda each: -each[1]))

    def fetching(self) -> float:
        """Return the µs in which the thread of the steps fetches batches."""
        return _length(_union(self.trace.fetches.get(self.thread, []), self.begin, self.end))

    def waits(self) -> list[Wait]:
        """Return the waits of the steps, with what is around them."""
        starts = [each.start for each in self.marks]
        waits = [each for each in self.trace.waits if self.begin <= each[0].start < self.marked]
        operators = self._around(self.trace.operators, waits)
        lines = self._around(self.trace.lines, waits)
        # Autograd has threads of its own: the thread of the steps is in a line that waits for them.
        main = self._around(self.trace.lines, [(span, self.thread) for span, _ in waits])
        placed = []
        for index, (span, _) in enumerate(waits):
            outer = (operators[index] or [span])[0]
            inner = lines[index] or main[index]
            step = bisect.bisect_right(starts, span.start) - 1
            placed.append(Wait(span, step, outer.name, outer.start, inner[-1].name if inner else None))
        return placed

    @staticmethod
    def _around(spans: Mapping[str, list[Span]], waits: Sequence[tuple[Span, str]]) -> list[list[Span]]:
        """Find for each of the waits, which are in order, the spans of its thread that hold its begin: the
        outermost first."""
        stacks: list[list[Span]] = [[] for _ in waits]
        for thread in {each for _, each in waits} & spans.keys():
            order = iter(sorted(spans[thread], key=lambda each: (each.start, -each.end)))
            following, stack = next(order, None), list[Span]()
            for index, (span, own) in enumerate(waits):
                if own != thread:
                    continue
                while following and following.start <= span.start:
                    stack = [each for each in stack if each.end > following.start] + [following]
                    following = next(order, None)
                stacks[index] = [each for each in stack if each.end > span.start]
        return stacks

    def places(self) -> dict[tuple[int, str], list[str | None]]:
        """Return the places of each step and kind of wait, in their order."""
        places: dict[tuple[int, str], list[str | None]] = defaultdict(list)
        for each in _first_of_each(self.waits()):
            places[each.step, each.call].append(each.place)
        return places

    def idle(self) -> _Idle:
        """Add up the idle time of the device by cause. Until the host launches what comes next the device
        waits for batches, for what a wait of a launching thread held up, or for launches; the rest of a gap
        is its own."""
        idle = _Idle()
        fetches = _union(self.trace.fetches.get(self.thread, []), self.begin, self.end)
        overheads = _union(self.trace.overheads, self.begin, self.end)
        calls = [self.trace.calls.get(each.launch) for each in self.own]
        threads = {call[1] for call in calls if call} | {self.thread}
        waits = [
            span
            for span, thread in self.trace.waits
            if thread in threads and self.begin <= span.start < self.marked
        ]
        free = self.begin
        for each in [*self.device, None]:
            until = min(each.start, self.end) if each else self.end
            if until > free:
                call = self.trace.calls.get(each.launch) if each else None
                launched = min(max(call[0].end, free), until) if call else until
                late = launched - free
                fetched = _within(fetches, free, launched)
                profiled = min(_within(overheads, free, launched), late - fetched)
                idle.batches += fetched
                idle.profiling += profiled
                idle.between += until - launched
                dry = _dry(waits, free, launched)
                if dry:
                    idle.after[dry] += late - fetched - profiled
                else:
                    idle.launching += late - fetched - profiled
            if each:
                free = max(free, min(each.end, self.end))
        return idle


def _dry(waits: Sequence[Span], free: float, launched: float) -> Span | None:
    """Find the wait in which the device ran out of work at `free`, since what follows was launched after
    it."""
    last = bisect.bisect_right(waits, (free + _SLACK, math.inf, "")) - 1
    for each in waits[max(0, last - 3) : last + 1][::-1]:
        if free <= each.end + _SLACK and launched >= each.end - _SLACK:
            return each
    return None


def _cut_blame(waits: Sequence[Wait], after: dict[Span, float]) -> float:
    """Leave to each wait no more of the idle time after it than its calls took together: without it the host
    would be so much earlier, and no more. -> the rest, µs."""
    took: dict[tuple[str, float], float] = defaultdict(float)
    rest = 0.0
    for each in waits:
        took[each.call, each.whole] += each.span.end - each.span.start
    for each in waits:
        blamed, most = after.get(each.span, 0.0), took[each.call, each.whole]
        after[each.span] = min(blamed, most)
        rest += blamed - after[each.span]
    return rest


def _own_time(spans: list[Span]) -> list[tuple[Span, float]]:
    """Pair each operator of a thread with the time of those directly within it."""
    inner: list[float] = []
    order = sorted(spans, key=lambda each: (each.start, -each.end))
    open_: list[int] = []
    for index, span in enumerate(order):
        inner.append(0.0)
        while open_ and order[open_[-1]].end <= span.start:
            open_.pop()
        if open_:
            inner[open_[-1]] += span.end - span.start
        open_.append(index)
    return list(zip(order, inner, strict=True))


def _union(spans: Sequence[Any], begin: float, end: float) -> list[Span]:
    """Join intervals of (start, end, ...) that overlap, cut to two times."""
    merged: list[Span] = []
    for each in sorted(spans):
        start, stop = max(each[0], begin), min(each[1], end)
        if stop <= start:
            continue
        if merged and start <= merged[-1].end:
            merged[-1] = merged[-1]._replace(end=max(merged[-1].end, stop))
        else:
            merged.append(Span(start, stop, ""))
    return merged


def _length(spans: Iterable[Span]) -> float:
    return sum(each.end - each.start for each in spans)


def _within(spans: Sequence[Span], begin: float, end: float) -> float:
    """Measure how much of a time intervals cover that do not overlap and are in order."""
    covered = 0.0
    for index in range(max(0, bisect.bisect_right(spans, (begin, math.inf, "")) - 1), len(spans)):
        start, stop, _ = spans[index]
        if start >= end:
            break
        covered += max(0.0, min(stop, end) - max(start, begin))
    return covered


def _first_of_each(waits: Iterable[Wait]) -> Iterator[Wait]:
    """Yield one of the calls that are within the same operator."""
    seen: set[tuple[str, float]] = set()
    for each in waits:
        if (each.call, each.whole) not in seen:
            seen.add((each.call, each.whole))
            yield each


def _grouped(
    waits: Sequence[Wait],
    places: dict[tuple[int, str], list[str | None]],
    idle: Mapping[Span, float],
    steps: TraceSteps,
) -> list[DeviceWait]:
    """Group waits by operator and place. Where a step has as many of a kind as the step whose lines are
    marked, the n-th of them is at the n-th place; where it has fewer, all of them are, if that place is
    one."""
    last: dict[str, list[str | None]] = {}
    for (_, call), own_places in sorted(places.items(), key=lambda each: each[0][0]):
        last[call] = own_places  # of the last step
    order: dict[tuple[int, str], list[float]] = defaultdict(list)
    for each in _first_of_each(waits):
        order[each.step, each.call].append(each.whole)
    groups: dict[tuple[str, str | None], list[float]] = defaultdict(lambda: [0.0] * 3)
    seen: set[tuple[str, float]] = set()
    for each in waits:
        own, there = order[each.step, each.call], last.get(each.call, [])
        place = each.place
        if place is None and len(own) == len(there):
            place = there[own.index(each.whole)]
        elif place is None and len(own) < len(there) and len(set(there)) == 1:
            place = there[0]
        group = groups[each.call, place]
        group[0] += float((each.call, each.whole) not in seen)
        group[1] += each.span.end - each.span.start
        group[2] += idle.get(each.span, 0.0)
        seen.add((each.call, each.whole))
    made = [
        DeviceWait(
            call=call,
            place=place,
            calls=calls / steps.count,
            seconds=waited / steps.count / 1e6,
            idle=dry / steps.whole,
        )
        for (call, place), (calls, waited, dry) in groups.items()
    ]
    return sorted(made, key=lambda each: (-each.seconds, each.call, each.place or ""))
