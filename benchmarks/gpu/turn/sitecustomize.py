"""Lets processes that share a GPU warm up together and be timed one at a time.

Python runs this file at its start where its folder is on PYTHONPATH. It does nothing without MUSTER_TURN,
which is "AFTER UNTIL FILE". From the first optimizer on, the process holds a shared lock of FILE. After AFTER
steps of an optimizer it waits for the lock of its own, which it gets once all others have warmed up and none
is being timed; it gives it back after UNTIL steps, or when it ends. One that has waited for PATIENCE seconds
goes on without, and says so in FILE.late: its figures hold other processes.
"""

from __future__ import annotations

import fcntl
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

PATIENCE = 150.0


class Turn:
    """The steps of a process, and its lock. POSIX's: forked loader processes do not inherit it."""

    def __init__(self, after: int, until: int, path: str) -> None:
        self.after, self.until, self.steps, self.path = after, until, 0, path
        self.file = Path(path).open("a+")  # noqa: SIM115 (closing it gives the lock back)

    def wait(self) -> None:
        """Wait for PyTorch's optimizers to be imported, then for those that are being timed."""
        name, entry = "torch.optim.optimizer", "register_optimizer_step_post_hook"
        while not hasattr(sys.modules.get(name), entry):
            time.sleep(0.05)
        getattr(sys.modules[name], entry)(self.stepped)
        fcntl.lockf(self.file, fcntl.LOCK_SH)

    def stepped(self, *_: Any) -> None:
        """Count a step of the optimizer, whose kernels may still run."""
        self.steps += 1
        if self.steps in (self.after, self.until):
            torch = sys.modules["torch"]
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            fcntl.lockf(self.file, fcntl.LOCK_UN)
            if self.steps == self.after:
                self.alone()

    def alone(self) -> None:
        """Wait until no other process holds the lock."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            try:
                fcntl.lockf(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                time.sleep(0.02)
            else:
                return
        with Path(f"{self.path}.late").open("a") as late:
            late.write(f"{os.getpid()} {sys.argv}\n")


# Processes that this one starts, which compile its kernels or load its data, have no turn of their own.
if words := os.environ.pop("MUSTER_TURN", None):
    first, last, place = words.split(" ", 2)
    threading.Thread(target=Turn(int(first), int(last), place).wait, daemon=True).start()
