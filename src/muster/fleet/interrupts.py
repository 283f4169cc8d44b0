"""Ctrl-C, SIGTERM and a closed terminal as a request to stop, in place of an exception at any line."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

_MEANINGS = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM", signal.SIGHUP: "a closed terminal (SIGHUP)"}


GRACE = "MUSTER_GRACE"  # in a batch job: so many seconds before its time limit Slurm sends SIGTERM
SLACK = 90.0  # Slurm looks at its jobs once a minute, and may be early


def meaning(number: int, env: Mapping[str, str], now: float) -> str:
    """Return what a signal means, for people. `now`: seconds since 1970. SIGTERM near a batch job's end,
    which Slurm states (SLURM_JOB_END_TIME, from 22.05 on), is its time limit."""
    end, grace = env.get("SLURM_JOB_END_TIME", ""), env.get(GRACE, "")
    near_the_end = number == signal.SIGTERM and end.isdecimal() and grace.isdecimal()
    if near_the_end and abs(int(end) - int(grace) - now) <= SLACK:
        return f"Slurm's time limit (SIGTERM {grace} s before it)"
    return _MEANINGS[signal.Signals(number)]


@dataclass
class EndRequest:
    """Why the user, or the system, wants the job to end; None: it may go on."""

    stop: str | None = None


_PRESSED: list[int] = []  # each Ctrl-C that became a wish


@contextmanager
def keyboard_interrupts() -> Iterator[None]:
    """Raise KeyboardInterrupt at the end where Ctrl-C was pressed inside `interrupts`, as Python does
    elsewhere. For callers that are no command."""
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
def interrupts() -> Iterator[EndRequest]:
    """Turn those signals into an EndRequest while inside. In a thread other than the main one nothing
    changes."""
    wish = EndRequest()
    if threading.current_thread() is not threading.main_thread():
        yield wish
        return

    def note(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            _PRESSED.append(number)
        wish.stop = wish.stop or f"stopped by {meaning(number, os.environ, time.time())}"

    # nohup stays nohup
    heeded = [number for number in _MEANINGS if signal.getsignal(number) != signal.SIG_IGN]
    before: dict[signal.Signals, Any] = {number: signal.signal(number, note) for number in heeded}
    try:
        yield wish
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
