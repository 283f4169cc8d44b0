"""Loader processes: how they start, and the memory that they share with their rank."""

from __future__ import annotations

import mmap
import multiprocessing
import os
from contextlib import suppress
from multiprocessing.context import get_spawning_popen
from multiprocessing.forkserver import ensure_running
from multiprocessing.reduction import DupFd
from typing import Any

import torch
from transformers import TrainingArguments

CONTEXT = "dataloader_multiprocessing_context"  # of Transformers since 5.20 or so


def loader_arguments(workers: int, module: str) -> dict[str, Any]:
    """Return Transformers' arguments for so many loader processes of a rank. `module`: what each imports.

    They are forks of a server that has imported the module and done nothing else: a fork of the rank would
    have whatever gloo's, NCCL's and CUDA's threads held at that moment, locks included. They stay between
    epochs.
    """
    if not workers:
        return {"dataloader_num_workers": 0}
    multiprocessing.set_forkserver_preload([module])
    ensure_running()  # it imports for seconds, and the model is made meanwhile
    given: dict[str, Any] = {"dataloader_num_workers": workers, "dataloader_persistent_workers": True}
    if CONTEXT in TrainingArguments.__dataclass_fields__:
        return {**given, CONTEXT: "forkserver"}
    multiprocessing.set_start_method("forkserver", force=True)
    return given


class SharedBytes:
    """Memory that a process shares with its loader processes, however they start. It is no file, so it does
    not count against /dev/shm."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.descriptor = os.memfd_create("muster") if hasattr(os, "memfd_create") else -1
        if self.descriptor >= 0:
            os.ftruncate(self.descriptor, size)
        self._map()

    def _map(self) -> None:
        self.tensor = torch.frombuffer(mmap.mmap(self.descriptor, self.size), dtype=torch.uint8)

    def __del__(self) -> None:
        with suppress(AttributeError, OSError):
            if self.descriptor >= 0:
                os.close(self.descriptor)  # what is mapped stays

    def __getstate__(self) -> dict[str, Any]:
        """Hand the memory to a loader process alone; a copy elsewhere, or without such memory, begins
        empty."""
        shares = self.descriptor >= 0 and get_spawning_popen() is not None
        return {"size": self.size, "descriptor": DupFd(self.descriptor) if shares else None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if state["descriptor"] is None:
            self.__init__(state["size"])  # type: ignore[misc]
            return
        self.size, self.descriptor = state["size"], state["descriptor"].detach()
        self._map()
