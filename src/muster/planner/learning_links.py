"""What a run of the fabric workload teaches about the link between its hosts. Pure."""

from __future__ import annotations

from dataclasses import replace

from muster.core.errors import UsageError
from muster.core.fabric_result import FabricRun
from muster.core.links import Beside, Figures
from muster.planner.collective import CALL, RINGS

LEAST = 0.2  # of the largest all-reduce: what an all-gather's message has to have
ALIKE = 0.01  # difference of two messages that count as alike


def link_figures(run: FabricRun, ranks: int) -> Figures:
    """The figures with which planner/collective.py foretells what was measured.

    Bandwidth: of the largest all-reduce, by nccl-tests' bus bandwidth, which is a ring's bytes over its time.
    Latency: what a small all-reduce takes on average, less what starting it takes, over a ring's steps. The
    mean, since a step pays for all its calls: a host with a part of a core does most of them at once, and
    waits for its next part with some. What an all-gather gets of the bandwidth: at the largest message that
    both were measured with; gloo's of two ranks says nothing of more, nor the other way round
    (planner/collective.py), while NCCL has a connection for each direction. Raises UsageError where the run
    has no all-reduce.
    """
    reduced = max(run.of("all-reduce"), key=lambda each: each.bytes, default=None)
    if reduced is None:
        raise UsageError("no all-reduce was measured", where="fabric", hint="with more than one rank")
    small = run.latencies[0].typical if run.latencies else None
    steps = RINGS["all-reduce"] * (ranks - 1)
    gather = _gather(run, reduced.bytes)
    beside = Beside(
        gather=gather if ranks > 2 or run.backend == "nccl" else None,
        pair_gather=gather if ranks == 2 or run.backend == "nccl" else None,
    )
    if run.beside:
        found = run.beside[-1]
        beside = replace(
            beside, computing=found.computing, exchanging=found.exchanging, meeting=found.meeting
        )
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
