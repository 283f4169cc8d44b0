"""What the fabric workload's ranks said -> the result's own part: matrices, and who is slowest. Pure."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from muster.core.fabric.figures import Event, FabricReader
from muster.core.fabric.result import FabricRun, Matmul, PairMatrix, Slowest, TimedPair
from muster.core.job import Placement

Cells = list[list[float | None]]


def make_run(
    places: Sequence[Placement], device: str, measured: Sequence[tuple[str, Event]]
) -> tuple[FabricRun, list[str]]:
    """-> (the figures, what a reader must know of them). Whatever was said so far counts."""
    read = FabricReader(places, device, measured)
    figures: dict[str, Any] = read.figures()
    pairs = read.pairs()
    matrix = pair_matrix(pairs, alone=len(places) == 1)
    run = FabricRun(
        device="cuda" if device == "cuda" else "cpu",
        backend="nccl" if device == "cuda" else "gloo",
        devices={each.host: read.devices(each.host) for each in places},
        pairs=matrix,
        slowest=[*slowest_links(matrix), *slowest_devices(figures["matmul"])],
        seconds=_seconds(read),
        **figures,
    )
    return run, [*read.notes, *read.curtailed()]


def pair_matrix(pairs: Sequence[TimedPair], *, alone: bool) -> PairMatrix | None:
    """`alone`: there is one host, whose ranks talk with each other; else one rank speaks for each host."""
    if not pairs:
        return None
    hosts = {rank: host for each in pairs for rank, host in _ends(each)}
    ranks = sorted(hosts)
    place = {rank: index for index, rank in enumerate(ranks)}

    def empty() -> Cells:
        return [[None] * len(ranks) for _ in ranks]

    bandwidth, best, latency = empty(), empty(), empty()
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


def _ends(pair: TimedPair) -> Iterator[tuple[int, str]]:
    yield pair.source, pair.source_host
    yield pair.target, pair.target_host


def slowest_links(matrix: PairMatrix | None) -> list[Slowest]:
    """The slowest direction, and the host whose best link is slowest, against the medians.

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
    out, into = _best(rates, 0), _best(rates, 1)
    best = {name: min(out[name], into[name]) for name in matrix.names if name in out and name in into}
    if len(best) > 2:
        slowest.append(_lowest("links", best))
    return slowest


def _best(rates: Mapping[tuple[str, str], float], end: int) -> dict[str, float]:
    best: dict[str, float] = {}
    for pair, rate in rates.items():
        best[pair[end]] = max(best.get(pair[end], 0.0), rate)
    return best


def slowest_devices(products: Sequence[Matmul]) -> list[Slowest]:
    """Per precision, the host of the slowest device. One host alone is compared with nobody."""
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


def _seconds(read: FabricReader) -> dict[str, float]:
    """What each question took on rank 0. One without an end was cut off."""
    begun: dict[str, float] = {}
    spent: dict[str, float] = {}
    for _, event in read.heard:
        if event["rank"] == 0 and event["kind"] == "begin":
            begun[event["question"]] = event["time"]
        elif event["rank"] == 0 and event["kind"] == "end" and event["question"] in begun:
            spent[event["question"]] = event["time"] - begun[event["question"]]
    return spent
