"""Ctrl-C, SIGTERM and a closed terminal as a wish to stop, instead of an exception anywhere."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

_MEANINGS = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM", signal.SIGHUP: "a closed terminal (SIGHUP)"}


@dataclass
class Wish:
    """Why the user, or the system, wants the job to end; None: it may go on."""

    stop: str | None = None


_PRESSED: list[int] = []  # each Ctrl-C that became a wish


@contextmanager
def keyboard_interrupts() -> Iterator[None]:
    """For callers that are no command: raise KeyboardInterrupt at the end where Ctrl-C was pressed inside
    `interrupts`, as Python does elsewhere."""
    before = len(_PRESSED)
    try:
        yield
    except Exception as error:
        if len(_PRESSED) > before:
            raise KeyboardInterrupt from error
        raise
    if len(_PRESSED) > before:
        raise KeyboardInterrupt


@contextmanager
def interrupts() -> Iterator[Wish]:
    """While inside, those signals set the wish. Elsewhere than in the main thread nothing changes."""
    wish = Wish()
    if threading.current_thread() is not threading.main_thread():
        yield wish
        return

    def note(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            _PRESSED.append(number)
        wish.stop = wish.stop or f"stopped by {_MEANINGS[signal.Signals(number)]}"

    heeded = [
        number for number in _MEANINGS if signal.getsignal(number) != signal.SIG_IGN
    ]  # nohup stays nohup
    before: dict[signal.Signals, Any] = {number: signal.signal(number, note) for number in heeded}
    try:
        yield wish
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
