"""Which lines say something to whom, by words that stand in them. Pure.

Looking through a log for some seventy words takes longer than all the rest. Most of its lines differ from
one that was seen before in their digits alone: those are known by what is left without them. So what the
sieve says is that a line *may* have one of the words; whoever gets it looks again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

_DIGITS = b"0123456789"
_MOST = 4 << 20  # bytes of lines without their digits that are remembered; then it begins anew
_EACH = 64  # bytes that remembering one takes besides


class Sieve:
    """For each of some groups of words (group n has bit n): which lines may have one of them. An empty word
    is in every line. It remembers, so one is to be kept for all files."""

    def __init__(self, groups: Sequence[Sequence[str]]) -> None:
        bits: dict[bytes, int] = {}
        for number, words in enumerate(groups):
            for word in words:
                bare = word.encode("utf-8", "surrogatepass").translate(None, _DIGITS)
                bits[bare] = bits.get(bare, 0) | 1 << number
        self._every = bits.pop(b"", 0)
        self._bits = bits
        # A word within another one's is looked for alone: who has the longer has the shorter.
        self._words = [word for word in bits if not any(other in word for other in bits if other != word)]
        self._known: dict[bytes, int] = {}
        self._size = 0

    def telling(self, lines: Sequence[str]) -> list[tuple[int, int]]:
        """(place, bits) of the lines that may have a word of any group. No line has a line's end in it."""
        bare = "\n".join(lines).encode("utf-8", "surrogatepass").translate(None, _DIGITS).split(b"\n")
        try:
            found = [self._known[key] for key in bare]
        except KeyError:
            self._learn(list({key for key in bare if key not in self._known}))
            found = [self._known[key] for key in bare]
            if self._size > _MOST:
                self._known.clear()
                self._size = 0
        return [(place, bits) for place, bits in enumerate(found) if bits]

    def _learn(self, keys: list[bytes]) -> None:
        """Look through all of these at once: fewer and longer searches."""
        text = b"\n".join(keys)
        starts = list(accumulate((len(key) + 1 for key in keys), initial=0))
        said: set[int] = set()
        for word in self._words:
            place = text.find(word)
            while place >= 0:
                line = bisect_right(starts, place) - 1
                said.add(line)
                place = text.find(word, starts[line + 1])
        for line, key in enumerate(keys):
            bits = self._every
            if line in said:
                for word, its in self._bits.items():
                    if word in key:
                        bits |= its
            self._known[key] = bits
        self._size += starts[-1] + _EACH * len(keys)
