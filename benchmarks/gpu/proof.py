"""Does Muster work here at all? Each piece says that it does, or how it does not.

Most of them share the GPU, several at a time: their figures hold no times, and of memory the allocator's
peak alone, which is a process's own.
"""

from __future__ import annotations

import json
import math
import os
import re
import signal
import statistics
import subprocess
import sys
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
LONG = 60  # of a run that is killed after its first checkpoint
FIRST = 10  # the step of that checkpoint
CHANCE = 2.0  # times the distance of two whole runs: one pair of runs says little of what is usual
EQUAL = 1e-6  # relative, of losses that are written as decimals
OVERFLOW = 2.0**40  # a first loss scale at which gradients overflow fp16 for certain


def pieces() -> list[Piece]:
    """Those that are alone first, then the longest first: together they take as long as the last one."""
    jobs = [
        Piece(
            "proof", f"{engine}-{precision}", 120, _engine(engine, precision), usual=35, shared=True,
            after="" if (engine, precision) == BASE else "-".join(BASE), parts=_parts(engine),
        )
        for precision in ("fp32", "bf16", "fp16", "tf32")
        for engine in FEW.get(precision, ENGINES)
    ]  # fmt: skip

    def resumed(engine: str, usual: float) -> Piece:
        return Piece(
            "proof", f"resume-{engine}", 300, _resumed(engine), usual, shared=True, parts=_parts(engine)
        )

    def skipped(engine: str) -> Piece:
        return Piece(
            "proof", f"skipped-{engine}", 120, _skipped(engine), 30, shared=True, parts=_parts(engine)
        )

    texts = ("engines/ddp", "workloads/text2sql", "workloads/seq2seq")
    return [
        Piece("proof", "smi", 60, smi, 4, shared=True, parts=None),
        Piece("proof", "check", 180, check, 20, parts=("checks", "profiles", "workloads/fabric")),
        Piece("proof", "clock", 60, clock, 16, parts=()),
        Piece("proof", "fabric", 120, fabric, 35, parts=("workloads/fabric", "engines/ddp")),
        jobs[0],
        resumed("zero2", 200), resumed("ddp", 140), resumed("fsdp", 140),
        Piece("proof", "text2sql", 180, text2sql, 75, shared=True, parts=texts),
        Piece("proof", "compile", 240, compiled, 60, shared=True, parts=_parts("ddp")),
        Piece("proof", "command", 150, command, 60, shared=True, parts=("workloads/command",)),
        *jobs[1:],
        skipped("ddp"), skipped("fsdp"), skipped("zero2"),
        Piece("proof", "cpu-job", 120, cpu_job, 40, shared=True, parts=_parts("ddp")),
        *(
            Piece("proof", name, 150, _dialogues(name), 50, shared=True,
                  parts=("engines/ddp", f"workloads/{name}"))
            for name in ("grpo", "ppo", "dpo")
        ),
    ]  # fmt: skip


def _parts(engine: str) -> tuple[str, ...]:
    """Of the code, that a run of the OPT benchmark with this engine rests on."""
    name = "deepspeed" if engine.startswith("zero") else engine.removesuffix("-group")
    return (f"engines/{name}", "workloads/causal_lm")


def smi(machine: Machine) -> Figures:
    """What nvidia-smi says: a document for tests of machines that are not at hand."""
    machine.needs_cuda()
    said = output(["nvidia-smi", "-q", "-x"])
    return {"xml": anonymous(said), "topology": output(["nvidia-smi", "topo", "-m"])}


def anonymous(xml: str) -> str:
    """Without what tells this GPU from others of its kind, and without the long list of clocks."""
    for name in ("serial", "uuid", "pdi", "chassis_serial_number", "gpu_fabric_guid"):
        xml = re.sub(rf"(<{name}>)[^<]*(</{name}>)", r"\1N/A\2", xml)
    return re.sub(r"\s*<supported_clocks>.*?</supported_clocks>", "", xml, flags=re.DOTALL)


def check(machine: Machine) -> Figures:
    """`muster check local:1` sees the device, and ends with an answer."""
    expected = "1" if machine.device == "cuda" else "none"
    found = json.loads(muster("check", "local:1", "--json", "--expect-gpus", expected, okay=(0, 1)))
    host = found["hosts"][0]
    if machine.device == "cuda" and not host["slots"]:
        raise Failed(f"muster check found no GPU:\n{json.dumps(found, indent=1)}")
    levels = [one["level"] for one in host["checks"]]
    return {
        "slots": host["slots"],
        "verdict": host["verdict"],
        "levels": {level: levels.count(level) for level in sorted(set(levels))},
        "checks": [one for one in host["checks"] if one["level"] not in ("not applicable", "pass")],
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
    return {
        "precision": found["precision"],
        "loss": [found["loss_first"], found["loss_final"]],
        "allocator_peak": found["memory"]["allocator_peak"],
        "quality": found["quality"],
        "answer": answers,
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
            "allocator_peak": found["memory"]["allocator_peak"],
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
        """Killed with SIGKILL after a checkpoint, a run goes on as one that was never killed: as close to two
        of those as they are to each other."""
        more = [*ENGINES[engine], f"checkpoint.every={FIRST}", "precision=fp32", "measure.window=1"]
        more.append(f"train.max_steps={LONG}")
        whole = [_losses(machine, name, *more) for name in ("whole", "again")]
        argv = training(machine, "cut", "opt-benchmark", *_overrides(machine, *more))
        with Path("cut.out").open("wb") as stream:
            process = subprocess.Popen(argv, stdout=stream, stderr=subprocess.STDOUT)
            while process.poll() is None and not _saved("cut"):
                time.sleep(0.02)
            if process.poll() is not None:
                raise Failed(f"the run ended before it could be killed:\n{Path('cut.out').read_text()}")
            for pid in _ranks_of(Path("runs/cut")):
                os.kill(pid, signal.SIGKILL)
            process.wait()
        muster("resume", "cut")
        if (attempt := result("cut")["attempt"]) < 2:
            raise Failed(f"attempt {attempt}: the run was not killed")
        apart, control = distances(losses_of("cut"), *whole)
        if apart > max(CHANCE * control, EQUAL):
            raise Failed(
                f"losses are apart by {apart:.2e} from those of the closer of two runs that were never "
                f"interrupted, which are apart by {control:.2e} themselves"
            )
        return {"apart": apart, "control": control, "attempt": attempt, "loss": result("cut")["loss_final"]}

    return run


def _losses(machine: Machine, name: str, *more: str) -> dict[int, float]:
    _short(machine, name, *more)
    return losses_of(name)


def losses_of(name: str) -> dict[int, float]:
    """A run's loss by step; where a step was taken twice, of the last attempt."""
    logs = [one for one in events(name) if one["kind"] == "log" and one["loss"] is not None]
    return {int(one["step"]): float(one["loss"]) for one in logs}


def distances(
    resumed: dict[int, float], whole: dict[int, float], again: dict[int, float]
) -> tuple[float, float]:
    """The largest relative difference of losses after the first checkpoint: of a resumed run from the closer
    of two whole ones, and of those two from each other. Raises Failed where a step is missing."""
    if not resumed.keys() == whole.keys() == again.keys():
        raise Failed(f"losses of {len(resumed)}, {len(whole)} and {len(again)} steps")

    def apart(one: dict[int, float], other: dict[int, float]) -> float:
        return max(abs(one[step] / other[step] - 1) for step in other if step > FIRST)

    return min(apart(resumed, whole), apart(resumed, again)), apart(again, whole)


def _saved(run: str) -> bool:
    """The first checkpoint is complete."""
    try:
        return any(one["kind"] == "saved" for one in events(run))
    except (FileNotFoundError, ValueError):  # not there yet, or in the middle of a line
        return False


def _ranks_of(run: Path) -> dict[int, dict[str, str]]:
    """The environment of each rank of this run that is alive, by its process: those whose arguments or
    environment name the run's folder, and no other. Raises Failed where there is none."""
    if not (ranks := _ranks(run)):
        raise Failed("the rank's process was not found")
    return ranks


def _ranks(run: Path) -> dict[int, dict[str, str]]:
    mine = {}
    for place in Path("/proc").iterdir():
        try:
            words = (place / "cmdline").read_bytes() if place.name.isdigit() else b""
            env = (place / "environ").read_bytes() if words else b""
        except OSError:
            continue
        if b"muster" in words and b"LOCAL_RANK=0" in env and str(run.resolve()).encode() in words + env:
            pairs = (pair.partition("=") for pair in env.decode(errors="replace").split("\0"))
            mine[int(place.name)] = {name: value for name, _, value in pairs if name}
    return mine


def compiled(machine: Machine) -> Figures:
    """torch.compile, in fp32: the loss is that of the run that is not compiled."""
    words = [*ENGINES["ddp"], "precision=fp32"]
    plain, found = _short(machine, "plain", *words), _short(machine, "compiled", *words, "train.compile=true")
    _computed_in("fp32", "compiled")
    apart = abs(found["loss_final"] / plain["loss_final"] - 1)
    if apart > CLOSE["fp32"]:
        raise Failed(f"the last loss is apart by {apart:.2e}")
    return {"apart": apart}


def cpu_job(machine: Machine) -> Figures:
    """A job on the CPU of this machine leaves its GPUs alone: its ranks see none, and the driver names none
    of them among the processes that compute."""
    asks = machine.device == "cuda" and _driver_names_processes()
    small = replace(machine, device="cpu", tiny=True)
    argv = training(small, "run", "opt-benchmark", *_overrides(small, "checkpoint.every=10"))
    ranks: dict[int, dict[str, str]] = {}
    looks, computing = 0, set[int]()
    with Path("run.out").open("wb") as stream:
        process = subprocess.Popen(argv, stdout=stream, stderr=subprocess.STDOUT)
        while process.poll() is None:
            ranks |= _ranks(Path("runs/run"))
            if asks and ranks:
                looks, computing = looks + 1, computing | _computing()
            time.sleep(0.1)
    if process.returncode or not ranks:
        raise Failed(f"exit code {process.returncode}, {len(ranks)} ranks\n{Path('run.out').read_text()}")
    names = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
    shown = {name: env.get(name) for env in ranks.values() for name in names}
    if any(value != "" for value in shown.values()):
        raise Failed(f"its ranks see GPUs: {shown}")
    if computing & ranks.keys():
        raise Failed(f"processes {sorted(computing & ranks.keys())} compute on a GPU")
    return {"environment": shown, "asked_the_driver": looks}


def _computing() -> set[int]:
    """Processes that compute on a GPU, as the driver names them."""
    said = output(["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"])
    return {int(word) for word in said.split() if word.isdecimal()}


def _driver_names_processes() -> bool:
    """Whether the driver names one that does compute, by the number that it has here."""
    hold = "import sys, torch; x = torch.ones(1, device='cuda'); print(1, flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout and process.stdin
        process.stdout.readline()
        named = process.pid in _computing()
        process.stdin.close()
    return named


def _dialogues(name: str) -> Any:
    def run(machine: Machine) -> Figures:
        """A small model learns from answers: its own, or pairs."""
        few = ["data.generated={train: 200, validation: 16, seed: 1}"] if machine.tiny else []
        words = [*PLAIN, "train.max_steps=6", "train.warmup=0", "measure={window: 2, warmup: 2}", *few]
        found = train(machine, "run", name, "engine.name=ddp", "engine.zero=0", *words)
        loss = found["loss_final"]
        if loss is None or not math.isfinite(loss):
            raise Failed(f"the last loss is {loss}")
        return {
            "loss": loss, "precision": found["precision"], "allocator_peak": found["memory"]["allocator_peak"]
        }  # fmt: skip

    return run


LOOP = """
import sys, time
import torch, torch.distributed as dist

def stuck_here():
    time.sleep(10_000)

device = sys.argv[1]
dist.init_process_group("nccl" if device == "cuda" else "gloo")
x = torch.ones(1024, device=device)
for step in range(200):
    dist.all_reduce(x)
    x = (x / dist.get_world_size()).cpu().to(device)
    time.sleep(0.01)
    if step % 20 == 0:
        print(f"iter {step}: loss {1 / (step + 1):.4f}, time 10.00ms", flush=True)
    if step == 100 and "hang" in sys.argv:
        stuck_here()
dist.destroy_process_group()
"""


def command(machine: Machine) -> Figures:
    """`muster run` of a script of one's own: to its end, and where it hangs, the line that it hangs in."""
    Path("loop.py").write_text(LOOP)
    words = ["run", "local:1", "hang.seconds=10", f"launch.device={machine.device}", "--name"]
    muster(*words, "fine", "--", "loop.py", machine.device)
    muster(*words, "stuck", "--", "loop.py", machine.device, "hang", okay=(1,))
    hang = result("stuck")["hang"]
    if not hang or "stuck_here (loop.py:" not in hang["what"]:
        raise Failed(f"the hang was said to be {hang}")
    return {"status": result("fine")["status"], "loss": result("fine")["loss_final"], "hang": hang["what"]}


def fabric(machine: Machine) -> Figures:
    """The device's own figures by the fabric workload."""
    words = ["fabric.seconds=10", "fabric.largest=64MiB"]
    found = train(machine, "fabric", "fabric", *words)
    return {"fabric": found["fabric"]}
