"""Planned memory and step time against the device's own, beside what other estimators say.

Each point is planned from nothing but the device's name (the model is traced on the CPU), then run by `muster
train` on one rank. Step times: the first point of each precision teaches the device's efficiency, and the
others are predicted from it.

Other estimators, for the same points: `accelerate estimate-memory` (its rule for Adam: four times the
weights, batch 1, no activations) and DeepSpeed's estimate_zero2/3_model_states_mem_needs (no activations).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.gpu.jobs import PLAIN, Failed, logs, shape
from benchmarks.gpu.kit import Figures, Machine, NotApplicable, Piece

if TYPE_CHECKING:
    from muster.planner.time.learning import MeasuredRun

BESIDE_ALLOCATOR = ("allocator slack", "CUDA context")  # parts of a plan
ZERO = {n: ("engine.name=deepspeed", f"engine.zero={n}") for n in range(4)}
DDP = ("engine.name=ddp", "engine.zero=0")
FSDP = ("engine.name=fsdp", "engine.zero=0")
AGAIN = ("train.gradient_checkpointing=true",)
OFFLOAD = ("engine.offload=optimizer",)
BOTH = ("engine.offload=optimizer+param",)
LORA = ("lora.rank=128",)


@dataclass(frozen=True)
class Point:
    """A job of one rank."""

    model: str
    micro: int
    sequence: int
    precision: str
    more: tuple[str, ...]

    @property
    def name(self) -> str:
        """Of the piece: opt-125m-8x512-bf16-zero2-again."""
        words = {
            DDP[0]: "ddp", FSDP[0]: "fsdp", AGAIN[0]: "again", OFFLOAD[0]: "offload", BOTH[0]: "offload-all",
            LORA[0]: "lora",
        } | {ZERO[n][1]: f"zero{n}" for n in range(4)}  # fmt: skip
        ddp = any(word in self.more for word in (DDP[0], FSDP[0]))
        told = [words[one] for one in self.more if one in words and not (ddp and one == DDP[1])]
        return "-".join([self.model, f"{self.micro}x{self.sequence}", self.precision, *told])

    def overrides(self, machine: Machine) -> list[str]:
        """Of the OPT benchmark's recipe."""
        micro = min(self.micro, 4) if machine.tiny else self.micro
        return [
            *PLAIN, *shape(machine, self.model, self.sequence), "batch.tokens=null", "batch.global=auto",
            f"batch.micro={micro}", "batch.accumulation=1", f"precision={self.precision}",
            f"train.max_steps={6 if machine.tiny else 14}", f"measure.window={2 if machine.tiny else 4}",
            f"measure.warmup={2 if machine.tiny else 4}", "train.gradient_checkpointing=false", *self.more,
            f"launch.device={machine.device}", *(["launch.threads=1"] if machine.device == "cpu" else []),
        ]  # fmt: skip


def points() -> list[Point]:
    """Over model, batch, sequence, precision, checkpointing, stage, offload and adapters. What tells most
    comes first."""

    def at(model: str, micro: int, sequence: int, precision: str, *more: tuple[str, ...]) -> Point:
        return Point(model, micro, sequence, precision, tuple(word for part in more for word in part))

    return [
        at("opt-125m", 8, 512, "bf16", DDP),
        at("opt-350m", 24, 512, "bf16", ZERO[2]),
        at("opt-1.3b", 4, 2048, "bf16", ZERO[2]),
        at("opt-125m", 8, 512, "fp32", DDP),
        at("opt-125m", 8, 512, "fp16", ZERO[0]),
        at("opt-1.3b", 8, 1024, "bf16", ZERO[3]),
        at("opt-125m", 32, 512, "bf16", DDP),
        at("opt-350m", 24, 512, "bf16", DDP),
        at("opt-350m", 24, 512, "bf16", FSDP),
        at("opt-1.3b", 8, 2048, "bf16", ZERO[2], AGAIN),
        at("opt-1.3b", 8, 512, "bf16", ZERO[2], OFFLOAD),
        at("opt-13b", 4, 512, "bf16", DDP, LORA),
        at("opt-125m", 32, 512, "bf16", ZERO[0]),
        at("opt-125m", 8, 2048, "bf16", ZERO[0]),
        at("opt-125m", 32, 512, "bf16", ZERO[0], AGAIN),
        at("opt-125m", 16, 1024, "fp32", DDP, AGAIN),
        at("opt-125m", 32, 512, "bf16", ZERO[1]),
        at("opt-125m", 32, 512, "bf16", ZERO[2]),
        at("opt-125m", 32, 512, "bf16", ZERO[3]),
        at("opt-350m", 24, 512, "fp16", ZERO[0]),
        at("opt-350m", 8, 2048, "bf16", ZERO[2], AGAIN),
        at("opt-350m", 8, 1024, "fp32", DDP),
        at("opt-350m", 16, 512, "bf16", ZERO[2], OFFLOAD),
        at("opt-1.3b", 8, 512, "bf16", ZERO[0]),
        at("opt-1.3b", 8, 512, "bf16", ZERO[3], BOTH),
        at("opt-1.3b", 8, 1024, "bf16", DDP, LORA),
    ]


def pieces() -> list[Piece]:
    """One for each point; its step is predicted from the first one of its precision."""
    first: dict[str, str] = {}
    made = []
    for point in points():
        teacher = first.setdefault(point.precision, point.name)
        engine = next(word.partition("=")[2] for word in point.more if word.startswith("engine.name"))
        made.append(
            Piece(
                "memory", point.name, 120, _measured(point, teacher), usual=35,
                after="" if teacher == point.name else teacher,
                parts=(f"engines/{engine}", "workloads/causal_lm"),
            )
        )  # fmt: skip
    return made


def peers(parameters: int, point: Point) -> dict[str, float | None]:
    """Bytes that other estimators name for the same job; None: not applicable."""
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
        "accelerate": None if LORA[0] in point.more else 4.0 * element * parameters,
        "deepspeed": float(three if stage == 3 else two) if stage else None,
    }


def _measured(point: Point, teacher: str) -> Callable[[Machine], Figures]:
    def run(machine: Machine) -> Figures:
        from muster.inputs.read import read_inputs
        from muster.planner.calibrate import measured_of
        from muster.planner.machines import UserFigures
        from muster.planner.plan import plan_hosts
        from muster.runs.train import train
        from muster.store.runfolder import RunFolder

        if point.precision == "fp16" and machine.device == "cpu":
            raise NotApplicable("fp16 needs a GPU")
        inputs = read_inputs("opt-benchmark", "local:1", point.overrides(machine))
        began = time.perf_counter()
        plan = plan_hosts(inputs, UserFigures()).plan
        planning = time.perf_counter() - began
        folder = RunFolder(Path("run").resolve())
        result = train(inputs, folder)
        if result.status != "succeeded" or plan.memory is None:
            what = result.failure.what if result.failure else "not planned"
            raise Failed(f"{what}\nplanned: {plan.memory}\n{logs(folder.path)}")
        measured = result.memory.device_peak or result.memory.resident_peak or 0
        allocated = result.memory.allocator_peak
        teaches = point.name == teacher
        run = measured_of(folder)
        earlier = machine.results.read("memory")["pieces"].get(teacher, {})
        return {
            "point": [point.model, point.micro, point.sequence, point.precision, *point.more],
            "parameters": plan.parameters,
            "planned_bytes": plan.memory.device_bytes,
            "parts": plan.memory.device,
            "basis": plan.memory.basis,
            "measured_bytes": measured,
            "memory_error": plan.memory.device_bytes / measured - 1,
            "allocator_peak": allocated,
            "allocator_error": of_allocator(plan.memory.device) / allocated - 1 if allocated else None,
            "planning_seconds": planning,
            "peers": peers(plan.parameters or 0, point),
            "run": _plain(run) if teaches else None,
            "step_error": None if teaches else step_error(earlier, run),
        }

    return run


def of_allocator(parts: Mapping[str, int]) -> int:
    """Planned bytes that the allocator hands out."""
    return sum(size for name, size in parts.items() if name not in BESIDE_ALLOCATOR)


def step_error(teacher: Mapping[str, Any], run: MeasuredRun) -> float | None:
    """Predicted over measured step time, less one, where one run taught the device's efficiency."""
    from pydantic import TypeAdapter

    from muster.planner.time.learning import MeasuredRun, learn
    from muster.planner.time.steptime import Calibration, predict

    if teacher.get("status") != "passed" or not teacher["figures"]["run"]:
        return None
    taught = TypeAdapter(MeasuredRun).validate_python(teacher["figures"]["run"])
    return predict(run.case, learn([taught], Calibration())).seconds / run.seconds - 1


def _plain(measured: object) -> object:
    """A measured run as data, from which others are predicted."""
    from pydantic import TypeAdapter

    return TypeAdapter(type(measured)).dump_python(measured, mode="json")
