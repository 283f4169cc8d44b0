"""The only place on the control side that listens: a TCP port on which hosts prove that they know a secret
(fleet/handshake.py), without a thread and in bounded memory. Then the connection is the caller's.

    with SecretListener(secret) as listener:
        selector.register(listener, EVENT_READ)
        ...
            for peer in listener.poll():
                peer.welcome({"you": "are in"})     # then peer.socket is a stream like any other

The other side of it is `muster.agent.member.knock`.
"""

from __future__ import annotations

import errno
import selectors
import socket
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from muster.agent.member import MAX_LINE
from muster.core.errors import UsageError
from muster.fleet.handshake import Refusal, answer, greeting, new_nonce, read_claim, refusal

BACKLOG = 4096  # connections that the kernel keeps until they are accepted; it may keep fewer
AT_ONCE = 256  # connections accepted in one poll, so that those who talk are heard in between
GRACE = 1.0  # seconds that a connection has for its proof before it must make room for another
PAUSE = 0.2  # seconds without accepting when there is no room
_NO_ROOM = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_NOT_IT = {errno.ECONNABORTED, errno.EPROTO, errno.EINTR}  # this one connection has failed


@dataclass(frozen=True)
class ProvenPeer:
    """A client that has proven the secret: `welcome` or `refuse` it. `socket` does not block.

    Reading the socket tells whether the client has left meanwhile.
    """

    socket: socket.socket
    payload: dict[str, Any]  # what it said, with at least `name` and `nonce`
    peer: str  # the address that it came from
    local: str  # the address of this machine that it came to
    secret: str = field(repr=False)

    def welcome(self, reply: Mapping[str, Any]) -> None:
        """Prove the secret in turn, and send the answer. Raises ValueError for an answer of more than 4 kB.
        """
        _say(self.socket, answer(reply, self.secret, self.payload["nonce"]))

    def refuse(self, reason: str) -> None:
        """Send the reason, and close the connection."""
        _say(self.socket, refusal(reason))
        self.socket.close()


@dataclass
class _PendingPeer:
    """A connection that has proven nothing yet."""

    socket: socket.socket
    nonce: str
    since: float
    heard: bytearray = field(default_factory=bytearray)


class SecretListener:
    """Listens as soon as it is made. Raises UsageError where the port or address is not available.

    `patience`: seconds that a connection has for its proof; `waiting`: how many may be unproven at once.
    `refused` counts rejected connections by reason: wrong secret (a replay is one), garbage, too long, slow,
    left, crowded.
    """

    def __init__(
        self, secret: str, *, address: str = "", port: int = 0, patience: float = 10.0, waiting: int = 1024
    ) -> None:
        if not secret:
            raise ValueError("a listening port needs a secret")
        self.refused: Counter[str] = Counter()
        self._secret = secret
        self._patience = patience
        self._capacity = waiting
        self._pending: dict[int, _PendingPeer] = {}  # in the order of their coming
        self._listener = _listen(address, port)
        self._resume: float | None = None  # accepting pauses until then
        self.port: int = self._listener.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)

    def __enter__(self) -> SecretListener:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening, and close connections that have proven nothing. Proven peers stay connected."""
        for client in self._pending.values():
            client.socket.close()
        self._pending.clear()
        self._selector.close()
        self._listener.close()

    def fileno(self) -> int:
        """Return a descriptor that is readable when poll() has something to do. Timeouts do not make it
        readable: call poll() once a second as well."""
        return self._selector.fileno()  # type: ignore[attr-defined, no-any-return, unused-ignore]

    def poll(self) -> list[ProvenPeer]:
        """Accept, read and refuse connections without blocking. Return peers that have proven the secret."""
        now = time.monotonic()
        proven: list[ProvenPeer] = []
        incoming = False
        for key, _ in self._selector.select(0):
            if key.fileobj is self._listener:
                incoming = True
            else:
                peer = self._hear(key.fd)
                if peer is not None:
                    proven.append(peer)
        while self._pending and self._oldest(now) >= self._patience:
            self._refuse(next(iter(self._pending)), "slow")
        if self._resume is not None and now >= self._resume:
            self._resume = None
            self._selector.register(self._listener, selectors.EVENT_READ)
        if incoming:
            self._accept(now)
        return proven

    def _oldest(self, now: float) -> float:
        """Return the seconds since the first of the pending clients connected."""
        return now - next(iter(self._pending.values())).since

    def _accept(self, now: float) -> None:
        for _ in range(AT_ONCE):
            full = len(self._pending) >= self._capacity
            if full and self._oldest(now) < GRACE:  # they may be honest: others wait in the kernel's queue
                self._pause(now)
                return
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _NOT_IT:
                    continue
                if error.errno not in _NO_ROOM:
                    raise
                if self._pending and self._oldest(now) >= GRACE:
                    self._refuse(next(iter(self._pending)), "crowded")
                self._pause(now)
                return
            if full:
                self._refuse(next(iter(self._pending)), "crowded")
            sock.setblocking(False)
            client = _PendingPeer(sock, new_nonce(), now)
            self._pending[sock.fileno()] = client
            self._selector.register(sock, selectors.EVENT_READ)
            _say(sock, greeting(client.nonce))

    def _pause(self, now: float) -> None:
        """Accept nothing for PAUSE seconds: connections that cannot be accepted would wake the loop."""
        self._selector.unregister(self._listener)
        self._resume = now + PAUSE

    def _hear(self, fd: int) -> ProvenPeer | None:
        """Read what has arrived on one connection. Return its peer once the secret is proven."""
        client = self._pending[fd]
        try:
            data = client.socket.recv(MAX_LINE + 1 - len(client.heard))
        except (BlockingIOError, InterruptedError):
            return None
        except OSError:
            data = b""
        if not data:
            self._refuse(fd, "left")
            return None
        client.heard += data
        line, end, more = bytes(client.heard).partition(b"\n")
        if len(client.heard) > MAX_LINE:
            self._refuse(fd, "too long")
        elif more:  # nothing is to be said before the answer
            self._refuse(fd, "garbage")
        elif end:
            try:
                payload = read_claim(line, self._secret, client.nonce)
            except Refusal as why:
                self._refuse(fd, str(why))
            else:
                return self._admit(fd, payload)
        return None

    def _admit(self, fd: int, payload: dict[str, Any]) -> ProvenPeer | None:
        sock = self._pending[fd].socket
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            peer, local = _plain(sock.getpeername()[0]), _plain(sock.getsockname()[0])
        except OSError:  # it has left in this moment
            self._refuse(fd, "left")
            return None
        del self._pending[fd]
        self._selector.unregister(sock)
        return ProvenPeer(sock, payload, peer, local, self._secret)

    def _refuse(self, fd: int, reason: str) -> None:
        self.refused[reason] += 1
        client = self._pending.pop(fd)
        self._selector.unregister(client.socket)
        if reason != "left":
            _say(client.socket, refusal(reason))
        client.socket.close()


def _listen(address: str, port: int) -> socket.socket:
    """Return a listening socket: on IPv6 and IPv4 where no address is given and the machine has both."""
    try:
        if not 0 <= port <= 65535:  # getaddrinfo would take the remainder
            raise OverflowError(f"{port} is not a port")
        if not address and socket.has_dualstack_ipv6():
            try:
                listening = socket.create_server(
                    ("", port), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True
                )
            except OSError as error:
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise
                listening = socket.create_server(("", port), backlog=BACKLOG)
        elif not address:
            listening = socket.create_server(("", port), backlog=BACKLOG)
        else:
            place = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
            listening = socket.create_server(place[4][:2], family=place[0], backlog=BACKLOG)
    except (OSError, OverflowError, UnicodeError) as error:
        raise _unavailable(address, port, error) from None
    listening.setblocking(False)
    return listening


def _unavailable(address: str, port: int, error: Exception) -> UsageError:
    where = f"{address or 'any address'}, port {port}"
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.EADDRINUSE:
        hint = "give another --port, or 0 for a free one"
        return UsageError("the port is taken", where=where, hint=hint, failure="port_in_use")
    if number == errno.EACCES:
        return UsageError("ports below 1024 need root", where=where, hint="give a --port above 1023")
    if isinstance(error, socket.gaierror | UnicodeError) or number == errno.EADDRNOTAVAIL:
        return UsageError(
            "this is not an address of this machine", where=where, hint="leave --address out to listen on all"
        )
    return UsageError(f"cannot listen: {error}", where=where, hint="ports go from 0 to 65535")


def _say(sock: socket.socket, line: bytes) -> None:
    """Send a few bytes to a client that was sent little so far: they fit into the kernel's buffer, or the
    client has left."""
    try:
        sock.send(line)
    except OSError:
        pass


def _plain(address: str) -> str:
    """Return an IPv4 address without its IPv6 form: ::ffff:10.0.0.1 -> 10.0.0.1."""
    return address[7:] if address.startswith("::ffff:") and "." in address else address
