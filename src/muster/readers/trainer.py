"""Transformers' Trainer: progress bars, the dictionaries that it logs, and its own summary at the end."""

from __future__ import annotations

import math
import re
import statistics
from dataclasses import dataclass

from muster.readers._frame import Frame, stamp
from muster.readers._lines import CHANGED, STEPS_ONLY
from muster.readers.base import APART, FIGURE, NOT_FINITE, LogWindow, Reading, Series, number

FORMAT = "Transformers"
_ANY_EPOCH = " epoch "
HINTS = (
    "%|", "train_runtime", "train_samples_per_second", "Total train batch size",
    "Total optimization steps", "aving model checkpoint", "Running Evaluation", "eval_runtime",
    "Skipping step", "'loss': ", "  Num ", "  Number of trainable", "  Instantaneous batch",
    "  Gradient Accum", "train_steps_per_second", " global step ", _ANY_EPOCH,
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
_STEPS = re.compile(rf"\btrain_steps_per_second['\"]?\s*[:=]\s*['\"]?({FIGURE})")
# "  Continuing training from global step 500"; since version 5 "  Resuming training from checkpoint with
# epoch 1 and global step 500"
_RESUMED = re.compile(
    r"  (?:Continuing|Resuming) training from (?:checkpoint with epoch \d+ and )?global step (\d{1,12})"
)
_LOSS = re.compile(rf"\{{'loss': '?({FIGURE})")
_DIVERGED = re.compile(r"'(?:eval_)?(?:loss|grad_norm)': '?(?:nan|-?inf)\b")
_EPOCH = re.compile(rf"'epoch': '?({FIGURE})")
_RATE = re.compile(rf"'learning_rate': '?({FIGURE})")
_OVERFLOW = re.compile(r"Overflow detected\. Skipping step|OVERFLOW! (?:Rank 0 )?Skipping step")
# What the Trainer says of a training before it begins. The length of its sequences is not among it.
_SETTING = re.compile(
    r"  (Num examples|Num Epochs|Instantaneous batch size per device|Gradient Accumulation steps|"
    rf"Total optimization steps|Number of trainable parameters) = ({FIGURE})"
)
_SIZE = "Number of trainable parameters"
# What a loop without the Trainer says of an evaluation without a bar: "epoch 0: perplexity: 19.2 ..."
_EVALUATED = re.compile(r"(?<!\w)epoch \d{1,6}: ")
_LONGER = 1.5  # times as long for a step as usual is a window with such an evaluation in it
_NEAR = 9  # windows before it show what is usual
_LEAST = 5  # seconds of a window: bars show whole ones
_EXACT = 100  # seconds from where on what bars say is right to a percent
_MOST_BARS = 16
_MOST_ATTEMPTS = 1000
EARLIER = (
    "the Trainer's own {claimed:.5g} samples/s count {counted} steps, and this attempt made {done}: "
    "{true:.5g}"
)
UNTOLD = (
    "it goes on from a checkpoint, and the Trainer's account counts steps before that: its rate is not taken"
)
WHOLE = "progress bars show whole seconds"
UNENDED = (
    "its learning rate still falls at its last line, or its epochs end before the last step: the Trainer's "
    "account may count steps that it did not make, so its rate is not taken"
)
_ROUNDED = 2  # digits of the epochs in old versions; since version 5 four are told in all


@dataclass
class _Attempt:
    """One process's part of a training."""

    before: int | None  # steps that an earlier one made, where the Trainer says it
    first: int  # step of the first mark
    began: float  # seconds of the bar's clock then
    step: int  # of the last mark
    seconds: float

    def begun(self) -> int:
        """Return the steps of earlier processes. The Trainer's bar jumps over them with its first own step:
        then it shows more than fit into its clock at the pace that follows."""
        if self.before is not None:
            return self.before
        passed, steps = self.seconds - self.began, self.step - self.first
        fit = (self.began + 1) * steps / passed if passed > 0 else self.first
        return self.first - 1 if self.first > 2 * fit + 1 else 0

    def done(self) -> int:
        """Return its own steps."""
        return max(0, self.step - self.begun())


class _Bar:
    """One bar: windows of steps over its own clock."""

    def __init__(self) -> None:
        self.series = Series()
        self.first: tuple[int, float] | None = None  # steps, seconds at the last mark
        self.step = 0
        self.lost = 0  # overflows since the mark
        self.interrupted = False
        self.evaluated = False  # since the mark something told an evaluation's result
        self.attempts: list[_Attempt] = []

    def done(self) -> int:
        """Return the steps of all processes."""
        return sum(each.done() for each in self.attempts)

    def mark(self, step: int, seconds: float, before: int | None) -> None:
        """Record that the bar has reached a step. `before`: steps of earlier processes, where the Trainer
        states them."""
        if step < 1 or (step == self.step and self.first):
            return
        if self.first is None or step < self.first[0] or seconds < self.first[1]:
            if len(self.attempts) < _MOST_ATTEMPTS:
                self.attempts.append(_Attempt(before, step, seconds, step, seconds))
            self.series.before = max(0, step - self.lost) if self.first is None else self.series.before
            self.first, self.step, self.lost = (step, seconds), step, 0
            self.interrupted = self.evaluated = False
            return
        self.step = self.attempts[-1].step = step
        self.attempts[-1].seconds = seconds
        steps, passed = step - self.first[0], seconds - self.first[1]
        if passed >= _LEAST and steps > 0:
            lost = min(self.lost, steps)
            paused = self.interrupted or (self.evaluated and passed > _LONGER * steps * self._usual())
            self.series.add(LogWindow(steps, lost, steps - lost, passed, interrupted=paused))
            self.first, self.lost = (step, seconds), 0
            self.interrupted = self.evaluated = False

    def _usual(self) -> float:
        """Return the seconds of a step in the windows before; not finite: there are none."""
        before = [*self.series.head, *self.series.tail][-_NEAR:]
        return statistics.median([each.seconds / each.steps for each in before] or [math.inf])


class Reader:
    """The training's bar where it ran long enough for whole seconds, or else the Trainer's own summary, which
    includes start-up, evaluation and saving."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.bars: dict[int, _Bar] = {}  # by their total
        self.batch: float | None = None
        self.total: int | None = None
        self.runtime: float | None = None
        self.ended = False  # by that; and no other training was begun
        self.reported: float | None = None
        self.per_second: float | None = None  # steps, as the account says
        self.before: int | None = None  # steps of earlier processes, as the Trainer says before its first one
        self.epochs: list[float] = []  # of the first two lines with a loss
        self.rates: tuple[float, ...] = ()  # learning rates of the last two
        self.last = 0  # step of the account, by the epochs that it tells; 0: not known
        self.cut = False  # it is before the last of all
        self.lines = 0  # with a loss, of this process
        self.told: tuple[object, ...] = ()  # by the last one
        self.marked = 0  # step of the last one; 0: not known
        self.fine = False  # epochs are told with more than two digits
        self.every = (1.0, math.inf)  # steps between two of them, at least and at most
        self.skipped = 0
        self.logged = False
        self.barred = False  # it prints bars
        self.newest = 0  # the total of the last one
        self.restarts = 0  # of the frame, at the last mark
        self.settings: dict[str, float | None] = {}
        self.changed: tuple[str, ...] = ()  # what is said of batches that were not the same
        self.loss: float | None = None
        self.diverged: int | None = None  # the line from which on the loss is not finite; 0: not known
        self.closed = False

    def line(self, text: str) -> None:
        """Read a line with one of the HINTS."""
        if "loss': " in text:
            self._see_loss(text)
        if "%|" in text and (match := _BAR.match(text)):
            self.barred = True
            hours, minutes, seconds = (int(part or 0) for part in match.groups()[2:])
            self._progress(int(match[1]), int(match[2]), 3600 * hours + 60 * minutes + seconds)
            self._see_evaluation(text)
        elif match := _SETTING.search(text):
            self.settings[match[1]] = number(match[2])
            if match[1] == "Num examples":  # a process begins
                self.before, self.runtime, self.ended = None, None, False
                self.lines, self.every = 0, (1.0, math.inf)
            if match[1] == "Total optimization steps":
                self.total = int(number(match[2]) or 0) or self.total
        elif match := _BATCH.search(text):
            self._take_batch(number(match[1]) or None)
        elif match := _RESUMED.search(text):
            self.before = int(match[1])
        elif "train_runtime" in text or "train_samples_per" in text or "train_steps_per" in text:
            self._account(text)
        elif "'loss': " in text:
            self.logged, self.ended, self.frame.signs.finished = True, False, False  # or another has begun
            if len(self.epochs) < 2 and (match := _EPOCH.search(text)):
                self.epochs.append(number(match[1]) or 0.0)
            if match := _LOSS.search(text):
                self.loss = number(match[1])
            if match := _RATE.search(text):
                self.rates = (*self.rates[-1:], number(match[1]) or 0.0)
            at, step = self.frame.arrived, self._step_of(text)
            at = stamp(text) if at is None and step else at
            if at is not None and step and not self.barred:
                self._progress(step, self.total or 0, at)
        elif _OVERFLOW.search(text):
            self.skipped += 1
            for bar in self.bars.values():
                bar.lost += 1
        else:
            self._see_evaluation(text)
            if any(hint in text for hint in HINTS if hint != _ANY_EPOCH):
                self._interrupt()

    def _see_evaluation(self, text: str) -> None:
        """Note a line with the result of an evaluation that may have no bar."""
        if _ANY_EPOCH in text and _EVALUATED.search(text):
            for bar in self.bars.values():
                bar.evaluated = True

    def readings(self) -> list[Reading]:
        """Return one reading, where there was a bar or the summary."""
        total, bar = self._training()
        if bar is None and self.reported is None and self.runtime is None and not self.logged:
            return []
        done = self._done(total, bar)
        batch, reported, notes = self._accounted(total, done)
        seconds = sum(each.seconds for each in [*bar.series.head, *bar.series.tail]) if bar else 0
        series = bar.series if bar and (seconds >= _EXACT or not reported) and bar.series.total else None
        if bar and bar.attempts:
            bar.series.before = max(0, bar.series.before - bar.attempts[0].begun())
        return [
            Reading(
                format=FORMAT,
                series=series,
                per_step=True,
                unit="samples" if batch or reported else "steps",
                exact=False,
                recipe=f"transformers {sorted(self.settings.items())}" if _SIZE in self.settings else "",
                batch=batch,
                reported=reported,
                steps=bar.done() if bar else done,
                skipped=self.skipped,
                ended=self.ended or self._at_last(bar),
                loss=self.loss,
                notes=(*notes, *self._not_finite(), *(self._doubts(batch) if series else ())),
            )
        ]

    def _at_last(self, bar: _Bar | None) -> bool:
        """Return whether the bar reached the announced total, no other one was begun after it and nothing
        failed, of a loop that is not the Trainer's: that one says itself when it ends."""
        trainer = self.logged or _SIZE in self.settings
        at_last = bar is not None and bar.step == self.total == self.newest
        return at_last and not trainer and self.frame.signs.decisive() is None

    def _see_loss(self, text: str) -> None:
        """Keep where the loss, or its gradient, ceased to be finite for good: fp16 begins with some that are
        not. The Trainer prints 0 for a loss that is not a number."""
        if not _DIVERGED.search(text):
            self.diverged = None if "'loss': " in text else self.diverged
        elif self.diverged is None:
            spot = self.frame.signs.spot
            self.diverged = (spot.number if spot else None) or 0

    def _not_finite(self) -> tuple[str, ...]:
        """Return the note on a loss that is not finite at the end. Lines before it may not have been read."""
        if self.diverged is None:
            return ()
        return (f"{NOT_FINITE}, as in line {self.diverged} already" if self.diverged else NOT_FINITE,)

    def _doubts(self, batch: float | None) -> tuple[str, ...]:
        """Return what makes the windows' figures doubtful."""
        return (*self.changed, *(() if batch else (STEPS_ONLY,)), *((WHOLE,) if self.barred else ()))

    def _take_batch(self, batch: float | None) -> None:
        """Count the steps of earlier processes, with another batch, in steps of this one."""
        if batch and self.batch and batch != self.batch and self.bars:
            for bar in self.bars.values():
                bar.series = bar.series.scaled(self.batch / batch)
            self.changed = (CHANGED.format(sizes=f"{self.batch:g}, {batch:g}"),)
        self.batch = batch

    def _training(self) -> tuple[int | None, _Bar | None]:
        """Return the bar of the training: that of the announced total, or the one that ran longest."""
        if self.total and (self.total in self.bars or not self.bars):
            return self.total, self.bars.get(self.total)
        longest = max(self.bars, key=lambda total: (self.bars[total].first or (0, 0))[1], default=None)
        return longest, self.bars[longest] if longest is not None else None

    def _done(self, total: int | None, bar: _Bar | None) -> int | None:
        """Return the steps that the last process made; None: not known."""
        if bar and bar.attempts:
            last = bar.attempts[-1]
            cut = total and self.runtime and last.seconds < (1 - APART) * self.runtime  # bars are missing
            return max(0, (total or 0) - last.begun()) if cut else last.done()
        ended = self.last or (0 if self.cut else self.total)
        return max(0, ended - (self.before or 0)) if self.runtime is not None and ended else None

    def _accounted(
        self, total: int | None, done: int | None
    ) -> tuple[float | None, float | None, tuple[str, ...]]:
        """Return the batch, samples/s, and a note on these. Before version 5.23 the Trainer divides the
        samples of all steps of a training by the time of the last process, also where that made fewer: after
        a resume, or where it stopped early."""
        batch, reported = self.batch, self.reported
        if not (reported and self.runtime):
            return batch, reported, ()
        if done is None and (self._begins_late() or self._stops_early() or self.cut):
            return batch, None, (UNTOLD if self._begins_late() else UNENDED,)
        claimed = self.per_second * self.runtime if self.per_second else None
        if claimed is None and batch:
            claimed = reported * self.runtime / batch
        either = [each for each in (total, done) if each]
        counted = min(either, key=lambda steps: abs(steps - (claimed or steps)), default=0)
        if batch is None and counted:
            batch = reported * self.runtime / counted
            batch = float(round(batch)) if round(batch) and abs(round(batch) / batch - 1) < 0.01 else batch
        if not done or not counted or abs(counted / done - 1) <= APART:
            return batch, reported, ()
        true = reported * done / counted
        return batch, true, (EARLIER.format(counted=counted, done=done, claimed=reported, true=true),)

    def _begins_late(self) -> bool:
        """Return whether the epochs of its first two lines with a loss show steps before these: the first is
        more than twice as far from the start as from the second."""
        if len(self.epochs) < 2:
            return False
        first, second = self.epochs
        return first > 2 * (second - first) > -1

    def _stops_early(self) -> bool:
        """Return whether a learning rate that falls to zero as it fell last takes more than one line more."""
        return len(self.rates) > 1 and 1.1 * (self.rates[0] - self.rates[1]) < self.rates[1] < self.rates[0]

    def _step_of(self, text: str) -> int:
        """Return the step of a line with a loss, where the epochs in it and in those before it leave one:
        lines come every so many steps, the first one after as many; 0: they leave several, or none."""
        low, high = self._steps_at(text)
        told = (self.loss, self.rates[-1:], low, high)
        if not high or told == self.told:  # the same once more, as by a callback that logs too
            return 0
        self.told = told
        self.lines, first = self.lines + 1, self.before or 0
        least, most = self.every
        self.every = (
            max(least, math.ceil((low - first) / self.lines)),
            min(most, (high - first) // self.lines),
        )
        one = self.every[0] == self.every[1]
        self.marked = int(first + self.lines * self.every[0]) if one else low if low == high else 0
        return self.marked

    def _steps_at(self, text: str) -> tuple[int, int]:
        """Return the first and the last step that the rounded epochs of a line may stand for; (0, 0): its
        settings are not printed, or an epoch's last step may have fewer micro-batches."""
        match, examples = _EPOCH.search(text), self.settings.get("Num examples")
        epochs = number(match[1]) if match else None
        if not (match and examples and self.batch and self.total and epochs is not None):
            return 0, 0
        micro = self.batch / (self.settings.get("Gradient Accumulation steps") or 1.0)
        within = math.ceil(examples / micro) * micro / self.batch  # steps of an epoch, the last one not whole
        rounds = self.settings.get("Num Epochs") or 0.0
        whole = next((n for n in (math.ceil(within), math.floor(within)) if n * rounds == self.total), within)
        if whole == within and within % 1 and epochs > 1:
            return 0, 0
        self.fine = self.fine or len(match[1].partition(".")[2]) > _ROUNDED
        half = 0.5 * 10.0 ** (len(f"{epochs:.0f}") - 4 if epochs >= 1 else -4) if self.fine else 0.005
        low, high = (
            math.floor(each) * whole + min(each % 1 * within, whole)
            for each in (max(0.0, epochs - half - 1e-9), epochs + half + 1e-9)
        )
        return min(math.ceil(low), self.total), min(math.floor(high), self.total)

    def _progress(self, step: int, total: int, seconds: float) -> None:
        if total not in self.bars:
            if len(self.bars) >= _MOST_BARS:
                return
            self.bars[total] = _Bar()
        for other, bar in self.bars.items():
            if other != total:  # such as an evaluation's, while the training's stands still
                bar.interrupted = True
        self.newest = total
        if self.frame.restarts > self.restarts:
            self._interrupt()
        self.restarts = self.frame.restarts
        if step > self.bars[total].step:
            self.frame.progress(step)
        elif 2 * step < self.bars[total].step and total == self._training()[0]:
            self.ended = False  # another training with as many steps
        self.bars[total].mark(step, seconds, self.before)

    def _interrupt(self) -> None:
        for bar in self.bars.values():
            bar.interrupted = True

    def _account(self, text: str) -> None:
        if match := _RUNTIME.search(text):
            days, hours, minutes = (int(part or 0) for part in match.groups()[:3])
            seconds = number(match[4])
            if seconds is not None:
                self.frame.finish()
                self.ended = True
                self.runtime = seconds + 60 * (minutes + 60 * (hours + 24 * days))
        if match := _SAMPLES.search(text):
            self.reported = number(match[1]) or self.reported
        if match := _STEPS.search(text):
            self.per_second = number(match[1]) or self.per_second
        low, high = self._steps_at(text)
        if high and self.total:
            self.cut = high < self.total
            whole = not self.cut and not self._stops_early()
            self.last = self.total if whole else low if low == high else 0
            if not whole and low <= self.marked <= high:  # it stops where it has evaluated and logged
                self.last = self.marked
        if not self.barred and self.last and (bar := self._training()[1]) and bar.attempts:
            bar.attempts[-1].step = max(bar.attempts[-1].step, self.last)  # no line is of its last steps
