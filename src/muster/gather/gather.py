"""Waiting for machines that register themselves, until all are there: `muster gather`.

The head knows nobody; who knows the token may come. A machine counts when the head has reached its ssh
server, and for as long as its connection lives.
"""

from __future__ import annotations

import contextlib
import resource
import selectors
import socket
import time
from collections.abc import Callable, Iterator
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
from muster.fleet.shell import RealShell, Shell
from muster.gather.addresses import Found, Reach
from muster.gather.gathered import Gathered
from muster.gather.members import Applicant, Member, by_name, candidates, name_members, read_applicant

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
        gathering = _Gathering(door, wanted, shell or RealShell(), watch, own_addresses(()))
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
