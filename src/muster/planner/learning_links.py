"""What a run of the fabric workload teaches about the link between its hosts. Pure."""

from __future__ import annotations

from muster.core.errors import UsageError
from muster.core.fabric_result import FabricRun
from muster.core.links import Beside, Figures
from muster.planner.collective import CALL, RINGS

LEAST = 0.2  # of the largest all-reduce: what an all-gather's message has to have
ALIKE = 0.01  # difference of two messages that count as alike


def link_figures(run: FabricRun, ranks: int) -> Figures:
    """The figures with which planner/collective.py foretells what was measured.

    Bandwidth: of the largest all-reduce, by nccl-tests' bus bandwidth, which is a ring's bytes over its time.
    Latency: a small all-reduce's median, less what starting it takes, over a ring's steps. What an all-gather
    gets of the bandwidth: at the largest message that both were measured with. Raises UsageError where the
    run has no all-reduce.
    """
    reduced = max(run.of("all-reduce"), key=lambda each: each.bytes, default=None)
    if reduced is None:
        raise UsageError("no all-reduce was measured", where="fabric", hint="with more than one rank")
    small = run.latencies[0].median if run.latencies else None
    steps = RINGS["all-reduce"] * (ranks - 1)
    beside = Beside(gather=_gather(run, reduced.bytes))
    if run.beside:
        found = run.beside[-1]
        beside = Beside(beside.gather, found.computing, found.exchanging, found.meeting)
    return Figures(
        bandwidth=reduced.busbw,
        latency=None if small is None else max(0.0, small - CALL[run.backend]) / steps,
        beside=beside,
    )


def _gather(run: FabricRun, largest: int) -> float | None:
    """Speed of an all-gather beside an all-reduce of the same size (a rank's part is whole elements, so up to
    some bytes); None where time sufficed for small messages alone, which do not show the link's bandwidth."""
    alike = [
        (each.bytes, each.busbw / other.busbw)
        for each in run.of("all-gather")
        if each.bytes >= LEAST * largest
        for other in run.of("all-reduce")
        if abs(other.bytes - each.bytes) <= ALIKE * each.bytes
    ]
    return max(alike)[1] if alike else None
