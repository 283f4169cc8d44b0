"""What ranks said during the group checks -> one typed result."""

from __future__ import annotations

import json
import re
import time
from collections import defaultdict, deque
from collections.abc import Callable

from muster.core.busbw import algbw
from muster.core.fabric import Asked
from muster.core.fabric_figures import Event, Reader
from muster.core.fabric_result import Copy, Disk, Fabric, FabricHost, MpiHello, Rendezvous, spread
from muster.core.job import Placement
from muster.stages.fabric_blame import Told, failures_of
from muster.supervise.supervisor import Outcome

_GRACE = 5.0  # seconds of silence that mean nothing
_WORDS = 20  # of a host's log, that explain an end without a word


class Collector:
    """Hears every event, and makes the result of it at the end."""

    def __init__(
        self,
        places: tuple[Placement, ...],
        asked: Asked,
        device: str,
        launcher: str,
        address: str,
        port: int,
        watch: Callable[[str, Event], None],
    ) -> None:
        self.places = places
        self.asked = asked
        self.device = device
        self.launcher = launcher
        self.address, self.port = address, port
        self.watch = watch
        self.events: list[tuple[str, Event]] = []
        self.notes: list[str] = []
        self.heard = time.monotonic()
        self.logs: dict[str, deque[str]] = defaultdict(lambda: deque(maxlen=_WORDS))

    def event(self, host: str, line: str) -> None:
        """A rank's line. One that a dying rank left unfinished is noted, not believed."""
        if not line.strip():
            return
        try:
            event = json.loads(line)
            if not isinstance(event, dict) or not isinstance(event.get("kind"), str):
                raise ValueError("not an event")
            if not isinstance(event.get("rank"), int):
                raise ValueError("not an event")
        except ValueError:
            self.notes.append(f"{host}: unreadable line: {line[:200]}")
            return
        self.heard = time.monotonic()
        self.events.append((host, event))
        self.watch(host, event)

    def log(self, host: str, rank: int | None, lines: list[str]) -> None:
        """What a host's processes printed: the last words are kept."""
        self.logs[host].extend(lines)

    def in_vain(self) -> str | None:
        """Why to wait no longer: some ranks are through, and those that are not have long been silent.

        Sooner where the others have missed them already.
        """
        over = {event["rank"] for kind in ("done", "ended") for _, event in self.of(kind)}
        left = set(range(self.world_size)) - over
        missed = {rank for _, event in self.of("missing") for rank in event["ranks"]}
        patience = 0.0 if left <= missed else max(self.asked.arrival, self.asked.patience, self.asked.seconds)
        if not over or not left or time.monotonic() - self.heard < patience + _GRACE:
            return None
        hosts = sorted({self.host_of(rank) for rank in left})
        return f"timeout: no more messages from {', '.join(hosts)}"

    @property
    def world_size(self) -> int:
        """Ranks on all hosts."""
        return sum(each.slots for each in self.places)

    def host_of(self, rank: int) -> str:
        """The label of a rank's host."""
        return next(each.host for each in self.places if rank in each.ranks)

    def of(self, kind: str) -> list[tuple[str, Event]]:
        """The events of one kind, in the order of their arrival."""
        return [(host, event) for host, event in self.events if event["kind"] == kind]

    def result(self, outcome: Outcome, seconds: float, hello: MpiHello | None) -> Fabric:
        """Everything together. An event of another shape than expected is noted and left out."""
        told = Told(self.places, self.events, {host: list(words) for host, words in self.logs.items()})
        read = Reader(self.places, self.device, self.events)
        return Fabric(
            hosts=[self._host(each, read) for each in self.places],
            world_size=self.world_size,
            device="cuda" if self.device == "cuda" else "cpu",
            backend="nccl" if self.device == "cuda" else "gloo",
            launcher=self.launcher,
            seconds=seconds,
            asked=list(self.asked.questions),
            rendezvous=self._rendezvous(told),
            **read.figures(),
            pairs=read.pairs(),
            copies=read.each("copy", self._copy),
            disks=read.each("disk", self._disk),
            mpi=hello,
            failures=failures_of(told, outcome),
            notes=[*self.notes, *read.notes, *read.curtailed()],
            stopped=outcome.stopped,
        )

    def _host(self, where: Placement, read: Reader) -> FabricHost:
        ready = {event["rank"]: event for host, event in self.of("ready") if host == where.host}
        first = next(iter(ready.values()), {})
        return FabricHost(
            host=where.host,
            ranks=list(where.ranks),
            devices=read.devices(where.host),
            threads=first.get("threads"),
            torch=first.get("torch"),
        )

    def _rendezvous(self, told: Told) -> Rendezvous:
        connect: dict[str, float] = {}
        for host, event in self.of("met"):
            connect[host] = max(connect.get(host, 0.0), float(event["connect"]))
        alone = self.world_size == 1
        absent = set() if alone else {each.host for each in self.places} - set(connect)
        missing = absent | told.accused("rendezvous")
        return Rendezvous(
            address=self.address,
            port=self.port,
            connect=connect,
            missing=[each.host for each in self.places if each.host in missing],
        )

    def _copy(self, host: str, event: Event) -> Copy:
        return Copy(
            host=host,
            rank=event["rank"],
            bytes=event["bytes"],
            to_device=spread(event["to_device"]),
            to_host=spread(event["to_host"]),
        )

    def _disk(self, host: str, event: Event) -> Disk:
        size = int(event["bytes"])
        return Disk(
            host=host,
            folder=re.sub(r"/[^/]*fabric-[0-9a-f]{8}-[^/]*$", "", event["folder"]),  # our own is gone by now
            bytes=size,
            write=algbw(size, event["write_seconds"]),
            read=algbw(size, event["read_seconds"]),
            method=event["method"],
            cached=event["cached"],
            right=event["right"],
        )
