"""Profiles of a few steps on request: DeepSpeed's breakdown by module, or a trace by PyTorch's profiler.

Profiled steps are slower, so they get a window of their own that no throughput counts (meter.py), and the
ranks meet after them, so that no rank's next step waits for one that still writes. A trace is read at once: a
summary of its steps goes into the run, without the first one, in which the profiler itself warms up, and
without those that follow an evaluation or a save. One step more is traced with Python's lines marked, which
takes so long that its times mean nothing: it names the lines that wait for the device.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from muster.core.errors import RecipeError
from muster.core.profile import StepProfile
from muster.store import events
from muster.worker.context import Context
from muster.worker.instruments import kineto
from muster.worker.instruments.clock import DeviceClock
from muster.worker.instruments.lines import LineMarks
from muster.worker.together import barrier

FOLDER = "profile"


class Profiler(TrainerCallback):  # type: ignore[misc]
    """Profiles the recipe's steps on the recipe's ranks, into `profile/` of the run folder. Before the meter:
    a profile is written in its own window.

    Raises RecipeError where the breakdown cannot be made.
    """

    def __init__(self, context: Context, trainer: Any) -> None:
        measure = context.recipe.measure
        self.context, self.trainer = context, trainer
        self.what = measure.profile
        self.steps = measure.profiled
        self.chosen = context.rank in measure.profile_ranks
        self.clock = DeviceClock(context.device)
        self.running: Any = None
        self.mark: Any = None  # of the step that is traced
        self.lines: LineMarks | None = None  # in the step for which they are marked
        self.traced: list[Path] = []
        self.last = 0  # step that was traced
        self.paused: set[int] = set()  # steps that an evaluation or a save followed
        self.written = False
        self.passed = False  # this attempt reached the steps
        self.breaks_down = self.what == "flops" and self.chosen
        if self.what == "flops":
            _check_breakdown(context)

    @property
    def path(self) -> Path:
        """Where this rank writes."""
        suffix = "txt" if self.what == "flops" else "json.gz"
        return self.context.base / FOLDER / f"{self.what}-rank{self.context.rank}.{suffix}"

    @contextmanager
    def around(self, model: Any) -> Iterator[None]:
        """Run the loss that is computed inside under DeepSpeed's profiler, where it is the steps' first."""
        due = self.trainer.state.global_step + 1 in self.steps
        if self.written or not due or not model.training:
            yield
            return
        from deepspeed.profiling.flops_profiler import FlopsProfiler

        profiler = FlopsProfiler(self.trainer.accelerator.unwrap_model(model))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        profiler.start_profile()
        try:
            yield
            profiler.print_model_profile(profile_step=self.steps.start, output_file=str(self.path))
        finally:
            profiler.end_profile()
        self._report(self.steps.start)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Start the trace."""
        if self.what == "trace" and self.chosen and state.global_step + 1 == self.steps.start:
            self._start_trace()
            self._start_step(self.steps.start)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """End it, and wait for the ranks that write. A step's mark begins before its batch is fetched."""
        step, last = state.global_step, self.steps.stop - 1
        self.passed = self.passed or step in self.steps
        if self.running is not None:
            self._end_step(step)
            if step >= last - 1:
                self._end_trace()
            if step < min(last, state.max_steps) and not control.should_training_stop:
                if self.running is None:
                    self._start_trace()
                    self.lines = LineMarks()
                elif step == self.steps.start:
                    self.clock.wait()
                self._start_step(step + 1)
        if step == last:
            self._sum_up()
            barrier()

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Note the pause: it is in the mark of the step that follows."""
        self.paused.add(state.global_step)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Note the pause, as after an evaluation."""
        self.paused.add(state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """End a trace that is left, and note a profile that is not there: a run may end before the last of
        its profiled steps, or before the first."""
        if self.running is not None:
            self._end_step(self.last)
            self._end_trace()
        self._sum_up()
        if not self.passed and self.context.main:
            self.context.emit(
                events.Noted,
                text=f"nothing was profiled: this attempt did not do step {self.steps.start} "
                "(measure.profile_step)",
            )

    def _start_trace(self) -> None:
        kinds = [torch.profiler.ProfilerActivity.CPU]
        if self.context.device == "cuda":
            kinds.append(torch.profiler.ProfilerActivity.CUDA)
        # Shapes cost time as well: they are in the trace whose times mean nothing.
        self.running = torch.profiler.profile(activities=kinds, record_shapes=bool(self.traced))
        self.running.start()
        self.clock.wait()

    def _start_step(self, step: int) -> None:
        self.mark = torch.profiler.record_function(f"ProfilerStep#{step}")
        self.mark.__enter__()
        if self.lines:
            self.lines.start()

    def _end_step(self, step: int) -> None:
        if self.lines:
            self.lines.stop()
        if self.mark is not None:
            self.mark.__exit__(None, None, None)
        self.mark, self.lines, self.last = None, None, step

    def _end_trace(self) -> None:
        self.clock.wait()
        self.running.stop()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        marked = self.path.with_name(self.path.name.replace(".json", "-lines.json"))
        path = marked if self.traced else self.path
        self._beat()
        self.running.export_chrome_trace(str(path))
        self._beat()
        self.running = None
        self.traced.append(path)

    def _beat(self) -> None:
        """Give a sign of life: a large trace takes a while."""
        if self.context.emit.pulse:
            self.context.emit.pulse.beat()

    def _sum_up(self) -> None:
        """Emit the trace, once; with its summary, where it has one."""
        if not self.traced or self.written:
            return
        rank, summary = self.context.rank, None
        try:
            traces = []
            for path in self.traced:
                traces.append(trace := kineto.read(path))
                self._beat()
                # Without the first one, and one that the end of the training cut off.
                first = min(self.steps.start + 1, self.last)
                trace.steps = {step: mark for step, mark in trace.steps.items() if first <= step <= self.last}
            kept = unbroken(sorted(traces[0].steps), self.paused)
            traces[0].steps = {step: mark for step, mark in traces[0].steps.items() if step in kept}
            summary = kineto.summarize(*traces).model_copy(update={"rank": rank})
        except Exception as error:  # no reader's mistake ends a training
            why = str(error) if isinstance(error, kineto.NoSummary) else repr(error)
            self.context.emit(events.Noted, text=f"the trace of rank {rank} has no summary: {why}")
        self._report(self.last, summary)

    def _report(self, last: int, summary: StepProfile | None = None) -> None:
        self.written = True
        self.context.emit(
            events.Profiled,
            what=self.what,
            first_step=self.steps.start,
            last_step=last,
            path=str(self.path),
            bytes=self.path.stat().st_size,
            summary=summary,
        )


def unbroken(steps: Sequence[int], paused: Collection[int]) -> list[int]:
    """Return the longest stretch of consecutive steps with nothing before each but the step before it.
    Without one: all of them."""
    best: list[int] = []
    here: list[int] = []
    for step in steps:
        here = [] if step - 1 in paused else [*here, step]
        best = max(best, here, key=len)
    return best or list(steps)


def _check_breakdown(context: Context) -> None:
    """Raise RecipeError where DeepSpeed's profiler cannot be had, or would see nothing."""
    where = "measure.profile"
    if context.recipe.train.compiled:
        raise RecipeError(
            "DeepSpeed's profiler cannot look into a compiled model",
            where=where,
            hint="train.compile=false for this run, or measure.profile=trace",
        )
    try:
        import deepspeed.profiling.flops_profiler  # noqa: F401
    except ImportError as error:
        raise RecipeError(
            f"the breakdown by module is DeepSpeed's, which cannot be imported: {error}",
            where=where,
            hint="pip install deepspeed, or measure.profile=trace",
        ) from None
