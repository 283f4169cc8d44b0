"""Numbers as people write and read them. Pure."""

from __future__ import annotations

import math
import re

from muster.core.errors import UsageError

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(?:([KMGTP])(i)?)?B?", re.IGNORECASE)


def format_bytes(count: float | None) -> str:
    """Bytes with a binary prefix: 1536 -> '1.5 KiB'. None -> 'unknown'."""
    if count is None:
        return "unknown"
    value = float(count)
    for unit in _BINARY:
        if abs(round(value, 0 if unit == "B" else 1)) < 1024 or unit == _BINARY[-1]:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("unreachable")


def size_words(value: int) -> str:
    """Bytes in GB of 10^9, as makers of GPUs count; small ones as elsewhere."""
    return f"{value / 1e9:.1f} GB" if value >= 1e8 else format_bytes(value)


def parse_bytes(text: str) -> int | None:
    """A size as people write it: '2GB' (decimal), '1.5 TiB' (binary), '512' -> bytes. None: it is none."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        return None
    power = "BKMGTP".index(match[2].upper()) if match[2] else 0
    return int(float(match[1]) * (1024 if match[3] else 1000) ** power)


def format_seconds(seconds: float | None) -> str:
    """A duration: 0.25 -> '0.25 s', 75 -> '1 min 15 s', 7300 -> '2 h 1 min'. None -> 'unknown'."""
    if seconds is None:
        return "unknown"
    if seconds < 10:
        return f"{seconds:.2f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"


def format_count(count: float | None) -> str:
    """A large number with a decimal prefix: 60506624 -> '60.5 M'. None -> 'unknown'."""
    if count is None:
        return "unknown"
    # From where on a unit is used: below, rounding would show 1000.0 of the smaller one.
    for least, scale, suffix in (
        (999.95e9, 1e12, " T"),
        (999.95e6, 1e9, " B"),
        (999.95e3, 1e6, " M"),
        (1e4, 1e3, " K"),
    ):
        if abs(count) >= least:
            return f"{count / scale:.1f}{suffix}"
    return f"{count:g}" if count == int(count) else f"{count:.2f}"


def format_flops(per_second: float | None) -> str:
    """Operations per second with a decimal prefix: 4.123e14 -> '412.3 TFLOP/s'. None -> 'unknown'."""
    if per_second is None:
        return "unknown"
    for scale, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G")):
        if abs(per_second) >= scale:
            return f"{per_second / scale:.4g} {prefix}FLOP/s"
    return f"{per_second / 1e6:.4g} MFLOP/s"


def check_seconds(seconds: float, where: str) -> float:
    """The same seconds. Raises UsageError unless they are finite and above zero."""
    if not 0 < seconds < math.inf:  # NaN is neither
        raise UsageError(f"must be a finite number of seconds above 0, not {seconds:g}", where=where)
    return seconds
