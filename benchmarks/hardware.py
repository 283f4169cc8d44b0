"""What benchmarks share: what they ran on, and their place in a page of docs/."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any


def processor() -> str:
    """The processor's name."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def machine() -> dict[str, Any]:
    """For a document of results."""
    return {"processor": processor(), "cores": os.cpu_count(), "python": platform.python_version()}


def into_page(page: Path, name: str, text: str) -> None:
    """Put a text between the marks <!-- NAME --> and <!-- end of NAME --> of a page."""
    start, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    before, _, rest = page.read_text(encoding="utf-8").partition(start)
    page.write_text(f"{before}{start}\n{text}\n{end}{rest.partition(end)[2]}", encoding="utf-8")


def ticks() -> tuple[int, int]:
    """Of all processors together, until now: in all, and those that a virtual machine wanted and its host
    gave to others (proc(5), /proc/stat)."""
    fields = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return sum(fields), fields[7]


def stolen(since: tuple[int, int]) -> float:
    """The share of the machine's time that its host has given to others since then."""
    (now, gone), (before, gone_before) = ticks(), since
    return (gone - gone_before) / max(1, now - before)
