"""The meter: per window of optimizer steps, what was done, how long it took and what it needed.

Seconds are between the ends of steps on the device, and leave out evaluation, saving and steps that a loss
scaler skipped (they are faster, and no sample was used). On a GPU they are read from events that are recorded
without waiting; a window is written when the next step has been launched, where nothing comes between.
"""

from __future__ import annotations

import functools
import itertools
import resource
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from transformers import TrainerCallback

from muster.store import events
from muster.worker.context import Context
from muster.worker.feed import Feed
from muster.worker.instruments.clock import DeviceClock
from muster.worker.instruments.computing import Computing
from muster.worker.instruments.flops import FlopsCounter
from muster.worker.later import DeferredWork, Scalars
from muster.worker.workloads.base import Built, Counts


class StepClock(DeviceClock):
    """Marks of the ends of steps, in seconds of the device; pauses between two stretches do not count."""

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self.stretches: list[list[Any]] = [[]]

    def mark(self) -> None:
        """Record now, without waiting for the device."""
        self.stretches[-1].append(self.now())

    def restart(self) -> None:
        """Begin a stretch: the time since the last mark counts for no step."""
        self.stretches.append([])
        self.mark()

    def intervals(self) -> list[float]:
        """Return the seconds between consecutive marks of a stretch, in order. Call after `wait`.

        Starts over from the last mark.
        """
        pairs = [pair for marks in self.stretches for pair in itertools.pairwise(marks)]
        self.stretches = [self.stretches[-1][-1:]]
        return [self.seconds(*pair) for pair in pairs]


class Meter(TrainerCallback):  # type: ignore[misc]
    """Counts what each optimizer step used and emits a Window event for every `window` steps."""

    def __init__(
        self,
        context: Context,
        built: Built,
        feed: Feed,
        flops: FlopsCounter | None,
        computing: Computing | None,
    ) -> None:
        self.emit, self.device, self.engine = context.emit, context.device, context.engine
        self.built, self.trainer = built, cast("Any", built.trainer)
        self.window = context.recipe.measure.window
        self.profiled = context.recipe.measure.profiled  # steps that get a window of their own
        self.feed, self.flops, self.computing = feed, flops, computing
        self.clock = StepClock(context.device)
        self.stepping = False
        self.steps: list[float] = []
        self.in_step = Counts(0, 0, 0)
        # Of each step of this window: what it used, and whether a loss scaler threw it away.
        self.in_window: list[tuple[Counts, bool | torch.Tensor]] = []
        self.total_skipped = 0
        self.counted = 0  # skipped steps, as the engine counts them
        self.scale: float | torch.Tensor | None = None  # of the loss; None: it is not scaled here
        self.training_seconds = 0.0
        self.saving_seconds = 0.0
        self.evaluation_seconds = 0.0

    def see(self, inputs: Mapping[str, Any], *, done: bool) -> None:
        """Count a micro-batch: before its step, since the loss takes labels out of it, or when that is done,
        where what it holds is made there."""
        if done is self.built.after:
            before, more = self.in_step, self.built.count(inputs)
            self.in_step = Counts(
                before.samples + more.samples,
                before.tokens + more.tokens,
                before.padded_tokens + more.padded_tokens,
            )
        if self.flops and not done:
            self.flops.see(inputs)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Start the first window. A resumed engine may remember the steps that it skipped before."""
        self.counted = self.engine.skipped_steps(self.trainer) or 0
        scaler = self._scaler()
        self.scale = scaler.get_scale() if scaler is not None else None
        if self.computing:
            self.computing.attach(self.trainer)
        self.clock.wait()
        self.clock.restart()

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Emit that the set-up has ended, where the first step begins."""
        if not self.stepping:
            self.stepping = True
            self.emit(events.Phase, name="steps")

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Count an optimizer step, and close the window where it ends one."""
        self.clock.mark()
        if self.computing:
            self.computing.mark()
        if self.flops:
            self.flops.step()
        self.in_window.append((self.in_step, self._thrown_away()))
        self.in_step = Counts(0, 0, 0)
        step = state.global_step
        inside = step in self.profiled and step + 1 in self.profiled  # no wait of the meter is in a profile
        edge = bool(self.profiled) and step + 1 in (self.profiled.start, self.profiled.stop)
        if (
            (step % self.window == 0 and not inside)
            or step >= state.max_steps
            or control.should_training_stop
            or control.should_save
            or edge
        ):
            ahead = not edge and (self.flops is None or self.flops.counted())
            runs_ahead = getattr(self.trainer, "runs_ahead", None)  # of Muster's trainers
            self._close(step, self.trainer.later if ahead and runs_ahead and runs_ahead() else None)
            control.should_log = True

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Begin the next window after a save."""
        self.saving_seconds += self._resume()

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Begin the next window after an evaluation."""
        self.evaluation_seconds += self._resume()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Emit what is left."""
        if self.in_window:
            self._close(state.global_step)
        if self.computing:
            self.computing.detach()

    def _resume(self) -> float:
        """Start the clock again. -> seconds of the device since the last step ended, which the clock leaves
        out."""
        began, ended = self.clock.stretches[-1][-1], self.clock.now()
        self.clock.wait()
        if self.computing:
            self.computing.pause()
        self.clock.restart()
        return self.clock.seconds(began, ended)

    def _close(self, step: int, later: DeferredWork | None = None) -> None:
        """End the window. `later`: where to put off reading and writing it; else the device is waited for."""
        write = functools.partial(
            self._write,
            step,
            Scalars([counts.tokens for counts, _ in self.in_window]),
            Scalars([thrown for _, thrown in self.in_window]),
            self.computing.take() if self.computing else None,
            self.feed.take(),
        )
        if later is not None:
            later.add(write)
            return
        self.clock.wait()
        write()
        self.clock.restart()  # counting operations above is no step's time

    def _write(
        self,
        step: int,
        tokens: Scalars,
        thrown: Scalars,
        computed: Callable[[], tuple[float | None, dict[str, float]]] | None,
        waited: Callable[[], float],
    ) -> None:
        intervals = self.clock.intervals()
        skips = {index for index, each in enumerate(thrown.values()) if each}
        used = [each for index, (each, _) in enumerate(self.in_window) if index not in skips]
        step_seconds = [each for index, each in enumerate(intervals) if index not in skips]
        seconds = sum(step_seconds)
        self.training_seconds += sum(intervals)
        self.total_skipped += len(skips)
        forward, parts = computed() if computed else (None, {})
        self.emit(
            events.Window,
            step=step,
            steps=len(self.in_window),
            skipped=len(skips),
            seconds=seconds,
            samples=sum(each.samples for each in used),
            tokens=sum(int(each) for index, each in enumerate(tokens.values()) if index not in skips),
            padded_tokens=sum(each.padded_tokens for each in used),
            step_seconds=step_seconds,
            profiled=step in self.profiled,
            forward_seconds=forward,
            parts=parts,
            data_seconds=waited(),
            phases=self._phases(seconds),
            **memory_peaks(self.device),
            **(self.flops.close(skips) if self.flops else {}),
        )
        self.in_window.clear()

    def _phases(self, seconds: float) -> dict[str, float]:
        """Return the seconds of the phases that the trainer names, and the rest as training. They begin
        anew."""
        phases: dict[str, float] = getattr(self.trainer, "phase_seconds", {})
        if not phases:
            return {}
        now = dict(phases)
        phases.update(dict.fromkeys(phases, 0.0))  # the next window may have none, and is training alone
        return {**now, "training": max(0.0, seconds - sum(now.values()))}

    def _scaler(self) -> Any:
        """Return accelerate's loss scaler; None: it does not scale."""
        scaler = self.trainer.accelerator.scaler
        return scaler if scaler is not None and scaler.is_enabled() else None

    def _thrown_away(self) -> bool | torch.Tensor:
        """Return whether a loss scaler threw this step away: the engine's own, which counts, or accelerate's,
        which halves its scale then and never else. The answer stays on the device.

        accelerate's own word for it (optimizer_step_was_skipped) is False for fused optimizers always.
        """
        counted = self.engine.skipped_steps(self.trainer)
        if counted is not None:
            more, self.counted = counted > self.counted, counted
            return more
        scaler = self._scaler()
        now = scaler._get_scale_async() if scaler is not None else None
        if now is None:
            return False
        before, self.scale = self.scale, now.clone()
        return False if before is None else self.scale < before


def memory_peaks(device: str) -> dict[str, int | None]:
    """Return the peaks so far in bytes: the framework's allocator, the device, and this process's resident
    memory."""
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # KiB on Linux
    if device != "cuda":
        return {"allocator_peak": None, "device_peak": None, "resident_peak": resident}
    free, total = torch.cuda.mem_get_info()
    return {
        "allocator_peak": torch.cuda.max_memory_allocated(),
        "device_peak": total - free,
        "resident_peak": resident,
    }
