"""Moments on a device's clock: on a GPU events that are recorded without waiting, else the host's time."""

from __future__ import annotations

import time
from typing import Any

import torch


class DeviceClock:
    """`device`: cpu or cuda."""

    def __init__(self, device: str) -> None:
        self.cuda = device == "cuda"

    def now(self) -> Any:
        """Record a moment."""
        if not self.cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, begin: Any, end: Any) -> float:
        """Return the seconds between two moments; on a GPU, once it was waited for."""
        return float(begin.elapsed_time(end) / 1000 if self.cuda else end - begin)

    def wait(self) -> float:
        """Wait until the device has done all its work. -> the host's time then."""
        if self.cuda:
            torch.cuda.synchronize()
        return time.perf_counter()
