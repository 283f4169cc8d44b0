"""Machines that register themselves: what they say about themselves, and the files that come of it. Pure."""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from muster.core.inventory import MAX_SLOTS, Host

MAX_ADDRESSES = 16
# What stands in ssh_config and known_hosts without quotes. A name never begins with a dash.
_HOSTNAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,252}")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,63}")
_KEY = re.compile(r"(?:ssh-ed25519|ecdsa-sha2-nistp256|ssh-rsa) [A-Za-z0-9+/=]{16,2000}")
_ZONE = re.compile(r"[A-Za-z0-9_.\-]{1,32}")


@dataclass(frozen=True)
class Applicant:
    """What a machine says about itself. `keys`: its sshd's, as `TYPE KEY`."""

    hostname: str
    addresses: tuple[str, ...]
    by_hand: bool  # the addresses were given by a person, and no others are to be tried
    port: int
    user: str
    slots: int
    keys: tuple[str, ...]


@dataclass(frozen=True)
class Member:
    """A machine that is in. `name` is what the inventory calls it."""

    name: str
    hostname: str
    address: str  # one that the head has reached
    port: int
    user: str
    slots: int
    keys: tuple[str, ...]
    verified: bool  # the sshd at that address showed this machine's own key

    def as_dict(self) -> dict[str, Any]:
        """As it stands in an inventory."""
        return {
            "name": self.name,
            "slots": self.slots,
            "hostname": self.hostname,
            "address": self.address,
            "port": self.port,
            "user": self.user,
            "verified": self.verified,
        }


def read_applicant(payload: Mapping[str, Any]) -> Applicant:
    """What a machine sent. Raises ValueError with a reason that it can be told."""
    name, user, port, slots = (payload.get(key) for key in ("name", "user", "port", "slots"))
    addresses, keys = payload.get("addresses"), payload.get("keys")
    if payload.get("wants") != "join":
        raise ValueError("this is a muster gather")
    if not isinstance(name, str) or not _HOSTNAME.fullmatch(name):
        raise ValueError("that is not a host name")
    if not isinstance(user, str) or not _USER.fullmatch(user):
        raise ValueError("that is not a user's name")
    if not _is_count(port, 65535):
        raise ValueError("that is not a port")
    if not _is_count(slots, MAX_SLOTS):
        raise ValueError(f"slots go from 1 to {MAX_SLOTS}")
    if not isinstance(addresses, list) or len(addresses) > MAX_ADDRESSES:
        raise ValueError(f"addresses are a list of at most {MAX_ADDRESSES}")
    if not isinstance(keys, list) or not all(isinstance(key, str) and _KEY.fullmatch(key) for key in keys):
        raise ValueError("those are not ssh keys")
    assert isinstance(port, int) and isinstance(slots, int)
    known = tuple(dict.fromkeys(_address(text) for text in addresses))
    return Applicant(name, known, payload.get("by_hand") is True, port, user, slots, tuple(keys))


def candidates(applicant: Applicant, came_from: str, ours: Iterable[str]) -> list[list[str]]:
    """The addresses to try, in waves: the next one where none of a wave does.

    First the one that it came from, for that has crossed the network. One of this machine's own (`ours`, and
    loopback) is another's only by mistake, such as docker0's: those count for a machine that came from here.
    """
    if applicant.by_hand and applicant.addresses:
        return [list(applicant.addresses)]
    here = {*ours}
    if came_from in here or _is_loopback(came_from):
        wave = [*applicant.addresses, came_from]
        return [list(dict.fromkeys(wave))]
    known = {came_from, *here}
    rest = [each for each in applicant.addresses if each not in known and not _is_nobody(each)]
    return [[came_from], rest] if rest else [[came_from]]


def by_name(member: Member) -> tuple[list[tuple[int, str]], str, int]:
    """What to sort by: node2 before node10."""
    parts = re.findall(r"\d+|\D+", member.hostname)
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts], member.address, member.port


def name_members(members: Sequence[Member]) -> tuple[Member, ...]:
    """Each named by its address, or, where several share one (by ports), by host names made unlike."""
    shared = Counter(member.address for member in members)
    taken = set(shared)
    named = []
    for member in members:
        name = f"[{member.address}]" if ":" in member.address else member.address
        if shared[member.address] > 1:
            name, number = member.hostname.rstrip(".-") or "host", 1
            while name in taken:
                number += 1
                name = f"{member.hostname.rstrip('.-') or 'host'}-{number}"
            taken.add(name)
        named.append(replace(member, name=name))
    return tuple(named)


def as_hosts(members: Iterable[Member]) -> tuple[Host, ...]:
    """The members as hosts of an inventory."""
    return tuple(Host(member.name, member.slots) for member in members)


def known_hosts(members: Iterable[Member]) -> str:
    """The members' keys, as ssh's UserKnownHostsFile has them."""
    lines = []
    for member in members:
        place = member.address if member.port == 22 else f"[{member.address}]:{member.port}"
        lines += [f"{place} {key}\n" for key in member.keys]
    return "".join(lines)


def ssh_config(members: Sequence[Member], known_hosts_file: str) -> str:
    """How ssh reaches the members: port, user and host keys. The user's and the system's files follow.

    `known_hosts_file` is an absolute path; a double quote in it cannot be written. Raises ValueError.
    """
    if '"' in known_hosts_file or "\n" in known_hosts_file:
        raise ValueError(f"ssh_config cannot name {known_hosts_file!r}")
    path = known_hosts_file.replace("%", "%%")
    hostnames = Counter(member.hostname for member in members)
    names = {member.name.strip("[]") for member in members}
    text = "# Written by muster gather. Use: ssh -F THIS_FILE HOST, or launch.ssh_options=[-F, THIS_FILE]\n"
    for member in members:
        aliases = [member.name.strip("[]")]
        if hostnames[member.hostname] == 1 and member.hostname not in names:
            aliases.append(member.hostname)
        text += f"\nHost {' '.join(aliases)}\n    HostName {member.address}\n    Port {member.port}\n"
        text += f"    User {member.user}\n"
        if member.keys:
            text += f'    UserKnownHostsFile "{path}"\n    StrictHostKeyChecking yes\n'
    return text + "\nMatch all\n    Include ~/.ssh/config\n    Include /etc/ssh/ssh_config\n"


def _is_count(value: Any, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most


def _address(text: Any) -> str:
    """An IP address in its usual form. Raises ValueError."""
    try:
        bare, mark, zone = str(text).partition("%")
        address = ipaddress.ip_address(bare)
    except ValueError:
        raise ValueError("addresses are IP addresses") from None
    if mark and not _ZONE.fullmatch(zone):
        raise ValueError("addresses are IP addresses")
    return f"{address}{mark}{zone}"


def _is_loopback(text: str) -> bool:
    return ipaddress.ip_address(text.partition("%")[0]).is_loopback


def _is_nobody(text: str) -> bool:
    """Whether it is no other machine's address."""
    address = ipaddress.ip_address(text.partition("%")[0])
    return address.is_loopback or address.is_unspecified or address.is_multicast
