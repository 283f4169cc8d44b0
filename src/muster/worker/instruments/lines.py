"""Marks lines of Python in a running trace of PyTorch's profiler: from where it waits for the device."""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from muster.worker.instruments import kineto

_PYTHON, _TORCH = f"{Path(os.__file__).parent}/", f"{Path(torch.__file__).parent}/"
_PACKAGES = f"{Path(torch.__file__).parents[1]}/"
_MUSTER = f"{Path(kineto.__file__).parents[2]}/"  # a folder, or the zip that ranks run
_OWN = ("muster/worker/instruments/lines.py", "muster/worker/instruments/profile.py")


@cache
def shown(file: str) -> str | None:
    """Shorten a source file's name for people: below the folder that its package is in, or below this one.
    None: a file of Python itself or of PyTorch, or no file."""
    if file.startswith((_TORCH, "<")) or file.endswith(_OWN):
        return None
    for folder in (_PACKAGES, _MUSTER, f"{Path.cwd()}/"):
        if file.startswith(folder):
            return file[len(folder) :]
    return None if file.startswith(_PYTHON) else file


class LineMarks:
    """Marks each line that this thread runs outside PyTorch and Python's own library, until it is stopped.

    torch.profiler's `with_stack` names the line at which a function begins, not the one that waits. Either
    makes the host several times slower: no time of such a step means anything.
    """

    def __init__(self) -> None:
        self.open: list[tuple[FrameType, Any]] = []
        self.followed: list[FrameType] = []
        self.before: Any = None
        self.line, self.call = self._line, self._call
        if "torch._dynamo" in sys.modules:  # else it compiles these two, where a compiled model calls them
            self.line, self.call = map(torch.compiler.disable, (self._line, self._call))

    def start(self) -> None:
        """Mark from the next line on, of all functions that run now as well."""
        self.before = sys.gettrace()
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame.f_trace is None and shown(frame.f_code.co_filename):
                frame.f_trace = self.line
                self.followed.append(frame)
            frame = frame.f_back
        sys.settrace(self.call)

    def stop(self) -> None:
        """End all marks."""
        sys.settrace(self.before)
        for frame in self.followed:
            frame.f_trace = None
        self.followed.clear()
        while self.open:
            self._end()

    def _call(self, frame: FrameType, what: str, _: Any) -> Any:
        return self.line if shown(frame.f_code.co_filename) else None

    def _line(self, frame: FrameType, what: str, _: Any) -> Any:
        if what in ("line", "return"):
            if any(each is frame for each, _ in self.open):
                while self._end() is not frame:
                    pass
            if what == "line":
                name = f"{kineto.LINE}{shown(frame.f_code.co_filename)}:{frame.f_lineno}"
                mark = torch.profiler.record_function(name)
                mark.__enter__()
                self.open.append((frame, mark))
        return self.line

    def _end(self) -> FrameType:
        frame, mark = self.open.pop()
        mark.__exit__(None, None, None)
        return frame
