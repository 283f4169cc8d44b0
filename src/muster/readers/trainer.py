"""Transformers' Trainer: progress bars, the dictionaries that it logs, and its own account at the end."""

from __future__ import annotations

import math
import re

from muster.readers._frame import Frame
from muster.readers._lines import STEPS_ONLY
from muster.readers.base import FIGURE, LogWindow, Reading, Series, number

FORMAT = "Transformers"
HINTS = (
    "%|", "train_runtime", "train_samples_per_second", "Total train batch size",
    "Total optimization steps", "aving model checkpoint", "Running Evaluation", "eval_runtime",
    "Skipping step", "'loss': ", "  Num ", "  Number of trainable", "  Instantaneous batch",
    "  Gradient Accum",
)  # fmt: skip

# " 11%|█         | 11/100 [00:25<03:45,  2.00s/it]": the Trainer's own bars have no words before them
_BAR = re.compile(r"\s*\d{1,3}%\|[^|]*\| *(\d{1,12})/(\d{1,12}) \[(?:(\d{1,6}):)?(\d\d):(\d\d)<")
_BATCH = re.compile(rf"Total train batch size[^=]*= ({FIGURE})")
# {'train_runtime': 12.3, ...}; since version 5 {'train_runtime': '12.3', ...}; "  train_runtime = 0:12:22.52"
# "  train_runtime = 1 day, 2:12:22.52"
_RUNTIME = re.compile(
    r"\btrain_runtime['\"]?\s*[:=]\s*['\"]?(?:(\d{1,6}) days?, )?(?:(?:(\d{1,6}):)?(\d{1,6}):)?"
    rf"({FIGURE})"
)
_SAMPLES = re.compile(rf"\btrain_samples_per_second['\"]?\s*[:=]\s*['\"]?({FIGURE})")
_LOSS = re.compile(rf"\{{'loss': '?({FIGURE})")
_EPOCH = re.compile(rf"'epoch': '?({FIGURE})")
_OVERFLOW = re.compile(r"Overflow detected\. Skipping step|OVERFLOW! (?:Rank 0 )?Skipping step")
# What the Trainer says of a training before it begins. The length of its sequences is not among it.
_SETTING = re.compile(
    r"  (Num examples|Num Epochs|Instantaneous batch size per device|Gradient Accumulation steps|"
    rf"Total optimization steps|Number of trainable parameters) = ({FIGURE})"
)
_SIZE = "Number of trainable parameters"
_LEAST = 5  # seconds of a window: bars show whole ones
_EXACT = 100  # seconds from where on what bars say is right to a percent
_MOST_BARS = 16


class _Bar:
    """One bar: windows of steps over its own clock."""

    def __init__(self) -> None:
        self.series = Series()
        self.first: tuple[int, float] | None = None  # steps, seconds at the last mark
        self.step = 0
        self.lost = 0  # overflows since the mark
        self.interrupted = False

    def mark(self, step: int, seconds: float) -> None:
        """The bar has come to a step."""
        if step < 1 or (step == self.step and self.first):
            return
        if self.first is None or step < self.first[0] or seconds < self.first[1]:
            self.series.before = max(0, step - self.lost) if self.first is None else self.series.before
            self.first, self.step, self.lost, self.interrupted = (step, seconds), step, 0, False
            return
        self.step = step
        steps, passed = step - self.first[0], seconds - self.first[1]
        if passed >= _LEAST and steps > 0:
            lost = min(self.lost, steps)
            self.series.add(LogWindow(steps, lost, steps - lost, passed, interrupted=self.interrupted))
            self.first, self.lost, self.interrupted = (step, seconds), 0, False


class Reader:
    """The training's bar where it ran long enough for whole seconds to do, or else the Trainer's own account,
    which has start-up, evaluation and saving in it."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.bars: dict[int, _Bar] = {}  # by their total
        self.batch: float | None = None
        self.total: int | None = None
        self.runtime: float | None = None
        self.reported: float | None = None
        self.skipped = 0
        self.logged = False
        self.barred = False  # it prints bars
        self.settings: dict[str, float | None] = {}
        self.loss: float | None = None
        self.closed = False

    def line(self, text: str) -> None:
        """One of the lines in HINTS."""
        if "%|" in text and (match := _BAR.match(text)):
            self.barred = True
            hours, minutes, seconds = (int(part or 0) for part in match.groups()[2:])
            self._progress(int(match[1]), int(match[2]), 3600 * hours + 60 * minutes + seconds)
        elif match := _SETTING.search(text):
            self.settings[match[1]] = number(match[2])
            if match[1] == "Total optimization steps":
                self.total = int(number(match[2]) or 0) or self.total
        elif match := _BATCH.search(text):
            self.batch = number(match[1]) or None
        elif "train_runtime" in text or "train_samples_per_second" in text:
            self._account(text)
        elif "'loss': " in text:
            self.logged = True
            if match := _LOSS.search(text):
                self.loss = number(match[1])
            if self.frame.arrived is not None and not self.barred and (step := self._step_of(text)):
                self._progress(step, self.total or 0, self.frame.arrived)
        elif _OVERFLOW.search(text):
            self.skipped += 1
            for bar in self.bars.values():
                bar.lost += 1
        else:
            self._interrupt()

    def readings(self) -> list[Reading]:
        """One, where a bar or the account was seen."""
        total, bar = self._training()
        if bar is None and self.reported is None and self.runtime is None and not self.logged:
            return []
        steps = bar.step if bar else None
        batch = self.batch
        if batch is None and self.reported and self.runtime and total:
            batch = self.reported * self.runtime / total
            batch = float(round(batch)) if round(batch) and abs(round(batch) / batch - 1) < 0.01 else batch
        seconds = sum(each.seconds for each in [*bar.series.head, *bar.series.tail]) if bar else 0
        series = bar.series if bar and (seconds >= _EXACT or not self.reported) and bar.series.total else None
        return [
            Reading(
                format=FORMAT,
                series=series,
                per_step=True,
                unit="samples" if batch or self.reported else "steps",
                exact=False,
                recipe=f"transformers {sorted(self.settings.items())}" if _SIZE in self.settings else "",
                batch=batch,
                reported=self.reported,
                steps=steps,
                skipped=self.skipped,
                ended=self.runtime is not None,
                loss=self.loss,
                notes=(*([] if batch else [STEPS_ONLY]), "progress bars show whole seconds")
                if series
                else (),
            )
        ]

    def _training(self) -> tuple[int | None, _Bar | None]:
        """The bar of the training: of the announced total, or the one that went on for longest."""
        if self.total in self.bars:
            return self.total, self.bars[self.total]
        longest = max(self.bars, key=lambda total: (self.bars[total].first or (0, 0))[1], default=None)
        return longest, self.bars[longest] if longest is not None else None

    def _step_of(self, text: str) -> int:
        """The step at which the Trainer logged, by the epochs that it tells there; 0: its settings are not
        printed."""
        examples, match = self.settings.get("Num examples"), _EPOCH.search(text)
        epochs = number(match[1]) if match else None
        if not (examples and self.batch and self.total and epochs):
            return 0
        return min(round(epochs * math.ceil(examples / self.batch)), self.total)

    def _progress(self, step: int, total: int, seconds: float) -> None:
        if total not in self.bars:
            if len(self.bars) >= _MOST_BARS:
                return
            self.bars[total] = _Bar()
        for other, bar in self.bars.items():
            if other != total:  # such as an evaluation's, while the training's stands still
                bar.interrupted = True
        if step > self.bars[total].step:
            self.frame.progress(step)
        self.bars[total].mark(step, seconds)

    def _interrupt(self) -> None:
        for bar in self.bars.values():
            bar.interrupted = True

    def _account(self, text: str) -> None:
        if match := _RUNTIME.search(text):
            days, hours, minutes = (int(part or 0) for part in match.groups()[:3])
            seconds = number(match[4])
            if seconds is not None:
                self.frame.finish()
                self.runtime = seconds + 60 * (minutes + 60 * (hours + 24 * days))
        if match := _SAMPLES.search(text):
            self.reported = number(match[1]) or self.reported
