"""metaseq's and fairseq's lines, as JSON or not: `... | train_inner | {"num_updates": "10", "wall": "60"}`,
`| epoch 001:    450 / 1891 loss=11.521, wps=52922, ..., num_updates=445, ..., wall=882, train_wall=756`."""

from __future__ import annotations

import json
import re

from muster.readers._frame import Frame, stamp
from muster.readers.base import LogWindow, Reading, Series, number

FORMAT = "metaseq"
HINTS = (
    '"num_updates"', "num_updates=", "overflow detected", "done training", "begin validation",
    "valid on '", "aved checkpoint", "model params:", "max tokens per ", "| task: ", "| model: ",
    "oaded checkpoint",
)  # fmt: skip
# What it says of a training before it begins: "... | fairseq_cli.train | num. model params: 74155008 ..."
_SETTING = re.compile(r"\| ((?:num\. [\w -]*model params|max tokens per \w+|task|model)\b.*)")
_LOADED = re.compile(r"oaded checkpoint .*@ (\d{1,12}) updates")
_COARSE = 1.5  # seconds that a difference of whole ones is off by, and a little
_FIGURE = re.compile(r"\b(\w+)=([^\s,\]]+)")


class Reader:
    """Windows between two lines of train_inner, over `num_updates`, which does not count skipped steps.

    Their seconds are those of `wall`, which has no fractions; where lines have finer time stamps, of those.
    """

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.closed = False
        self.series = Series()
        self.last: tuple[int, float | None, float | None] | None = None  # updates, wall, stamp
        self.first: int | None = None  # updates of this process up to its first line; None: not known
        self.loaded: int | None = None  # those of the checkpoint that it began with
        self.every = 0  # updates between the last two lines
        self.anew = False  # another process has begun
        self.restarts = 0  # of the frame, at the last line
        self.used = 0  # updates of all processes
        self.overflows = 0
        self.skipped = 0
        self.interrupted = False
        self.done = False
        self.format = FORMAT
        self.loss: float | None = None
        self.batch: float | None = None
        self.settings: dict[str, None] = {}
        self.words: float | None = None  # tokens of a step

    def line(self, text: str) -> None:
        """Read a line with one of the HINTS."""
        if "overflow detected" in text:
            self.overflows += 1
        elif "done training" in text:
            self.done = True
            self.frame.finish()
        elif "num_updates" in text and (figures := _figures(text)):
            self.format, self.done = FORMAT if '"num_updates"' in text else "fairseq", False
            self._mark(text, figures)
        elif "oaded checkpoint" in text:
            match = _LOADED.search(text)
            self.loaded, self.anew = int(match[1]) if match else None, True
        elif match := _SETTING.search(text):
            self.anew, self.done = self.last is not None, False
            if len(self.settings) < 16:
                self.settings.setdefault(match[1])
        else:
            self.interrupted = True

    def readings(self) -> list[Reading]:
        """Return one reading, where train_inner reported a step."""
        if self.last is None:
            return []
        return [
            Reading(
                format=self.format,
                series=self.series,
                batch=self.batch,
                recipe=self._recipe(),
                steps=(self.used if self.first else self.used + self.last[0]) + self.skipped + self.overflows,
                skipped=self.skipped + self.overflows,
                ended=self.done,
                loss=self.loss,
            )
        ]

    def _recipe(self) -> str:
        """Return what was trained; empty, where the size of the model is not known."""
        sized = any("model params" in each for each in self.settings)
        return "; ".join(["metaseq", *self.settings, f"{self.words} tokens a step"]) if sized else ""

    def _mark(self, text: str, figures: dict[str, object]) -> None:
        updates, batch = number(figures.get("num_updates")), number(figures.get("bsz"))
        wall, words = number(figures.get("wall")), number(figures.get("wpb"))
        self.words = words or self.words
        if updates is None or not 1 <= updates <= 1e12:
            return
        now = (int(updates), wall, stamp(text))
        before, self.anew = self.last, self.anew or self.last is None or self.frame.restarts > self.restarts
        self.restarts = self.frame.restarts
        if before == now:  # the same line once more
            return
        self.batch, self.loss = batch or self.batch, number(figures.get("loss")) or self.loss
        if before is None or self.anew or now[0] <= before[0]:
            self._begin(now[0])
        else:
            used = now[0] - before[0]
            self.every, self.used = used, self.used + used
            if self.first is None:  # lines come every so many updates
                self.first = min(before[0], used)
                self.used += self.first
                self.series.before = self.series.before or self.first
            seconds = _exactly(_between(before, now), used, words, number(figures.get("wps")))
            if batch and seconds is not None:
                tokens = used * words if words else None
                steps = used + self.overflows
                self.series.add(
                    LogWindow(steps, self.overflows, used * batch, seconds, tokens, self.interrupted)
                )
        self.last = now
        self.skipped += self.overflows
        self.overflows, self.interrupted = 0, False
        self.frame.progress(now[0])

    def _begin(self, updates: int) -> None:
        """Take the first line of a process: what is before it is no training."""
        exact = self.loaded is not None and self.loaded < updates
        self.first = updates - (self.loaded or 0) if exact else min(updates, self.every) or None
        self.used += self.first or 0
        if self.last is None:
            self.series.before = self.first or 0
        self.loaded, self.anew, self.done = None, False, False


def _figures(text: str) -> dict[str, object]:
    """Return a line's figures, by name; empty: it has none."""
    brace = text.find("{")
    if brace < 0:
        return dict(_FIGURE.findall(text)) if "num_updates=" in text else {}
    try:
        figures = json.loads(text[brace : text.rfind("}") + 1])
    except (ValueError, RecursionError):
        return {}
    return figures if isinstance(figures, dict) else {}


def _between(
    before: tuple[int, float | None, float | None], now: tuple[int, float | None, float | None]
) -> float | None:
    """Return the seconds from one line to the next: of stamps with fractions, of `wall`, or of any stamps."""
    stamped = now[2] - before[2] if now[2] is not None and before[2] is not None else None
    fine = stamped is not None and (now[2] or 0) % 1 + (before[2] or 0) % 1 > 0
    if not fine and now[1] is not None and before[1] is not None and now[1] > before[1]:
        return now[1] - before[1]
    return stamped


def _exactly(seconds: float | None, used: int, words: float | None, speed: float | None) -> float | None:
    """Return whole seconds refined by the words per second of the same updates. In old versions these are of
    the epoch so far, and then of no use."""
    if seconds is None or not words or not speed:
        return seconds
    stated = used * words / speed
    return stated if abs(stated - seconds) <= _COARSE and seconds % 1 == 0 else seconds
