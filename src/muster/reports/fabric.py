"""The fabric on the page: key figures, the sweep as pictures, the pairs as a heat map. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from muster.core.fabric.result import FabricRun, Matmul, PairMatrix
from muster.core.result import Result
from muster.core.units import counted, format_bytes
from muster.reports.charts import COLOURS, Chart, ChartSeries, element, style_of, titled
from muster.reports.fabric_tables import sweep_rows
from muster.reports.tables import TimeSlice
from muster.results.figures import gbit, micro, number, seconds, slowest_words, tflops

MOST_HOSTS = 96  # rows that are drawn: those of the slowest links, where there are more
MOST_PRODUCTS = 32  # hosts of a precision: the slowest; all are in fabric/matmul.csv
TICKS = 8  # message sizes that are written below a picture


@dataclass(frozen=True)
class PageSection:
    """What the page's template shows."""

    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    map: Markup
    map_note: str
    slowest: list[tuple[str, str]]
    products: list[tuple[str, ...]]


def section(fabric: FabricRun) -> PageSection:
    """Everything of the fabric but its pictures."""
    columns, rows = sweep_rows(fabric)
    shown, note = _shown(fabric.pairs) if fabric.pairs else (None, "")
    return PageSection(
        columns=columns,
        rows=rows,
        map=heat_map(shown) if shown else Markup(""),
        map_note=note,
        slowest=[slowest_words(each) for each in fabric.slowest],
        products=_products(fabric),
    )


def charts(fabric: FabricRun) -> list[Chart]:
    """Bus bandwidth and time of every operation over the message size, in powers of two."""
    rates, times, sizes = [], [], set()
    for index, operation in enumerate(dict.fromkeys(each.operation for each in fabric.sweeps)):
        sweeps = sorted(fabric.of(operation), key=lambda each: each.bytes)
        at = [math.log2(each.bytes) for each in sweeps]
        sizes |= {round(x) for x in at}
        rates.append(
            ChartSeries(
                operation, tuple(zip(at, (s.busbw * 8 / 1e9 for s in sweeps), strict=True)), style_of(index)
            )
        )
        times.append(
            ChartSeries(
                operation, tuple(zip(at, (1e3 * s.time.median for s in sweeps), strict=True)), style_of(index)
            )
        )
    names = tuple((float(power), format_bytes(2**power)) for power in sorted(sizes))
    names = names[:: max(1, -(-len(names) // TICKS))]
    return [
        Chart("Bus bandwidth", "Gbit/s", "message size", tuple(rates), x_names=names),
        Chart("Time of one operation, median", "milliseconds", "message size", tuple(times), x_names=names),
    ]


def _products(fabric: FabricRun) -> list[tuple[str, ...]]:
    """A row per precision and host, the slowest first: its slowest device, and its best product."""
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


def _shown(pairs: PairMatrix) -> tuple[PairMatrix, str]:
    """The whole matrix, or the rows of the hosts with the slowest links where it is too large to look at."""
    if len(pairs.names) <= MOST_HOSTS:
        return pairs, ""
    kept = sorted(_slowest(pairs))

    def cut(cells: Sequence[Sequence[float | None]]) -> list[list[float | None]]:
        return [[cells[row][column] for column in kept] for row in kept]

    smaller = pairs.model_copy(
        update={
            "names": [pairs.names[index] for index in kept],
            "bandwidth": cut(pairs.bandwidth),
            "latency": cut(pairs.latency),
        }
    )
    note = f"{len(kept)} of {len(pairs.names):,} are shown: those with the slowest links. "
    return smaller, note + "All are in fabric/bandwidth.csv."


def _slowest(pairs: PairMatrix) -> set[int]:
    """Half of what is drawn: the hosts with the lowest rates on average. Then the slowest links' ends."""
    measured = [
        (rate, row, column)
        for row, rates in enumerate(pairs.bandwidth)
        for column, rate in enumerate(rates)
        if rate is not None
    ]
    sums: dict[int, list[float]] = {}
    for rate, row, column in measured:
        sums.setdefault(row, []).append(rate)
        sums.setdefault(column, []).append(rate)
    means = sorted(sums, key=lambda index: statistics.fmean(sums[index]))
    kept = set(means[: MOST_HOSTS // 2])
    for _, row, column in sorted(measured):
        kept |= {row, column}
        if len(kept) >= MOST_HOSTS - 1:
            break
    return kept


def time_parts(
    figures: Result, fabric: FabricRun
) -> tuple[list[tuple[str, float, str]], list[TimeSlice], str]:
    """As tables.time_parts: what each question took on rank 0, and the rest."""
    whole = figures.seconds.total
    spent = [
        (name, value, f"c{index % COLOURS}") for index, (name, value) in enumerate(fabric.seconds.items())
    ]
    rest = whole - sum(value for _, value, _ in spent)
    spent += [("rest", rest, "rest")] if rest > 0 else []
    parts = [
        TimeSlice(name, seconds(value), f"{100 * value / whole:.1f} %" if whole > 0 else "", style)
        for name, value, style in spent
    ]
    return spent, parts, "Rest: starting the processes, loading torch, ending."


# ----------------------------------------------------------------------------------------------------
# A matrix of pairs as inline SVG. Pure. Colours come from the page's style, by class.

LARGEST, SMALLEST = 46.0, 8.0  # a cell's side
SIDE = 860.0  # of the whole, at most, as long as cells are not at their smallest
LEFT, TOP = 110.0, 34.0
LINE = 13.0  # a name's height
FEW = 12  # names up to which each cell has its number
SLOW = 0.5  # of the median sender's best: below, a cell has the warning's colour


def heat_map(pairs: PairMatrix) -> Markup:
    """Bandwidth from row to column as SVG: the fuller the colour, the faster.

    The warning's colour below half of the median of the senders' best: of three hosts, one that is slow makes
    most links slow, and with them their median.
    """
    measured = [rate for row in pairs.bandwidth for rate in row if rate is not None]
    if not measured:
        return Markup("")
    high, middle = max(measured), statistics.median(measured)
    bests = [max(there) for row in pairs.bandwidth if (there := [rate for rate in row if rate is not None])]
    limit = SLOW * statistics.median(bests)
    cell = min(LARGEST, max(SMALLEST, SIDE / len(pairs.names)))
    width, height = LEFT + cell * len(pairs.names) + 4, TOP + cell * len(pairs.names) + 4
    words = (
        f"Bandwidth of each pair of hosts: from {gbit(min(measured))} to {gbit(high)}, median {gbit(middle)}"
    )
    parts = list(_names(pairs.names, cell))
    for row, rates in enumerate(pairs.bandwidth):
        for column, rate in enumerate(rates):
            if rate is not None:
                slow = rate < limit
                shade = 1.0 if slow else 0.12 + 0.68 * rate / high
                latency = pairs.latency[row][column]
                more = f", {micro(latency)}" if latency is not None else ""
                title = titled(f"{pairs.names[row]} to {pairs.names[column]}: {gbit(rate)}{more}")
                kind, left, top = "slow" if slow else "fast", LEFT + cell * column, TOP + cell * row
                side = cell - (2 if cell > SMALLEST else 1)
                place = {"x": left, "y": top, "width": side, "height": side}
                parts.append(element("rect", kind, title, **place, fill_opacity=f"{shade:.2f}"))
                if len(pairs.names) <= FEW:
                    text, middle = number(rate * 8 / 1e9, 3), cell / 2
                    parts.append(
                        element("text", f"in on-{kind}", text, x=left + middle - 1, y=top + middle + 4)
                    )
    box = {"viewBox": f"0 0 {width:.0f} {height:.0f}", "width": f"{width:.0f}"}
    return element("svg", "heat", parts, **box, role="img", aria_label=words)


def _names(names: Sequence[str], cell: float) -> Iterator[Markup]:
    """Every row's, or of many rows only some; the columns' where they are few."""
    for index in range(0, len(names), math.ceil(LINE / cell)):
        middle = cell * (index + 0.5)
        name = names[index] if len(names[index]) <= 16 else f"{names[index][:15]}…"
        yield element("text", "y", name, x=LEFT - 8, y=TOP + middle + 3)
        if len(names) <= FEW:
            short = name if len(name) <= 8 else f"…{name[-7:]}"
            yield element("text", "x", short, x=LEFT + middle - 1, y=TOP - 10)
