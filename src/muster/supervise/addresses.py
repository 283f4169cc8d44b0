"""The addresses under which hosts may reach this machine."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from collections.abc import Iterable

from muster.core.job import Placement

_ASKED = 16  # hosts that are enough to find the networks of all


def own_addresses(places: tuple[Placement, ...]) -> tuple[str, ...]:
    """This machine's addresses, the likeliest first: those that routes to the hosts begin at, then what its
    own name means, then those of its interfaces. Loopback only where nothing else is known. Sends nothing."""
    found = [address for place in places[:_ASKED] for address in _towards(place.address)]
    found += [*_resolved(socket.gethostname()), *_interfaces()]
    unique = list(dict.fromkeys(found))
    beyond = [
        address for address in unique if not ipaddress.ip_address(address.partition("%")[0]).is_loopback
    ]
    return tuple(beyond or unique or ["127.0.0.1"])


def _towards(address: str) -> Iterable[str]:
    """The source address of a route; a datagram socket is only connected."""
    host = address.rpartition("@")[2]
    try:
        infos = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
    except OSError:
        return
    for family, kind, protocol, _, target in infos:
        with socket.socket(family, kind, protocol) as probe:
            try:
                probe.connect(target)
            except OSError:
                continue
            yield str(probe.getsockname()[0])


def _resolved(name: str) -> list[str]:
    try:
        return [str(info[4][0]) for info in socket.getaddrinfo(name, 9, type=socket.SOCK_DGRAM)]
    except OSError:
        return []


def _interfaces() -> Iterable[str]:
    """The first IPv4 address of every interface (Linux: SIOCGIFADDR)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                packed = fcntl.ioctl(probe.fileno(), 0x8915, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue
            yield socket.inet_ntoa(packed[20:24])
