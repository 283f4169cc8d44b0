"""Report a training's progress to Muster: three calls in a script that `muster run` starts.

    import muster

    for batch in loader:
        with muster.phase("forward"):
            loss = model(batch)
        ...
        muster.step(loss=loss, samples=len(batch))

Without Muster they do nothing. This file needs the standard library alone: a copy of it may lie next to the
script (`import progress as muster`).
"""

from __future__ import annotations

import atexit
import json
import mmap
import os
import struct
import time
from pkgutil import extend_path
from typing import Any

try:  # as the package `muster` of a program that Muster starts: its other modules, where it is installed
    __path__ = extend_path(globals()["__path__"], __name__)
except KeyError:
    pass

_FOLDER = os.environ.get("MUSTER_EVENTS")
_EACH = 1.0  # seconds between two lines of events, at least


class Pulse:
    """A rank's progress, in a small mapped file that its agent reads: optimizer steps, signs of life (steps
    and other work), and the present phase. A write is no system call."""

    LAYOUT = struct.Struct("<QQ48s")

    def __init__(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.ftruncate(descriptor, self.LAYOUT.size)
            self.map = mmap.mmap(descriptor, self.LAYOUT.size)
        finally:
            os.close(descriptor)
        self.steps = self.beats = 0
        self.phase = b""

    def beat(self, steps: int | None = None) -> None:
        """Record progress: so many steps in all, or another sign of life."""
        self.steps = self.steps if steps is None else steps
        self.beats += 1
        self.LAYOUT.pack_into(self.map, 0, self.steps, self.beats, self.phase)

    def enter(self, phase: bytes) -> bytes:
        """Enter a phase. Return the phase before."""
        before, self.phase = self.phase, phase
        self.beat()
        return before


class _Writer:
    """Write what this process reports: events and its pulse."""

    def __init__(self, folder: str) -> None:
        environ = os.environ.get
        self.rank = int(environ("RANK") or environ("MUSTER_RANK") or 0)
        self.attempt = int(environ("MUSTER_ATTEMPT") or 1)
        self.file = open(os.path.join(folder, "rank%d.events.jsonl" % self.rank), "a")
        self.pulse = Pulse(os.path.join(folder, "rank%d.pulse" % self.rank))
        self.steps = 0
        self.loss: Any = None
        self.begun = self.last = 0.0  # where the window begins, and its last step ended
        self._anew(0.0)
        atexit.register(self.flush)

    def _anew(self, at: float) -> None:
        self.begun, self.samples, self.tokens = at, 0.0, 0.0
        self.seconds: list[float] = []
        self.phases: dict[str, float] = {}

    def step(self, loss: Any, samples: float, tokens: float) -> None:
        at = time.perf_counter()
        self.steps += 1
        self.pulse.beat(self.steps)
        self.loss = loss
        if self.steps > 1:  # before the first one there was the start of the program
            self.seconds.append(at - self.last)
            self.samples += samples
            self.tokens += tokens
        self.last = at
        if self.steps == 1:
            self.write("phase", name="steps")
            self._anew(at)
            self.flush()  # the first loss
        elif at - self.begun >= _EACH:
            self.flush()

    def flush(self) -> None:
        if self.seconds:
            self.write(
                "window",
                step=self.steps,
                steps=len(self.seconds),
                seconds=self.last - self.begun,
                samples=int(self.samples),
                tokens=int(self.tokens),
                padded_tokens=int(self.tokens),
                step_seconds=self.seconds,
                phases={name: spent for name, spent in self.phases.items() if name != "data"},
                data_seconds=self.phases.get("data"),
            )
            self._anew(self.last)
        if self.loss is not None and self.rank == 0:
            self.write("log", step=self.steps, loss=float(self.loss))
            self.loss = None

    def write(self, kind: str, **content: Any) -> None:
        line = dict(content, v=1, kind=kind, time=time.time(), attempt=self.attempt, rank=self.rank)
        try:
            self.file.write(json.dumps(line) + "\n")
            self.file.flush()
        except OSError:  # a full disk: a program must not fail for want of a report
            pass


class _Phase:
    """A part of a step, as a context."""

    def __init__(self, writer: _Writer, name: str) -> None:
        self.writer, self.name = writer, name

    def __enter__(self) -> _Phase:
        self.before = self.writer.pulse.enter(self.name.encode()[:48])
        self.began = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.writer.pulse.enter(self.before)
        spent = self.writer.phases  # of the window in which the phase ends
        spent[self.name] = spent.get(self.name, 0.0) + time.perf_counter() - self.began


class _Nothing:
    """A phase that is not recorded."""

    def __enter__(self) -> _Nothing:
        return self

    def __exit__(self, *_: object) -> None:
        pass


_nothing = _Nothing()
_writer: _Writer | None = None
if _FOLDER:
    try:
        _writer = _Writer(_FOLDER)
    except (OSError, ValueError):
        pass  # as in `write`


def step(loss: Any = None, samples: float = 0, tokens: float = 0) -> None:
    """Report an optimizer step of this rank. `loss`: a number, or what `float` converts to one; it is read
    once a second at most. `samples`, `tokens`: of this rank in this step."""
    if _writer is not None:
        _writer.step(loss, samples, tokens)


def phase(name: str) -> _Phase | _Nothing:
    """Report a part of a step: `with muster.phase("data"):`. The names data, forward, backward and optimizer
    mean the same in all programs. Any other name announces something that may take long, such as an
    evaluation: no hang is suspected while a rank is in it."""
    return _nothing if _writer is None else _Phase(_writer, name)


def note(text: str) -> None:
    """Report a note that readers of the result need."""
    if _writer is not None:
        _writer.write("noted", text=str(text))
