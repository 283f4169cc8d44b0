"""DeepSpeed-Chat and the benchmark made of it: its last lines' throughput, and its latency lines."""

from __future__ import annotations

import re
from collections.abc import Sequence

from muster.readers._frame import Frame
from muster.readers._mapping import Mapping
from muster.readers.base import FIGURE, LogWindow, Reading, Series, number

FORMAT = "DeepSpeed-Chat"
HINTS = ("Throughput:", "Execution time:", "Samples/sec:")

_THROUGHPUT = re.compile(rf"^\s*Throughput: ({FIGURE}) samples/s")
_TIME = re.compile(rf"^\s*Execution time: ({FIGURE}) seconds for ({FIGURE}) steps")
# "Model Parameters: 1.3 B, Latency: 0.21s, ..., Samples/sec: 937, ..., Batch Size: 24, ..." and
# "End-to-End => Latency: 4.06s, TFLOPs: 69.5, Samples/sec: 7.88, ..., Batch Size: 32, ..."
_LATENCY = re.compile(rf"(?:Parameters: .*|End-to-End => )Latency: ({FIGURE})s, .*?Samples/sec: ({FIGURE})")


class Reader:
    """What the tool says itself; windows of single steps, where it prints their latency."""

    def __init__(self, frame: Frame, mappings: Sequence[Mapping]) -> None:
        self.frame = frame
        self.closed = False
        self.reported: float | None = None
        self.seconds: float | None = None
        self.steps: int | None = None
        self.series = Series()
        self.printed = 0

    def line(self, text: str) -> None:
        """One of the lines in HINTS."""
        if match := _THROUGHPUT.match(text):
            self.reported = number(match[1])
            self.frame.finish()
        elif match := _TIME.match(text):
            self.seconds, self.steps = number(match[1]), int(number(match[2]) or 0)
        elif match := _LATENCY.search(text):
            latency, rate = number(match[1]), number(match[2])
            if latency and rate:
                self.printed += 1
                if self.printed > 1:  # the first step has the set-up in it
                    self.series.add(LogWindow(1, 0, latency * rate, latency))
                else:
                    self.series.before = 1
                self.frame.progress(self.printed)

    def readings(self) -> list[Reading]:
        """One, where the tool said anything."""
        if self.reported is None and not self.printed:
            return []
        batch = None
        if self.reported and self.seconds and self.steps:
            batch = float(round(self.reported * self.seconds / self.steps)) or None
        return [
            Reading(
                format=FORMAT,
                series=self.series if self.series.total else None,
                batch=batch,
                reported=self.reported or None,
                own=self.reported or None,
                steps=self.steps or self.printed or None,
                ended=True if self.reported else None,
            )
        ]
