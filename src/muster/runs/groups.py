"""Notice ranks that take steps without each other."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

SECONDS = 10.0  # of steps, after which a program would have formed its group


class Groups:
    """The ranks that have formed no process group, as their hosts report; of a job of `world_size` ranks."""

    def __init__(self, world_size: int, now: Callable[[], float] = time.monotonic) -> None:
        self.world_size, self.now = world_size, now
        self.ungrouped: dict[str, Sequence[int]] = {}  # by host
        self.stepping: float | None = None  # since when steps are known
        self.noted = False

    def heard(self, host: str, ranks: Sequence[int]) -> None:
        """Record which ranks of a host have imported torch.distributed and joined no group."""
        self.ungrouped[host] = ranks

    def note(self, steps: int) -> str | None:
        """Return a note, once; `steps`: those that the job has taken."""
        if self.stepping is None and steps:
            self.stepping = self.now()
        alone = sum(map(len, self.ungrouped.values()))
        if self.noted or self.stepping is None or self.now() - self.stepping < SECONDS:
            return None
        if self.world_size < 2 or alone < self.world_size:
            return None
        self.noted = True
        return (
            f"none of the {self.world_size} ranks has formed a process group, so each trains by itself "
            "(without a GPU Accelerate forms one with Accelerator(cpu=True) or ACCELERATE_USE_CPU=1 alone)"
        )
