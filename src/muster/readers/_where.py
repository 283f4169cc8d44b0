"""Where a line of a log stands, and what the lines around it tell: its number, rank, time, and the program's
own line behind an exception. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import NamedTuple

from muster.readers._frame import own_stamp, uncoloured
from muster.store.logfiles import Lines

_BACK = 200  # lines before it that are looked at
# torch's own mark before what a rank raises; torchrun's redirects (a rank of its host); mpirun; srun --label.
_RANK = re.compile(r"(?:\S+: )?(?:\[rank(\d{1,9})\]:|\[\d+,(\d{1,9})\]<std|\s*(\d{1,6}): )")
_PREFIX = re.compile(r"(?:\S+: )?(?:\[rank\d+\]:|\[\d+,\d+\]<std\w+>:|\[default\d+\]:|\s*\d{1,6}: )")
_FRAME = re.compile(r"  File \"([^\"]+)\", line (\d+)(?:, in (.+))?")
_OTHERS = ("/site-packages/", "/dist-packages/", "/lib/python", "<frozen ")  # no line of the user's


class LinePlace(NamedTuple):
    """A line, as a place in a block of lines. `before`: the block before that."""

    block: Sequence[str]
    place: int
    before: Sequence[str] = ()

    @property
    def number(self) -> int | None:
        """Of the line, from 1; None: what it was read from does not count them."""
        return self.block.number(self.place) if isinstance(self.block, Lines) else None

    @property
    def rank(self) -> int | None:
        """Whose line it is, where it says so."""
        match = _RANK.match(uncoloured(self.block[self.place]))
        return next((int(group) for group in match.groups() if group), None) if match else None

    @property
    def when(self) -> float | None:
        """Its time stamp, or the last one before it."""
        return next((stamp for line in self._back() if (stamp := own_stamp(line)) is not None), None)

    @property
    def code(self) -> str | None:
        """The innermost line of the user's program in the traceback that ends here, or else of any."""
        frames = []
        prefix = _prefix(self.block[self.place])
        for line in self._back():
            if _prefix(line) != prefix:
                continue
            if match := _FRAME.search(line):
                frames.append(match)
            elif "Traceback (most recent call last)" in line:
                break
        own = next((each for each in frames if not any(part in each[1] for part in _OTHERS)), None)
        best = own or next(iter(frames), None)
        return f"{best[1]}:{best[2]}" + (f" in {best[3].strip()}" if best[3] else "") if best else None

    def _back(self) -> Iterator[str]:
        """This line and those before it, the last one first."""
        here = (self.block[each] for each in range(self.place, -1, -1))
        return islice(chain(here, reversed(self.before)), _BACK)


def _prefix(line: str) -> str:
    match = _PREFIX.match(line)
    return match[0].strip() if match else ""
