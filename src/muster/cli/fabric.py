"""What a run that measured the fabric prints: figures, the sweep, and a small matrix of pairs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from muster.core.fabric_result import FabricRun
    from muster.core.result import Result

_MOST_NAMES = 8  # of a matrix on a terminal; the whole of it is in the run folder


def fabric_rows(result: Result, fabric: FabricRun) -> list[tuple[str, str]]:
    """The figures as (name, text)."""
    from muster.core.units import counted, format_seconds
    from muster.report.fabric_tables import summary

    where = f"{counted(result.world_size, 'rank')} on {counted(len(result.hosts), 'host')}"
    return [
        ("status", result.status),
        ("measured", f"{where}, {fabric.backend} on {fabric.device}"),
        *summary(fabric),
        ("time", format_seconds(result.seconds.total)),
    ]


def print_tables(console: Console, fabric: FabricRun) -> None:
    """The sweep, and the pairs where they are few."""
    from muster.report.fabric_tables import pair_rows, sweep_rows

    if fabric.sweeps:
        columns, rows = sweep_rows(fabric)
        _table(console, "bus bandwidth by message size, Gbit/s", columns, rows)
    if fabric.pairs and len(fabric.pairs.names) <= _MOST_NAMES:
        columns, rows = pair_rows(fabric.pairs)
        _table(console, "point to point, from row to column, Gbit/s", columns, rows)


def _table(console: Console, title: str, columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 2))
    for index, name in enumerate(columns):
        table.add_column(escape(name), justify="right" if index else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(escape(cell) for cell in row))
    console.print()
    console.print(table)
