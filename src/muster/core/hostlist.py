"""Folded host lists: node01, node02, node17 <-> node[01-02,17], as pdsh, Slurm and core/inventory write them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import groupby

# What varies is the last number before the first dot: node07, rack3-node07, node07.cluster.example, gpu-7b.
_NUMBERED = re.compile(r"([^.]*?)([0-9]{1,9})([^0-9.]*(?:\..*)?)", re.DOTALL)
_Series = tuple[str, int, str]  # head, width of zero-padded numbers (0: not padded), tail
_ADDRESS = re.compile(r"((?:[0-9]{1,3}\.){3})([0-9]{1,3})")


def fold_hosts(names: Iterable[str]) -> str:
    """Return the names as one short list, such as `node[01-12,17],head`. Order and repeats do not matter.

    Zero padding is kept: node7 and node07 are two hosts. `parse_hosts` reads it back, given real host names.
    """
    groups: dict[_Series, set[int]] = {}
    plain: set[str] = set()
    for name in set(names):
        parts = _split(name)
        if parts is None:
            plain.add(name)
        else:
            head, digits, tail = parts
            width = len(digits) if digits.startswith("0") and len(digits) > 1 else 0
            groups.setdefault((head, width, tail), set()).add(int(digits))
    _widen(groups)
    items = [(natural(name), name) for name in plain]
    for (head, width, tail), numbers in groups.items():
        folded = _fold_one(head, width, tail, sorted(numbers))
        items.append((natural(f"{head}{min(numbers):0{width}d}{tail}"), folded))
    return ",".join(text for _, text in sorted(items))


def _split(name: str) -> tuple[str, str, str] | None:
    """Return head, varying digits and tail of a name. None: nothing to fold (no digits, IPv6)."""
    if not name.isascii() or any(letter in name for letter in "[]:"):
        return None
    login, at, host = name.rpartition("@")
    match = _ADDRESS.fullmatch(host)
    if match:
        return f"{login}{at}{match[1]}", match[2], ""
    match = _NUMBERED.fullmatch(host)
    if match is None:
        return None
    return f"{login}{at}{match[1]}", match[2], match[3]


def _widen(groups: dict[_Series, set[int]]) -> None:
    """Join node08, node09 and node10 into one series: unpadded numbers of the same width belong to the padded
    ones."""
    for head, width, tail in [key for key in groups if key[1]]:
        loose = groups.get((head, 0, tail))
        if loose is None:
            continue
        same = {number for number in loose if len(str(number)) == width}
        groups[head, width, tail] |= same
        loose -= same
        if not loose:
            del groups[head, 0, tail]


def _fold_one(head: str, width: int, tail: str, numbers: list[int]) -> str:
    if len(numbers) == 1:
        return f"{head}{numbers[0]:0{width}d}{tail}"
    ranges = []
    for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        members = [number for _, number in run]
        first, last = f"{members[0]:0{width}d}", f"{members[-1]:0{width}d}"
        ranges.append(first if first == last else f"{first}-{last}")
    return f"{head}[{','.join(ranges)}]{tail}"


def natural(name: str) -> str:
    """Return a sorting key that puts node2 before node10."""
    return re.sub(r"[0-9]+", lambda match: match[0].zfill(20), name)


def split_outside(brackets: str, text: str) -> list[str]:
    """Split at commas, but not at those inside a pair of `brackets`: `node[1-3,7]` with "[]"."""
    items, depth, start = [], 0, 0
    for position, letter in enumerate(text):
        depth += (letter == brackets[0]) - (letter == brackets[1])
        if letter == "," and depth == 0:
            items.append(text[start:position])
            start = position + 1
    return [*items, text[start:]]
