"""Holds the hosts of `muster prepare`: asks each, feeds each its files, loses one without losing the others.

A host's work is a generator, which yields wherever it waits; `Crew.together` turns all of them at once.
"""

from __future__ import annotations

import base64
import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Any, TypeVar

from muster.core.errors import HostError, MusterError
from muster.core.job import Placement
from muster.core.launch import Launch
from muster.failures.table import id_of, why_lost
from muster.fleet.agents import Fleet
from muster.fleet.connection import Connection
from muster.fleet.messages import of_provision
from muster.fleet.shell import Shell

_CHUNK = 1 << 18  # bytes of a file that are sent or fetched at a time
_AHEAD = 1 << 22  # bytes that may wait for a slow host
_PARTING = 5.0  # seconds that hosts get to end what they had begun

T = TypeVar("T")
Steps = Generator[None, None, T]  # yields where it waits
Results = dict[str, "T | MusterError"]


@cache
def provision_source() -> bytes:
    """The host's program with the length that the bootstrap expects before it."""
    source = resources.files("muster.agent").joinpath("provision.py").read_bytes()
    return b"%010d" % len(source) + source


@dataclass(frozen=True)
class PackedFile:
    """One file of a tree: its path on the host ("" where the tree is one file), and where it lies here."""

    path: str
    size: int = 0
    sha256: str = ""
    link: str | None = None  # a symbolic link to this, and nothing to send
    source: Path | None = None
    replace: bool = False  # may be written over: a pointer to a newer revision

    def as_dict(self) -> dict[str, Any]:
        """As the host hears of it."""
        if self.link is not None:
            return {"path": self.path, "link": self.link}
        return {"path": self.path, "size": self.size, "sha256": self.sha256, "replace": self.replace}


@dataclass(frozen=True)
class Tree:
    """Files that belong together, and where they go: ("path", absolute), ("wheels", ""), ("hub", name) ..."""

    root: tuple[str, str]
    marker: str
    entries: tuple[PackedFile, ...]

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(entry.size for entry in self.entries)


@dataclass(frozen=True)
class Copied:
    """What a host took of a tree."""

    files: int
    bytes: int
    seconds: float


class Remote:
    """One host: requests with their replies, and files."""

    def __init__(self, crew: Crew, link: Connection) -> None:
        self.crew = crew
        self.link = link
        self.host = link.place.host
        self.replies: dict[int, dict[str, Any]] = {}
        self._number = 0

    def ask(self, op: str, **content: Any) -> Steps[dict[str, Any]]:
        """Send a request and wait for its reply. Raises HostError."""
        self._number += 1
        number = self._number
        self.link.tell(op, id=number, **content)
        while number not in self.replies:
            self._look()
            yield
        reply = self.replies.pop(number)
        if "error" in reply:
            error = str(reply["error"])
            raise HostError(error, host=self.host, hint=reply.get("hint"), failure=id_of(error))
        return reply

    def send(self, tree: Tree, what: str) -> Steps[Copied]:
        """Bring a tree to the host: what is there with the right hash is not sent. Raises HostError."""
        began = time.monotonic()
        request = {"root": tree.root, "marker": tree.marker, "files": [e.as_dict() for e in tree.entries]}
        lacks = yield from self.ask("compare", **request)
        if not lacks.get("open"):
            return Copied(0, 0, time.monotonic() - began)
        sent = 0
        for index, offset in lacks["lacks"]:
            for data in _pieces(tree.entries[index], offset, host=self.host):
                while len(self.link.outgoing) > _AHEAD:
                    self._look()
                    yield
                self.link.tell("put", file=index, bytes=len(data))
                self.link.send(data)
                sent += len(data)
                self.crew.progress(self.host, f"copying {what}", sent, int(lacks["bytes"]))
        done = yield from self.ask("seal")
        return Copied(int(done["count"]), int(done["bytes"]), time.monotonic() - began)

    def fetch(self, tree: Tree, folder: Path) -> Steps[Tree]:
        """Bring a tree from the host into a new folder -> the tree with its sources. Raises HostError."""
        entries, done = [], 0
        for entry in tree.entries:
            place = folder / safe_path(entry.path, host=self.host)
            place.parent.mkdir(parents=True, exist_ok=True)
            if entry.link is None:
                with place.open("xb") as file:
                    while file.tell() < entry.size:
                        piece = yield from self.ask(
                            "get", root=tree.root, path=entry.path, offset=file.tell(), bytes=_CHUNK
                        )
                        data = base64.b64decode(piece["data"])
                        if not data:
                            raise HostError(f"{entry.path} became shorter meanwhile", host=self.host)
                        file.write(data)
                        done += len(data)
                        self.crew.progress(self.host, "fetching from there", done, tree.size)
            entries.append(
                PackedFile(entry.path, entry.size, entry.sha256, entry.link, place, replace=entry.replace)
            )
        return Tree(tree.root, tree.marker, tuple(entries))

    def _look(self) -> None:
        """Raises HostError where the host will not answer any more, or not in time."""
        link, crew = self.link, self.crew
        now = time.monotonic()
        if link.ended:
            pass
        elif not link.greeted:
            if crew.fleet.overdue(link, crew.launch.connect_timeout):
                crew.fleet.give_up(link, f"no answer within {crew.launch.connect_timeout:g} s")
        elif now - link.heard > crew.launch.lease:
            crew.fleet.give_up(link, f"silent for {crew.launch.lease:g} s")
        elif link.begun is not None and now > link.begun + crew.patience:
            crew.fleet.give_up(link, f"not done within {crew.patience:g} s (--timeout)")
        if link.ended:
            verb = "was lost" if link.greeted else "cannot be reached"
            why = link.why_unreachable()
            raise HostError(f"{verb}: {why}", host=self.host, failure=why_lost(why))


Progress = Callable[[str, str, int, int], None]  # host, what it does, and of how many bytes it did how many


class Crew:
    """The hosts' programs, one connection each. A context manager: when it is left, all have left."""

    def __init__(
        self,
        places: tuple[Placement, ...],
        launcher: ModuleType,
        launch: Launch,
        job_id: str,
        shell: Shell,
        *,
        progress: Progress,
        patience: float,
        tick: Callable[[], str | None] = lambda: None,
    ) -> None:
        self.launch = launch
        self.patience = patience
        self.progress = progress
        self.tick = tick
        self.fleet = Fleet(places, launcher, launch, job_id, shell, provision_source(), of_provision)
        self.remotes = {link.place.host: Remote(self, link) for link in self.fleet.links}

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        self.fleet.hold()
        try:
            limit = time.monotonic() + _PARTING
            links = [link for link in self.fleet.links if link.wire is not None]
            for link in links:
                link.tell("bye")
            while time.monotonic() < limit and not all(link.ended for link in links):
                self.fleet.turn(self._hear)
        finally:
            self.fleet.close()

    def together(self, jobs: Mapping[str, Steps[T]]) -> Results[T]:
        """Do all jobs at once -> per host what it returned, or the error that ended it.

        Raises KeyboardInterrupt where `tick` says that everything shall stop; then every job is closed.
        """
        results: Results[T] = {}
        waiting = dict(jobs)
        try:
            while waiting:
                for host, job in list(waiting.items()):
                    try:
                        next(job)
                        continue
                    except StopIteration as end:
                        results[host] = end.value
                    except MusterError as error:
                        results[host] = error
                    except (LookupError, TypeError, ValueError, AttributeError) as error:
                        if os.environ.get("MUSTER_DEBUG"):
                            raise
                        what = f"its answer cannot be used: {type(error).__name__}: {error}"
                        results[host] = HostError(what, host=host, hint="MUSTER_DEBUG=1 shows where")
                    del waiting[host]
                if waiting:
                    self.fleet.turn(self._hear)
                    stop = self.tick()
                    if stop:
                        raise KeyboardInterrupt(stop)
        finally:
            for job in waiting.values():
                job.close()
        return results

    def keep(self) -> None:
        """One look at the connections, while something else goes on."""
        self.fleet.turn(self._hear)

    def _hear(self, link: Connection, message: dict[str, Any]) -> None:
        remote = self.remotes[link.place.host]
        if message["m"] == "reply":
            remote.replies[message["id"]] = message
        elif message["m"] == "progress":
            self.progress(remote.host, str(message["text"]), 0, 0)


def safe_path(path: str, *, host: str) -> str:
    """A tree's path as a host gave it. Raises HostError for one that would leave the tree."""
    parts = PurePosixPath(path).parts
    if "\0" in path or path.startswith("/") or ".." in parts or not path:
        raise HostError(f"named a file {path!r}, which is not inside its folder", host=host)
    return path


def _pieces(entry: PackedFile, offset: int, *, host: str) -> Iterator[bytes]:
    """The rest of a file, in pieces; one empty piece for an empty file."""
    assert entry.source is not None
    try:
        with entry.source.open("rb") as file:
            file.seek(offset)
            left = entry.size - offset
            while True:
                data = file.read(min(_CHUNK, left))
                yield data
                left -= len(data)
                if left <= 0:
                    return
                if not data:
                    raise HostError(f"{entry.source} became shorter while it was sent", host=host)
    except OSError as error:
        raise HostError(f"{entry.source} cannot be read here: {error.strerror}", host=host) from None
