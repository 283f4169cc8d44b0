"""Ports for tests that have to name one before it is used."""

from __future__ import annotations

import itertools
import os
import socket
from pathlib import Path

# Each of pytest's workers has its own, and all are below those that the kernel gives to connections: nobody
# takes one between here and its use.
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_FIRST = 20_000 + 500 * (_WORKER % 16) + os.getpid() % 97
_NUMBERS = itertools.count(_FIRST)


def free_port(address: str = "127.0.0.1") -> int:
    """A TCP port that nobody listens on; another one each time."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for port in _NUMBERS:
        if port >= lowest:
            break
        try:
            with socket.create_server((address, port)):
                return port
        except OSError:
            continue
    raise OSError(f"no port from {_FIRST} to {lowest} is free")
