"""The fabric's figures as CSV files and as rows for people. Pure."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any

from muster.core.fabric.result import Beside, FabricRun, PairMatrix, Slowest
from muster.core.units import format_bytes
from muster.reports.words import number

TERA = 1e12


def files(fabric: FabricRun) -> dict[str, str]:
    """File name -> text. Figures in bytes, seconds, bytes/s and FLOP/s; an unknown one is an empty cell."""
    found = {}
    if fabric.sweeps:
        names = ("operation", "bytes", "seconds", "seconds_best", "variation", "algbw", "busbw", "method")
        of = attrgetter(
            "operation", "bytes", "time.median", "time.best", "time.variation", "algbw", "busbw", "method"
        )
        found["sweep.csv"] = _csv(names, map(of, fabric.sweeps))
    if fabric.pairs:
        found |= {
            "bandwidth.csv": _matrix(fabric.pairs, fabric.pairs.bandwidth, "bytes/s from row to column"),
            "latency.csv": _matrix(fabric.pairs, fabric.pairs.latency, "seconds"),
        }
    if fabric.matmul:
        names = ("host", "rank", "device", "precision", "n", "best", "sustained", "peak")
        ordered = sorted(fabric.matmul, key=attrgetter("precision", "rank"))
        found["matmul.csv"] = _csv(names, map(attrgetter(*names), ordered))
    if fabric.products:
        found["product.csv"] = _csv(
            ("n", "rank", "compute", "total", "communication", "flops"),
            (
                (p.n, rank, seconds, p.total, p.communication, p.flops)
                for p in fabric.products
                for rank, seconds in enumerate(p.compute_by_rank)
            ),
        )
    return found


def _matrix(pairs: PairMatrix, cells: Sequence[Sequence[float | None]], corner: str) -> str:
    rows = ((name, *row) for name, row in zip(pairs.names, cells, strict=True))
    return _csv((corner, *pairs.names), rows)


def _csv(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows([head, *rows])
    return file.getvalue()


def gbit(rate: float) -> str:
    """Bytes per second as the field states a link."""
    return f"{number(rate * 8 / 1e9, 3)} Gbit/s"


def tflops(rate: float) -> str:
    """FLOP/s in 10^12."""
    return f"{number(rate / TERA, 3)} TFLOP/s"


def micro(seconds: float) -> str:
    """A latency."""
    return f"{number(1e6 * seconds, 3)} µs"


def sweep_rows(fabric: FabricRun) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """A row per message size, with the bus bandwidth of each operation in Gbit/s. -> (columns, rows)."""
    operations = list(dict.fromkeys(each.operation for each in fabric.sweeps))
    rates = {(_nominal(each.bytes), each.operation): each for each in fabric.sweeps}
    sizes = sorted({size for size, _ in rates})
    rows = []
    for size in sizes:
        found = [rates.get((size, operation)) for operation in operations]
        rows.append(
            (format_bytes(size), *("" if each is None else number(each.busbw * 8 / 1e9, 3) for each in found))
        )
    return ("message", *operations), rows


def pair_rows(pairs: PairMatrix) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The median bandwidths in Gbit/s, from row to column. -> (columns, rows)."""
    rows = [
        (name, *("" if rate is None else number(rate * 8 / 1e9, 3) for rate in row))
        for name, row in zip(pairs.names, pairs.bandwidth, strict=True)
    ]
    return ("", *pairs.names), rows


def _nominal(size: int) -> int:
    """The size that was asked for: all-gather and reduce-scatter round it down to whole elements of each
    rank."""
    power = 1
    while power < size:
        power *= 2
    return power if power - size < size / 16 else size


def slowest_words(each: Slowest) -> tuple[str, str]:
    """(what it is, who it is and how slow)."""
    rate = tflops if each.what == "matmul" else gbit
    name = {
        "pair": "slowest pair",
        "links": "slowest host's links",
        "matmul": f"slowest device, {each.precision}",
    }[each.what]
    return name, f"{each.name}: {rate(each.value)}, {number(each.ratio, 3)} of the median {rate(each.median)}"


def summary(fabric: FabricRun) -> list[tuple[str, str]]:
    """The most important figures as (name, text)."""
    rows = []
    for operation in dict.fromkeys(each.operation for each in fabric.sweeps):
        best = max(fabric.of(operation), key=lambda each: each.busbw)
        size = format_bytes(_nominal(best.bytes))
        rows.append((operation, f"{gbit(best.busbw)} bus bandwidth at {size}, the highest"))
    for each in fabric.latencies:
        mean = f"{micro(each.mean)} mean, " if each.mean is not None else ""
        text = f"{micro(each.median)} median, {mean}{micro(each.best)} best, {each.bytes} bytes"
        rows.append((f"{each.operation} latency", text))
    for precision in dict.fromkeys(each.precision for each in fabric.matmul):
        rates = [each.sustained for each in fabric.matmul if each.precision == precision]
        peaks = {each.peak for each in fabric.matmul if each.precision == precision and each.peak}
        share = f", {number(100 * min(rates) / min(peaks), 3)} % of the stated peak" if peaks else ""
        text = f"{tflops(min(rates))} to {tflops(max(rates))} a device, sustained{share}"
        rows.append((f"matmul {precision}", text))
    for product in fabric.products:
        text = (
            f"{tflops(product.flops)} in all, n = {product.n:,}: {micro_or_more(product.compute)} computing"
        )
        rows.append(
            ("matmul over all ranks", f"{text}, {micro_or_more(product.communication)} communication")
        )
    rows += [("computing beside an exchange", beside_words(each)) for each in fabric.beside]
    return [*rows, *(slowest_words(each) for each in fabric.slowest)]


def beside_words(each: Beside) -> str:
    """What computation and exchange lose to each other."""
    own, others = (f"{number(100 * share, 3)} %" for share in (each.computing, each.exchanging))
    return (
        f"{own} of its speed alone, the exchange {others}; synchronising costs {micro_or_more(each.meeting)}"
    )


def micro_or_more(seconds: float) -> str:
    """A duration in a unit that suits it."""
    return micro(seconds) if seconds < 1e-3 else f"{number(1e3 * seconds, 3)} ms"
