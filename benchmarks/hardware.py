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
