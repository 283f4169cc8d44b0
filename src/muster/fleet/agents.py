"""Connections to the agents of all hosts, by whatever launcher: opened at a pace, read in one loop, ended for
certain."""

from __future__ import annotations

import os
import re
import secrets
import selectors
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import ModuleType
from typing import Any, Generic, TypeVar

from muster.core.errors import BrokenPluginError
from muster.core.job import Placement
from muster.core.launch import Launch
from muster.fleet import shell
from muster.fleet.addresses import own_addresses
from muster.fleet.connection import NOISE, Connection, LineSplitter
from muster.fleet.launchers.base import ControllerAddress, Request
from muster.fleet.listener import ProvenPeer, SecretListener
from muster.fleet.messages import Check
from muster.fleet.shell import Process, more_files
from muster.fleet.transport import PipeWire, SocketWire, Wire

TICK = 0.1
BEAT = 1.0
# A turn looks at every connection, so with many there is a pause before it, in which more comes: else each
# word of a host would be a turn of its own. Seconds for each of them, and in all.
PAUSE, LONGEST_PAUSE = 50e-6, 0.05
WORDS = 4.0
_LEAVE = 4.0  # seconds that a process which started many agents gets to end, and again after SIGTERM

L = TypeVar("L", bound=Connection)
Handler = Callable[[L, dict[str, Any]], None]


class Loop(Generic[L]):
    """Reads and writes many connections from one thread. No slow connection holds up the others.

    `selector` may also watch other descriptors: with a function that reads the descriptor and returns whether
    it is still open, or with None for one that only ends the wait.
    """

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self._takers = selectors.DefaultSelector()
        self.selector.register(self._takers.fileno(), selectors.EVENT_READ, None)

    def attach(self, link: L, wire: Wire) -> None:
        """Read a new connection from now on."""
        link.attach(wire)
        for descriptor in (wire.output, wire.errors):
            if descriptor is not None:
                self.selector.register(descriptor, selectors.EVENT_READ, link)

    def look(self, links: Iterable[L], seconds: float, handle: Handler[L]) -> None:
        """Send what the connections accept now, and pass every message to `handle`. Wait for at most
        `seconds`."""
        for key in list(self._takers.get_map().values()):
            self._takers.unregister(key.fd)
        for link in links:
            link.flush()
            if link.sending and link.lost is None and link.wire is not None:
                # The wait ends when the connection takes more.
                self._takers.register(link.wire.input, selectors.EVENT_WRITE)
        for key, _ in self.selector.select(seconds):
            if self.selector.get_map().get(key.fd) != key:
                continue  # its connection has ended in this very turn
            if isinstance(key.data, Connection):
                self._read(key.data, key.fd, handle)  # type: ignore[arg-type]
            elif key.data is not None and not key.data(key.fd):
                self.selector.unregister(key.fd)

    def _read(self, link: L, descriptor: int, handle: Handler[L]) -> None:
        messages, open_still = link.read(descriptor)
        for message in messages:
            handle(link, message)
        if link.lost is not None:
            self.give_up(link, link.lost)
        elif not open_still:
            self.selector.unregister(descriptor)

    def give_up(self, link: L, why: str) -> None:
        """Declare a host lost, and close this side of its connection."""
        link.give_up(why)
        link.close_input()
        self.detach(link)

    def detach(self, link: L) -> None:
        """Close a connection."""
        if link.wire is None:
            return
        for descriptor in (link.wire.output, link.wire.errors):
            key = None if descriptor is None else self.selector.get_map().get(descriptor)
            if key is not None and key.data is link:  # and not one that has its number since
                self.selector.unregister(key.fd)
        link.output_closed = True
        link.wire.end()

    def close(self) -> None:
        """Close the loop."""
        self.selector.close()
        self._takers.close()


class Fleet(Loop[Connection]):
    """One connection per host. `source` is what every agent's bootstrap reads first; messages follow it."""

    def __init__(
        self,
        places: tuple[Placement, ...],
        launcher: ModuleType,
        launch: Launch,
        job_id: str,
        source: bytes,
        check: Check | None = None,
    ) -> None:
        super().__init__()
        more_files(4 * len(places))
        self.launch = launch
        self.dials: bool = launcher.DIALS
        self.links = [Connection(place, check) for place in places]
        self._by_host = {link.place.host: link for link in self.links}
        self._starters: list[_Starter] = []
        self._listener: SecretListener | None = None
        self._beaten = 0.0
        self._closed = False
        for link in self.links:
            link.send(source)
        home: ControllerAddress | None = None
        if self.dials:
            secret = secrets.token_hex(16)
            self._listener = SecretListener(secret, patience=launch.connect_timeout)
            self.selector.register(self._listener.fileno(), selectors.EVENT_READ, None)
            addresses = (launch.home,) if launch.home else own_addresses(places)
            home = ControllerAddress(addresses, self._listener.port, secret)
        self._waiting = deque[Request](launcher.requests(places, launch, job_id, home))
        asked = sorted(host for request in self._waiting for host in request.hosts)
        if asked != sorted(self._by_host):  # a host without a request would be waited for
            self.close()
            raise BrokenPluginError(
                f"its requests start agents on {', '.join(asked) or 'no host'}, and the job has "
                f"{', '.join(self._by_host)}",
                where=f"launcher {launcher.__name__}",
                place=launcher.__file__,
            )

    # --- a turn of the loop --------------------------------------------------------------------------------

    def turn(self, handle: Handler[Connection]) -> None:
        """Poll every connection once, for `TICK` seconds at most."""
        self._start_more()
        time.sleep(min(LONGEST_PAUSE, PAUSE * len(self.links)))
        now = time.monotonic()
        if now - self._beaten > BEAT:
            self._beaten = now
            for link in self.links:
                if link.greeted and not link.ended and len(link.outgoing) < 1 << 16:
                    link.tell("ping")
        self.look(self.links, TICK, handle)
        if self._listener is not None:  # it turns the slow ones away in time, whether or not anything comes
            for peer in self._listener.poll():
                self._admit(peer)
        for starter in self._starters:
            self._check(starter)

    def _start_more(self) -> None:
        """Start further connections: at most `fanout` are being opened at once."""
        if not self._waiting:
            return
        connecting = sum(link.begun is not None and not (link.greeted or link.ended) for link in self.links)
        while self._waiting and (connecting < self.launch.fanout or self._waiting[0].dials):
            request = self._waiting.popleft()
            env = {**os.environ, **request.env} if request.env else None
            process = shell.start(list(request.argv), env=env)
            for host in request.hosts:
                self._by_host[host].begun = time.monotonic()
            connecting += len(request.hosts)
            if request.dials:
                starter = _Starter(request, process)
                self._starters.append(starter)
                for descriptor in starter.descriptors:
                    read = partial(starter.read, self._by_host)
                    self.selector.register(descriptor, selectors.EVENT_READ, read)
            else:
                self.attach(self._by_host[request.hosts[0]], PipeWire(process))

    def _admit(self, peer: ProvenPeer) -> None:
        """Attach an agent that has dialled home. Each host comes once."""
        link = self._by_host.get(str(peer.payload.get("name")))
        if link is None:
            peer.refuse("no host of that name belongs to this job")
        elif link.wire is not None or link.ended:
            peer.refuse("that host is here already")
            link.complaints.append(f"a second agent came from {peer.peer} and was refused")
        else:
            peer.welcome({})
            self.attach(link, SocketWire(peer.socket))

    def _check(self, starter: _Starter) -> None:
        """Give up hosts whose agent has not connected when the process that starts it has ended."""
        if starter.process.poll() is None or starter.open:
            return
        for host in starter.request.hosts:
            link = self._by_host[host]
            if link.wire is None and link.lost is None:
                words = link.why_unreachable() if link.complaints else ""
                code = starter.process.poll()
                link.give_up(words or f"{starter.request.argv[0]} ended with exit code {code}")

    # --- the end -------------------------------------------------------------------------------------------

    def overdue(self, link: Connection, patience: float) -> bool:
        """Return whether a host has used up its time to answer.

        Where one process starts all hosts, they connect one after the other: the time counts from the last
        one that connected, and the first one may take as long as all would over ssh. `WORDS` seconds more let
        the process report which host it did not reach: its own connections have to time out first.
        """
        if link.begun is None:
            return False
        if not self.dials:
            return time.monotonic() > link.begun + patience
        came = [each.came for each in self.links if each.came is not None]
        waves = 1 if came else -(-len(self.links) // self.launch.fanout)
        since = link.came or max([link.begun, *came])
        return time.monotonic() > since + patience * waves + WORDS

    def hold(self) -> None:
        """Start no further connections."""
        self._waiting.clear()

    def close(self) -> None:
        """Close every connection, and end every process that started agents. Safe to call again."""
        if self._closed:
            return
        self._closed = True
        self.hold()
        for link in self.links:
            if not link.ended:
                self.give_up(link, "did not end in time")
            link.close_input()
            self.detach(link)
        for starter in self._starters:
            starter.end()
        if self._listener is not None:
            self.selector.unregister(self._listener.fileno())
            self._listener.close()
        super().close()


class _Starter:
    """A process that starts the agents of several hosts: pdsh, mpirun or srun. Its output is about them."""

    def __init__(self, request: Request, process: Process) -> None:
        assert process.stdin and process.stdout and process.stderr
        process.stdin.close()
        self.request = request
        self.process = process
        self.descriptors = [process.stdout.fileno(), process.stderr.fileno()]
        self.open = set(self.descriptors)
        self._output = self.descriptors[0]
        self._lines = {descriptor: LineSplitter(1 << 16) for descriptor in self.descriptors}
        names = "|".join(sorted(map(re.escape, request.hosts), key=len, reverse=True))
        self._names = re.compile(rf"(?<![\w.-])({names})(?![\w-]|\.\w)")
        for descriptor in self.descriptors:
            os.set_blocking(descriptor, False)

    def read(self, links: Mapping[str, Connection], descriptor: int) -> bool:
        """Pass each line to the hosts that it names, or to all. Return whether more output may follow."""
        try:
            data = os.read(descriptor, 1 << 20)
        except BlockingIOError:
            return True
        except OSError:
            data = b""
        if not data:
            self.open.discard(descriptor)
        for line in self._lines[descriptor].feed(data or b"\n"):
            text = line.decode("utf-8", "replace").rstrip()
            if text:
                named = set(self._names.findall(text))
                for host in named or self.request.hosts:
                    noise = descriptor == self._output
                    links[host].accused |= bool(named) and not noise and not text.startswith(NOISE)
                    _say(links[host], text, noise=noise)
        return bool(data)

    def end(self) -> None:
        """Wait for the process to end, then terminate it, then kill it."""
        for ask in (None, self.process.terminate, self.process.kill):
            if ask is not None:
                ask()
            try:
                self.process.wait(_LEAVE)
                break
            except subprocess.TimeoutExpired:
                continue


def _say(link: Connection, text: str, *, noise: bool) -> None:
    plain = text.removeprefix(f"{link.place.host}: ")
    (link.noise if noise else link.complaints).append(plain)
