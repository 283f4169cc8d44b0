"""Waiting for machines that register themselves, until all are there: `muster gather`.

The head knows nobody; who knows the token may come. A machine counts when the head has reached its ssh
server, and for as long as its connection lives.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import resource
import selectors
import shutil
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial as bind
from typing import Any

from muster.agent.member import HEARD
from muster.core.errors import JobError, UsageError
from muster.core.units import check_seconds
from muster.fleet.addresses import own_addresses
from muster.fleet.handshake import answer
from muster.fleet.interrupts import Wish, interrupts
from muster.fleet.listener import Door, Guest
from muster.fleet.shell import Process, Shell
from muster.gather.gathered import Gathered
from muster.gather.members import Applicant, Member, by_name, candidates, name_members, read_applicant

# ----------------------------------------------------------------------------------------------------
# Finding out by which of its addresses a machine can really be reached: a TCP connection, an ssh server that
# greets, and, where the machine's own host key is known, that the server there shows it. Nothing blocks.
#
# Another's ssh server at an expected address is common: a NAT gateway's, a node's in place of its pod's.

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


# ----------------------------------------------------------------------------------------------------
# A machine's connection to `muster gather`: what is said on it, and an end that loses nothing.


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


# ----------------------------------------------------------------------------------------------------
# Waiting for machines that register themselves, until all are there.

MOST = 10_000  # machines
BEAT = 3.0  # seconds between two signs of life
SILENCE = 15.0  # seconds after which a machine that says nothing is gave up
GRACE = (
    40.0  # seconds for members to say that they have heard the end: one finds out in 30 that its line is dead
)
LINGER = 2.0  # seconds after the last word in which late comers are told that it is over
TICK = 0.1  # seconds between two looks at the clock


@dataclass
class _Gathering:
    """The state of one gather; `watch` hears of changes."""

    door: Door
    wanted: int
    shell: Shell
    watch: Callable[[Gathered], None]
    ours: tuple[str, ...]
    selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    seats: list[Seat] = field(default_factory=list)
    unusable: dict[str, str] = field(default_factory=dict)
    turned_away: dict[str, int] = field(default_factory=dict)
    lost: int = 0
    over: str | None = None  # what late comers are told
    unheard: dict[tuple[str, int], Member] = field(default_factory=dict)  # are in, and may not know it yet
    count: int = 0  # members, once it is over
    beaten: float = 0.0
    changed: bool = True

    def __post_init__(self) -> None:
        self.reach = Reach(self.selector, self.shell)
        self.selector.register(self.door, selectors.EVENT_READ, lambda: None)  # polled each time anyway

    @property
    def here(self) -> int:
        """How many machines are in."""
        return sum(seat.member is not None for seat in self.seats)

    def state(self) -> Gathered:
        """How things stand."""
        members = sorted((seat.member for seat in self.seats if seat.member), key=by_name)
        refused = {reason: count for reason, count in self.door.refused.items() if reason != "left"}
        return Gathered(
            self.wanted, name_members(members), dict(self.unusable), refused | self.turned_away, self.lost
        )

    def step(self) -> None:
        """Everything that has happened since the last step; waits a moment where nothing has."""
        for key, _ in self.selector.select(TICK):
            key.data()
        for guest in self.door.poll():
            self._admit(guest)
        self.reach.tick()
        now = time.monotonic()
        for seat in [each for each in self.seats if now - each.heard > SILENCE]:
            self._leave(seat)
        if now - self.beaten > BEAT:
            self.beaten = now
            self._beat()
        if self.changed:
            self.changed = False
            self.watch(self.state())

    def _beat(self) -> None:
        """A sign of life, with the state for people."""
        here = self.here
        for seat in [each for each in self.seats if not each.told]:
            say = f"in as {seat.member.address}; " if seat.member else ""
            if not seat.tell(op="wait", say=f"{say}{here} of {self.wanted} are here"):
                self._leave(seat)

    # ---- one machine

    def _admit(self, guest: Guest) -> None:
        seat = Seat(guest, Applicant("?", (), False, 22, "?", 1, ()), time.monotonic())
        try:
            seat.applicant = read_applicant(guest.payload)
        except ValueError as error:
            self._dismiss(seat, "not understood", f"not understood: {error}")
            return
        self.seats.append(seat)
        self.selector.register(guest.socket, selectors.EVENT_READ, bind(self._hear, seat))
        if self.over:
            self._conclude(seat)
            return
        if not seat.tell(op="wait"):
            self._leave(seat)
            return
        self.reach.ask(self._waves(seat), seat.applicant.port, seat.applicant.keys, bind(self._reached, seat))

    def _waves(self, seat: Seat) -> list[list[str]]:
        """The addresses at which this machine may be."""
        return candidates(seat.applicant, seat.guest.peer, (*self.ours, seat.guest.local))

    def _reached(self, seat: Seat, found: Found) -> None:
        if seat not in self.seats or seat.told:  # it left meanwhile, or all is decided
            return
        one = seat.applicant
        if found.address is None:
            self.unusable[one.hostname] = found.why
            seat.tell(op="again", why=f"the head cannot reach this machine's ssh server: {found.why[:1500]}")
            self._leave(seat)
            self.changed = True
            return
        for other in [
            each for each in self.seats if each.member and place_of(each) == (found.address, one.port)
        ]:
            other.member = None  # the later connection counts: the earlier may be a dead one
            self._dismiss(other, "again", "replaced by another join from this machine")
        if self.here >= self.wanted:
            self._dismiss(seat, "late", f"closed: {self.wanted} have joined")
            return
        self.unusable.pop(one.hostname, None)
        seat.member = Member(
            "", one.hostname, found.address, one.port, one.user, one.slots, one.keys, found.verified
        )
        self.changed = True
        seat.tell(op="wait", say=f"in as {found.address}; {self.here} of {self.wanted} are here")

    def _dismiss(self, seat: Seat, reason: str, why: str) -> None:
        """The machine shall not try again."""
        self.turned_away[reason] = self.turned_away.get(reason, 0) + 1
        seat.tell(op="closed", why=why)
        self._leave(seat)

    def _hear(self, seat: Seat) -> None:
        """All that a machine says is that it lives, and that it has heard the end."""
        try:
            data = seat.guest.socket.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            seat.heard = time.monotonic()
            place = place_of(seat)
            if seat.told and place and HEARD in data:
                self.unheard.pop(place, None)
        elif seat in self.seats:
            self._leave(seat)

    def _leave(self, seat: Seat) -> None:
        if seat in self.seats:
            self.seats.remove(seat)
            self.selector.unregister(seat.guest.socket)
        hang_up(seat.guest.socket)
        if seat.member is not None and self.over is None:
            self.lost += 1
            self.changed = True

    # ---- the end

    def farewell(self, over: str, members: tuple[Member, ...], wish: Wish) -> None:
        """The last word to everybody: those in `members` are in, the others are not.

        Then late comers; and the door stays open for members that have not said yet that they heard it: one
        whose connection broke comes again.
        """
        self.over = over
        self.unheard = {(member.address, member.port): member for member in members}
        self.count = len(members)
        for seat in list(self.seats):
            self._conclude(seat)
        now = time.monotonic()
        late, last = now + (LINGER if members else 0.0), now + GRACE
        while wish.stop is None and time.monotonic() < (last if self.unheard else late):
            self.step()

    def _conclude(self, seat: Seat) -> None:
        """Tell one machine how it ended."""
        member = self._who(seat)
        if member is None:
            self._dismiss(seat, "late" if self.count else "gave up", self.over or "closed")
            return
        seat.member, seat.told = member, True
        if not seat.tell(op="done", name=member.name, members=self.count):
            self._leave(seat)

    def _who(self, seat: Seat) -> Member | None:
        """Which of those that may not know yet it is; over a new connection it is known by its addresses."""
        place = place_of(seat)
        if place:
            return self.unheard.get(place)
        one, known = seat.applicant, {address for wave in self._waves(seat) for address in wave}
        return next(
            (
                each
                for each in self.unheard.values()
                if each.address in known and (each.hostname, each.port) == (one.hostname, one.port)
            ),
            None,
        )

    def close(self) -> None:
        """Every connection and search ends."""
        self.reach.close()
        for seat in self.seats:
            hang_up(seat.guest.socket)
        self.seats.clear()
        self.selector.close()


def gather(
    wanted: int,
    token: str,
    *,
    address: str = "",
    port: int = 0,
    timeout: float = 600.0,
    partial: bool = False,
    save: Callable[[Gathered], None] = lambda gathered: None,
    opened: Callable[[int], None] = lambda port: None,
    watch: Callable[[Gathered], None] = lambda gathered: None,
    shell: Shell | None = None,
) -> Gathered:
    """Wait until `wanted` machines are there; `save` what came of it, then let them go.

    `opened` is told the port, once machines can come. `partial`: after `timeout` seconds fewer will do, but
    at least one. Raises UsageError (a number or port that cannot be used) and JobError (too few in time, or
    stopped); then `save` was not called, and the machines that came are told.
    """
    if not 1 <= wanted <= MOST:
        raise UsageError(f"cannot wait for {wanted} machines", hint=f"a number from 1 to {MOST}")
    check_seconds(timeout, "--timeout")
    with interrupts() as wish, many_files(), Door(token, address=address, port=port) as door:
        gathering = _Gathering(door, wanted, shell or Shell(), watch, own_addresses(()))
        with contextlib.closing(gathering):
            over = "closed: the head has ended"
            found: Gathered | None = None
            try:
                opened(door.port)
                state = _wait(gathering, time.monotonic() + timeout, wish)
                if not (state.complete or (partial and state.members and wish.stop is None)):
                    over = f"closed: the head gave up with {len(state.members)} of {wanted}"
                    raise _too_few(state, timeout, wish.stop)
                save(state)
                found = state
                over = f"closed: {len(state.members)} have joined"
            finally:
                gathering.farewell(over, found.members if found else (), wish)
            unheard = tuple(member.name for member in gathering.unheard.values())
            return replace(
                found, turned_away=gathering.state().turned_away, unheard=unheard
            )  # of the very end


def _wait(gathering: _Gathering, deadline: float, wish: Wish) -> Gathered:
    while True:
        gathering.step()
        if gathering.here >= gathering.wanted or wish.stop is not None or time.monotonic() > deadline:
            return gathering.state()


def _too_few(state: Gathered, timeout: float, stopped: str | None) -> JobError:
    names = ", ".join(member.hostname for member in state.members[:20]) or "none"
    there = f"{len(state.members)} of {state.wanted} machines are there ({names})"
    trouble = [f"{name} cannot be reached: {why}" for name, why in list(state.unusable.items())[:3]]
    if state.turned_away.get("wrong secret"):
        trouble.append(f"{state.turned_away['wrong secret']} connections had a wrong token")
    hint = "; ".join(trouble) or "a longer --timeout, or --partial to go on with fewer"
    if stopped:
        return JobError(f"{stopped}: {there}; nothing was written")
    return JobError(f"after {timeout:g} s {there}; nothing was written", hint=hint)
