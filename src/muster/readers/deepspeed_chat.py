"""DeepSpeed-Chat and the benchmark made of it: its last lines' throughput, and its latency lines."""

from __future__ import annotations

import re

from muster.readers._frame import Frame
from muster.readers.base import FIGURE, LogWindow, Reading, Series, Unit, number

FORMAT = "DeepSpeed-Chat"
HINTS = ("Throughput:", "Execution time:", "Samples/sec:", "CurSamplesPerSec=")

_THROUGHPUT = re.compile(rf"^\s*Throughput: ({FIGURE}) samples/s")
_TIME = re.compile(rf"^\s*Execution time: ({FIGURE}) seconds for ({FIGURE}) steps")
# What a latency is of, the best first: a whole step of step 3, generation and all (dschat/utils/perf.py); the
# same by deepspeed/runtime/hybrid_engine.py; one micro-batch of rank 0 in steps 1 and 2.
_SIZE = rf"(?:.*?\bBatch Size: (?P<size>{FIGURE}))?"
_LATENCIES = {
    "step": re.compile(
        rf"End-to-End => Latency: (?P<latency>{FIGURE})s, .*?Samples/sec: (?P<rate>{FIGURE}){_SIZE}"
    ),
    "engine": re.compile(rf"\|E2E latency=(?P<latency>{FIGURE})s .*?\|CurSamplesPerSec=(?P<rate>{FIGURE})"),
    "micro": re.compile(
        rf"Parameters: .*Latency: (?P<latency>{FIGURE})s, .*?Samples/sec: (?P<rate>{FIGURE}){_SIZE}"
    ),
}
_ROUNDED = 0.2  # a latency has two decimals
OF_A_RANK = "the tool's latencies are of one rank's micro-batches, and the number of ranks is not known"


class Reader:
    """The tool's own figures; windows of single steps or micro-steps, where it prints their latency."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.closed = False
        self.reported: float | None = None
        self.seconds: float | None = None
        self.steps: int | None = None
        self.series = {kind: Series() for kind in _LATENCIES}
        self.printed = dict.fromkeys(_LATENCIES, 0)
        self.lone = False  # micro-batches are counted of one rank
        self.unsized = False  # a step's samples are wrong

    def line(self, text: str) -> None:
        """Read a line with one of the HINTS."""
        if match := _THROUGHPUT.match(text):
            self.reported = number(match[1])
            self.frame.finish()
        elif match := _TIME.match(text):
            self.seconds, self.steps = number(match[1]), int(number(match[2]) or 0)
        else:
            for kind, pattern in _LATENCIES.items():
                if match := pattern.search(text):
                    self._mark(kind, **{name: number(figure) for name, figure in match.groupdict().items()})

    def readings(self) -> list[Reading]:
        """Return one reading, where the tool printed anything."""
        kind = next((kind for kind, count in self.printed.items() if count), "")
        if self.reported is None and not kind:
            return []
        batch = None
        if self.reported and self.seconds and self.steps:
            batch = float(round(self.reported * self.seconds / self.steps)) or None
        whole = kind in ("step", "engine")
        series, unit, notes = self._series(kind)
        return [
            Reading(
                format=FORMAT,
                series=series,
                whole=whole and unit == "samples",
                exact=kind != "micro",  # time stamps are better than sums of rounded parts of steps
                unit=unit,
                batch=batch,
                reported=self.reported or None,
                own=self.reported or None,
                steps=self.steps or (self.printed[kind] if whole else None),
                ended=True if self.reported else None,
                notes=notes,
            )
        ]

    def _series(self, kind: str) -> tuple[Series | None, Unit, tuple[str, ...]]:
        """Return the best windows, what they count, and what is doubtful in them."""
        series = self.series.get(kind)
        if series is None or not series.total:
            return None, "samples", ()
        if kind == "micro" and self.lone:
            ranks = self.frame.ranks
            return series.scaled(ranks or 1), "samples", () if ranks else (OF_A_RANK,)
        if kind == "step" and self.unsized:
            return series, "steps", ()
        return series, "samples", ()

    def _mark(self, kind: str, latency: float | None, rate: float | None, size: float | None = None) -> None:
        if not latency or not rate:
            return
        self.printed[kind] += 1
        series, samples, seconds = self.series[kind], latency * rate, latency
        if size and abs(samples / size - 1) < _ROUNDED:
            samples, seconds = size, size / rate  # whose digits are more
            self.lone = self.lone or kind == "micro"
            # With an unsupervised data set the tool takes 2 for the samples of a step, whatever they are.
            self.unsized = self.unsized or (kind == "step" and size < (self.frame.ranks or 1))
        if self.printed[kind] > 1:  # the first step has the set-up in it
            series.add(LogWindow(1, 0, 1 if self.unsized else samples, seconds))
        else:
            series.before = 1
        self.frame.progress(self.printed[kind])
