"""Waiting for machines that register themselves, until all are there: `muster gather`.

The head knows nobody; who knows the token may come. A machine counts when the head has reached its ssh
server, and for as long as its connection lives.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import selectors
import shutil
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial as bind
from queue import SimpleQueue
from typing import Any

from muster.agent.member import HEARD
from muster.core.errors import JobError, UsageError
from muster.core.units import check_seconds
from muster.fleet.addresses import own_addresses
from muster.fleet.handshake import answer
from muster.fleet.interrupts import Wish, interrupts
from muster.fleet.listener import Door, Guest
from muster.fleet.shell import Shell, more_files
from muster.gather.gathered import Gathered
from muster.gather.members import Applicant, Member, by_name, candidates, name_members, read_applicant

# ----------------------------------------------------------------------------------------------------
# Finding out by which of its addresses a machine can really be reached: a TCP connection, an ssh server that
# greets, and, where the machine's own host key is known, that the server there shows it.
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


async def _greets(address: str, port: int) -> str | None:
    """Why no ssh server greets there; None: one does. Some say more before the line that begins with SSH-."""

    async def listen() -> str | None:
        reader, writer = await asyncio.open_connection(address, port, flags=socket.AI_NUMERICHOST)
        heard = b""
        try:
            while not re.search(rb"(?m)^SSH-[12]\.", heard):
                data = await reader.read(1024)
                if not data or len(heard) > 4096:
                    return "what answers there is no ssh server"
                heard += data
        finally:
            writer.close()
        return None

    try:
        return await asyncio.wait_for(listen(), CONNECT)
    except asyncio.TimeoutError:
        return f"no answer within {CONNECT:g} s"
    except socket.gaierror as error:
        return error.strerror or str(error)
    except OSError as error:  # asyncio's own text repeats the address
        return os.strerror(error.errno) if error.errno else str(error)


class Reach:
    """Searches, in a thread of their own."""

    def __init__(self, shell: Shell) -> None:
        self.can_verify = shutil.which("ssh-keyscan") is not None
        self._shell = shell
        self._over: SimpleQueue[tuple[Callable[[Found], None], Future[Found]]] = SimpleQueue()
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(ThreadPoolExecutor(SCANS, "muster-keyscan"))
        self._thread = threading.Thread(target=self._loop.run_forever, name="muster-reach", daemon=True)
        self._searches, self._scans = asyncio.Semaphore(SEARCHES), asyncio.Semaphore(SCANS)
        self._thread.start()

    def ask(
        self, waves: Sequence[Sequence[str]], port: int, keys: tuple[str, ...], tell: Callable[[Found], None]
    ) -> None:
        """Look for a machine: `tell` is called with what was found, from a later tick."""

        async def search() -> Found:
            async with self._searches:
                return await self._search(waves, port, keys)

        made = asyncio.run_coroutine_threadsafe(search(), self._loop)
        made.add_done_callback(lambda search: self._over.put((tell, search)))

    def tick(self) -> None:
        """Tell what was found since the last one."""
        while not self._over.empty():
            tell, search = self._over.get()
            tell(search.result())

    def close(self) -> None:
        """Give every search up."""

        async def end() -> None:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            await self._loop.shutdown_default_executor()

        asyncio.run_coroutine_threadsafe(end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _search(self, waves: Sequence[Sequence[str]], port: int, keys: tuple[str, ...]) -> Found:
        reasons: dict[str, list[str]] = {}  # why not -> addresses
        for wave in waves:
            tries = [asyncio.create_task(_greets(address, port)) for address in wave]
            try:
                found = await self._first(wave, tries, port, keys, reasons)
            finally:
                for each in tries:
                    each.cancel()
            if found is not None:
                return found
        parts = [f"port {port} of {', '.join(at)}: {why}" for why, at in reasons.items()]
        return Found(None, False, "; ".join(parts) or "it has no address")

    async def _first(
        self,
        wave: Sequence[str],
        tries: list[asyncio.Task[str | None]],
        port: int,
        keys: tuple[str, ...],
        reasons: dict[str, list[str]],
    ) -> Found | None:
        """The first address of a wave at which the right server is, in the order of preference: one that
        greets waits a moment for those before it."""
        failed: dict[int, str] = {}
        since: float | None = None  # when the first server of this wave greeted
        while len(failed) < len(tries):
            failed |= {at: why for at, each in enumerate(tries) if each.done() and (why := each.result())}
            able = [at for at, each in enumerate(tries) if each.done() and at not in failed]
            since = since or (time.monotonic() if able else None)
            left = since + BETTER - time.monotonic() if since and able else None
            before = [each for each in tries[: able[0] if able else None] if not each.done()]
            if before and (left is None or left > 0):
                await asyncio.wait(before, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            elif able:
                wrong = await self._wrong(wave[able[0]], port, keys)
                if not wrong:
                    return Found(wave[able[0]], wrong is None, "")
                failed[able[0]] = wrong
        for at, why in sorted(failed.items()):
            reasons.setdefault(why, []).append(wave[at])
        return None

    async def _wrong(self, address: str, port: int, keys: tuple[str, ...]) -> str | None:
        """What is wrong with the key of a server that has greeted. None: nothing; empty: that is not known
        here, or there is none to compare it with."""
        if not keys or not self.can_verify:
            return ""
        argv = ["ssh-keyscan", "-T", "5", "-t", _TYPES[keys[0].split()[0]], "-p", str(port), "--", address]
        async with self._scans:
            try:
                process = self._shell.start(argv)
            except JobError:  # it was there a moment ago
                self.can_verify = False
                return ""
            try:
                out = (await asyncio.wait_for(asyncio.to_thread(process.communicate), SCAN))[0]
            except asyncio.TimeoutError:
                return f"its ssh server showed no key within {SCAN:g} s"
            finally:
                process.kill()
        lines = out.decode("ascii", "replace").splitlines()
        shown = {" ".join(line.split()[1:3]) for line in lines if not line.startswith("#")}
        if shown & set(keys):
            return None
        return "another machine's ssh server answers there" if shown else "its ssh server showed no key"


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
        self.reach = Reach(self.shell)
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
    more_files(2 * MOST)  # a thousand machines are more connections than the usual soft limit allows
    with interrupts() as wish, Door(token, address=address, port=port) as door:
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
