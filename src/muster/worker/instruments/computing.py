"""What a rank does by itself in its steps, and what it waits for others in them.

Ranks that train together take the same time for a step, since all wait for the slowest in its collectives.
What each does between them differs, and shows which one that is, in any job, without a run for it.

On CPUs waiting is a call of Python's, `Work.wait`, wherever it is made; and under DDP the end of the backward
pass, when all gradients are there and their sums are not. On GPUs waiting is the device's, between its
kernels: only forward passes are timed there, which exchange nothing under DDP and ZeRO-1 and 2.
"""

from __future__ import annotations

import functools
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch

from muster.worker.instruments.clock import DeviceClock

LAST = 4  # parameters whose gradients came last in the first backward pass: the last one is among them


class Computing:
    """The instrument. `attach` to a trainer and its model, `take` at the end of a window."""

    def __init__(self, device: str) -> None:
        self.clock = DeviceClock(device)
        self.passes: list[tuple[Any, Any]] = []  # events of a GPU's forward passes, not waited for yet
        self.count = 0  # forward passes
        self.began: Any = None  # of the forward pass that runs
        self.parts: dict[str, float] = defaultdict(float)  # seconds of this window
        self.inside: list[list[float]] = []  # parts that run, one in another: [seconds of others within]
        self.waited = self.marked = 0.0  # in this window, and until the end of its last step
        self.ready = (0.0, 0.0)  # when the last gradient was there, and what had been waited for by then
        self.order: dict[int, Any] = {}  # parameters by when their gradients came in the first backward pass
        self.undo: list[Callable[[], Any]] = []
        self.hooks: dict[int, Any] = {}  # on parameters, under DDP

    def attach(self, trainer: Any) -> None:
        """Time the trainer's steps from now on. PyTorch and accelerate have no callback around a backward
        pass, a wait or an optimizer's step, so their methods are replaced until `detach`."""
        model = trainer.accelerator.unwrap_model(trainer.model)
        for hook in (
            model.register_forward_pre_hook(self._begin),
            model.register_forward_hook(self._end),
        ):
            self.undo.append(hook.remove)
        if self.clock.cuda:
            return
        wrapped = trainer.model_wrapped
        self._replace(trainer.accelerator, "backward", self._backward)
        if torch.distributed.is_available():
            self._replace(torch.distributed.distributed_c10d.Work, "wait", self._waiting)
        if callable(getattr(wrapped, "step", None)):  # an engine with an optimizer of its own
            self._replace(wrapped, "step", functools.partial(self._timed, "optimizer"))
        elif optimizer := getattr(trainer.optimizer, "optimizer", None):
            self._replace(optimizer, "step", functools.partial(self._timed, "optimizer"))
        if isinstance(wrapped, torch.nn.parallel.DistributedDataParallel):
            for parameter in (each for each in model.parameters() if each.requires_grad):
                hook = parameter.register_post_accumulate_grad_hook(self._gradient)
                self.hooks[id(parameter)] = hook
                self.undo.append(hook.remove)

    def detach(self) -> None:
        """Leave everything as it was."""
        while self.undo:
            self.undo.pop()()

    def mark(self) -> None:
        """Note that a step has ended."""
        self.marked = self.waited

    def pause(self) -> None:
        """Forget the waiting since the last step's end: a checkpoint's, an evaluation's."""
        self.waited = self.marked

    def take(self) -> Callable[[], tuple[float | None, dict[str, float]]]:
        """Return mean seconds of a forward pass (None: there were none), and seconds by part: forward,
        backward, optimizer, waiting; of a GPU only forward. They are those since the last call, to be read
        once the device was waited for."""
        passes, count, parts = self.passes, self.count, self.parts
        if not self.clock.cuda and self.undo:
            parts["waiting"] = self.waited
        self.passes, self.parts = [], defaultdict(float)
        self.count, self.waited, self.marked = 0, 0.0, 0.0

        def read() -> tuple[float | None, dict[str, float]]:
            for begin, end in passes:
                parts["forward"] += self.clock.seconds(begin, end)
            return parts["forward"] / count if count else None, dict(parts)

        return read

    # --- what is looked at ---------------------------------------------------------------------------------

    def _replace(self, owner: Any, name: str, around: Callable[[Callable[..., Any]], Any]) -> None:
        own = name in vars(owner)
        original = getattr(owner, name)
        setattr(owner, name, around(original))

        def undo() -> None:
            if own:
                setattr(owner, name, original)
            else:
                delattr(owner, name)

        self.undo.append(undo)

    def _timed(self, part: str, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function so that its own time is the part's, without its waiting and the parts within it."""

        @functools.wraps(original)
        def timed(*rest: Any, **named: Any) -> Any:
            began, waited = time.perf_counter(), self.waited
            self.inside.append([0.0])
            try:
                return original(*rest, **named)
            finally:
                (others,) = self.inside.pop()
                spent = time.perf_counter() - began
                self.parts[part] += spent - others - (self.waited - waited)
                if self.inside:  # with its waiting, which is no part of the other one either
                    self.inside[-1][0] += spent - (self.waited - waited)

        return timed

    def _backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def backward(*rest: Any, **named: Any) -> Any:
            self.ready = (0.0, 0.0)
            result = original(*rest, **named)
            at, waited = self.ready
            if at:
                self.waited = waited + time.perf_counter() - at
                self._keep_last()
            return result

        return self._timed("backward", backward)

    def _waiting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def wait(handle: Any, *rest: Any, **named: Any) -> Any:
            start = time.perf_counter()
            try:
                return original(handle, *rest, **named)
            finally:
                self.waited += time.perf_counter() - start

        return wait

    def _gradient(self, parameter: torch.Tensor) -> None:
        self.ready = (time.perf_counter(), self.waited)
        if len(self.hooks) > LAST:
            self.order.pop(id(parameter), None)
            self.order[id(parameter)] = parameter

    def _keep_last(self) -> None:
        """Keep the hooks of the last gradients alone, after the first backward pass: a call for each gradient
        of each step would cost too much."""
        if len(self.hooks) > LAST:
            last = list(self.order)[-LAST:]
            for key, hook in self.hooks.items():
                if key not in last:
                    hook.remove()
            self.hooks = {key: self.hooks[key] for key in last}
            self.order.clear()

    def _begin(self, model: Any, _: Any) -> None:
        if model.training and torch.is_grad_enabled():
            self.began = (self.clock.now(), self.waited)

    def _end(self, model: Any, *_: Any) -> None:
        if self.began is None:
            return
        (begin, waited), self.began = self.began, None
        end = self.clock.now()
        self.count += 1
        if self.clock.cuda:
            self.passes.append((begin, end))
        else:
            self.parts["forward"] += end - begin - (self.waited - waited)
