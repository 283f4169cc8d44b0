"""The fabric's figures as CSV files, as rows for people, and on the page."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from muster.core.fabric import FabricRun, Matmul, PairMatrix
from muster.core.result import Result
from muster.core.units import counted, format_bytes
from muster.reports.charts import Chart, ChartSeries, style_of
from muster.results.figures import gbit, micro, nominal, number, tflops
from muster.store.atomic import csv_text, write_text
from muster.store.runfolder import RunFolder
from muster.workloads.fabric.fold import best_links

MOST_HOSTS = 96  # rows that are drawn: those of the slowest links, where there are more
MOST_PRODUCTS = 32  # hosts of a precision: the slowest; all are in fabric/matmul.csv
TICKS = 8  # message sizes that are written below a picture
FEW = 12  # names up to which each cell of the map has its number
SLOW = 0.5  # of the median sender's best: below, a cell has the warning's colour
SHADES = 5  # of cells, from pale to full


def write_tables(run: RunFolder, result: Result) -> None:
    """Write fabric/*.csv: the sweep, the pairs as matrices, the products."""
    if result.fabric is None:
        return
    for old in run.fabric.glob("*.csv"):  # of an attempt before this one
        old.unlink()
    for name, text in files(result.fabric).items():
        run.fabric.mkdir(exist_ok=True)
        write_text(run.fabric / name, text)


def files(fabric: FabricRun) -> dict[str, str]:
    """Return texts by file name. Figures in bytes, seconds, bytes/s and FLOP/s; an unknown one is an empty
    cell."""
    texts = {}
    if fabric.sweeps:
        names = ("operation", "bytes", "seconds", "seconds_best", "variation", "algbw", "busbw", "method")
        of = attrgetter(
            "operation", "bytes", "time.median", "time.best", "time.variation", "algbw", "busbw", "method"
        )
        texts["sweep.csv"] = csv_text(names, map(of, fabric.sweeps))
    if fabric.pairs:
        texts |= {
            "bandwidth.csv": _matrix(fabric.pairs, fabric.pairs.bandwidth, "bytes/s from row to column"),
            "latency.csv": _matrix(fabric.pairs, fabric.pairs.latency, "seconds"),
        }
    if fabric.matmul:
        names = ("host", "rank", "device", "precision", "n", "best", "sustained", "peak")
        ordered = sorted(fabric.matmul, key=attrgetter("precision", "rank"))
        texts["matmul.csv"] = csv_text(names, map(attrgetter(*names), ordered))
    if fabric.products:
        texts["product.csv"] = csv_text(
            ("n", "rank", "compute", "total", "communication", "flops"),
            (
                (p.n, rank, seconds, p.total, p.communication, p.flops)
                for p in fabric.products
                for rank, seconds in enumerate(p.compute_by_rank)
            ),
        )
    return texts


def _matrix(pairs: PairMatrix, cells: Sequence[Sequence[float | None]], corner: str) -> str:
    rows = ((name, *row) for name, row in zip(pairs.names, cells, strict=True))
    return csv_text((corner, *pairs.names), rows)


def sweep_rows(fabric: FabricRun) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return columns and rows: one per message size, with the bus bandwidth of each operation in Gbit/s."""
    operations = list(dict.fromkeys(each.operation for each in fabric.sweeps))
    rates = {(nominal(each.bytes), each.operation): each for each in fabric.sweeps}
    sizes = sorted({size for size, _ in rates})
    rows = []
    for size in sizes:
        cells = [rates.get((size, operation)) for operation in operations]
        rows.append(
            (format_bytes(size), *("" if each is None else number(each.busbw * 8 / 1e9, 3) for each in cells))
        )
    return ("message", *operations), rows


def pair_rows(pairs: PairMatrix) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return columns and rows: the median bandwidths in Gbit/s, from row to column."""
    rows = [
        (name, *("" if rate is None else number(rate * 8 / 1e9, 3) for rate in row))
        for name, row in zip(pairs.names, pairs.bandwidth, strict=True)
    ]
    return ("", *pairs.names), rows


@dataclass(frozen=True)
class PageSection:
    """What the page's template shows."""

    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    map: PairMap | None
    products: list[tuple[str, ...]]


def section(fabric: FabricRun) -> PageSection:
    """Return everything of the fabric but its charts."""
    columns, rows = sweep_rows(fabric)
    return PageSection(
        columns=columns,
        rows=rows,
        map=heat_map(fabric.pairs) if fabric.pairs else None,
        products=_products(fabric),
    )


def charts(fabric: FabricRun) -> list[Chart]:
    """Return bus bandwidth and time of every operation over the message size, in powers of two."""
    rates, times, sizes = [], [], set()
    for index, operation in enumerate(dict.fromkeys(each.operation for each in fabric.sweeps)):
        sweeps = sorted(fabric.of(operation), key=lambda each: each.bytes)
        at, style = [math.log2(each.bytes) for each in sweeps], style_of(index)
        sizes |= {round(x) for x in at}
        bandwidths = zip(at, (each.busbw * 8 / 1e9 for each in sweeps), strict=True)
        rates.append(ChartSeries(operation, tuple(bandwidths), style))
        medians = zip(at, (1e3 * each.time.median for each in sweeps), strict=True)
        times.append(ChartSeries(operation, tuple(medians), style))
    names = tuple((float(power), format_bytes(2**power)) for power in sorted(sizes))
    names = names[:: max(1, -(-len(names) // TICKS))]
    return [
        Chart("Bus bandwidth", "Gbit/s", "message size", tuple(rates), x_names=names),
        Chart("Time of one operation, median", "milliseconds", "message size", tuple(times), x_names=names),
    ]


def _products(fabric: FabricRun) -> list[tuple[str, ...]]:
    """Return a row per precision and host, the slowest first: its slowest device, and its best product."""
    hosts: dict[tuple[str, str], list[Matmul]] = {}
    for each in fabric.matmul:
        hosts.setdefault((each.precision, each.host), []).append(each)
    rows: list[tuple[str, ...]] = []
    for precision in sorted({key[0] for key in hosts}):
        of_hosts = {host: matmuls for (of, host), matmuls in hosts.items() if of == precision}
        slow = {host: min(matmuls, key=lambda each: each.sustained) for host, matmuls in of_hosts.items()}
        for host in sorted(slow, key=lambda each: slow[each].sustained)[:MOST_PRODUCTS]:
            low, devices = slow[host], of_hosts[host]
            share = f"{100 * low.sustained / low.peak:.0f} %" if low.peak else "not stated"
            best = tflops(max(each.best for each in devices))
            rows.append(
                (host, precision, counted(len(devices), "device"), tflops(low.sustained), best, share)
            )
    return rows


# ----------------------------------------------------------------------------------------------------
# The matrix of pairs as a table whose cells are coloured: the fuller the colour, the faster.


@dataclass(frozen=True)
class PairMap:
    """What the page's template shows: names, and per row (name, cells). A cell: class, title, text."""

    names: tuple[str, ...]
    rows: list[tuple[str, list[tuple[str, str, str]]]]
    label: str
    note: str


def heat_map(pairs: PairMatrix) -> PairMap:
    """Return bandwidth from row to column. Where there are too many hosts to show, those with the slowest
    links.

    The warning's colour is used below half of the median of the senders' best: of three hosts, one that is
    slow makes most links slow, and with them their median.
    """
    cells = {
        (row, column): rate
        for row, rates in enumerate(pairs.bandwidth)
        for column, rate in enumerate(rates)
        if rate is not None
    }
    names, note = pairs.names, ""
    kept = list(range(len(names)))
    if len(names) > MOST_HOSTS:
        slowest = _slowest(cells)
        kept = sorted(slowest)
        note = f"{len(kept)} of {len(names):,} are shown: those with the slowest links. "
        note += "All are in fabric/bandwidth.csv."
        cells = {ends: rate for ends, rate in cells.items() if slowest.issuperset(ends)}
    high, middle = max(cells.values()), statistics.median(cells.values())
    limit = SLOW * statistics.median(best_links(cells, 0).values())

    def cell(row: int, column: int) -> tuple[str, str, str]:
        rate, latency = cells.get((row, column)), pairs.latency[row][column]
        if rate is None:
            return "", "", ""
        style = "slow" if rate < limit else f"fast s{math.ceil(SHADES * rate / high)}"
        title = f"{names[row]} to {names[column]}: {gbit(rate)}"
        title += f", {micro(latency)}" if latency is not None else ""
        return style, title, number(rate * 8 / 1e9, 3) if len(kept) <= FEW else ""

    return PairMap(
        names=tuple(names[each] for each in kept) if len(kept) <= FEW else (),
        rows=[(names[row], [cell(row, column) for column in kept]) for row in kept],
        label=f"Bandwidth of each pair of hosts: from {gbit(min(cells.values()))} to {gbit(high)}, "
        f"median {gbit(middle)}",
        note=note,
    )


def _slowest(cells: Mapping[tuple[int, int], float]) -> set[int]:
    """Return half of the hosts that are drawn, those with the lowest rates on average; then the slowest
    links' ends."""
    rates: dict[int, list[float]] = {}
    for ends, rate in cells.items():
        for each in ends:
            rates.setdefault(each, []).append(rate)
    kept = set(sorted(rates, key=lambda each: statistics.fmean(rates[each]))[: MOST_HOSTS // 2])
    for ends in sorted(cells, key=lambda each: cells[each]):
        kept |= set(ends)
        if len(kept) >= MOST_HOSTS - 1:
            break
    return kept
