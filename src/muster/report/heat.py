"""A matrix of pairs as inline SVG. Pure. Colours come from the page's style, by class."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from muster.core.fabric_result import PairMatrix
from muster.report.fabric_tables import gbit, micro
from muster.report.words import number

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
    known = [rate for row in pairs.bandwidth for rate in row if rate is not None]
    if not known:
        return Markup("")
    high, middle = max(known), statistics.median(known)
    bests = [max(there) for row in pairs.bandwidth if (there := [rate for rate in row if rate is not None])]
    limit = SLOW * statistics.median(bests)
    cell = min(LARGEST, max(SMALLEST, SIDE / len(pairs.names)))
    width, height = LEFT + cell * len(pairs.names) + 4, TOP + cell * len(pairs.names) + 4
    words = f"Bandwidth of each pair of hosts: from {gbit(min(known))} to {gbit(high)}, median {gbit(middle)}"
    parts = [
        Markup(
            '<svg class="heat" viewBox="0 0 {:.0f} {:.0f}" width="{:.0f}" role="img" aria-label="{}">'
        ).format(width, height, width, words),
        *_names(pairs.names, cell),
    ]
    for row, rates in enumerate(pairs.bandwidth):
        for column, rate in enumerate(rates):
            if rate is not None:
                slow = rate < limit
                shade = 1.0 if slow else 0.12 + 0.68 * rate / high
                parts += _cell(pairs, row, column, Look(cell, "slow" if slow else "fast", shade))
    return Markup("").join([*parts, Markup("</svg>")])


@dataclass(frozen=True)
class Look:
    """A cell's side, class and opacity."""

    side: float
    kind: str
    shade: float


def _cell(pairs: PairMatrix, row: int, column: int, look: Look) -> Iterator[Markup]:
    rate, latency = pairs.bandwidth[row][column], pairs.latency[row][column]
    assert rate is not None
    side, left, top = look.side, LEFT + look.side * column, TOP + look.side * row
    more = f", {micro(latency)}" if latency is not None else ""
    words = f"{pairs.names[row]} to {pairs.names[column]}: {gbit(rate)}{more}"
    gap = 2 if side > SMALLEST else 1
    yield Markup(
        '<rect class="{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" fill-opacity="{:.2f}">'
        "<title>{}</title></rect>"
    ).format(look.kind, left, top, side - gap, side - gap, look.shade, words)
    if len(pairs.names) <= FEW:
        yield Markup('<text class="in {}" x="{:.1f}" y="{:.1f}">{}</text>').format(
            f"on-{look.kind}", left + side / 2 - 1, top + side / 2 + 4, number(rate * 8 / 1e9, 3)
        )


def _names(names: Sequence[str], cell: float) -> Iterator[Markup]:
    """Every row's, or of many rows only some; the columns' where they are few."""
    for index in range(0, len(names), math.ceil(LINE / cell)):
        middle = cell * (index + 0.5)
        name = names[index] if len(names[index]) <= 16 else f"{names[index][:15]}…"
        yield Markup('<text class="y" x="{:.1f}" y="{:.1f}">{}</text>').format(
            LEFT - 8, TOP + middle + 3, name
        )
        if len(names) <= FEW:
            yield Markup('<text class="x" x="{:.1f}" y="{:.1f}">{}</text>').format(
                LEFT + middle - 1, TOP - 10, name if len(name) <= 8 else f"…{name[-7:]}"
            )
