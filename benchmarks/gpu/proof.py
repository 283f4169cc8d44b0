"""Does Muster work here at all? Each piece says that it does, or how it does not."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.gpu.jobs import PLAIN, Failed, events, muster, result, shape, train, training
from benchmarks.gpu.kit import Figures, Machine, NotApplicable, Piece, output

ENGINES = {
    "ddp": ["engine.name=ddp", "engine.zero=0"],
    "fsdp": ["engine.name=fsdp", "engine.zero=0"],
    # A rank alone trains without sharding; as a group of one it runs what shards.
    "fsdp-group": ["engine.name=fsdp", "engine.zero=0", "env.MUSTER_GROUP_OF_ONE=1"],
    "zero0": ["engine.name=deepspeed", "engine.zero=0"],
    "zero1": ["engine.name=deepspeed", "engine.zero=1"],
    "zero2": ["engine.name=deepspeed", "engine.zero=2"],
    "zero3": ["engine.name=deepspeed", "engine.zero=3"],
    "zero2-offload": ["engine.name=deepspeed", "engine.zero=2", "engine.offload=optimizer"],
    "zero3-offload": ["engine.name=deepspeed", "engine.zero=3", "engine.offload=optimizer+param"],
}
# Relative difference of the losses from ddp's in fp32, over STEPS steps: in fp32 the engines differ by the
# order of sums alone, else by rounding (8 bits of bf16, 11 of tf32 and fp16).
CLOSE = {"fp32": 1e-3, "tf32": 1e-2, "bf16": 3e-2, "fp16": 1e-2}
FEW = {  # not every engine
    "tf32": ("ddp", "zero2"),
    "fp16": ("ddp", "fsdp", "fsdp-group", "zero0", "zero2", "zero3"),
}
BASE = ("ddp", "fp32")
STEPS = 20
LONG = 60  # of a run that is killed after its tenth
OVERFLOW = 2.0**40  # a first loss scale at which gradients overflow fp16 for certain


def pieces() -> list[Piece]:
    """In the order of what they are worth."""
    jobs = [
        Piece("proof", f"{engine}-{precision}", 120, _engine(engine, precision))
        for precision in ("fp32", "bf16", "fp16", "tf32")
        for engine in FEW.get(precision, ENGINES)
    ]
    return [
        Piece("proof", "smi", 60, smi),
        Piece("proof", "check", 180, check),
        Piece("proof", "text2sql", 180, text2sql),
        jobs[0],
        Piece("proof", "clock", 60, clock),
        *jobs[1:],
        Piece("proof", "skipped-ddp", 120, _skipped("ddp")),
        Piece("proof", "skipped-fsdp", 120, _skipped("fsdp")),
        Piece("proof", "skipped-zero2", 120, _skipped("zero2")),
        Piece("proof", "resume-ddp", 180, _resumed("ddp")),
        Piece("proof", "resume-fsdp", 180, _resumed("fsdp")),
        Piece("proof", "resume-zero2", 180, _resumed("zero2")),
        Piece("proof", "compile", 240, compiled),
        Piece("proof", "cpu-job", 120, cpu_job),
        Piece("proof", "fabric", 120, fabric),
        Piece("proof", "demo", 240, demo),
    ]


def smi(machine: Machine) -> Figures:
    """What nvidia-smi says, whole: a document for tests of machines that are not at hand."""
    machine.needs_cuda()
    return {"xml": output(["nvidia-smi", "-q", "-x"]), "topology": output(["nvidia-smi", "topo", "-m"])}


def check(machine: Machine) -> Figures:
    """`muster check local:1` sees the device, and ends with an answer."""
    words = ["--gpus", "1"] if machine.device == "cuda" else []
    found = json.loads(muster("check", "local:1", "--json", *words, okay=(0, 1)))
    host = found["hosts"][0]
    if machine.device == "cuda" and not host["slots"]:
        raise Failed(f"muster check found no GPU:\n{json.dumps(found, indent=1)}")
    levels = [one["level"] for one in host["checks"]]
    return {
        "slots": host["slots"],
        "verdict": host["verdict"],
        "levels": {level: levels.count(level) for level in sorted(set(levels))},
        "checks": [one for one in host["checks"] if one["level"] != "not applicable"],
        "group": found["group"],
    }


def text2sql(machine: Machine) -> Figures:
    """The demo's model learns on the device, reports its samples, saves, and answers."""
    steps = 40 if machine.tiny else 400
    few = ["data.generated={train: 800, validation: 16, seed: 1}"] if machine.tiny else []
    found = train(
        machine,
        "t5",
        "demo",
        "engine.name=ddp",
        "engine.zero=0",
        f"train.max_steps={steps}",
        "precision=auto",
        *few,
    )
    host = found["hosts"][0]
    if machine.device == "cuda":
        memory = found["memory"]
        missing = [key for key in ("allocator_peak", "device_peak") if not memory[key]]
        missing += [key for key in ("gpu_percent_mean",) if host[key] is None]
        if missing:
            raise Failed(f"the run's result lacks {', '.join(missing)}:\n{json.dumps(found, indent=1)}")
    if not found["loss_final"] < found["loss_first"]:
        raise Failed(f"the loss went from {found['loss_first']} to {found['loss_final']}")
    answers = json.loads(muster("ask", "t5", "How many employees are there?", "--json"))
    speed = found["throughput"] or {}
    return {
        "precision": found["precision"],
        "loss": [found["loss_first"], found["loss_final"]],
        "samples_per_second": speed.get("samples_per_second"),
        "gpu_percent_mean": host["gpu_percent_mean"],
        "memory": found["memory"],
        "quality": found["quality"],
        "answer": answers,
        "seconds": found["seconds"],
    }


def _overrides(machine: Machine, *more: str) -> list[str]:
    """Of a short job; what stands last counts."""
    return [
        *PLAIN, *shape(machine, "opt-125m", 512), f"train.max_steps={STEPS}",
        "batch={micro: 4, global: auto, accumulation: 1, tokens: null}", "train.learning_rate=2e-4",
        "train.gradient_checkpointing=false", "measure={window: 5, warmup: 5, hardware_seconds: 1}", *more,
    ]  # fmt: skip


def _short(machine: Machine, name: str, *more: str) -> dict[str, Any]:
    return train(machine, name, "opt-benchmark", *_overrides(machine, *more))


def _engine(engine: str, precision: str) -> Any:
    def run(machine: Machine) -> Figures:
        if precision in ("fp16", "tf32") and machine.device == "cpu":
            raise NotApplicable(f"{precision} needs a GPU")
        found = _short(machine, "run", *ENGINES[engine], f"precision={precision}")
        _computed_in(precision, "run")
        loss = [found["loss_first"], found["loss_final"]]
        base = loss if (engine, precision) == BASE else _base_loss(machine)
        apart = [abs(one / other - 1) for one, other in zip(loss, base, strict=True)]
        if max(apart) > CLOSE[precision]:
            raise Failed(
                f"loss {loss[0]} to {loss[1]}, ddp's in fp32 {base[0]} to {base[1]}: apart by {apart[0]:.2e} "
                f"at the start and {apart[1]:.2e} at the end, and {CLOSE[precision]} is allowed"
            )
        return {
            "loss": loss,
            "apart": apart,
            "step_seconds": found["throughput"]["step_seconds_median"],
            "memory": found["memory"],
            "memory_beside_plan": _beside(found),
        }

    return run


def _computed_in(precision: str, run: str) -> None:
    """Raises Failed unless the ranks' matrix products are in this precision."""
    told = {one["arithmetic"] for one in events(run) if one["kind"] == "started"}
    if told != {precision}:
        raise Failed(f"matrix products are in {', '.join(map(str, told))}, not in {precision}")


def _base_loss(machine: Machine) -> list[float]:
    """First and last loss of ddp in fp32: of the piece that has run it, else of a run now."""
    known = machine.results.read("proof")["pieces"].get("-".join(BASE), {})
    if known.get("status") == "passed":
        loss: list[float] = known["figures"]["loss"]
        return loss
    base = _short(machine, "base", *ENGINES[BASE[0]], f"precision={BASE[1]}")
    return [base["loss_first"], base["loss_final"]]


def _beside(found: dict[str, Any]) -> float | None:
    """Measured over planned bytes of the rank, less one."""
    plan, memory = found["planned"], found["memory"]
    if not plan or not plan["memory"]:
        return None
    measured = memory["device_peak"] if plan["on_device"] else memory["resident_peak"]
    return measured / plan["memory"] - 1 if measured else None


def clock(machine: Machine) -> Figures:
    """A step's own time by recorded events, against a clock that waits for the device after each step."""
    import torch

    from muster.worker.instruments.meter import StepClock

    size, steps = (512, 20) if machine.tiny else (8192, 30)
    a = torch.randn(size, size, device=machine.device)
    by_events, by_hand = StepClock(machine.device), []

    def step() -> None:
        for _ in range(4):
            torch.mm(a, a)

    for _ in range(3):
        step()
    by_events.wait()
    by_events.mark()
    for _ in range(steps):
        began = by_events.wait()
        step()
        by_events.mark()
        by_hand.append(by_events.wait() - began)
    told = by_events.intervals()
    ratio = statistics.median(told) / statistics.median(by_hand)
    if len(told) != steps or not 0.97 < ratio < 1.03:
        raise Failed(f"{len(told)} of {steps} intervals, and their median is {ratio:.3f} of the clock's")
    return {"ratio": ratio, "step_seconds": statistics.median(by_hand), "steps": steps}


def _skipped(engine: str) -> Any:
    def run(machine: Machine) -> Figures:
        machine.needs_cuda()
        found = _short(machine, "run", *ENGINES[engine], "precision=fp16", f"loss_scale={OVERFLOW}")
        samples = 4 * (found["steps"] - found["skipped_steps"])
        if not found["skipped_steps"] or found["samples"] != samples:
            raise Failed(
                f"{found['skipped_steps']} skipped of {found['steps']} steps, though the loss scale began at "
                f"{OVERFLOW:.0f}; {found['samples']} samples, and {samples} were expected"
            )
        return {key: found[key] for key in ("steps", "skipped_steps", "samples", "loss_final")}

    return run


def _resumed(engine: str) -> Any:
    def run(machine: Machine) -> Figures:
        """Killed with SIGKILL after a checkpoint, a run goes on and ends as one that was never killed."""
        more = [*ENGINES[engine], "checkpoint.every=10", "precision=fp32", "measure.window=1"]
        more.append(f"train.max_steps={LONG}")
        whole = _short(machine, "whole", *more)
        argv = training(machine, "cut", "opt-benchmark", *_overrides(machine, *more))
        with Path("cut.out").open("wb") as stream:
            process = subprocess.Popen(argv, stdout=stream, stderr=subprocess.STDOUT)
            while process.poll() is None and not _saved("cut"):
                time.sleep(0.02)
            if process.poll() is not None:
                raise Failed(f"the run ended before it could be killed:\n{Path('cut.out').read_text()}")
            _kill_rank(Path("runs/cut"))
            process.wait()
        muster("resume", "cut")
        found = result("cut")
        apart = abs(found["loss_final"] / whole["loss_final"] - 1)
        if found["attempt"] < 2 or apart > 1e-6:
            raise Failed(f"attempt {found['attempt']}: the last loss is apart by {apart:.2e}")
        return {"apart": apart, "attempt": found["attempt"], "loss": found["loss_final"]}

    return run


def _saved(run: str) -> bool:
    """The first checkpoint is complete."""
    try:
        return any(one["kind"] == "saved" for one in events(run))
    except (FileNotFoundError, ValueError):  # not there yet, or in the middle of a line
        return False


def _kill_rank(run: Path) -> None:
    """SIGKILL to the rank of this run: the process whose arguments name its folder, and no other."""
    mine = []
    for place in Path("/proc").iterdir():
        try:
            words = (place / "cmdline").read_bytes() if place.name.isdigit() else b""
            env = (place / "environ").read_bytes() if words else b""
        except OSError:
            continue
        if b"muster" in words and b"LOCAL_RANK=0" in env and str(run.resolve()).encode() in words + env:
            mine.append(int(place.name))
    if not mine:
        raise Failed("the rank's process was not found")
    for pid in mine:
        os.kill(pid, signal.SIGKILL)


def compiled(machine: Machine) -> Figures:
    """torch.compile, in fp32: the loss is that of the run that is not compiled."""
    words = [*ENGINES["ddp"], "precision=fp32"]
    plain, found = _short(machine, "plain", *words), _short(machine, "compiled", *words, "train.compile=true")
    _computed_in("fp32", "compiled")
    apart = abs(found["loss_final"] / plain["loss_final"] - 1)
    if apart > CLOSE["fp32"]:
        raise Failed(f"the last loss is apart by {apart:.2e}")
    times = [one["throughput"]["step_seconds_median"] for one in (plain, found)]
    return {"apart": apart, "step_seconds": times, "ratio": times[0] / times[1]}


def cpu_job(machine: Machine) -> Figures:
    """A job on the CPU of this machine leaves its GPU alone."""
    machine.needs_cuda()
    _short(replace(machine, device="cpu", tiny=True), "run", "checkpoint.every=10")
    used = [
        gpu.get("memory_used") for one in events("run") if one["kind"] == "hardware" for gpu in one["gpus"]
    ]
    known = [one for one in used if one is not None]
    if known and max(known) - known[0] > 100e6:
        raise Failed(f"the GPU's memory in use went from {known[0]} to {max(known)} bytes")
    return {"gpu_memory_used": known}


def fabric(machine: Machine) -> Figures:
    """The device's own figures by the fabric workload."""
    words = ["fabric.seconds=10", "fabric.largest=64MiB"]
    found = train(machine, "fabric", "fabric", *words)
    return {"fabric": found["fabric"]}


def demo(machine: Machine) -> Figures:
    """The README's demo, as it is."""
    if machine.tiny:
        raise NotApplicable("the demo is a test of its own")
    out = muster("demo")
    return {"printed": out[-2000:]}
