"""Stated peaks of devices: what the maker promises for a dense matrix product, each with its source.

A CPU has none here: cores x clock x vector width says little where the clock falls under vector load.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

_NEVER = {"MIG", "LAPTOP", "MAX", "MOBILE"}  # a part of a device, or another clock under the same name


@dataclass(frozen=True)
class Peak:
    """`flops`: operations per second, dense. `source`: the document that states it."""

    flops: float
    source: str


def stated_peak(device: str, precision: str) -> Peak | None:
    """The peak of a device by its driver's name for it, such as "NVIDIA H100 80GB HBM3"; None: not known.

    precision: fp32 (no tensor cores), tf32, bf16 or fp16.
    """
    words = set(re.findall(r"[A-Z0-9]+", device.upper()))
    if words & _NEVER:
        return None
    for entry in _entries():
        if set(entry["words"]) <= words and not set(entry.get("without", ())) & words:
            tflops = entry["tflops"].get(precision)
            return Peak(tflops * 1e12, entry["source"]) if tflops is not None else None
    return None


@cache
def _entries() -> list[dict[str, Any]]:
    text = resources.files("muster.core").joinpath("peaks.json").read_text(encoding="utf-8")
    return list(json.loads(text)["devices"])
