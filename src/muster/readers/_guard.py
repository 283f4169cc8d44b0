"""Readers of third parties: one that fails is left out, and the others go on."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from muster.core.errors import BrokenPluginError
from muster.core.promises import fits
from muster.core.registry import broken, guarded, package_of, warn
from muster.readers._frame import Frame
from muster.readers._mapping import Mapping
from muster.readers.base import LineReader, Reading

PACKAGE = "muster.readers"
Made = Callable[[Frame, Sequence[Mapping]], LineReader]


def guarded_reader(name: str, module: ModuleType) -> tuple[tuple[str, ...], Made]:
    """(hints, what makes its reader of a file). Raises BrokenPluginError where a third party's HINTS are no
    texts."""
    if package_of(PACKAGE, name) is None:
        return module.HINTS, module.Reader
    if not fits(module.HINTS, tuple[str, ...]):
        raise broken(PACKAGE, name, "its HINTS are no tuple of texts", module.__file__)
    return tuple(module.HINTS), lambda frame, mappings: GuardedReader(name, module, frame, mappings)


class GuardedReader:
    """A third party's reader of one file, up to its first failure."""

    def __init__(self, name: str, module: ModuleType, frame: Frame, mappings: Sequence[Mapping]) -> None:
        self.name = name
        self.fault = ""  # why it was left out
        self.reader = self._guarded(lambda: module.Reader(frame, mappings))

    @property
    def closed(self) -> bool:
        """Whether it needs no more lines; a reader may leave that out."""
        return self.reader is None or bool(getattr(self.reader, "closed", False))

    def line(self, text: str) -> None:
        """Give it a line."""
        if self.reader is not None:
            self._guarded(lambda: self.reader.line(text))

    def readings(self) -> list[Reading]:
        """What it found, if that is what a reader finds."""
        answer = self._guarded(lambda: self.reader.readings()) if self.reader is not None else None
        if answer is not None and not fits(answer, list[Reading]):
            self._leave_out(
                broken(PACKAGE, self.name, f"readings answers {answer!r:.60}, no list of Reading")
            )
            return []
        return list(answer or ())

    def __deepcopy__(self, memo: dict[int, Any]) -> GuardedReader:
        """A copy that is asked for readings while the reader goes on."""
        other = copy.copy(self)
        other.reader = self._guarded(lambda: copy.deepcopy(self.reader, memo))
        return other

    def _guarded(self, call: Callable[[], Any]) -> Any:
        try:
            with guarded(PACKAGE, self.name, "failed"):
                return call()
        except BrokenPluginError as error:
            self._leave_out(error)
            return None

    def _leave_out(self, error: BrokenPluginError) -> None:
        self.reader, self.fault = None, str(error)
        warn(self.fault)
