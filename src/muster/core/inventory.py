"""The hosts of a cluster, from any source: a hostfile, a plain list, an inventory of `muster check`,
`host1,host2:8`, `local:2`, `local:2x1`, `slurm:`.

Parsing is pure; only `read_inventory` touches a file and this machine's name.
"""

from __future__ import annotations

import difflib
import ipaddress
import json
import os
import re
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from muster.core.errors import InventoryError, UsageError
from muster.core.hostlist import split_outside
from muster.core.printable import HIDDEN
from muster.core.slurm import SlurmAsk, allocation, parse_ask

MOUNTED = Path("/job/hostfile")  # DeepSpeed's default: schedulers of containers put the job's hosts there
MAX_SLOTS = 1024
MAX_HOSTS = 100_000
INVENTORY_VERSION = 1
# No leading dash anywhere: ssh would take `-Ffile@host` for an option.
_NAME = re.compile(
    r"(?:[A-Za-z0-9_.][A-Za-z0-9_.\-]*@)?"
    r"(?:[A-Za-z0-9_](?:[A-Za-z0-9_.\-]*[A-Za-z0-9_])?|\[[0-9A-Fa-f:.]+(?:%[A-Za-z0-9_.\-]+)?\])"
)
_LOCAL = re.compile(r"local(?::(?P<a>[^x]*)(?:x(?P<b>.*))?)?", re.DOTALL)
_FILE = re.compile(
    r".*\.(?:txt|json|ya?ml|hosts|hostfile|list|cfg|conf|ini|csv)|(?:host|machine|node)_?(?:file|list)"
)
_PRETEND = re.compile(r"local[0-9]*")
_FOLDED = re.compile(r"\[([0-9]{1,9}(?:-[0-9]{1,9})?(?:,[0-9]{1,9}(?:-[0-9]{1,9})?)*)\]")


@dataclass(frozen=True)
class Host:
    """A reachable machine. `slots`: the number of ranks on it; None: one per GPU (or one)."""

    name: str
    slots: int | None = None

    @property
    def label(self) -> str:
        """The name without the login part, for people and for file names."""
        return self.name.rpartition("@")[2].strip("[]")

    @property
    def address(self) -> str:
        """The name in ssh's form: an IPv6 address without its brackets."""
        return self.name.replace("[", "").replace("]", "")


@dataclass(frozen=True)
class Inventory:
    """Hosts in the order given (the first one holds rank 0), and how to reach them by default."""

    hosts: tuple[Host, ...]
    launcher: str
    source: str
    ask: SlurmAsk | None = None  # nodes that Slurm has yet to give: there are no hosts then

    @property
    def names(self) -> tuple[str, ...]:
        """The hosts' labels, in order."""
        return tuple(host.label for host in self.hosts)

    @property
    def pretend(self) -> bool:
        """Whether these are `local:` hosts, whose names no network knows."""
        return self.launcher == "local" and all(_PRETEND.fullmatch(host.name) for host in self.hosts)

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for the files of a run, a pipeline and a bench."""
        hosts = [{"name": host.name, "slots": host.slots} for host in self.hosts]
        return {"launcher": self.launcher, "source": self.source, "hosts": hosts}


def read_inventory(text: str, *, waits: bool = False) -> Inventory:
    """Return what a user gives as HOSTS. A name of an existing file is read as a host file.

    A list or host file with this machine alone (`localhost`, `127.0.0.1`, its own name) needs no ssh: its
    launcher is `local`. `waits`: nodes that Slurm has yet to allocate are accepted. Raises InventoryError:
    nothing given, an unreadable or empty file, malformed slots, a duplicate host, no allocation.
    """
    text = text.strip() or (str(MOUNTED) if MOUNTED.is_file() else "")
    if not text:
        raise InventoryError(
            "no hosts given",
            hint="give --hosts host1,host2:8, --hosts local:2, or the path of a host file",
        )
    named = _FILE.fullmatch(text.lower()) or _FILE.fullmatch(text.lower().removesuffix("s"))
    # A folder of a host's name is not meant. Both of os.path never raise, however long the text is.
    there = os.path.isfile(text) or (named is not None and os.path.isdir(text))  # noqa: PTH112, PTH113
    if not text.startswith("slurm:") and "," not in text and ("/" in text or there):
        try:
            content = Path(text).read_text(encoding="utf-8")
        except IsADirectoryError:
            inside = sorted(each for each in Path(text).iterdir() if each.is_file())[:1]
            hint = f"one of its files, such as {inside[0]}" if inside else "a file of lines: `node1 slots=8`"
            raise InventoryError("is a folder, not a host file", where=text, hint=hint) from None
        except FileNotFoundError:
            raise InventoryError(
                "no such host file", where=text, hint="one host per line: `node1 slots=8`"
            ) from None
        except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a name with a null byte
            raise InventoryError(f"cannot be read: {error}", where=text) from None
        if content.lstrip().startswith("{"):
            return parse_inventory(content, source=text)
        return _without_ssh(parse_hostfile(content, source=text))
    if named:
        hint = f"one host per line: `node1 slots=8`; a host of this name: {text}:SLOTS"
        raise InventoryError("no such host file", where=text, hint=hint)
    inventory = parse_hosts(text, os.environ)
    if inventory.ask is not None and not waits:
        raise InventoryError(
            "not inside a Slurm allocation, so there are no hosts yet",
            where=text,
            hint="salloc --nodes=N first; `muster train` submits a batch job by itself",
        )
    return _without_ssh(inventory)


def parse_hosts(text: str, env: Mapping[str, str] | None = None) -> Inventory:
    """Parse HOSTS of the command line (see the module's first line). Pure. `env`: of a process in a Slurm
    job."""
    if text.startswith("slurm:"):
        return _slurm(text, env or {})
    local = _LOCAL.fullmatch(text)
    if local:
        return _parse_local(text, local["a"], local["b"])
    name, _, count = text.partition(":")
    if _misspelt(name) and re.fullmatch(r"\d+(x\d+)?", count):
        hint = f"did you mean local:{count}? A host of this name goes into a host file"
        raise InventoryError("looks like this machine, misspelt", where=text, hint=hint)
    hosts = []
    for item in split_outside("[]", text):
        name, slots = _split_slots(item, where=text)
        hosts += [Host(each, slots) for each in _unfold(name, where=text)]
    return _checked(hosts, launcher="ssh", source=text)


def _misspelt(name: str) -> bool:
    """Return whether a name is `local` with a letter too many, too few, or two in the wrong order."""
    near = difflib.SequenceMatcher(None, name.lower(), "local").ratio() > 0.85
    return name.isalpha() and name != "local" and (near or sorted(name.lower()) == sorted("local"))


def parse_hostfile(content: str, *, source: str) -> Inventory:
    """Parse a DeepSpeed or MPI hostfile (`node1 slots=8`), or a plain list of names. `#` starts a comment.
    Pure."""
    hosts: list[Host] = []
    seen: dict[str, int] = {}
    for number, line in enumerate(content.splitlines(), start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        where = f"{source}:{number}"
        name, slots = _split_slots(words[0], where=where)
        for word in words[1:]:
            key, equals, value = word.partition("=")
            if key == "slots" and equals and slots is not None:
                raise InventoryError("slots are given twice", where=where, hint="a line reads: node1 slots=8")
            if key == "slots" and equals:
                slots = _slots(value, where=where)
            elif key in ("max_slots", "max-slots") and equals:
                _slots(value, where=where)  # OpenMPI's upper bound: read, nothing to do
            else:
                raise InventoryError(
                    f"{word!r} is not understood", where=where, hint="a line reads: node1 slots=8"
                )
        for each in _unfold(name, where=where):
            if each in seen:
                raise InventoryError(
                    f"host {each!r} is already in line {seen[each]}",
                    where=where,
                    hint="name each host once, with all its slots",
                )
            seen[each] = number
            hosts.append(Host(each, slots))
    if not hosts:
        raise InventoryError("has no hosts", where=source, hint="one host per line: `node1 slots=8`")
    return _checked(hosts, launcher="ssh", source=source)


def parse_inventory(content: str, *, source: str) -> Inventory:
    """Parse what `muster check` writes and `muster gather --json` prints: hosts with slots. Pure."""
    try:
        data = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InventoryError(f"is not valid JSON: {error}", where=source) from None
    entries = data.get("hosts")
    launcher = data.get("launcher", "ssh")
    if data.get("muster") != "inventory" or not isinstance(entries, list) or not isinstance(launcher, str):
        raise InventoryError(
            "is not an inventory", where=source, hint="muster check HOSTS --output FILE writes one"
        )
    if data.get("version") != INVENTORY_VERSION:
        raise InventoryError(f"is an inventory of version {data.get('version')!r}", where=source)
    if not entries:
        raise InventoryError("has no hosts", where=source)
    hosts = []
    for number, entry in enumerate(entries):
        where = f"{source}: hosts[{number}]"
        name = entry.get("name") if isinstance(entry, dict) else None
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise InventoryError(f"{name!r} is not a host name", where=where)
        slots = entry.get("slots")
        hosts.append(Host(name, None if slots is None else _slots(str(slots), where=where)))
    if config := data.get("ssh_config"):  # of an older gather: ports and users of its hosts
        raise InventoryError(
            "names an ssh_config, which inventories do no longer",
            where=source,
            hint=f"take it out, and launch.ssh_options=[-F, {config}], or the same in ~/.ssh/config",
        )
    return _checked(hosts, launcher=launcher, source=source)


def stored_inventory(data: Mapping[str, Any], where: str) -> Inventory:
    """Return the inventory of `as_dict`'s data. Raises InventoryError for other data."""
    try:
        hosts = tuple(Host(each["name"], each["slots"]) for each in data["hosts"])
        return Inventory(hosts, data["launcher"], data["source"])
    except (KeyError, TypeError) as error:
        raise InventoryError(f"is damaged: {type(error).__name__}: {error}", where=where) from None


def frozen_inventory(data: Mapping[str, Any], where: str) -> Inventory:
    """Return the same, with Slurm's hosts as they are allocated now."""
    before = stored_inventory(data, where)
    return read_inventory(before.source) if before.source.startswith("slurm:") else before


def inventory_document(hosts: Iterable[Host], launcher: str) -> dict[str, Any]:
    """Return the hosts in the form that `parse_inventory` reads."""
    return {
        "muster": "inventory",
        "version": INVENTORY_VERSION,
        "launcher": launcher,
        "hosts": [{"name": host.name, "slots": host.slots} for host in hosts],
    }


def format_hostfile(hosts: Iterable[Host]) -> str:
    """Return the hosts as a DeepSpeed hostfile; `parse_hostfile` reads it back."""
    lines = (host.name if host.slots is None else f"{host.name} slots={host.slots}" for host in hosts)
    return "".join(f"{line}\n" for line in lines)


def _slurm(text: str, env: Mapping[str, str]) -> Inventory:
    """Return the allocation's nodes (the first ones, where fewer are asked for); outside of one, what is
    asked for."""
    ask = parse_ask(text)
    given = allocation(env)
    if given is None:
        return Inventory((), "slurm", text, ask)
    parts = split_outside("[]", given.nodelist)
    names = [name for part in parts for name in _unfold(part, where="SLURM_JOB_NODELIST")]
    if ask.nodes is not None and ask.nodes > len(names):
        raise InventoryError(
            f"asks for {ask.nodes} nodes, and the allocation of job {given.job} has {len(names)}", where=text
        )
    slots = ask.slots or given.slots
    return _checked([Host(name, slots) for name in names[: ask.nodes]], launcher="slurm", source=text)


def _without_ssh(inventory: Inventory) -> Inventory:
    """Start a single host that is this machine without ssh. A login (`me@localhost`) asks for ssh."""
    alone = inventory.launcher == "ssh" and len(inventory.hosts) == 1
    return replace(inventory, launcher="local") if alone and _is_here(inventory.hosts[0]) else inventory


def _is_here(host: Host) -> bool:
    own = socket.gethostname().lower()
    try:
        return ipaddress.ip_address(host.address).is_loopback
    except ValueError:
        return host.name.lower() in ("localhost", own, own.partition(".")[0])


def _parse_local(text: str, first: str | None, second: str | None) -> Inventory:
    """Parse `local:2`, one host with two slots, and `local:2x1`, two pretend hosts with one slot each."""
    count = None if first is None else _slots(first, where=text)
    if count is None or second is None:
        return Inventory((Host("local", count),), "local", text)
    slots = _slots(second, where=text)
    return Inventory(tuple(Host(f"local{i}", slots) for i in range(count)), "local", text)


def _split_slots(item: str, *, where: str) -> tuple[str, int | None]:
    """Split `host:8` into host and 8. An IPv6 address is in brackets."""
    item = item.strip()
    secret = item.rpartition("@")[0].partition(":")[2]
    if secret:
        raise InventoryError(
            "a host's name has no password",
            where=where.replace(secret, HIDDEN),
            hint="keys log in: ssh-copy-id USER@HOST",
        )
    user, at, address = item.rpartition("@")
    login = user + at
    if ";" in item:
        raise InventoryError("has a semicolon", where=where, hint="commas separate hosts: host1:8,host2:8")
    if address.count(":") > 1 and "[" not in item:
        raise InventoryError(
            "is an IPv6 address without brackets, whose end would be slots",
            where=where,
            hint=f"{login}[{address}], or {login}[{address}]:8 with slots",
        )
    head, colon, tail = item.rpartition(":")
    if not colon or item.endswith("]"):
        name, slots = item, None
    else:
        name, slots = head, _slots(tail, where=where)
    if not name:
        raise InventoryError(
            "an empty host name", where=where, hint="separate hosts by single commas: host1,host2:8"
        )
    return name, slots


def _slots(text: str, *, where: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text) or not 1 <= int(text) <= MAX_SLOTS:
        raise InventoryError(
            f"slots must be a whole number from 1 to {MAX_SLOTS}, not {text!r}",
            where=where,
            hint="slots is the number of ranks on a host, as in node1:8 or `node1 slots=8`",
        )
    return int(text)


def _unfold(name: str, *, where: str) -> list[str]:
    """Return the names of a folded one: `node[01-03,7]` -> node01, node02, node03, node7."""
    match = _FOLDED.search(name)
    if not match:
        if not _NAME.fullmatch(name):
            raise InventoryError(
                f"{name!r} is not a host name", where=where, hint="letters, digits, '.', '-', '_', user@host"
            )
        return [name]
    names: list[str] = []
    for part in match[1].split(","):
        low, _, high = part.partition("-")
        high = high or low
        if not 0 <= int(high) - int(low) < MAX_HOSTS:
            raise InventoryError(f"{part!r} is not a range of hosts", where=where)
        for number in range(int(low), int(high) + 1):
            folded = f"{name[: match.start()]}{number:0{len(low)}d}{name[match.end() :]}"
            names += _unfold(folded, where=where)
            if len(names) > MAX_HOSTS:
                raise InventoryError(f"{name!r} is more than {MAX_HOSTS} hosts", where=where)
    return names


def _checked(hosts: list[Host], *, launcher: str, source: str) -> Inventory:
    seen: set[str] = set()
    for host in hosts:
        if host.label.lower() in seen:  # case means nothing in the names of hosts (RFC 4343)
            raise InventoryError(
                f"host {host.label!r} is named twice", where=source, hint="name each host once, as in host1:8"
            )
        seen.add(host.label.lower())
    return Inventory(tuple(hosts), launcher, source)


def split_hosts(text: str) -> tuple[str, ...]:
    """Return the hosts of a list; a text that is no list, as it is."""
    try:
        return tuple(host.label for host in parse_hosts(text.replace("+", ",")).hosts)
    except UsageError:
        return (text,)
