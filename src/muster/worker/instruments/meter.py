"""The meter: per window of optimizer steps, what was done, how long it took and what it needed.

Seconds are between device synchronisations at the ends of a window, and leave out evaluation and saving.
On a GPU a step's own time is read from events that are recorded without waiting.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from transformers import TrainerCallback

from muster.store import events
from muster.worker.context import Emitter
from muster.worker.workloads.base import Counts


class Clock:
    """Marks of the ends of steps, in seconds of the device."""

    def __init__(self, device: str) -> None:
        self.cuda = device == "cuda"
        self.marks: list[Any] = []

    def mark(self) -> None:
        """Record now, without waiting for the device."""
        if self.cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self.marks.append(event)
        else:
            self.marks.append(time.perf_counter())

    def synchronise(self) -> float:
        """Wait for the device; the host's time then."""
        if self.cuda:
            torch.cuda.synchronize()
        return time.perf_counter()

    def intervals(self) -> list[float]:
        """Seconds between consecutive marks; starts over from the last one. Call after `synchronise`."""
        pairs = zip(self.marks, self.marks[1:], strict=False)
        if self.cuda:
            seconds = [a.elapsed_time(b) / 1000 for a, b in pairs]
        else:
            seconds = [b - a for a, b in pairs]
        self.marks = self.marks[-1:]
        return seconds


class Meter(TrainerCallback):  # type: ignore[misc]
    """Counts what each optimizer step used and emits a Window event for every `window` steps."""

    def __init__(
        self, emit: Emitter, count: Callable[[Mapping[str, Any]], Counts], window: int, device: str
    ) -> None:
        self.emit = emit
        self.count = count
        self.window = window
        self.device = device
        self.trainer: Any = None
        self.clock = Clock(device)
        self.began = 0.0
        self.first_step: float | None = None
        self.steps: list[float] = []
        self.in_step = Counts(0, 0, 0)
        self.in_window = Counts(0, 0, 0)
        self.window_steps = 0
        self.skipped = 0
        self.total_skipped = 0
        self.paused = 0.0
        self.training_seconds = 0.0
        self.saving_seconds = 0.0
        self.evaluation_seconds = 0.0
        self.last_end = 0.0

    def attach(self, trainer: Any) -> None:
        """Count the batches of any Transformers trainer, where they are trained on."""
        self.trainer = trainer
        original = trainer.training_step

        def training_step(model: Any, inputs: Any, *rest: Any, **named: Any) -> Any:
            counts = self.count(inputs)
            self.in_step = _plus(self.in_step, counts)
            return original(model, inputs, *rest, **named)

        trainer.training_step = training_step
        trainer.add_callback(self)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Start the first window."""
        self._open()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """An optimizer step is over: a skipped one (loss scale) counts as skipped and nothing else."""
        self.clock.mark()
        if self.first_step is None:
            self.first_step = time.time()
        self.window_steps += 1
        if self._was_skipped():
            self.skipped += 1
        else:
            self.in_window = _plus(self.in_window, self.in_step)
        self.in_step = Counts(0, 0, 0)
        self.last_end = time.perf_counter()
        if (
            state.global_step % self.window == 0
            or state.global_step >= state.max_steps
            or control.should_save
        ):
            self._close(state.global_step)
            control.should_log = True

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Saving is over: the next window starts here."""
        self.saving_seconds += self._resume()

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Evaluation is over."""
        self.evaluation_seconds += self._resume()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Emit what is left."""
        if self.window_steps:
            self._close(state.global_step)

    def _resume(self) -> float:
        """Seconds since the last step's end, which the clock does not count. Starts the clock again."""
        now = self.clock.synchronise()
        pause, self.last_end = now - self.last_end, now
        if self.window_steps == 0:
            self.began = now
        else:
            self.paused += pause
        self.clock.marks = []
        self.clock.mark()
        return pause

    def _open(self) -> None:
        self.began = self.last_end = self.clock.synchronise()
        if not self.clock.marks:
            self.clock.mark()
        self.window_steps = self.skipped = 0
        self.in_window = Counts(0, 0, 0)
        self.paused = 0.0

    def _close(self, step: int) -> None:
        now = self.clock.synchronise()
        seconds = now - self.began - self.paused
        self.training_seconds += seconds
        self.total_skipped += self.skipped
        self.emit(
            events.Window,
            step=step,
            steps=self.window_steps,
            skipped=self.skipped,
            seconds=seconds,
            samples=self.in_window.samples,
            tokens=self.in_window.tokens,
            padded_tokens=self.in_window.padded_tokens,
            step_seconds=self.clock.intervals(),
            **memory_peaks(self.device),
        )
        self._open()

    def _was_skipped(self) -> bool:
        """Whether a loss scaler threw this step away. DeepSpeed counts its own."""
        engine = getattr(self.trainer, "deepspeed", None)
        if engine is not None and hasattr(engine, "skipped_steps"):
            return bool(engine.skipped_steps > self.total_skipped + self.skipped)
        return bool(getattr(self.trainer.accelerator, "optimizer_step_was_skipped", False))


def memory_peaks(device: str) -> dict[str, int | None]:
    """Peaks so far in bytes: the framework's allocator, the device, and this process's resident memory."""
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # KiB on Linux
    if device != "cuda":
        return {"allocator_peak": None, "device_peak": None, "resident_peak": resident}
    free, total = torch.cuda.mem_get_info()
    return {
        "allocator_peak": torch.cuda.max_memory_allocated(),
        "device_peak": total - free,
        "resident_peak": resident,
    }


def _plus(a: Counts, b: Counts) -> Counts:
    return Counts(a.samples + b.samples, a.tokens + b.tokens, a.padded_tokens + b.padded_tokens)
