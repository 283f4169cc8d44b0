"""A machine's connection to `muster gather`: what is said on it, and an end that loses nothing."""

from __future__ import annotations

import contextlib
import resource
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from muster.core.handshake import answer
from muster.core.members import Applicant, Member
from muster.door import Guest


@dataclass
class Seat:
    """One connection of a machine that knows the token."""

    guest: Guest
    applicant: Applicant
    heard: float
    count: int = 0  # messages sent to it
    member: Member | None = None  # once the head has reached it
    told: bool = False  # that all are there

    def tell(self, **message: Any) -> bool:
        """Say something, proven and numbered. -> False: the machine has left, or takes nothing in."""
        message["count"] = self.count
        self.count += 1
        line = answer(message, self.guest.secret, self.guest.payload["nonce"])
        try:
            return self.guest.socket.send(line) == len(line)
        except OSError:
            return False


def place_of(seat: Seat) -> tuple[str, int] | None:
    """Where the head has reached it: address and port. None: not yet."""
    return (seat.member.address, seat.member.port) if seat.member else None


def hang_up(connection: socket.socket) -> None:
    """Close so that what was said last still arrives: unread bytes would reset the connection."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(4096):
            pass
    connection.close()


@contextlib.contextmanager
def many_files() -> Iterator[None]:
    """A thousand machines are more connections than the usual soft limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = hard if hard != resource.RLIM_INFINITY else 65536
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(most, 65536)), hard))
    except (OSError, ValueError):
        pass
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
