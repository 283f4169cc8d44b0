"""Wait for machines that register themselves, until all have: `muster gather`.

A machine that knows the token is registered for as long as its connection lives; it is answered once all are.
"""

from __future__ import annotations

import ipaddress
import re
import selectors
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from muster.agent.member import keep_alive
from muster.core.errors import JobError, UsageError
from muster.core.hostlist import natural
from muster.core.inventory import MAX_SLOTS, Host, inventory_document
from muster.core.units import check_timeout, counted
from muster.fleet.addresses import own_addresses
from muster.fleet.interrupts import interrupts
from muster.fleet.listener import ProvenPeer, SecretListener
from muster.fleet.shell import more_files

MOST = 10_000  # machines
TICK = 0.1  # seconds between two looks at the clock
_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.\-]{0,251}[A-Za-z0-9_])?")  # ssh takes no leading dash


@dataclass(frozen=True)
class Member:
    """A registered machine: the address by which it is reached, its own host name, ranks on it."""

    address: str
    hostname: str
    slots: int

    @property
    def host(self) -> Host:
        """The member as a host file has it."""
        return Host(f"[{self.address}]" if ":" in self.address else self.address, self.slots)

    @property
    def key(self) -> str:
        """What no two members share: an inventory compares names without their case as well."""
        return self.address.lower()


@dataclass(frozen=True)
class Gathered:
    """The registered machines, sorted by host name: node2 before node10.

    `refused`: reason -> connections. `lost`: machines that were registered and left before the end.
    """

    wanted: int
    members: tuple[Member, ...]
    refused: Mapping[str, int] = field(default_factory=dict)
    lost: int = 0

    @property
    def hosts(self) -> tuple[Host, ...]:
        """The members as hosts of an inventory; the first one holds rank 0."""
        return tuple(member.host for member in self.members)

    def as_dict(self) -> dict[str, Any]:
        """Return an inventory, in the form that `--hosts` reads, and how it was made."""
        about = {"wanted": self.wanted, "refused": dict(self.refused), "lost": self.lost}
        return {**inventory_document(self.hosts, "ssh"), "gathered": about}


def read_member(payload: Mapping[str, Any], peer: str, own: str) -> Member:
    """Return a machine from its own facts. Raises ValueError with a reason that may be sent to it.

    Its address is the one that it gave, else where its connection came from: a head that is a member itself
    is reached by the others at `own`.
    """
    name, slots, address = (payload.get(key) for key in ("name", "slots", "address"))
    if payload.get("wants") != "join":
        raise ValueError("this is a muster gather")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError("that is not a host name")
    if not isinstance(slots, int) or isinstance(slots, bool) or not 1 <= slots <= MAX_SLOTS:
        raise ValueError(f"slots go from 1 to {MAX_SLOTS}")
    if not isinstance(address, str) or not (not address or _NAME.fullmatch(address) or _is_address(address)):
        raise ValueError("that is not an address")
    if not address:
        address = own if ipaddress.ip_address(peer.partition("%")[0]).is_loopback else peer
    return Member(address, name, slots)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return "%" not in text


class _Gathering:
    """The registered machines, by their keys. A context manager: at its end every connection is closed."""

    def __init__(self, listener: SecretListener, wanted: int) -> None:
        self.listener, self.wanted, self.own = listener, wanted, own_addresses(())[0]
        self.joined: dict[str, tuple[ProvenPeer, Member]] = {}
        self.refused: dict[str, int] = {}
        self.lost = 0
        self.selector = selectors.DefaultSelector()
        self.selector.register(listener, selectors.EVENT_READ)

    def __enter__(self) -> _Gathering:
        return self

    def __exit__(self, *_: object) -> None:
        for peer, _member in self.joined.values():
            peer.refuse("closed: the head has ended")
        self.selector.close()

    def state(self) -> Gathered:
        """Return who is registered now."""
        members = sorted(
            (member for _, member in self.joined.values()),
            key=lambda member: (natural(member.hostname), member.address),
        )
        refused = {reason: count for reason, count in self.listener.refused.items() if reason != "left"}
        return Gathered(self.wanted, tuple(members), refused | self.refused, self.lost)

    def turn(self) -> None:
        """Register new machines and remove those that left; wait a moment where nothing happens."""
        for key, _ in self.selector.select(TICK):
            if key.fileobj is not self.listener:  # a member has nothing to say: it has left
                self._drop(key.data).socket.close()
                self.lost += 1
        for peer in self.listener.poll():
            try:
                member = read_member(peer.payload, peer.peer, self.own)
            except ValueError as error:
                self._refuse(peer, "not understood", f"not understood: {error}")
            else:
                self._admit(peer, member)

    def _admit(self, peer: ProvenPeer, member: Member) -> None:
        if member.key in self.joined:  # the later connection counts: the earlier may be a dead one
            earlier = self._drop(member.key)
            self._refuse(earlier, "again", "closed: replaced by another join from this address")
        if len(self.joined) >= self.wanted:
            self._refuse(peer, "late", f"closed: {self.wanted} have joined")
            return
        keep_alive(peer.socket)
        self.joined[member.key] = peer, member
        self.selector.register(peer.socket, selectors.EVENT_READ, member.key)

    def _drop(self, key: str) -> ProvenPeer:
        peer, _ = self.joined.pop(key)
        self.selector.unregister(peer.socket)
        return peer

    def _refuse(self, peer: ProvenPeer, reason: str, why: str) -> None:
        self.refused[reason] = self.refused.get(reason, 0) + 1
        peer.refuse(why)

    def release(self) -> None:
        """Notify every machine that all are there."""
        for key, (_, member) in list(self.joined.items()):
            peer = self._drop(key)
            peer.welcome({"name": member.host.name, "members": self.wanted})
            peer.socket.close()


def gather(
    wanted: int,
    token: str,
    *,
    address: str = "",
    port: int = 0,
    timeout: float = 600.0,
    save: Callable[[Gathered], None] = lambda gathered: None,
    opened: Callable[[int], None] = lambda port: None,
    watch: Callable[[Gathered], None] = lambda gathered: None,
) -> Gathered:
    """Wait until `wanted` machines are there; `save` what came of it, then let them go.

    `opened` gets the port, once machines can come; `watch` the state, whenever their number has changed.
    Raises UsageError (a number or port that cannot be used) and JobError (too few in time, or stopped); then
    `save` was not called, and the machines that came are refused.
    """
    if not 1 <= wanted <= MOST:
        raise UsageError(f"cannot wait for {wanted} machines", hint=f"a number from 1 to {MOST}")
    check_timeout(timeout)
    more_files(2 * MOST)  # a thousand machines are more connections than the usual soft limit allows
    with (
        interrupts() as wish,
        SecretListener(token, address=address, port=port) as listener,
        _Gathering(listener, wanted) as gathering,
    ):
        opened(listener.port)
        deadline, here = time.monotonic() + timeout, -1
        while here < wanted:
            if wish.stop is not None or time.monotonic() > deadline:
                raise _too_few(gathering.state(), timeout, wish.stop)
            gathering.turn()
            if len(gathering.joined) != here:
                here = len(gathering.joined)
                watch(gathering.state())
        gathered = gathering.state()
        save(gathered)
        gathering.release()
        return gathered


def _too_few(state: Gathered, timeout: float, stopped: str | None) -> JobError:
    names = ", ".join(member.hostname for member in state.members[:20]) or "none"
    there = f"{len(state.members)} of {state.wanted} machines are there ({names})"
    if stopped:
        return JobError(f"{stopped}: {there}; nothing was written")
    wrong = state.refused.get("wrong secret")
    refused = f"{counted(wrong, 'connection')} had a wrong token" if wrong else None
    hint = refused or "a longer --timeout, or fewer machines"
    return JobError(f"after {timeout:g} s {there}; nothing was written", hint=hint)
