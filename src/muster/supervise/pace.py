"""How many sessions are made at once: as many as bring more answers per second, and no more."""

from __future__ import annotations

_FIRST = 16  # before anything is known of their speed
_FEWEST = 8
_WORTH = 1.15  # twice as many sessions at once must bring so much more, or they only wait for each other


class Pace:
    """A window over sessions in the making.

    It doubles for as long as that brings more answers per second, and then stays: where this machine or its
    network is the bottleneck, sessions beyond that only take longer, and cost more. By Little's law a session
    takes window / rate; the window also stays so small that this is well below the time for a connection.
    """

    def __init__(self, most: int, connect: float, now: float) -> None:
        """`most`: the largest window. `connect`: seconds for a connection. `now`: time.monotonic()."""
        self._most = most
        self._connect = connect
        self._size = _FIRST
        self._grows = True
        self._best: float | None = None  # answers per second with half the window
        self._count = 0  # answers since the window changed
        self._mark: tuple[int, float] | None = None  # count and time, once sessions of this window answer
        self._all = 0
        self._begun = now

    def answered(self, now: float) -> None:
        """A host has answered."""
        self._all += 1
        self._count += 1
        if not self._grows:
            return
        if self._mark is None:
            if self._count >= self._size:  # those begun with the smaller window are through
                self._mark = (self._count, now)
            return
        since, then = self._mark
        if self._count < since + self._size or now <= then:
            return
        rate = (self._count - since) / (now - then)
        if self._best is not None and rate < _WORTH * self._best:
            self._size //= 2
            self._grows = False
        else:
            self._best = rate
            self._grows = self._size < self._most
            self._size *= 2
        self._count, self._mark = 0, None

    def window(self, now: float) -> int:
        """How many sessions may be in the making."""
        size = self._size
        if self._all and now > self._begun:
            size = min(size, int(self._all / (now - self._begun) * self._connect / 3))
            size = max(size, _FEWEST)
        return min(size, self._most)
