"""What ranks said while they measured -> typed figures. Pure; the same for `muster check` and the workload.

An event is plain data: kind, rank, time, and what belongs to the kind.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from muster.core.fabric.busbw import algbw, busbw
from muster.core.fabric.result import (
    Beside,
    Latency,
    Matmul,
    Product,
    Sweep,
    TimedPair,
    ValueCheck,
    WrongValue,
    spread,
)
from muster.core.hardware.peaks import stated_peak
from muster.core.job import Placement

Event = Mapping[str, Any]
T = TypeVar("T")


class FabricReader:
    """Reads (host, event) pairs. What cannot be read is in `notes`.

    Figures are in the order of ranks, and a rank's in the order in which it said them: which rank was heard
    first is chance.
    """

    def __init__(self, places: Sequence[Placement], device: str, heard: Sequence[tuple[str, Event]]) -> None:
        self.places = places
        self.device = device
        self.heard = sorted(heard, key=lambda each: int(each[1]["rank"]))
        self.world_size = sum(each.slots for each in places)
        self.notes: list[str] = []
        self._hosts = {rank: each.host for each in places for rank in each.ranks}
        self._names = {event["rank"]: str(event["device"]) for _, event in self.of("ready")}

    def host_of(self, rank: int) -> str:
        """The label of a rank's host. Raises KeyError for a rank that there is not."""
        return self._hosts[rank]

    def of(self, kind: str) -> list[tuple[str, Event]]:
        """The events of one kind."""
        return [(host, event) for host, event in self.heard if event["kind"] == kind]

    def each(self, kind: str, make: Callable[[str, Event], T]) -> list[T]:
        """One figure per event; an event of another shape than expected is noted and left out."""
        made = []
        for host, event in self.of(kind):
            try:
                made.append(make(host, event))
            except (LookupError, TypeError, ArithmeticError, ValueError) as error:
                words = str(error).splitlines()[0]
                self.notes.append(f"{host}: an event {kind} that cannot be read: {words}")
        return made

    def figures(self) -> dict[str, Any]:
        """The fields of fabric_result.Figures."""
        return {
            "values": self.values(),
            "wrong": self.wrong(),
            "sweeps": self.each("sweep", self._sweep),
            "latencies": self.each("latency", lambda host, event: Latency(**content(event))),
            "matmul": self.each("matmul", self._matmul),
            "products": self.each("product", self._product),
            "beside": self.each("beside", lambda host, event: Beside(**content(event))),
        }

    def devices(self, host: str) -> list[str]:
        """The devices of a host's ranks that came so far, in the order of ranks."""
        return [self._names[rank] for rank in sorted(self._names) if self._hosts.get(rank) == host]

    def values(self) -> list[ValueCheck]:
        """Per operation, what all ranks compared."""
        sums: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
        ranks: dict[tuple[str, str], set[int]] = defaultdict(set)
        for _, event in self.of("values"):
            key = (str(event["operation"]), str(event["method"]))
            ranks[key].add(event["rank"])
            sums[key][0] += int(event["elements"])
            sums[key][1] += int(event["wrong"])
        return [
            ValueCheck(operation=key[0], method=key[1], ranks=len(ranks[key]), elements=total, wrong=wrong)
            for key, (total, wrong) in sums.items()
        ]

    def wrong(self) -> list[WrongValue]:
        """The first wrong elements that each rank saw."""
        listed = []
        for host, event in self.of("values"):
            for shown in event["shown"]:
                source = shown.get("source")
                listed.append(
                    WrongValue(
                        host=host,
                        rank=event["rank"],
                        operation=event["operation"],
                        source_host=None if source is None else self.host_of(source),
                        **shown,
                    )
                )
        return listed

    def _sweep(self, host: str, event: Event) -> Sweep:
        took, size = spread(event["seconds"]), int(event["bytes"])
        operation = str(event["operation"])
        return Sweep(
            operation=operation,
            method=event["method"],
            bytes=size,
            time=took,
            iterations=event["iterations"],
            algbw=algbw(size, took.median),
            busbw=busbw(operation, size, took.median, self.world_size),
            busbw_best=busbw(operation, size, took.best, self.world_size),
        )

    def pairs(self) -> list[TimedPair]:
        """All passes over a direction of a link together."""
        merged: dict[tuple[int, int], dict[str, Any]] = {}
        for _, event in self.of("pair"):
            into = merged.setdefault((event["source"], event["target"]), {**event})
            if into["bytes"] == event["bytes"] and into["time"] != event["time"]:
                into["seconds"] = [*into["seconds"], *event["seconds"]]
                into["latencies"] = [*into["latencies"], *event["latencies"]]
        return [self._pair(merged[ends]) for ends in sorted(merged)]

    def _pair(self, event: Event) -> TimedPair:
        took, size = spread(event["seconds"]), int(event["bytes"])
        latency = spread(event["latencies"]) if event["latencies"] else None
        return TimedPair(
            source=event["source"],
            target=event["target"],
            source_host=self.host_of(event["source"]),
            target_host=self.host_of(event["target"]),
            bytes=size,
            time=took,
            bandwidth=algbw(size, took.median),
            bandwidth_best=algbw(size, took.best),
            latency_median=latency.median if latency else None,
            latency_best=latency.best if latency else None,
        )

    def _matmul(self, host: str, event: Event) -> Matmul:
        device = self._names.get(event["rank"], "unknown")
        peak = stated_peak(device, event["precision"]) if self.device == "cuda" else None
        return Matmul(
            host=host,
            rank=event["rank"],
            device=device,
            peak=peak.flops if peak else None,
            peak_source=peak.source if peak else None,
            **content(event),
        )

    def _product(self, host: str, event: Event) -> Product:
        figures = content(event)
        return Product(flops=2 * figures["n"] ** 3 / figures["total"], **figures)

    def curtailed(self) -> list[str]:
        """What was cut short to stay in time, in words."""
        return [
            f"{event['operation']}: not measured from {event['bytes']} bytes on: "
            f"its {event['seconds']:.1f} s were used up"
            for _, event in self.of("curtailed")
        ]


def content(event: Event) -> dict[str, Any]:
    """What belongs to the kind alone."""
    return {key: value for key, value in event.items() if key not in ("kind", "rank", "time")}
