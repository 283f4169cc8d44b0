"""Why a program ended, from what it printed: the line that decides."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from muster.failures.signs import Sign
from muster.readers._read import LineFeed


def sign_of(blocks: Iterable[Sequence[str]]) -> Sign | None:
    """The line that explains most how the last job of a log ended; None: no line says so. `blocks`: its
    lines, some at a time, read once."""
    feed = LineFeed(())
    rest = feed.take(iter(blocks))
    while rest is not None:  # another job begins in the same log
        feed = feed.again()
        rest = feed.take(rest)
    return feed.frame.signs.decisive()
