"""Finding out by which of its addresses a machine can really be reached: a TCP connection, an ssh server that
greets, and, where the machine's own host key is known, that the server there shows it. Nothing blocks.

Another's ssh server at an expected address is common: a NAT gateway's, a node's in place of its pod's.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import selectors
import shutil
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from muster.core.errors import JobError
from muster.fleet.shell import Process, Shell

SEARCHES = 64  # machines that are looked for at once
SCANS = 16  # ssh-keyscan processes at once
CONNECT = 3.0  # seconds for a connection and the server's greeting
SCAN = 10.0  # seconds for ssh-keyscan
BETTER = 0.5  # seconds that an address waits for one that is to be preferred
_TYPES = {"ssh-ed25519": "ed25519", "ecdsa-sha2-nistp256": "ecdsa", "ssh-rsa": "rsa"}


@dataclass(frozen=True)
class Found:
    """How a search ended: the address, or why there is none. `verified`: by the host key."""

    address: str | None
    verified: bool
    why: str


@dataclass
class _Try:
    """One address. `greeted`: an ssh server is there; `verified`: with the right key; `failed`: why not."""

    address: str
    socket: socket.socket | None = None
    heard: bytes = b""
    greeted: bool = False
    verified: bool = False
    failed: str | None = None


@dataclass
class _Search:
    waves: list[list[str]]
    port: int
    keys: tuple[str, ...]
    tell: Callable[[Found], None]
    tries: list[_Try] = field(default_factory=list)
    until: float = 0.0
    first: float | None = None  # when the first server of this wave greeted
    scan: Process | None = None
    subject: _Try | None = None  # whose key is being asked for
    reasons: dict[str, list[str]] = field(default_factory=dict)  # why not -> addresses


class Reach:
    """Searches that share a selector, whose keys' data are functions to call."""

    def __init__(self, selector: selectors.BaseSelector, shell: Shell) -> None:
        self.can_verify = shutil.which("ssh-keyscan") is not None
        self._selector = selector
        self._shell = shell
        self._queue: deque[_Search] = deque()
        self._running: list[_Search] = []
        self._scans = 0

    def ask(
        self, waves: Sequence[Sequence[str]], port: int, keys: tuple[str, ...], tell: Callable[[Found], None]
    ) -> None:
        """Look for a machine: `tell` is called with what was found, from a later tick."""
        self._queue.append(_Search([list(wave) for wave in waves], port, keys, tell))

    def tick(self) -> None:
        """What time brings: starts, time-outs, results. Call it after each select."""
        now = time.monotonic()
        while self._queue and len(self._running) < SEARCHES:
            search = self._queue.popleft()
            self._running.append(search)
            self._next_wave(search, now)
        for search in list(self._running):
            found = self._step(search, now)
            if found is not None:
                self._running.remove(search)
                self._clear(search)
                search.tell(found)

    def close(self) -> None:
        """Give every search up."""
        self._queue.clear()
        for search in self._running:
            self._clear(search)
        self._running.clear()

    # ---- connecting

    def _next_wave(self, search: _Search, now: float) -> None:
        search.tries = [_Try(address) for address in search.waves.pop(0)]
        search.until, search.first = now + CONNECT, None
        for each in search.tries:
            self._connect(search, each)

    def _connect(self, search: _Search, each: _Try) -> None:
        try:
            info = socket.getaddrinfo(
                each.address, search.port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
            )[0]
            each.socket = socket.socket(info[0], info[1])
            each.socket.setblocking(False)
            code = each.socket.connect_ex(info[4])
        except OSError as error:
            self._fail(each, error.strerror or str(error))
            return
        if code not in (0, errno.EINPROGRESS):
            self._fail(each, os.strerror(code))
            return
        self._selector.register(each.socket, selectors.EVENT_WRITE, lambda: self._connected(search, each))

    def _connected(self, search: _Search, each: _Try) -> None:
        if each.socket is None:
            return
        code = each.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._fail(each, os.strerror(code))
        else:
            self._selector.modify(each.socket, selectors.EVENT_READ, lambda: self._greeted(search, each))

    def _greeted(self, search: _Search, each: _Try) -> None:
        """Some servers say more before the line that begins with SSH-."""
        if each.socket is None:
            return
        try:
            data = each.socket.recv(1024)
        except BlockingIOError:
            return
        except OSError as error:
            self._fail(each, error.strerror or str(error))
            return
        each.heard += data
        if re.search(rb"(?m)^SSH-[12]\.", each.heard):
            each.greeted = True
            search.first = search.first or time.monotonic()
            self._hang_up(each)
        elif not data or len(each.heard) > 4096:
            self._fail(each, "what answers there is no ssh server")

    def _fail(self, each: _Try, why: str) -> None:
        each.failed = why
        self._hang_up(each)

    def _hang_up(self, each: _Try) -> None:
        if each.socket is not None:
            with contextlib.suppress(KeyError):
                self._selector.unregister(each.socket)
            each.socket.close()
            each.socket = None

    # ---- deciding

    def _step(self, search: _Search, now: float) -> Found | None:
        """What has come of a search, or None while it goes on."""
        if search.scan is not None and now > search.until:
            self._end_scan(search, f"its ssh server showed no key within {SCAN:g} s")
        if search.scan is not None:
            return None
        for each in search.tries:
            if each.socket is not None and now > search.until:
                self._fail(each, f"no answer within {CONNECT:g} s")
        able = [each for each in search.tries if each.greeted and each.failed is None]
        done = next((each for each in able if each.verified), able[0] if able else None)
        if done is not None:
            better = search.tries[: search.tries.index(done)]
            if (
                not done.verified
                and any(each.failed is None for each in better)
                and now < (search.first or now) + BETTER
            ):
                return None
            return self._verify(search, done, now)
        if any(each.failed is None for each in search.tries):
            return None
        for each in search.tries:
            search.reasons.setdefault(each.failed or "?", []).append(each.address)
        if search.waves:
            self._next_wave(search, now)
            return None
        parts = [f"port {search.port} of {', '.join(at)}: {why}" for why, at in search.reasons.items()]
        return Found(None, False, "; ".join(parts) or "it has no address")

    def _verify(self, search: _Search, each: _Try, now: float) -> Found | None:
        """Ask for the key of a server that has greeted, where there is one to compare it with."""
        if each.verified or not search.keys or not self.can_verify:
            return Found(each.address, each.verified, "")
        if self._scans >= SCANS:
            return None
        kind = _TYPES[search.keys[0].split()[0]]
        argv = ["ssh-keyscan", "-T", "5", "-t", kind, "-p", str(search.port), "--", each.address]
        try:
            search.scan = self._shell.start(argv)
        except JobError:  # it was there a moment ago
            self.can_verify = False
            return None
        assert search.scan.stdin and search.scan.stdout
        search.scan.stdin.close()
        os.set_blocking(search.scan.stdout.fileno(), False)
        self._selector.register(search.scan.stdout, selectors.EVENT_READ, lambda: self._scanned(search))
        self._scans += 1
        search.subject, search.until, each.heard = each, now + SCAN, b""
        return None

    def _scanned(self, search: _Search) -> None:
        if search.scan is None or search.subject is None:
            return
        assert search.scan.stdout
        data = search.scan.stdout.read()
        if data:
            search.subject.heard = (search.subject.heard + data)[:65536]
        elif data is not None:
            lines = search.subject.heard.decode("ascii", "replace").splitlines()
            shown = {" ".join(line.split()[1:3]) for line in lines if not line.startswith("#")}
            if shown & set(search.keys):
                search.subject.verified = True
                self._end_scan(search, None)
            elif shown:
                self._end_scan(search, "another machine's ssh server answers there")
            else:
                self._end_scan(search, "its ssh server showed no key")

    def _end_scan(self, search: _Search, failed: str | None) -> None:
        process, subject = search.scan, search.subject
        assert process is not None and subject is not None and process.stdout and process.stderr
        self._selector.unregister(process.stdout)
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()
        self._scans -= 1
        search.scan = search.subject = None
        subject.failed = failed

    def _clear(self, search: _Search) -> None:
        if search.scan is not None:
            self._end_scan(search, "given up")
        for each in search.tries:
            self._hang_up(each)
