"""What a benchmark ran on."""

from __future__ import annotations

import platform
from pathlib import Path


def processor() -> str:
    """The processor's name."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def ticks() -> tuple[int, int]:
    """Of all processors together, until now: in all, and those that a virtual machine wanted and its host
    gave to others (proc(5), /proc/stat)."""
    fields = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return sum(fields), fields[7]


def stolen(since: tuple[int, int]) -> float:
    """The share of the machine's time that its host has given to others since then."""
    (now, gone), (before, gone_before) = ticks(), since
    return (gone - gone_before) / max(1, now - before)
