"""From what ranks reported while they measured to figures, and to who is slowest or to blame. Pure; the same
for `muster check` and the workload.

An event is plain data: kind, rank, time, and what belongs to the kind.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from muster.core.fabric import (
    FabricRun,
    Latency,
    Matmul,
    Overlap,
    PairMatrix,
    Product,
    Slowest,
    Sweep,
    TimedPair,
    ValueCheck,
    WrongValue,
    spread,
)
from muster.core.hardware.peaks import stated_peak
from muster.core.job import Job, Placement
from muster.core.result import Failure, Result
from muster.core.state import State
from muster.workloads.fabric.request import algbw, busbw

Event = Mapping[str, Any]
Rates = Mapping[tuple[str, str], float]  # (from host, to host) -> bytes/s
K = TypeVar("K")
T = TypeVar("T")
# What an event of a kind has to have, where several are read together: damaged files may lack it.
_NEEDED = {
    "values": ("operation", "method", "elements", "wrong", "shown"),
    "pair": ("source", "target", "bytes", "time", "seconds", "latencies"),
    "curtailed": ("operation", "bytes", "seconds"),
    "begin": ("question",),
    "end": ("question",),
    "missing": ("question", "ranks"),
}


class RankEvents:
    """The (host, event) pairs of a group's ranks. Events that cannot be read are in `notes`.

    Figures are in the order of ranks, and a rank's in the order in which it reported them: which rank
    arrives first is chance.
    """

    def __init__(
        self, places: Sequence[Placement], device: str, events: Sequence[tuple[str, Event]] = ()
    ) -> None:
        self.places = places
        self.device = device
        self.events: list[tuple[str, Event]] = []
        self.world_size = sum(each.slots for each in places)
        self.notes: list[str] = []
        self._hosts = {rank: each.host for each in places for rank in each.ranks}
        self._names: dict[int, str] = {}  # of devices
        for host, event in events:
            self.add(host, event)

    def add(self, host: str, event: Event) -> None:
        """Add an event. One that lacks a part is noted and left out."""
        lacking = [name for name in _NEEDED.get(event["kind"], ()) if name not in event]
        if lacking:
            self.notes.append(f"{host}: an event {event['kind']} that cannot be read: it has no {lacking[0]}")
            return
        self.events.append((host, event))
        if event["kind"] == "ready":
            self._names[event["rank"]] = str(event.get("device", "unknown"))

    def host_of(self, rank: int) -> str:
        """Return the label of a rank's host. Raises KeyError for a rank that there is not."""
        return self._hosts[rank]

    def of(self, *kinds: str) -> list[tuple[str, Event]]:
        """Return the events of some kinds, by rank."""
        chosen = [(host, event) for host, event in self.events if event["kind"] in kinds]
        return sorted(chosen, key=lambda each: int(each[1]["rank"]))

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
        """Return the fields that a check's document and a run's result have alike."""
        on_gpus = self.device == "cuda"
        return {
            "device": "cuda" if on_gpus else "cpu",
            "backend": "nccl" if on_gpus else "gloo",
            "values": self._values(),
            "wrong": self._wrong(),
            "sweeps": self.each("sweep", self._sweep),
            "latencies": self.each("latency", lambda host, event: Latency(**content(event))),
            "matmul": self.each("matmul", self._matmul),
            "products": self.each("product", self._product),
            "beside": self.each("beside", lambda host, event: Overlap(**content(event))),
        }

    def devices(self, host: str) -> list[str]:
        """Return the devices of a host's ranks that came so far, in the order of ranks."""
        return [name for rank, name in sorted(self._names.items()) if self._hosts.get(rank) == host]

    def _values(self) -> list[ValueCheck]:
        """Per operation, what all ranks compared."""
        checks: dict[tuple[str, str], list[Event]] = defaultdict(list)
        for _, event in self.of("values"):
            checks[str(event["operation"]), str(event["method"])].append(event)
        return [
            ValueCheck(
                operation=operation,
                method=method,
                ranks=len({each["rank"] for each in compared}),
                elements=sum(int(each["elements"]) for each in compared),
                wrong=sum(int(each["wrong"]) for each in compared),
            )
            for (operation, method), compared in checks.items()
        ]

    def _wrong(self) -> list[WrongValue]:
        """Return the first wrong elements that each rank saw."""
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
        """Return what was cut short to stay in time, in words."""
        return [
            f"{event['operation']}: not measured from {event['bytes']} bytes on: "
            f"its {event['seconds']:.1f} s were used up"
            for _, event in self.of("curtailed")
        ]

    def seconds(self) -> dict[str, float]:
        """Return what each question took on rank 0. One without an end was cut off."""
        begun: dict[str, float] = {}
        spent: dict[str, float] = {}
        for _, event in self.of("begin", "end"):
            if event["rank"] == 0 and event["kind"] == "begin":
                begun[event["question"]] = event["time"]
            elif event["rank"] == 0 and event["question"] in begun:
                spent[event["question"]] = event["time"] - begun[event["question"]]
        return spent

    def accused(self, question: str | None = None) -> dict[str, tuple[int, str]]:
        """Host that most others missed -> the first rank that they missed, and at which question.

        A host that is cut off misses all others, and is one voice. Where no host has a majority against it
        (two hosts that miss each other): all but the first, which holds the meeting place.
        """
        voices: dict[str, set[str]] = defaultdict(set)
        missed: dict[str, tuple[int, str]] = {}
        for host, event in self.of("missing"):
            for rank in event["ranks"]:
                if question in (None, event["question"]) and self.host_of(rank) != host:
                    voices[self.host_of(rank)].add(host)
                    missed.setdefault(self.host_of(rank), (rank, str(event["question"])))
        speakers = set().union(*voices.values()) if voices else set()
        accused = {host for host, against in voices.items() if 2 * len(against) > len(speakers)}
        accused = accused or set(voices) - {self.places[0].host}
        return {host: missed[host] for host in missed if host in accused}


def content(event: Event) -> dict[str, Any]:
    """Return what belongs to the kind alone."""
    return {key: value for key, value in event.items() if key not in ("kind", "rank", "time")}


# ----------------------------------------------------------------------------------------------------
# The result's part of a run of the workload: matrices, and who is slowest.


def fabric_run(read: RankEvents) -> FabricRun:
    """Return the figures of whatever was reported so far."""
    figures, pairs = read.figures(), read.pairs()
    matrix = pair_matrix(pairs, alone=len(read.places) == 1)
    return FabricRun(
        devices={each.host: read.devices(each.host) for each in read.places},
        pairs=matrix,
        slowest=[*slowest_links(matrix), *slowest_devices(figures["matmul"])],
        seconds=read.seconds(),
        **figures,
    )


def pair_matrix(pairs: Sequence[TimedPair], *, alone: bool) -> PairMatrix | None:
    """Return bandwidths from row to column. `alone`: there is one host, whose ranks exchange with each other;
    else one rank stands for each host."""
    if not pairs:
        return None
    hosts = {each.source: each.source_host for each in pairs}
    hosts |= {each.target: each.target_host for each in pairs}
    ranks = sorted(hosts)
    place = {rank: index for index, rank in enumerate(ranks)}
    cells: list[list[list[float | None]]] = [[[None] * len(ranks) for _ in ranks] for _ in range(3)]
    bandwidth, best, latency = cells
    for each in pairs:
        row, column = place[each.source], place[each.target]
        bandwidth[row][column], best[row][column] = each.bandwidth, each.bandwidth_best
        if each.latency_best is not None:  # half a round trip: the same both ways
            latency[row][column] = latency[column][row] = each.latency_best
    return PairMatrix(
        names=[f"rank {rank}" if alone else hosts[rank] for rank in ranks],
        ranks=ranks,
        bytes=max(each.bytes for each in pairs),
        bandwidth=bandwidth,
        bandwidth_best=best,
        latency=latency,
    )


def slowest_links(matrix: PairMatrix | None) -> list[Slowest]:
    """Return the slowest direction, and the host whose best link is slowest, against the medians.

    A host is judged by its best links: a peer's slow link is not its fault. Two hosts share their one link,
    so that neither is named.
    """
    if matrix is None:
        return []
    rates = {
        (source, target): rate
        for source, row in zip(matrix.names, matrix.bandwidth, strict=True)
        for target, rate in zip(matrix.names, row, strict=True)
        if rate is not None
    }
    (source, target), rate = min(rates.items(), key=lambda item: item[1])
    middle = statistics.median(rates.values())
    slowest = [
        Slowest(
            what="pair", name=f"{source} to {target}", host=source, other=target, value=rate, median=middle,
            ratio=rate / middle,
        )
    ]  # fmt: skip
    out, into = best_links(rates, 0), best_links(rates, 1)
    best = {name: min(out[name], into[name]) for name in matrix.names if name in out and name in into}
    if len(best) > 2:
        slowest.append(_lowest("links", best))
    return slowest


def best_links(rates: Mapping[tuple[K, K], float], end: int) -> dict[K, float]:
    """Host -> the best rate of the links that begin (0) or end (1) there."""
    best: dict[K, float] = {}
    for pair, rate in rates.items():
        best[pair[end]] = max(best.get(pair[end], 0.0), rate)
    return best


def slowest_devices(products: Sequence[Matmul]) -> list[Slowest]:
    """Per precision, the host of the slowest device. One host alone has no other to compare with."""
    rates: dict[str, dict[str, float]] = defaultdict(dict)
    for each in products:
        of_hosts = rates[each.precision]
        of_hosts[each.host] = min(of_hosts.get(each.host, each.sustained), each.sustained)
    return [
        _lowest("matmul", of_hosts, precision) for precision, of_hosts in rates.items() if len(of_hosts) > 1
    ]


def _lowest(what: Any, of_hosts: Mapping[str, float], precision: str | None = None) -> Slowest:
    host, value = min(of_hosts.items(), key=lambda item: item[1])
    middle = statistics.median(of_hosts.values())
    return Slowest(
        what=what, name=host, host=host, precision=precision, value=value, median=middle, ratio=value / middle
    )


# ----------------------------------------------------------------------------------------------------
# A run of the workload as a Result, and whose fault it is.


def fabric_result(made: Result, measured: Sequence[tuple[str, Event]], job: Job) -> Result:
    """Return the same with what was measured, and without a model, an engine, a batch."""
    read = RankEvents(job.placements, job.device, measured)
    torch = next((event.get("torch") for _, event in measured if event["kind"] == "ready"), None)
    fabric = fabric_run(read)
    result = made.model_copy(
        update={
            "model": None,
            "engine": None,
            "precision": None,
            "global_batch": None,
            "fabric": fabric,
            "versions": {"torch": str(torch)} if torch else {},
            "notes": [*made.notes, *read.notes, *read.curtailed()],
        }
    )
    if result.status is State.FAILED and result.failure is not None:
        failure = _unanswered(read, result.failure)
    else:
        failure = _wrong_results(fabric) if result.status.good else None
    return result.model_copy(update={"status": State.FAILED, "failure": failure}) if failure else result


def _unanswered(read: RankEvents, failure: Failure) -> Failure | None:
    """Return the failure of whom others missed, unless it is that host's own words already."""
    accused = read.accused()
    if not accused or failure.host in accused:
        return None
    host, (rank, question) = next(iter(accused.items()))
    return Failure(
        what=f"rank {rank} did not answer the other ranks' check at {question}",
        where=f"rank {rank}",
        host=host,
        hint="it hangs or is unreachable: see its log in the run folder, and run `muster check`",
    )


def _wrong_results(fabric: FabricRun) -> Failure | None:
    """Return the first host that wrong values point at: they are a failure, however smoothly they came."""
    hint = "leave the host out; test its memory, device and network card"
    if fabric.wrong:
        guilty = sorted(suspects(fabric.wrong))
        seen = next(each for each in fabric.wrong if guilty[0] in (each.host, each.source_host))
        others = f" (and {', '.join(guilty[1:])})" if guilty[1:] else ""
        return Failure(what=f"wrong values{others}: {seen.words}", host=guilty[0], hint=hint)
    for each in fabric.matmul:
        if not each.right:
            what = f"wrong values: an exact product in {each.precision} differs on {each.device}"
            return Failure(what=what, where=f"rank {each.rank}", host=each.host, hint=hint)
    return None


def suspects(wrong: Sequence[WrongValue]) -> set[str]:
    """Return the hosts that wrong values point at.

    An element with a known source accuses it and who saw it: a host that is part of all such elements is the
    one. An element of a sum accuses who saw it, as far as the others do not say otherwise.
    """
    sourced = [{each.host, each.source_host} for each in wrong if each.source_host is not None]
    observers = {each.host for each in wrong if each.source_host is None}
    if not sourced:
        return observers
    common = {str(host) for host in set.intersection(*sourced)}
    if not common:
        return observers | {str(host) for pair in sourced for host in pair}
    return common & observers or common
