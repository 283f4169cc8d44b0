"""The fabric's figures as CSV files and as rows for people. Pure."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any

from muster.core.fabric.result import FabricRun, PairMatrix
from muster.core.units import format_bytes
from muster.results.figures import nominal, number


def files(fabric: FabricRun) -> dict[str, str]:
    """File name -> text. Figures in bytes, seconds, bytes/s and FLOP/s; an unknown one is an empty cell."""
    texts = {}
    if fabric.sweeps:
        names = ("operation", "bytes", "seconds", "seconds_best", "variation", "algbw", "busbw", "method")
        of = attrgetter(
            "operation", "bytes", "time.median", "time.best", "time.variation", "algbw", "busbw", "method"
        )
        texts["sweep.csv"] = _csv(names, map(of, fabric.sweeps))
    if fabric.pairs:
        texts |= {
            "bandwidth.csv": _matrix(fabric.pairs, fabric.pairs.bandwidth, "bytes/s from row to column"),
            "latency.csv": _matrix(fabric.pairs, fabric.pairs.latency, "seconds"),
        }
    if fabric.matmul:
        names = ("host", "rank", "device", "precision", "n", "best", "sustained", "peak")
        ordered = sorted(fabric.matmul, key=attrgetter("precision", "rank"))
        texts["matmul.csv"] = _csv(names, map(attrgetter(*names), ordered))
    if fabric.products:
        texts["product.csv"] = _csv(
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
    return _csv((corner, *pairs.names), rows)


def _csv(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows([head, *rows])
    return file.getvalue()


def sweep_rows(fabric: FabricRun) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """A row per message size, with the bus bandwidth of each operation in Gbit/s. -> (columns, rows)."""
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
    """The median bandwidths in Gbit/s, from row to column. -> (columns, rows)."""
    rows = [
        (name, *("" if rate is None else number(rate * 8 / 1e9, 3) for rate in row))
        for name, row in zip(pairs.names, pairs.bandwidth, strict=True)
    ]
    return ("", *pairs.names), rows
