"""Machines that need not exist yet, as a person types them: `h200:8x4,10Gbit`. Pure.

    DEVICE[:PER_HOST[xHOSTS]][,DEVICE:PER_HOST[xHOSTS] ...][,LINK][,INNER]

Hosts of several kinds are given one kind after the other, each with its numbers. DEVICE: a name of
devices.json, or figures by hand in braces. LINK joins hosts, and is a speed or a name of links.json. INNER
(nvlink..., xgmi..., pcie..., loopback) joins the devices of a host; without it, the device's usual.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from muster.core.errors import UsageError
from muster.core.hardware.devices import CPU, Device, find_device
from muster.core.hardware.links import LinkSpec, find_link
from muster.core.hardware.links import named as named_link
from muster.core.hostlist import split_outside

MOST = 100_000  # hosts, and devices of a host
MOST_RANKS = 1_000_000
_EXAMPLE = "h200:8x4,10Gbit: 8 devices per host, 4 hosts, 10 Gbit/s between them"
_INNER = re.compile(
    r"(?:nvlink[0-9]*|xgmi[0-9]*|pcie[0-9]*|loopback)(?:\{.*\})?"
)  # with figures by hand, or without
_COUNTS = re.compile(r"([0-9]{1,6})(?:x([0-9]{1,6}))?")


@dataclass(frozen=True)
class Machines:
    """Hosts that are alike. `link`: between hosts, None: not known or there is one host alone; `inner`:
    between the devices of a host; `bus`: between a device and its host's memory; `slots`: devices of each
    host that are used, where they differ, `per_host` being the most."""

    device: Device
    per_host: int = 1
    hosts: int = 1
    link: LinkSpec | None = None
    inner: LinkSpec | None = None
    bus: LinkSpec | None = None
    slots: tuple[int, ...] = ()

    @property
    def ranks(self) -> int:
        """Devices in all: one rank each. Hosts beyond those whose slots are known have the most."""
        if not self.slots:
            return self.per_host * self.hosts
        return sum(self.slots[: self.hosts]) + self.per_host * max(0, self.hosts - len(self.slots))

    def with_slots(self, slots: Sequence[int]) -> Machines:
        """Return the same hosts with so many devices in use on each."""
        return replace(self, per_host=max(slots), slots=tuple(slots) if len(set(slots)) > 1 else ())

    def on(self, hosts: int) -> Machines:
        """Return the same on another number of hosts."""
        return replace(self, hosts=hosts)

    def over(self, link: LinkSpec) -> Machines:
        """Return the same with another link between hosts."""
        return replace(self, link=link)


def machines_of(
    device: Device,
    per_host: int = 1,
    hosts: int = 1,
    link: LinkSpec | None = None,
    inner: LinkSpec | None = None,
) -> Machines:
    """Return hosts of a device, joined by its usual links where none is given."""
    bus = named_link(device.bus) if device.bus else None
    usual = (
        named_link(device.inner) if device.inner else named_link("loopback") if device.kind == CPU else bus
    )
    return Machines(device, per_host, hosts, link, inner or usual, bus)


def parse_parts(text: str) -> tuple[Machines, ...]:
    """Return what a user gives as --on: one or more kinds of hosts, all over the same links. Raises
    UsageError naming the part that is not understood."""
    items = [item.strip() for item in split_outside("{}", text)]
    if text.count("{") != text.count("}") or not items[0]:
        raise UsageError("is not a device with its numbers", where=f"--on {text!r}", hint=_EXAMPLE)
    kinds = [items[0], *(item for item in items[1:] if _counts_of(item) is not None)]
    links: dict[bool, LinkSpec] = {}
    for item in items[1:]:
        if item in kinds:
            continue
        link = _link(item, text)
        inner = bool(_INNER.fullmatch(link.name))
        if inner in links:
            which = "the link between a host's devices" if inner else "the link between hosts"
            raise UsageError(f"{which} is given twice", where=f"--on {text}", hint=_EXAMPLE)
        links[inner] = link
    parts = tuple(_part(item, text, links.get(False), links.get(True)) for item in kinds)
    if sum(part.ranks for part in parts) > MOST_RANKS:
        raise UsageError(f"at most {MOST_RANKS:,} devices in all", where=f"--on {text}", hint=_EXAMPLE)
    if len({part.device.kind for part in parts}) > 1:
        raise UsageError("names GPUs and a cpu: a job runs on the one or the other", where=f"--on {text}")
    return parts


def _counts_of(item: str) -> str | None:
    """Return what follows a device's name and a colon outside braces; None: there is no colon."""
    tail = item.rpartition("}")[2]
    return tail.partition(":")[2] if ":" in tail else None


def _part(item: str, text: str, link: LinkSpec | None, inner: LinkSpec | None) -> Machines:
    """Return one kind of host: DEVICE[:PER_HOST[xHOSTS]]."""
    counts = _counts_of(item)
    name = item if counts is None else item[: -len(counts) - 1] if counts else item[:-1]
    match = _COUNTS.fullmatch(counts) if counts is not None else None
    if not name.strip() or (match is None and counts is not None):
        raise UsageError(
            f"{counts or item!r} is not a number of devices", where=f"--on {text}", hint=_EXAMPLE
        )
    per_host, hosts = (int(match[1]), int(match[2] or 1)) if match else (1, 1)
    if not (1 <= per_host <= MOST and 1 <= hosts <= MOST):
        raise UsageError(f"{counts!r}: from 1 to {MOST:,} of each", where=f"--on {text}", hint=_EXAMPLE)
    return machines_of(find_device(name), per_host, hosts, link, inner)


def _link(item: str, text: str) -> LinkSpec:
    try:
        return find_link(item)
    except UsageError as error:
        raise UsageError(error.what, where=f"--on {text}", hint=error.hint) from None
