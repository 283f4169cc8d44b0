"""What a run of the fabric workload teaches about the link between its hosts. Pure."""

from __future__ import annotations

from muster.core.errors import UsageError
from muster.core.fabric_result import FabricRun, Sweep
from muster.core.links import Beside, Figures
from muster.planner.collective import CALL, RINGS


def link_figures(run: FabricRun, ranks: int) -> Figures:
    """The figures with which planner/collective.py foretells what was measured.

    Bandwidth: of the largest all-reduce, by nccl-tests' bus bandwidth, which is a ring's bytes over its time.
    Latency: a small all-reduce's median, less what starting it takes, over a ring's steps. Raises UsageError
    where the run has no all-reduce.
    """
    reduced = _largest(run, "all-reduce")
    if reduced is None:
        raise UsageError("no all-reduce was measured", where="fabric", hint="with more than one rank")
    gathered = _largest(run, "all-gather")
    small = run.latencies[0].median if run.latencies else None
    steps = RINGS["all-reduce"] * (ranks - 1)
    beside = Beside(gather=gathered.busbw / reduced.busbw if gathered else None)
    if run.beside:
        found = run.beside[-1]
        beside = Beside(beside.gather, found.computing, found.exchanging, found.meeting)
    return Figures(
        bandwidth=reduced.busbw,
        latency=None if small is None else max(0.0, small - CALL[run.backend]) / steps,
        beside=beside,
    )


def _largest(run: FabricRun, operation: str) -> Sweep | None:
    return max(
        (each for each in run.sweeps if each.operation == operation), key=lambda s: s.bytes, default=None
    )
