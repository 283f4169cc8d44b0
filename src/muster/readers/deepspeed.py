"""DeepSpeed's own lines, in any program: `RunningAvgSamplesPerSec`, steps skipped, memory."""

from __future__ import annotations

import re

from muster.readers._frame import Frame, stamp
from muster.readers._lines import CHANGED, STEPS_ONLY
from muster.readers.base import FIGURE, LogWindow, Reading, Series, number

FORMAT = "DeepSpeed"
_BEGINS = "DeepSpeed info: version="  # an engine is made
HINTS = (
    "SamplesPerSec=", "skipped=", "Skipping step", "Evaluating", "aving model", "aving checkpoint", _BEGINS
)  # fmt: skip

# 0.3: "0/10, SamplesPerSec=12.3"; later "epoch=0/micro_step=40/global_step=10, RunningAvgSamplesPerSec=..."
_TIMER = re.compile(rf"(?:global_step=|\b\d{{1,12}}/)(\d{{1,12}}), (?:RunningAvg)?SamplesPerSec=({FIGURE})")
_PEAK = re.compile(rf"MaxMemAllocated=({FIGURE})\s?GB")
_SKIPPED = re.compile(r"\bstep=(\d{1,12}), skipped=(\d{1,12})")
_OVERFLOW = re.compile(r"Overflow detected\. Skipping step|OVERFLOW! (?:Rank 0 )?Skipping step")
_MICRO_STEP = re.compile(r"epoch=0/micro_step=(\d{1,12})/")
_MICRO = re.compile(r"--per_device_train_batch_size[ =](\d{1,9})\b")
_OTHER = re.compile(r"generation_batch|tensor[-_]model[-_]parallel|pipeline[-_]model|--ppo")
OWN_TIMER = "the times are those of the tool's own timer, which leaves out loading and what is between steps"
_SLACK, _LATEST = 2.0, 10.0  # seconds by which other ranks print later; where two marks are not there yet
_START = 2  # steps that ThroughputTimer leaves out of its running average


class Reader:
    """Windows between two of the timer's lines.

    Their seconds are those of the lines' time stamps: wall time between two synchronised steps, loading and
    all; without a batch the windows count steps. Without stamps, the running average r over k steps gives the
    timer's own: (k - 2) / r seconds per sample of a step have passed, without loading between steps.
    """

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.closed = False
        self.walled, self.timed = Series(), Series()  # both count steps; the second in seconds x batch
        self.step = 0
        self.recent: tuple[tuple[int, float | None], ...] = ()  # the last two marks, and their stamps
        self.engine = 0  # `counted` at the last mark
        self.marked = False
        self.begins = False  # another process seems to begin
        self.restarts = 0  # of the frame, at the last mark
        self.stamp: float | None = None
        self.timer: float | None = None
        self.counter: int | None = None  # DeepSpeed's count of skipped steps, as last told
        self.counted = 0  # steps of the engine then, which a resume takes over with that count
        self.overflows = self.marked_overflows = 0  # lines that tell of one; of these, before the last mark
        self.skipped = 0  # at the last mark
        self.total_skipped = 0
        self.total_steps = 0
        self.interrupted = False
        self.memory = 0.0
        self.batch: float | None = None  # of which the series count steps; it can change with a process
        self.notes: tuple[str, ...] = ()
        self.accumulation = 0  # micro-steps of a step; 0: not known

    def line(self, text: str) -> None:
        """Read a line with one of the HINTS."""
        timer = _TIMER.search(text) if "SamplesPerSec=" in text else None
        if timer:
            if not self.accumulation and (micro := _MICRO_STEP.search(text)) and int(timer[1]):
                self.accumulation = int(micro[1]) // int(timer[1])
            self._mark(int(timer[1]), number(timer[2]), text)
        elif match := _SKIPPED.search(text):
            self.counted, self.counter = int(match[1]), int(match[2])
        elif _OVERFLOW.search(text):
            self.overflows += 1
        elif _BEGINS in text:
            self.begins = self.marked
        elif "Skipping step" not in text and "SamplesPerSec=" not in text:
            self.interrupted = True

    def readings(self) -> list[Reading]:
        """Return one reading, where there was a timer's or a step's line."""
        if not self.marked:
            return []
        batch = self.frame.batch or self._batch()
        own, walled = self.timed.measured(), self.walled.measured() is not None
        series, notes = self.walled.scaled(batch or 1.0), () if batch else (STEPS_ONLY,)
        if not walled:
            series, notes = self.timed.scaled(batch or 1.0, batch or 1.0), (OWN_TIMER,)
        return [
            Reading(
                format=FORMAT,
                series=series,
                per_step=walled and not batch,
                unit="samples" if batch or not walled else "steps",
                batch=batch,
                reported=own.rate if own and walled and not batch else None,
                own=own.rate if own and batch else None,
                steps=self.total_steps,
                skipped=self.total_skipped,
                memory=int(self.memory * 2**30) or None,
                ended=self._ended(),
                notes=(*notes, *self.notes),
            )
        ]

    def _batch(self) -> float | None:
        """Return the batch by the launcher's command, which names a rank's micro-batch; None: it does not."""
        micro, ranks = _MICRO.search(self.frame.recipe), self.frame.ranks
        # What generates has another one; and whose ranks share a part of the model is not known here.
        if micro is None or not ranks or not self.accumulation or _OTHER.search(self.frame.recipe):
            return None
        return float(micro[1]) * ranks * self.accumulation

    def _take_batch(self) -> None:
        """Count the steps of a process with another batch in steps of the new one."""
        batch = self.frame.batch
        if batch and self.batch and batch != self.batch and self.marked:
            share = self.batch / batch
            self.walled, self.timed = self.walled.scaled(share), self.timed.scaled(share, share)
            self.notes = (CHANGED.format(sizes=f"{self.batch:g}, {batch:g}"),)
        self.batch = batch or self.batch

    def _ended(self) -> bool | None:
        """Return whether all processes left well. Launchers of 2023 do not report how many they start; all
        name those that end."""
        if self.frame.spawned:
            return self.frame.left >= self.frame.spawned
        if self.frame.launched and not self.frame.left:
            return False
        return True if 0 < (self.frame.ranks or 1) <= self.frame.left else None

    def _is_another(self, step: int, now: float | None) -> bool:
        """Return whether a mark is that of another rank, each of which prints its timer's lines, and not of a
        later process: it comes sooner than the next one would have."""
        stamps = [at for _, at in self.recent if at is not None]
        if now is None or not stamps:
            return step in dict(self.recent) and self.counted == self.engine
        if step not in dict(self.recent):
            return step <= self.step and now < stamps[-1]
        every = stamps[-1] - stamps[0] if len(stamps) > 1 else _LATEST
        return now - stamps[-1] <= (_SLACK if self.counted != self.engine else max(every, _SLACK))

    def _mark(self, step: int, average: float | None, text: str) -> None:
        # A process has its marks every so many steps: with others it is a later one, and not another engine.
        every = self.step - self.recent[0][0] if len(self.recent) > 1 else self.step
        begins, self.begins = self.begins and step != self.step + every, False
        if not begins and self._is_another(step, stamp(text)):
            return
        self._take_batch()
        restarted = self.frame.restarts > self.restarts
        skipped = self.counter if self.counter is not None else self.overflows
        if begins or step <= self.step:  # it began anew; DeepSpeed's count begins with it, or goes on
            self.marked, self.step, self.stamp, self.timer, self.skipped = False, 0, None, None, 0
            self.recent = ()
            if self.counter is None:
                skipped = self.overflows = 0
        if not self.marked and self.counter and self.counted > step:  # the timer counts a process's own
            self.skipped = max(0, self.counter - max(0, self.overflows - self.marked_overflows))
        now = stamp(text)
        timer = (step - _START) / average if average and average > 0 and step > _START else None
        steps, lost = step - self.step, max(0, min(skipped - self.skipped, step - self.step))
        if self.marked:
            used = steps - lost
            if now is not None and self.stamp is not None:
                unclean = self.interrupted or restarted
                self.walled.add(LogWindow(steps, lost, used, now - self.stamp, interrupted=unclean))
            if timer is not None and self.timer is not None:
                self.timed.add(LogWindow(steps, lost, used, timer - self.timer, interrupted=restarted))
        else:
            self.walled.before += steps - lost
            self.timed.before += steps - lost
        self.total_steps += steps
        self.total_skipped += lost
        self.marked, self.interrupted, self.marked_overflows = True, False, self.overflows
        self.step, self.stamp, self.timer, self.skipped = step, now, timer, skipped
        self.recent, self.engine = (*self.recent[-1:], (step, now)), self.counted
        self.restarts = self.frame.restarts
        peak = _PEAK.search(text)
        self.memory = max(self.memory, number(peak[1]) or 0.0) if peak else self.memory
        self.frame.progress(self.total_steps)
