"""Planned memory and step time against a device's own, beside what other estimators say.

    .venv/bin/python benchmarks/planner_device.py            # a GPU: 22 points, about 8 minutes
    .venv/bin/python benchmarks/planner_device.py --tiny     # tiny models on a CPU: proves the way alone

Each point is planned from nothing but the device's name (the model is traced on the CPU), then run by
`muster train` on one rank. Step times: the first point of each precision teaches the device's efficiency,
the others are predicted. Writes benchmarks/results/planner_device.json (or planner_tiny.json).

Other estimators, for the same points: `accelerate estimate-memory` (its rule for Adam: four times the
weights, batch 1, no activations) and DeepSpeed's estimate_zero2/3_model_states_mem_needs (no activations).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hardware import processor

from muster.core.result import Result
from muster.inputs.read import read_inputs
from muster.planner.calibrate import measured_of
from muster.planner.outlook import UserFigures
from muster.planner.plan import plan_hosts
from muster.planner.time.learning import MeasuredRun, learn
from muster.planner.time.steptime import Calibration, predict
from muster.runs.train import train
from muster.store.runfolder import RunFolder

RESULTS = Path(__file__).parent / "results"
COMMON = [
    "train.max_steps=14", "measure.window=4", "measure.warmup=4", "evaluate.after=false",
    "evaluate.every=null", "checkpoint.model=false", "checkpoint.every=null", "train.max_minutes=null",
    "batch.global=auto", "batch.tokens=null",
]  # fmt: skip
ZERO = {n: ["engine.name=deepspeed", f"engine.zero={n}"] for n in range(4)}
DDP = ["engine.name=ddp", "engine.zero=0"]
AGAIN = ["train.gradient_checkpointing=true"]
OFFLOAD = ["engine.offload=optimizer"]
BOTH = ["engine.offload=optimizer+param"]


@dataclass(frozen=True)
class Point:
    """A job of one rank."""

    model: str
    micro: int
    sequence: int
    precision: str
    more: tuple[str, ...]

    def overrides(self, tiny: bool) -> list[str]:
        """Of the OPT benchmark's recipe."""
        size = [f"model.name={self.model}", f"data.sequence={self.sequence}"]
        if tiny:
            size = [
                "model.name=opt-8m",
                "data.sequence=64",
                "model.config.vocab_size=1000",
                "launch.threads=1",
            ]
        micro = min(self.micro, 4) if tiny else self.micro
        precision = "fp32" if tiny and self.precision == "fp16" else self.precision
        batch = [f"batch.micro={micro}", "batch.accumulation=1", f"precision={precision}"]
        return [*COMMON, *size, *batch, *self.more]


def points() -> list[Point]:
    """Over model, batch, sequence, precision, checkpointing, stage and offload."""

    def at(model: str, micro: int, sequence: int, precision: str, *more: list[str]) -> Point:
        return Point(model, micro, sequence, precision, tuple(word for part in more for word in part))

    return [
        at("opt-125m", 8, 512, "bf16", ZERO[0]),
        at("opt-125m", 8, 512, "fp32", DDP),
        at("opt-125m", 8, 512, "fp16", ZERO[0]),
        at("opt-125m", 32, 512, "bf16", ZERO[0]),
        at("opt-125m", 8, 2048, "bf16", ZERO[0]),
        at("opt-125m", 32, 512, "bf16", DDP),
        at("opt-125m", 32, 512, "bf16", ZERO[0], AGAIN),
        at("opt-125m", 16, 1024, "fp32", DDP, AGAIN),
        at("opt-125m", 32, 512, "bf16", ZERO[1]),
        at("opt-125m", 32, 512, "bf16", ZERO[2]),
        at("opt-125m", 32, 512, "bf16", ZERO[3]),
        at("opt-350m", 24, 512, "fp16", ZERO[0]),
        at("opt-350m", 24, 512, "bf16", ZERO[2]),
        at("opt-350m", 8, 2048, "bf16", ZERO[2], AGAIN),
        at("opt-350m", 8, 1024, "fp32", DDP),
        at("opt-350m", 16, 512, "bf16", ZERO[2], OFFLOAD),
        at("opt-1.3b", 8, 512, "bf16", ZERO[0]),
        at("opt-1.3b", 4, 2048, "bf16", ZERO[2]),
        at("opt-1.3b", 8, 2048, "bf16", ZERO[2], AGAIN),
        at("opt-1.3b", 8, 1024, "bf16", ZERO[3]),
        at("opt-1.3b", 8, 512, "bf16", ZERO[2], OFFLOAD),
        at("opt-1.3b", 8, 512, "bf16", ZERO[3], BOTH),
    ]


def peers(parameters: int, point: Point) -> dict[str, float | None]:
    """Bytes that other estimators name for the same job."""
    from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs
    from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs

    element = 4 if point.precision == "fp32" else 2
    offload, both = OFFLOAD[0] in point.more, BOTH[0] in point.more
    two, _ = estimate_zero2_model_states_mem_needs(parameters, cpu_offload=offload)
    largest = parameters // 10
    three, *_ = estimate_zero3_model_states_mem_needs(
        parameters, largest, cpu_offload=offload or both, cpu_offload_params=both, zero_init=True
    )
    stage = next((n for n in range(4) if f"engine.zero={n}" in point.more), 0)
    return {
        "accelerate": 4.0 * element * parameters,
        "deepspeed": float(three if stage == 3 else two) if stage else None,
    }


def one(point: Point, tiny: bool, folder: Path) -> dict[str, Any]:
    """Plan, then run."""
    inputs = read_inputs("opt-benchmark", "local:1", point.overrides(tiny))
    began = time.perf_counter()
    plan = plan_hosts(inputs, UserFigures()).plan
    planning = time.perf_counter() - began
    run = RunFolder(folder)
    result: Result = train(inputs, run)
    row: dict[str, Any] = {"point": [point.model, point.micro, point.sequence, point.precision, *point.more]}
    if result.status != "succeeded" or plan.memory is None:
        return {**row, "failure": result.failure.what if result.failure else "not planned"}
    measured = result.memory.device_peak or result.memory.resident_peak or 0
    row |= {
        "parameters": plan.parameters,
        "planned_bytes": plan.memory.device_bytes,
        "parts": plan.memory.device,
        "basis": plan.memory.basis,
        "measured_bytes": measured,
        "allocator_peak": result.memory.allocator_peak,
        "memory_error": round(plan.memory.device_bytes / measured - 1, 4),
        "planning_seconds": round(planning, 1),
        "peers": peers(plan.parameters or 0, point),
        "run": measured_of(run),
    }
    return row


def times(rows: list[dict[str, Any]]) -> None:
    """Predict each step from the first run of its precision, in place."""
    first: dict[str, MeasuredRun] = {}
    for row in rows:
        found: MeasuredRun = row.pop("run")
        known = first.setdefault(found.case.precision, found)
        predicted = predict(found.case, learn([known], Calibration())).seconds
        row |= {"step_measured": round(found.seconds, 5), "step_predicted": round(predicted, 5)}
        if known is not found:
            row["step_error"] = round(predicted / found.seconds - 1, 4)


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians and worst errors, ours and the peers'."""
    memory = [abs(row["memory_error"]) for row in rows]
    steps = [abs(row["step_error"]) for row in rows if "step_error" in row]
    found: dict[str, Any] = {
        "memory": {"median": statistics.median(memory), "worst": max(memory)},
        "step": {"median": statistics.median(steps), "worst": max(steps)} if steps else None,
    }
    for name in ("accelerate", "deepspeed"):
        errors = [abs(row["peers"][name] / row["measured_bytes"] - 1) for row in rows if row["peers"][name]]
        found[name] = {"median": statistics.median(errors), "worst": max(errors)} if errors else None
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--only", type=int, nargs="*", default=[], help="numbers of points")
    parser.add_argument("--minutes", type=float, default=8.5, help="no new point is begun after these")
    options = parser.parse_args()
    deadline = time.monotonic() + 60 * options.minutes
    file = RESULTS / ("planner_tiny.json" if options.tiny else "planner_device.json")
    rows: list[dict[str, Any]] = []
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_DATA_HOME"] = folder  # nothing that was learned before
        chosen = [points()[index] for index in options.only] if options.only else points()
        for index, point in enumerate(chosen):
            if time.monotonic() > deadline:
                print(f"no time for {len(chosen) - index} more points")
                break
            row = one(point, options.tiny, Path(folder) / f"{index}")
            (failed if "failure" in row else rows).append(row)
            shown = {key: row[key] for key in ("point", "memory_error", "failure") if key in row}
            print(json.dumps(shown), flush=True)
    times(rows)
    document = {
        "command": "benchmarks/planner_device.py" + (" --tiny" if options.tiny else ""),
        "hardware": {"cores": os.cpu_count(), "cpu": processor(), "system": platform.platform()},
        "summary": summary(rows),
        "rows": rows,
        "failed": failed,
    }
    file.write_text(json.dumps(document, indent=2, default=str) + "\n")
    print(json.dumps(document["summary"], indent=2))


if __name__ == "__main__":
    main()
