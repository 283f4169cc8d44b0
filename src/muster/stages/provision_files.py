"""Provision's second part: what the recipe reads, fetched or taken from here, and copied to every host."""

from __future__ import annotations

import hashlib
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from muster.core.errors import HostError, JobError, MusterError
from muster.core.units import format_bytes
from muster.stages.provision_hosts import HERE, Hosts
from muster.supervise.provisioning import Entry, Remote, Steps, Tree, safe_path


def copy_local(hosts: Hosts, path: str) -> None:
    """A folder or file that the recipe names, to the same path on every host that lacks it."""
    if not hosts.alive():
        return
    root = ("path", path)
    marker = _marker(*root)
    try:
        found = hosts.here("scan", root=root, marker=f"own-{marker}")
    except MusterError as error:
        hosts.fail_all(error)
        return
    tree = Tree(root, marker, _entries(found["files"], Path(path), host=HERE))
    _spread(hosts, tree, path)


def _spread(hosts: Hosts, tree: Tree, what: str, *, but: str | None = None) -> None:
    def work(remote: Remote) -> Steps[None]:
        if remote.host != but:
            copied = yield from remote.send(tree, what)
            hosts.note_copy(remote.host, what, tree.size, copied)

    hosts.each(work)


def copy_hub(hosts: Hosts, kind: str, name: str) -> None:
    """Download once, by this machine or by the first host that can, and copy to the others."""
    if not hosts.alive():
        return
    request = {"kind": kind, "name": name, "marker": _marker("hub", kind, name)}
    try:
        source, found = _download(hosts, request)
        _pass_on(hosts, request, source, found)
    except MusterError as error:
        hosts.fail_all(error)


def _pass_on(hosts: Hosts, request: Mapping[str, Any], source: str, found: Mapping[str, Any]) -> None:
    """From who has it to the others. Raises MusterError."""
    root = (str(found["root"][0]), str(found["root"][1]))
    entries = _entries(found["files"], Path(found["path"]), host=source)
    tree = Tree(root, request["marker"], entries)
    what = f"{request['kind']} {request['name']}"
    if source == HERE:
        _spread(hosts, tree, what)
        return
    status = {"what": what, "status": found["status"], "size": tree.size}
    hosts.reports[source].copied.append(status)
    lacking = hosts.each(lambda remote: _lacks(remote, tree, but=source))
    if not any(lacking.values()):
        _spread(hosts, tree, what, but=source)
        return
    with waypoint(tree, what) as folder:
        fetched = hosts.one(source, hosts.crew.remotes[source].fetch(tree, folder))
        _spread(hosts, fetched, what, but=source)


@contextmanager
def waypoint(tree: Tree, what: str) -> Iterator[Path]:
    """A folder on this machine for a tree that goes from one host to others; it is gone at the end.

    Beside the cache, for /tmp is often small, or memory. Raises JobError where the tree has no room.
    """
    cache = Path("~/.cache/muster").expanduser()
    try:
        cache.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(cache).free
        if tree.size > free:
            needs = f"needs {format_bytes(tree.size)} here on its way, and {format_bytes(free)} are free"
            hint = "free some space, or run prepare on a machine that has it"
            raise JobError(f"{what} {needs}", where=str(cache), hint=hint)
        folder = tempfile.mkdtemp(prefix="waypoint-", dir=cache)
    except OSError as error:
        raise JobError(f"cannot be written: {error.strerror}", where=str(cache)) from None
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _lacks(remote: Remote, tree: Tree, *, but: str) -> Steps[bool]:
    """Whether a host has to be sent anything: it may share the disk of the one that downloaded."""
    if remote.host == but:
        return False
    files = [entry.as_dict() for entry in tree.entries]
    reply = yield from remote.ask("compare", root=tree.root, marker=tree.marker, files=files, look=True)
    return bool(reply["lacks"])


def _download(hosts: Hosts, request: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Who has it, or can get it; and its files. Raises the first refusal where nobody can."""
    cached = hosts.each(lambda remote: remote.ask("cached", **request))
    for host, reply in cached.items():
        if reply["root"]:
            return host, {**reply, "status": "present"}
    refusals: list[MusterError] = []
    if not hosts.inputs.launcher.ONE_MACHINE:
        try:
            return HERE, hosts.here("download", python=sys.executable, **request)
        except MusterError as error:
            refusals.append(error)
    for host, remote in hosts.alive().items():
        environment = hosts.reports[host].environment or {}
        try:
            result = hosts.one(host, remote.ask("download", python=environment["python"], **request))
            return host, {**result, "status": "downloaded"}
        except MusterError as error:
            refusals.append(error)
    if not refusals:
        raise HostError("no host is left that could download")
    what, last = f"{request['kind']} {request['name']}", refusals[-1].what
    raise HostError(
        f"{what} cannot be downloaded, neither here nor by a host: {last}",
        hint="without network access, download it elsewhere and give its folder in the recipe",
    )


def _marker(*words: str) -> str:
    return hashlib.sha256("\0".join(words).encode("utf-8", "surrogateescape")).hexdigest()[:24]


def _entries(files: list[dict[str, Any]], root: Path, *, host: str) -> tuple[Entry, ...]:
    """A scan's answer, checked: it may be another machine's."""
    entries = []
    for each in files:
        path = str(each["path"])
        if path:
            safe_path(path, host=host)
        source = root / path if path else root
        if "link" in each:
            entries.append(Entry(path, link=str(each["link"])))
        else:
            pointer = path.startswith("refs/")
            entries.append(
                Entry(path, int(each["size"]), str(each["sha256"]), source=source, replace=pointer)
            )
    return tuple(entries)
