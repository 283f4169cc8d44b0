"""What is waited for, and for how long: a live line on a terminal, otherwise a line now and then."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread

from rich.console import Console
from rich.live import Live
from rich.text import Text

EVERY = 30.0  # seconds between two lines where there is no terminal


@contextmanager
def waiting(console: Console, what: str) -> Iterator[None]:
    """Inside, say `what` is waited for."""
    began = time.monotonic()
    if console.is_terminal:
        with Live(Clock(what), console=console, transient=True, refresh_per_second=2):
            yield
        return
    console.print(f"{what} ...")
    over = Event()

    def tell() -> None:
        while not over.wait(EVERY):
            console.print(words(what, began))

    Thread(target=tell, daemon=True).start()
    try:
        yield
    finally:
        over.set()


def words(what: str, began: float) -> str:
    """What is waited for, and for how long it has been."""
    seconds = int(time.monotonic() - began)
    return f"{what} ... {seconds} s" if seconds else f"{what} ..."


class Clock:
    """A line that is new each time it is shown."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.began = time.monotonic()

    def __rich__(self) -> Text:
        return Text(words(self.what, self.began), style="dim")
