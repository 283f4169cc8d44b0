"""Batches on their way to the device: copied on a stream of their own, and timed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from accelerate.utils import send_to_device

from muster.worker.instruments.clock import DeviceClock


class Feed:
    """Hands a trainer its training batches on the device; the host never waits for a copy.

    Accelerate's loader is one batch ahead of the step: a batch is copied while the device still computes the
    step before. The copies run on a stream of their own; the device's work waits for them, the host does not.
    `waits`: two moments for each batch, between which the device had nothing to do for want of it. Work that
    it was given before does not count, and a CPU waits for all of it.
    """

    def __init__(self, device: str) -> None:
        self.clock = DeviceClock(device)
        self.stream = torch.cuda.Stream() if self.clock.cuda else None
        self.waits: list[tuple[Any, Any]] = []

    def unplaced(self, loader: Any) -> Any:
        """Let Accelerate's loader leave batches where they are: it copies on the stream that computes. -> the
        loader."""
        if self.stream is not None and hasattr(loader, "device"):
            loader.device = None
        return loader

    def over(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the same batches on the device."""
        while True:
            begin = self.clock.now()
            try:
                batch = self._moved(next(batches))
            except StopIteration:
                return
            self.waits.append((begin, self.clock.now()))
            yield batch

    def take(self) -> Callable[[], float]:
        """Return the seconds of waiting since the last call, to be read once the device was waited for."""
        waits, self.waits = self.waits, []
        return lambda: sum(self.clock.seconds(*pair) for pair in waits)

    def _moved(self, batch: Any) -> Any:
        if self.stream is None:
            return batch
        computing = torch.cuda.current_stream()
        with torch.cuda.stream(self.stream):
            moved = send_to_device(batch, computing.device, non_blocking=True)
        computing.wait_stream(self.stream)
        for tensor in tensors_of(moved):
            tensor.record_stream(computing)  # its memory is not given away before the step has used it
        return moved


def tensors_of(batch: Any) -> Iterator[torch.Tensor]:
    """Yield all tensors of a batch of mappings and lists."""
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, Mapping | list | tuple):
        for each in batch.values() if isinstance(batch, Mapping) else batch:
            yield from tensors_of(each)
