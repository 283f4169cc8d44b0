"""Shows what is waited for, and for how long: a live line on a terminal, otherwise a line from time to time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.text import Text

if TYPE_CHECKING:
    from typing_extensions import Self

EVERY = 30.0  # seconds between two lines where there is no terminal


class Waiting:
    """Shows what is waited for. A context manager. `below`: what a terminal shows under the line."""

    def __init__(self, console: Console, below: RenderableType | None = None, every: float = EVERY) -> None:
        self._console, self._below, self._every = console, below, every
        self._what: str | None = None
        self._began = 0.0
        self._live = Live(self, console=console, refresh_per_second=4) if console.is_terminal else None
        self._changed, self._over = Event(), False

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        else:
            Thread(target=self._tell, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.now(None)
        self._over = True
        self._changed.set()
        if self._live:
            self._live.stop()

    def now(self, what: str | None) -> None:
        """Show from now on that this is waited for; None: nothing. A terminal keeps how long the last one
        took."""
        if what == self._what:
            return
        if self._live and self._what:
            self._console.print(f"[dim]{escape(self._words())}[/dim]")
        self._what, self._began = what, time.monotonic()
        if not self._live and what:
            self._console.print(f"[dim]{escape(what)} ...[/dim]")
        self._changed.set()

    def _words(self) -> str:
        seconds = int(time.monotonic() - self._began)
        return f"{self._what} ... {seconds} s" if seconds else f"{self._what} ..."

    def _tell(self) -> None:
        while not self._over:
            if self._changed.wait(self._every):
                self._changed.clear()
            elif self._what:
                self._console.print(f"[dim]{escape(self._words())}[/dim]")

    def __rich__(self) -> RenderableType:
        line = [Text(self._words(), style="dim")] if self._what else []
        return Group(*line, *([self._below] if self._below else []))


@contextmanager
def waiting(console: Console, what: str) -> Iterator[None]:
    """Show that `what` is waited for inside."""
    with Waiting(console) as line:
        line.now(what)
        yield
