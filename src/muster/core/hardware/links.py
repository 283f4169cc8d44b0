"""Links between devices and hosts as data: what they are stated to carry, and how much of it a message gets.

`links.json` has the table. Between hosts, people give a speed: `10Gbit` is Ethernet, `200Gbit-ib` or `hdr`
InfiniBand. By hand: `10Gbit{usable=0.8,latency=50e-6}`, `{bandwidth=1.1e9,latency=20e-6}`; such figures are
part of the link's name, so that measurements of another link are not taken for its own.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any, TypeVar

from muster.core.errors import UsageError
from muster.core.hardware.devices import BY_HAND, figures_of, with_figures
from muster.core.near import near_names

_EXAMPLE = "10Gbit, 200Gbit-ib, hdr, nvlink4, pcie4, 10Gbit{usable=0.8} or {bandwidth=1.1e9,latency=20e-6}"
_SPEED = re.compile(
    r"(?P<number>[0-9]+(?:\.[0-9]+)?)\s*(?P<unit>[kmgt])(?:bit|b|bps|bit/s|be|e)?(?:[\s\-]*(?P<kind>ib|roce|ethernet))?",
    re.IGNORECASE,
)
_UNITS = {"k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_KINDS = {"ib": "infiniband", "roce": "infiniband", "ethernet": "ethernet", None: "ethernet"}
_KEYS = ("bandwidth", "latency", "usable")
T = TypeVar("T")


def _either(new: T | None, old: T) -> T:
    return old if new is None else new


@dataclass(frozen=True)
class SharedLink:
    """What ranks that exchange over a link lose to other work. `gather`: the share of its bandwidth that an
    all-gather of three ranks or more gets (None: the usual one); `pair_gather`: the same of two; `computing`,
    `exchanging`: speed of the one while the other goes on, 1: as alone; `meeting`: seconds of a collective's
    start where ranks have computed independently."""

    gather: float | None = None
    computing: float = 1.0
    exchanging: float = 1.0
    meeting: float = 0.0
    pair_gather: float | None = None

    def __post_init__(self) -> None:
        gathers = [share for share in (self.gather, self.pair_gather) if share is not None]
        rest = (self.computing, self.exchanging, self.meeting)
        if not (all(share > 0 for share in gathers) and all(each >= 0 for each in rest)):
            raise ValueError(f"no shares and seconds: {self}")


@dataclass(frozen=True)
class LinkFigures:
    """Measurements of a link: bytes/s, seconds; None: not measured."""

    bandwidth: float | None = None
    latency: float | None = None
    beside: SharedLink = SharedLink()

    def __post_init__(self) -> None:
        if not (self.bandwidth is None or self.bandwidth > 0) or not (
            self.latency is None or self.latency >= 0
        ):
            raise ValueError(f"no bandwidth and latency: {self}")

    def after(self, before: LinkFigures) -> LinkFigures:
        """Return these figures, completed by those of an earlier measurement: one between two ranks does not
        measure an all-gather among more."""
        mine, other = self.beside, before.beside
        return LinkFigures(
            bandwidth=_either(self.bandwidth, before.bandwidth),
            latency=_either(self.latency, before.latency),
            beside=replace(
                mine,
                gather=_either(mine.gather, other.gather),
                pair_gather=_either(mine.pair_gather, other.pair_gather),
            ),
        )


@dataclass(frozen=True)
class LinkSpec:
    """A link in one direction. `stated`: bytes/s on paper; `bandwidth`: bytes/s that a large message gets;
    `latency`: seconds before its first byte; `source`: of these figures; `beside`: what else was measured."""

    name: str
    stated: float
    bandwidth: float
    latency: float
    source: str
    beside: SharedLink = SharedLink()

    def seconds(self, size: float, messages: float = 1) -> float:
        """Return the seconds of `messages` messages of `size` bytes in all, one after the other (Hockney
        1994)."""
        return messages * self.latency + size / self.bandwidth


def find_link(text: str) -> LinkSpec:
    """Return a link as a person names it (see the module's first lines). Raises UsageError naming the
    nearest."""
    name, brace, rest = text.strip().partition("{")
    name = name.strip().lower()
    given = _given(rest, text) if brace else {}
    if not name:
        if "bandwidth" not in given:
            raise _unknown(text)
        stated, usable = given["bandwidth"], given.get("usable", 1.0)
        return LinkSpec(with_figures("", given), stated, stated * usable, given.get("latency", 0.0), BY_HAND)
    link = named(name) or _by_speed(name)
    if link is None:
        raise _unknown(text)
    if not given:
        return link
    stated = given.get("bandwidth", link.stated)
    usable = given.get("usable", 1.0 if "bandwidth" in given else link.bandwidth / link.stated)
    source = f"{link.source}; by hand: {', '.join(sorted(given))}"
    latency = given.get("latency", link.latency)
    return LinkSpec(with_figures(link.name, given), stated, stated * usable, latency, source)


def named(name: str) -> LinkSpec | None:
    """Return a link of the table by its name; None: not in it."""
    for entry in _table()["links"]:
        if name in (entry["name"], *entry.get("also", ())):
            stated = entry["gb_s"] * 1e9
            usable, latency = entry["usable"], entry["microseconds"] * 1e-6
            return LinkSpec(entry["name"], stated, stated * usable, latency, entry["source"])
    return None


def ethernet(gigabits: float) -> LinkSpec:
    """Return Ethernet of a speed in Gbit/s."""
    return _of_kind("ethernet", gigabits * 1e9, speed_words(gigabits * 1e9))


def infiniband(gigabits: float) -> LinkSpec:
    """Return InfiniBand of a speed in Gbit/s."""
    return _of_kind("infiniband", gigabits * 1e9, f"{speed_words(gigabits * 1e9)}-ib")


def between_hosts() -> list[LinkSpec]:
    """Return Ethernet of the usual speeds, slowest first."""
    return [ethernet(gigabits) for gigabits in _table()["between_hosts"]]


def names() -> list[str]:
    """Return the names of the table."""
    return [str(entry["name"]) for entry in _table()["links"]]


def speed_words(bits: float) -> str:
    """Return bits per second as people write them: 1e10 -> `10Gbit`."""
    for unit, scale in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if bits >= scale or unit == "k":
            return f"{bits / scale:g}{unit}bit"
    raise AssertionError("unreachable")


def _by_speed(name: str) -> LinkSpec | None:
    """Return the link of a speed: `10gbit`, `100GbE`, `50mbit`, `200gbit-ib`."""
    match = _SPEED.fullmatch(name)
    if match is None or float(match["number"]) == 0:
        return None
    bits = float(match["number"]) * _UNITS[match["unit"].lower()]
    kind = match["kind"].lower() if match["kind"] else None
    suffix = f"-{kind}" if kind not in (None, "ethernet") else ""
    return _of_kind(_KINDS[kind], bits, speed_words(bits) + suffix)


def _of_kind(kind: str, bits: float, name: str) -> LinkSpec:
    about = _table()["kinds"][kind]
    stated = bits / 8
    return LinkSpec(name, stated, stated * about["usable"], about["microseconds"] * 1e-6, about["source"])


def _given(rest: str, text: str) -> dict[str, float]:
    if not rest.endswith("}"):
        raise _unknown(text)
    given = figures_of(rest[:-1], _KEYS, f"link {text}", ": bytes per second, seconds, a share")
    if given.get("usable", 1.0) > 1:
        raise UsageError(
            f"usable is a share, not {given['usable']:g}", where=f"link {text}", hint="usable=0.9"
        )
    return given


def _unknown(text: str) -> UsageError:
    near = near_names(text.strip().lower(), names())
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    return UsageError(f"there is no link named {text!r}", where="link", hint=f"{hint}Such as {_EXAMPLE}")


def calibrated(link: LinkSpec, measured: LinkFigures) -> LinkSpec:
    """Return the link with measured figures in place of the table's."""
    changed = replace(
        link,
        bandwidth=_either(measured.bandwidth, link.bandwidth),
        latency=_either(measured.latency, link.latency),
        beside=measured.beside,
    )
    return link if changed == link else replace(changed, source="measured")


@cache
def _table() -> dict[str, Any]:
    text = resources.files("muster.core.hardware").joinpath("links.json").read_text(encoding="utf-8")
    table: dict[str, Any] = json.loads(text)
    return table
