"""What a rank computes by itself: seconds of its forward passes, without what it waits for others in them.

Ranks that train together take the same time for a step, since all wait for the slowest in its collectives.
What each does between them differs, and tells who that is, in any job, without a run for it. Forward passes
exchange nothing under DDP and ZeRO-1 and 2; under ZeRO-3 and FSDP they gather weights. On CPUs that waiting
is a call of Python's, which is left out here. On GPUs it is the device's, between its kernels: nothing is
said there of engines that shard weights.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from muster.worker.instruments.clock import DeviceClock


class Computing:
    """The instrument. `attach` to a model, `take` at the end of a window."""

    def __init__(self, device: str) -> None:
        self.clock = DeviceClock(device)
        self.passes: list[tuple[Any, Any]] = []  # events of a GPU, not waited for yet
        self.seconds = 0.0
        self.count = 0
        self.began: Any = None  # of the pass that runs
        self.waited = 0.0  # within it
        self.hooks: list[Any] = []
        self.wait: Any = None  # torch's own

    def attach(self, model: Any) -> None:
        """Look at the model's forward passes from now on, where gradients will be wanted of them."""
        self.hooks = [
            model.register_forward_pre_hook(self._begin),
            model.register_forward_hook(self._end),
        ]
        if not self.clock.cuda and torch.distributed.is_available() and self.wait is None:
            work = torch.distributed.distributed_c10d.Work
            self.wait = original = work.wait

            def wait(handle: Any, *rest: Any, **named: Any) -> Any:
                if self.began is None:
                    return original(handle, *rest, **named)
                start = time.perf_counter()
                try:
                    return original(handle, *rest, **named)
                finally:
                    self.waited += time.perf_counter() - start

            work.wait = wait

    def detach(self) -> None:
        """Leave everything as it was."""
        for hook in self.hooks:
            hook.remove()
        self.hooks = []
        if self.wait is not None:
            torch.distributed.distributed_c10d.Work.wait = self.wait
            self.wait = None

    def take(self) -> float | None:
        """Mean seconds of the passes since it was asked last; None: there were none. On a GPU call it when
        the device was waited for."""
        for begin, end in self.passes:
            self.seconds += self.clock.seconds(begin, end)
        self.passes.clear()
        mean = self.seconds / self.count if self.count else None
        self.seconds, self.count = 0.0, 0
        return mean

    def _begin(self, model: Any, _: Any) -> None:
        if not (model.training and torch.is_grad_enabled()):
            return
        self.waited = 0.0
        self.began = self.clock.now()

    def _end(self, model: Any, *_: Any) -> None:
        if self.began is None:
            return
        begin, self.began = self.began, None
        end = self.clock.now()
        self.count += 1
        if self.clock.cuda:
            self.passes.append((begin, end))
        else:
            self.seconds += end - begin - self.waited
