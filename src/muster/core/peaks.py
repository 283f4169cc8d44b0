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


# A virtual GPU's profile, as in GRID A100-10C, A10-24Q, P40-2B4 or A100-4-20CME: a share of the device.
_SLICE = re.compile(r"[0-9]+(?:A|B[0-9]?|C(?:ME)?|Q)")


@dataclass(frozen=True)
class Peak:
    """`flops`: operations per second, dense. `source`: the document that states it.

    `power_capped`: its power limit (at most 150 W) lets a sound device sustain far less.
    """

    flops: float
    source: str
    power_capped: bool = False


def stated_peak(device: str, precision: str) -> Peak | None:
    """The peak of a device by its driver's name for it, such as "NVIDIA H100 80GB HBM3"; None: not known.

    precision: fp32 (no tensor cores), tf32, bf16 or fp16.
    """
    words = set(re.findall(r"[A-Z0-9]+", device.upper()))
    if words & _NEVER or any(_SLICE.fullmatch(word) for word in words):
        return None
    for entry in _entries():
        if set(entry["words"]) <= words and not set(entry.get("without", ())) & words:
            tflops = entry["tflops"].get(precision)
            if tflops is None:
                return None
            return Peak(tflops * 1e12, entry["source"], bool(entry.get("power_capped")))
    return None


@cache
def _entries() -> list[dict[str, Any]]:
    text = resources.files("muster.core").joinpath("peaks.json").read_text(encoding="utf-8")
    return list(json.loads(text)["devices"])
