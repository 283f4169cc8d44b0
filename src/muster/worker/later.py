"""Work of the host that needs figures of the device, put off until the device has the next step to compute.

A host that waits for the device at the end of a step, and then reads, writes and launches, leaves the device
without work for all that time. Here the figures are copied without waiting, and read while it computes on.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

PATIENCE = 5.0  # seconds for a device whose training broke off


class Scalars:
    """Numbers, some of them tensors of one element, that are copied without waiting. They may be on several
    devices: the gradients' norm is the host's where FSDP keeps gradients there."""

    def __init__(self, numbers: Sequence[Any]) -> None:
        self.numbers = list(numbers)
        tensors: dict[torch.device, list[torch.Tensor]] = {}
        for each in numbers:
            if isinstance(each, torch.Tensor):
                tensors.setdefault(each.device, []).append(each.detach().reshape(()))
        self.copies = {
            device: torch.stack(several).to("cpu", non_blocking=True) for device, several in tensors.items()
        }

    def values(self) -> list[Any]:
        """Return the numbers, in order, as Python's. Call it when the devices have computed them."""
        copies = {device: iter(copy.tolist()) for device, copy in self.copies.items()}
        return [
            next(copies[each.device]) if isinstance(each, torch.Tensor) else each for each in self.numbers
        ]


class DeferredWork:
    """Work that is done, in order, when the next micro-step has been launched: `drain` does it."""

    def __init__(self, device: str) -> None:
        self.cuda = device == "cuda"
        self.work: list[Callable[[], object]] = []
        self.mark: Any = None  # on the device: all that the work reads is there

    def add(self, work: Callable[[], object]) -> None:
        """Put it off. It reads what the device was given up to here."""
        self.work.append(work)
        if self.cuda:
            self.mark = torch.cuda.Event()
            self.mark.record()

    def drain(self) -> None:
        """Wait for what the work reads, and for nothing that the device was given since; do the work."""
        if self.work and self.mark is not None:
            self.mark.synchronize()
        while self.work:
            self.work.pop(0)()

    def rescue(self) -> None:
        """Drain where the training broke off: a device that does not answer, or a full disk, hides no reason
        for that. What the work itself raises, such as for a loss that is no number, is the earlier reason."""
        end = time.monotonic() + PATIENCE
        with contextlib.suppress(RuntimeError, OSError):
            while self.work and self.mark is not None and not self.mark.query():
                if time.monotonic() > end:
                    return
                time.sleep(0.01)
            self.drain()
