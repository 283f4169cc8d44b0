"""Numbers as people write and read them. Pure."""

from __future__ import annotations

import math
import re

from muster.core.errors import UsageError

_BYTES = ("B", "kB", "MB", "GB", "TB", "PB")
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(?:([KMGTP])(i)?)?B?", re.IGNORECASE)
_COUNT = re.compile(r"([0-9]+(?:\.[0-9]+)?(?:e[0-9]+)?)\s*([KMBT])?", re.IGNORECASE)

_RATE = re.compile(
    r"([0-9][0-9,]*(?:\.[0-9]+)?)\s*([kKM])?\s*(samples|tokens)/s(?:ec)?(?:ond)?(?:/(host|rank|slot))?"
)


def format_number(value: float | None, digits: int = 4) -> str:
    """Format with `digits` significant digits and thousands separators: 5347.88 -> '5,348', 0.25 -> '0.2500'.
    None -> 'unknown'."""
    if value is None or not math.isfinite(value):
        return "unknown"
    if value == 0:
        return "0"
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    return f"{value:.{digits - 1}e}" if decimals > 9 else f"{value:,.{max(0, decimals)}f}"


def counted(number: int, thing: str) -> str:
    """Format a number of things: 1 -> '1 host', 2 -> '2 hosts', 12000 -> '12,000 hosts'."""
    many = "" if number == 1 else "es" if thing.endswith("s") else "s"
    return f"{number:,} {thing}{many}"


def format_bytes(count: float | None) -> str:
    """Format bytes in units of 1000, as makers of disks, networks and GPUs count: 1536 -> '1.5 kB'. None ->
    'unknown'."""
    if count is None:
        return "unknown"
    value = float(count)
    for unit in _BYTES:
        if abs(round(value, 0 if unit == "B" else 1)) < 1000 or unit == _BYTES[-1]:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    raise AssertionError("unreachable")


def parse_bytes(text: str) -> int | None:
    """Parse a size as people write it: '2GB' (decimal), '1.5 TiB' (binary), '512' -> bytes. None: it is no
    size."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        return None
    power = "BKMGTP".index(match[2].upper()) if match[2] else 0
    return int(float(match[1]) * (1024 if match[3] else 1000) ** power)


MOST_COUNTED = 1e18  # more tokens than there are


def parse_count(text: str) -> int | None:
    """Parse a number of things as people write it: '20B', '1.5T', '300M', '20e9'. None: it is no number."""
    match = _COUNT.fullmatch(text.strip().replace(",", ""))
    if match is None:
        return None
    count = float(match[1]) * 1000 ** " KMBT".index(match[2].upper() if match[2] else " ")
    return round(count) if 1 <= count <= MOST_COUNTED else None


def parse_rate(text: str, where: str) -> tuple[float, str, str]:
    """Parse a rate: '800samples/s' -> (800.0, 'samples_per_second', 'job'); '1.2k tokens/s/host' is of each
    host, and '.../rank' of each rank ('slot'). Raises UsageError."""
    match = _RATE.fullmatch(text.strip())
    value = (
        float(match[1].replace(",", "")) * {None: 1, "k": 1e3, "K": 1e3, "M": 1e6}[match[2]] if match else 0
    )
    if match is None or not 0 < value < math.inf:
        hint = "such as 800samples/s, 120ktokens/s, 100samples/s/host or 12samples/s/rank"
        raise UsageError(f"is no speed: {text!r}", where=where, hint=hint)
    per = {None: "job", "host": "host"}.get(match[4], "slot")
    return value, f"{match[3]}_per_second", per


def format_seconds(seconds: float | None) -> str:
    """Format a duration: 0.25 -> '250 ms', 75 -> '1 min 15 s', 7300 -> '2 h 1 min'. None -> 'unknown'."""
    if seconds is None or not math.isfinite(seconds):
        return "unknown"
    if seconds == 0:
        return "0 s"
    if abs(seconds) < 0.9995:
        return f"{format_number(1000 * seconds, 3)} ms"
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


def format_slower(slower: float, than: str = "", *, digits: int = 2, within: float | None = None) -> str:
    """Format a share of a healthy job's time: 0.05 -> '5.00% slower', -0.02 -> '2.00% faster', 3 -> '4.0
    times as long'. `than`: the reference: '5.00% slower than its peers'; `within`: its standard error:
    '5.00% ± 0.30% slower'."""
    if abs(slower) < 5e-5:
        return f"as fast as {than}" if than else "as fast"
    if slower >= 1:
        return f"{1 + slower:.1f} times as long" + (f" as {than}" if than else "")
    error = f" ± {within:.{digits}%}" if within is not None and within >= 0.5 * 0.1 ** (2 + digits) else ""
    return f"{abs(slower):.{digits}%}{error} {'faster' if slower < 0 else 'slower'}" + (
        f" than {than}" if than else ""
    )


def format_count(count: float | None) -> str:
    """Format a large number with a decimal prefix: 60506624 -> '60.5 M'. None -> 'unknown'."""
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
    return f"{count:,.0f}" if count == int(count) else format_number(count)


def format_flops(per_second: float | None) -> str:
    """Format operations per second with a decimal prefix: 4.123e14 -> '412.3 TFLOP/s'. None -> 'unknown'."""
    if per_second is None:
        return "unknown"
    for scale, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G")):
        if abs(per_second) >= scale:
            return f"{per_second / scale:.4g} {prefix}FLOP/s"
    return f"{per_second / 1e6:.4g} MFLOP/s"


def check_timeout(seconds: float) -> None:
    """Raise UsageError unless the seconds of --timeout are finite and above zero."""
    if not 0 < seconds < math.inf:  # NaN is neither
        raise UsageError(f"must be a finite number of seconds above 0, not {seconds:g}", where="--timeout")
