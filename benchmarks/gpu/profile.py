"""Where a step of each row of the table of speeds goes (speed.py), by ten steps under PyTorch's profiler.

    python -m benchmarks.gpu.profile NAME TOLD WORK    # a peer under the profiler; as peers.py

Muster's run is `muster train` with measure.profile=trace. A peer is profiled where its loop is the bar of the
row: its trace is read as Muster's, so both have the same figures; no line of it is marked.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.gpu.jobs import Failed, in_turn, peer, train
from benchmarks.gpu.kit import Figures, Machine, NotApplicable, Piece
from benchmarks.gpu.speed import Row, Shape, data_of, rows

USUAL, PROFILED = 7, 10  # steps before, of which the last are the usual ones, and steps that are summed up
STEPS = USUAL + PROFILED + 4  # one more to warm up, one for the lines, two usual ones
BESIDE = ("compiled",)  # peers that are profiled as well


def pieces() -> list[Piece]:
    """One for each row, in the same order."""
    parts = ("*", "benchmarks/gpu/speed.py", "benchmarks/gpu/peers.py")
    return [
        Piece(
            "profile", row.name, row.limit, _profiled(row), shared=True, gigabytes=0.6 * row.gigabytes,
            parts=parts,
        )
        for row in rows()
    ]  # fmt: skip


def overrides(shape: Shape, data: str) -> list[str]:
    """Of the row's run, with few steps."""
    return [
        *shape.overrides(data), f"train.max_steps={STEPS}", "evaluate.every=null",
        f"measure={{window: 4, warmup: 3, hardware_seconds: 1, profile: trace, profile_step: {USUAL + 1}, "
        f"profile_steps: {PROFILED}}}",
    ]  # fmt: skip


def _profiled(row: Row) -> Callable[[Machine], Figures]:
    def run(machine: Machine) -> Figures:
        for package in row.needs:
            if find_spec(package) is None:
                raise NotApplicable(f"needs {package}, which is not installed here")
        short = replace(row, samples=STEPS * max(row.muster.batch, (row.other or row.muster).batch))
        shape = Shape(short, machine)
        data = data_of(shape)
        settings = overrides(shape, data)
        turn = machine.turn(USUAL - 4)
        result = train(machine, "muster", row.recipe, *settings, *in_turn(turn))
        profile = (result["profiles"] or [None])[0]
        if profile is None or (machine.device == "cuda" and profile["busy"] is None):
            raise Failed("; ".join(["no GPU was traced" if profile else "no profile", *result["notes"]]))
        figures: Figures = {"muster": profile, "settings": {"muster": settings}}
        if row.peer in BESIDE:
            work = shape.work(data) | {"steps": STEPS}
            figures["peer"] = peer(row.peer, work, "benchmarks.gpu.profile", turn)["profile"]
            figures["settings"]["peer"] = work
        return figures

    return run


def main() -> None:
    """Run the peer that is named, and write its figures and its profile."""
    import torch
    from benchmarks.gpu import peers

    from muster.worker.instruments.kineto import read, summarize

    path = Path("peer-trace.json.gz")

    class Profiled(peers.Stopwatch):
        """Counts steps, and traces some of them."""

        running: Any = None
        mark: Any = None
        usual: float | None = None

        def step(self) -> None:
            """A step has ended."""
            super().step()
            if self.mark is not None:
                self.mark.__exit__(None, None, None)
                self.mark = None
            last = USUAL + 1 + PROFILED
            if self.steps == USUAL:
                self.usual = (self.now() - self.began) / (USUAL - self.work.warmup)
                kinds = [torch.profiler.ProfilerActivity.CPU]
                kinds += [torch.profiler.ProfilerActivity.CUDA] if self.work.cuda else []
                self.running = torch.profiler.profile(activities=kinds)
                self.running.start()
            elif self.steps == USUAL + 1:  # in which the profiler warmed up
                self.now()
            elif self.steps == last:
                self.now()
                self.running.stop()
                self.running.export_chrome_trace(str(path))
            if USUAL < self.steps < last:
                self.mark = torch.profiler.record_function(f"ProfilerStep#{self.steps + 1}")
                self.mark.__enter__()

        def told(self) -> Figures:
            """The profile alone: the rate is of profiled steps too."""
            profile = summarize(read(path)).model_copy(update={"usual_seconds": self.usual})
            return {"profile": profile.model_dump(mode="json")}

    peers.Stopwatch = Profiled  # type: ignore[misc]
    peers.main()


if __name__ == "__main__":
    sys.exit(main())
