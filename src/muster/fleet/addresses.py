"""The addresses under which hosts may reach this machine."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable

from muster.agent.member import own_addresses as interfaces
from muster.core.job import Placement

_ASKED = 16  # hosts that are enough to find the networks of all


def own_addresses(places: tuple[Placement, ...]) -> tuple[str, ...]:
    """Return this machine's addresses, the likeliest first: those that routes to the hosts start from, those
    that its own name resolves to, those of its interfaces. A loopback address is returned only where there is
    no other. Sends nothing."""
    candidates = [address for place in places[:_ASKED] for address in _towards(place.address)]
    candidates += [*_resolved(socket.gethostname()), *interfaces()]
    unique = list(dict.fromkeys(candidates))
    beyond = [
        address for address in unique if not ipaddress.ip_address(address.partition("%")[0]).is_loopback
    ]
    return tuple(beyond or unique or ["127.0.0.1"])


def _towards(address: str) -> Iterable[str]:
    """Yield the source addresses of the routes to a host, by connecting datagram sockets. Sends nothing."""
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
