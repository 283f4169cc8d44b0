"""All jobs behind one switch that are slow for a while, and good before or after. Pure.

A switch that starts again, or a neighbour's traffic, slows all jobs behind it at the same time. Each of its
hosts then has slow jobs and good ones, as if it had an intermittent fault. It is one event, however many jobs
it met: these are no evidence against a host.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from muster.judging.baseline import FEWEST
from muster.judging.observation import Topology
from muster.judging.readings import STANDS_OUT, Readings


class SlowSpell(NamedTuple):
    """The switch, by its index, and the readings of one moment."""

    switch: int
    rows: tuple[int, ...]


def spells(readings: Readings, moments: Sequence[str], topology: Topology) -> list[SlowSpell]:
    """Return moments in which all jobs behind a switch were slow, while such jobs were good in another.
    `moments`: of each observation; empty where none is known."""
    # By whether they leave it, and whether they are of a host alone, which sends nothing through it.
    rows: dict[tuple[int, str], dict[tuple[bool, bool], list[int]]] = {}
    for row, source in enumerate(readings.source):
        behind = {topology.behind[host] for host in readings.hosts[row]}
        if moments[source] and not readings.hint[row] and not readings.failed(row):
            for switch in behind - {-1}:
                way = len(behind) > 1, readings.alone[row]
                rows.setdefault((switch, moments[source]), {}).setdefault(way, []).append(row)

    def slow(own: Sequence[int]) -> int:
        return sum(readings.deviations(row) > STANDS_OUT for row in own)

    good = {
        (switch, way)
        for (switch, _), ways in rows.items()
        for way, own in ways.items()
        if 2 * slow(own) < len(own)
    }
    # Of a host that is slow alone, good jobs in groups say as much; the other way round they do not.
    good |= {(switch, (leaves, True)) for switch, (leaves, _) in good}
    made = []
    for (switch, _), ways in rows.items():
        mine = [row for own in ways.values() for row in own]
        if len(mine) >= FEWEST and slow(mine) == len(mine) and any((switch, way) in good for way in ways):
            made.append(SlowSpell(switch, tuple(mine)))
    return made
