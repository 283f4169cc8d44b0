"""Devices as data: what their makers state of arithmetic, memory and links, each figure with its source.

`devices.json` has the table. A CPU is not in it: cores x clock x vector width says little where the clock
falls under vector load. What is not in it is given by hand: `mydev{tflops=100,memory=48GB,bandwidth=900e9}`.
Such figures are part of the device's name: measurements of another device of that name do not apply to it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

from muster.core.errors import UsageError
from muster.core.near import near_names
from muster.core.units import format_bytes, parse_bytes

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
WIDE = ("fp32", "tf32")  # numbers of four bytes: tf32 is shorter within products alone
# The lowest compute capability that computes in it: native tf32 and bf16, fp16 that is of use (NVIDIA's CUDA
# programming guide).
LEAST = {"tf32": (8, 0), "bf16": (8, 0), "fp16": (7, 0), "fp8": (8, 9)}
_AMD = re.compile(r"\bMI[0-9]", re.IGNORECASE)
CPU = "cpu"  # with a model or figures after it: a rank's part of a host's processors
BY_HAND = "given by hand"
LEAST_MEMORY = 1e8  # bytes: less is a slip of the unit
_EXAMPLE = "mydev{tflops=100,memory=48GB,bandwidth=900e9}"
_KEYS = ("tflops", *PRECISIONS, "fp8", "memory", "bandwidth", "capability", "watts")
_NEVER = {"MIG", "LAPTOP", "MAX", "MOBILE"}  # a part of a device, or another clock under the same name
# A virtual GPU's profile, as in GRID A100-10C, A10-24Q, P40-2B4 or A100-4-20CME: a share of the device.
_SLICE = re.compile(r"[0-9]+(?:A|B[0-9]?|C(?:ME)?|Q)")
_STATED = re.compile(r"([0-9]+)\s*GB(?![A-Z0-9/])")  # memory, as in A100 80 GB
_OTHER_MEMORY = {"gh200"}  # whose driver's name states the processor's
_MAKERS = re.compile(r"^(?:nvidia|tesla|geforce|amd|instinct)+")


@dataclass(frozen=True)
class Device:
    """A device. `peaks`: operations per second by precision, dense; `memory`: bytes that its driver reports;
    `bandwidth`: bytes/s of its memory; `inner`, `bus`: names of the links (links.json) to the others of its
    host and to the host's memory; `capability`: CUDA's compute capability; `watts`: its power limit. None:
    not stated. The sources: the documents that state it.

    `power_capped`: its power limit (at most 150 W) lets a sound device sustain far less.
    """

    name: str
    peaks: Mapping[str, float] = field(hash=False)
    memory: int | None = None
    bandwidth: float | None = None
    inner: str | None = None
    bus: str | None = None
    power_capped: bool = False
    source: str = BY_HAND
    memory_source: str = BY_HAND
    capability: tuple[int, int] | None = None
    capability_source: str = BY_HAND
    watts: float | None = None

    @property
    def able(self) -> tuple[int, int]:
        """Its compute capability; of a device by hand the lowest that computes in every precision it has
        figures for."""
        if self.capability is not None:
            return self.capability
        if "fp8" in self.peaks:
            return LEAST["fp8"]
        return (8, 0) if "bf16" in self.peaks else (7, 0) if "fp16" in self.peaks else (6, 0)

    @property
    def kind(self) -> str:
        """cuda or cpu."""
        return CPU if plain_name(self.name).partition(" ")[0] == CPU else "cuda"

    def peak(self, precision: str) -> float | None:
        """Return the operations per second in a precision; None: it cannot compute in it, or no source states
        it."""
        return self.peaks.get(precision)


def capability_for(precision: str, gpu: str) -> tuple[int, int] | None:
    """Return the lowest compute capability of a GPU of this name that computes in a precision; None: any
    does. AMD's numbers are those of its architectures, of which gfx942 is the first with fp8."""
    return (9, 4) if precision == "fp8" and _AMD.search(gpu) else LEAST.get(precision)


def find_device(text: str) -> Device:
    """Return a device as a person names it: `h200`, `a100-80gb`, "NVIDIA A100-SXM4-80GB", or with figures by
    hand.

    Where a name leaves the memory open, the smaller one counts. Raises UsageError naming the nearest.
    """
    name, brace, rest = text.strip().partition("{")
    if brace:
        return _by_hand(name.strip(), rest, text)
    device = named(name) or driver_device(_STATED.sub(r"\1GB", name.upper()))
    if device is not None and _as_stated(device, name):
        return device
    near = near_names(name.lower(), names())
    hint = f"did you mean {' or '.join(near)}? " if near else f"known: {', '.join(names())}. "
    raise UsageError(
        f"there are no figures for a device {name!r}", where="device", hint=f"{hint}By hand: {_EXAMPLE}"
    )


def _as_stated(device: Device, text: str) -> bool:
    """Return whether the device has the memory in its name as typed, or the name states none."""
    stated = _STATED.search(text.upper())
    if stated is None or device.memory is None or device.name in _OTHER_MEMORY:
        return True
    return abs(int(stated[1]) * 1e9 / device.memory - 1) < 0.1


def ambiguous(text: str) -> list[str]:
    """Return notes on the devices in a text such as a100:8x4: which is taken, where others of the name have
    other memory."""
    notes = []
    for word in dict.fromkeys(each.partition(":")[0].strip().lower() for each in text.split(",")):
        device, plain = named(word), _plain(word)
        if device is None or device.memory is None or _STATED.search(word.upper()):
            continue
        # A number of the name goes no further: a10 is no a100.
        begins = re.compile("[^a-z0-9]*".join(plain) + r"(?:(?<!\d)|(?!\d))")
        others = {
            format_bytes(_memory(entry)): str(entry["name"])
            for entry in entries()
            if begins.match(str(entry["name"]).lower())
            and _STATED.search(str(entry["name"]).upper())
            and abs(_memory(entry) / device.memory - 1) > 0.1
        }
        if others:
            more = ", ".join(f"{name} ({size})" for size, name in sorted(others.items()))
            notes.append(f"{word} is taken for {device.name} ({format_bytes(device.memory)}); also: {more}")
    return notes


def names() -> list[str]:
    """Return the canonical names of all devices in the table."""
    return [str(entry["name"]) for entry in entries()]


def largest_memory() -> tuple[str, int]:
    """Return the device of the table with most memory, and its bytes."""
    most = max(entries(), key=_memory)
    return str(most["name"]), _memory(most)


def named(text: str) -> Device | None:
    """Return a device by one of its short names, in any case and with any separators; None: not in the table.
    """
    plain = _plain(text)
    for entry in entries():
        if plain in map(_plain, (entry["name"], *entry.get("also", ()))):
            return _device(entry)
    return None


def driver_device(text: str) -> Device | None:
    """Return a device by its driver's name for it, such as "NVIDIA H100 80GB HBM3"; None: not in the table.

    Parts of a device (MIG, virtual GPUs) and mobile ones under the same name are not that device.
    """
    words = set(re.findall(r"[A-Z0-9]+", text.upper()))
    if words & _NEVER or any(_SLICE.fullmatch(word) for word in words):
        return None
    for entry in entries():
        named_so = (entry["words"], entry.get("or_words", entry["words"]))
        if any(set(each) <= words for each in named_so) and not set(entry.get("without", ())) & words:
            return _device(entry)
    return None


@cache
def entries() -> list[dict[str, Any]]:
    """Return the rows of the file."""
    text = resources.files("muster.core.hardware").joinpath("devices.json").read_text(encoding="utf-8")
    return list(json.loads(text)["devices"])


def _memory(entry: Mapping[str, Any]) -> int:
    """Return the memory that its driver reports, else the maker's figure."""
    return int(entry["total_mib"] * 2**20 if "total_mib" in entry else entry["memory_gb"] * 10**9)


def _device(entry: Mapping[str, Any]) -> Device:
    return Device(
        name=entry["name"],
        peaks={precision: tflops * 1e12 for precision, tflops in entry["tflops"].items()},
        memory=_memory(entry),
        bandwidth=entry["gb_s"] * 1e9,
        inner=entry.get("inner") or (f"nvlink{entry['nvlink']}" if "nvlink" in entry else None),
        bus=f"pcie{entry['pcie']}",
        power_capped=bool(entry.get("power_capped")),
        source=entry["source"],
        memory_source=entry.get("memory_source", entry["source"]),
        capability=(entry["capability"][0], entry["capability"][1]),
        capability_source=entry["capability_source"],
        watts=entry["watts"],
    )


def _plain(text: str) -> str:
    """Return a name without makers and separators, for comparison: `NVIDIA A100_80GB` -> `a10080gb`."""
    return _MAKERS.sub("", re.sub(r"[\s_\-]+", "", text.lower()))


def _by_hand(name: str, rest: str, text: str) -> Device:
    """Return the device of `{key=value,...}` after a name. A known name's other figures stay."""
    if not rest.endswith("}") or not name:
        raise UsageError(f"{text!r} is not a device", where="device", hint=f"by hand: {_EXAMPLE}")
    base = named(name)
    given = figures_of(rest[:-1], _KEYS, f"device {name}", "=NUMBER")
    peaks = dict(base.peaks) if base else {}
    if "tflops" in given:
        peaks = dict.fromkeys(PRECISIONS, given["tflops"] * 1e12)
    own = (*PRECISIONS, "fp8")
    peaks |= {precision: given[precision] * 1e12 for precision in own if precision in given}
    if not peaks:
        raise UsageError(
            "its computing speed is not given",
            where=f"device {name}",
            hint=f"tflops=NUMBER, as in {_EXAMPLE}",
        )
    if 0 < given.get("memory", math.inf) < LEAST_MEMORY:
        raise UsageError(
            f"a device of {given['memory']:g} bytes of memory", where=f"device {name}", hint="memory=48GB"
        )
    able = base.capability if base else None
    return Device(
        name=with_figures(base.name if base else name.lower(), given),
        peaks=peaks,
        memory=int(given["memory"]) if "memory" in given else (base.memory if base else None),
        bandwidth=given.get("bandwidth", base.bandwidth if base else None),
        inner=base.inner if base else None,
        bus=base.bus if base else None,
        power_capped=bool(base and base.power_capped),
        source=BY_HAND if base is None or base.peaks != peaks else base.source,
        memory_source=BY_HAND
        if base is None or given.keys() & {"memory", "bandwidth"}
        else base.memory_source,
        capability=divmod(round(10 * given["capability"]), 10) if "capability" in given else able,
        capability_source=BY_HAND if base is None or "capability" in given else base.capability_source,
        watts=given.get("watts", base.watts if base else None),
    )


def figures_of(text: str, keys: Sequence[str], where: str, about: str) -> dict[str, float]:
    """Return `key=value,...` as numbers. `about`: what a hint adds to the keys. Raises UsageError."""
    given: dict[str, float] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = (part.strip() for part in item.partition("="))
        if key not in keys or not equals:
            near = near_names(key, keys)
            hint = f"did you mean {near[0]}? " if near else ""
            raise UsageError(
                f"{item!r} is not understood", where=where, hint=f"{hint}{', '.join(keys)}{about}"
            )
        given[key] = number(value, f"{where}: {key}")
    return given


def with_figures(name: str, given: Mapping[str, float]) -> str:
    """Return a name with the figures that were given by hand, in one spelling: `h200{bf16=700}`."""
    return f"{name}{{{','.join(f'{key}={_short(given[key])}' for key in sorted(given))}}}" if given else name


def _short(value: float) -> str:
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)


def plain_name(name: str) -> str:
    """Return a name without figures: `h200{bf16=700}` -> `h200`."""
    return name.partition("{")[0]


def number(text: str, where: str) -> float:
    """Return a positive number as people write it: `900e9`, `48GB`, `48GiB`. Raises UsageError."""
    try:
        value = float(text)
    except ValueError:
        size = parse_bytes(text.removesuffix("/s"))
        value = float(size) if size is not None else math.nan
    if not 0 < value < math.inf:  # NaN is neither
        raise UsageError(
            f"must be a number above 0, not {text!r}", where=where, hint="such as 100, 900e9, 48GB"
        )
    return value
