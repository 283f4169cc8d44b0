"""Whether a hang is named. python -m benchmarks.hangs [--hosts local:3x1] [--tries 5] [--seconds 10]

For each kind of program (a workload of Muster's own, a script under torchrun, a script with DeepSpeed's
engine) and each fault: a job of three ranks trains, one of them gets the fault in the middle, and the verdict
is held against what was done. The faults computes, alone and announced are none: jobs that are slow for
`--lasts` seconds, where nothing may be found. Prints a table, and with --out writes it as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.hardware import processor

# It runs as `sitecustomize` in each process, as the site's own file might: FAULT=KIND:RANK:STEP.
PLANTED = """
import os, signal, sys, time
kind, rank, at = (os.environ.get("FAULT", "") + "::").split(":")[:3]
me = os.environ.get("RANK")
count = 0

def blocked():
    path = "/tmp/muster-hang-%d" % os.getpid()
    os.mkfifo(path)
    os.open(path, os.O_RDONLY)

def loop():
    number = 0
    while True:
        number += 1

def long():
    end, step = time.time() + float(at.partition("/")[2] or 20), 0
    import torch
    while time.time() < end:
        for width in (64, 96, 128):
            torch.nn.functional.gelu(torch.randn(width, width)) @ torch.randn(width, width)

def hook(optimizer, args, kwargs):
    global count
    count += 1
    if count != int(at.partition("/")[0]):
        return
    import torch, torch.distributed as dist
    mine = me == rank
    print("fault %s" % kind, time.time(), flush=True)
    if kind == "skip" and not mine:
        dist.barrier()
    if kind == "differ":
        dist.broadcast(torch.ones(5), 0) if mine else dist.all_reduce(torch.ones(3))
    if kind == "announced":
        import muster
        with muster.phase("a long step"):
            time.sleep(float(at.partition("/")[2] or 20))
    if kind == "computes":
        long()
    if mine and kind == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if mine and kind == "sleep":
        time.sleep(10000)
    if mine and kind == "loop":
        loop()
    if mine and kind == "pipe":
        blocked()
    if mine and kind == "alone":
        long()

if kind and me:
    from torch.optim.optimizer import register_optimizer_step_pre_hook
    register_optimizer_step_pre_hook(hook)
"""
TORCHRUN = """
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
torch.manual_seed(0)
layers = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Linear(64, 1))
model = torch.nn.parallel.DistributedDataParallel(layers)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(int(os.environ["STEPS"])):
    began = time.time()
    loss = model(torch.randn(16, 32)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.05)
    if dist.get_rank() == 0:
        spent = 1000 * (time.time() - began)
        print(f"iter {step}: loss {loss.item():.4f}, time {spent:.2f}ms, mfu 1.00%", flush=True)
"""
DEEPSPEED = """
import os, time, torch, deepspeed
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Linear(64, 1))
config = {"train_micro_batch_size_per_gpu": 16, "zero_optimization": {"stage": 1}, "steps_per_print": 1,
          "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}}}
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
for step in range(int(os.environ["STEPS"])):
    began = time.time()
    loss = engine(torch.randn(16, 32)).square().mean()
    engine.backward(loss)
    engine.step()
    time.sleep(0.05)
    if engine.global_rank == 0:
        spent = 1000 * (time.time() - began)
        print(f"iter {step}: loss {loss.item():.4f}, time {spent:.2f}ms, mfu 1.00%", flush=True)
"""
OWN = {
    "workload": "causal-lm",
    "engine": {"name": "ddp"},
    "data": {"synthetic": {}, "sequence": 32},
    "model": {
        "init": "random",
        "config": {
            "model_type": "opt", "hidden_size": 64, "ffn_dim": 128, "num_hidden_layers": 2,
            "num_attention_heads": 2, "word_embed_proj_dim": 64, "vocab_size": 1000,
            "max_position_embeddings": 64,
        },
    },
    "batch": {"micro": 4},
    "train": {"max_steps": 4000},
    "evaluate": {"after": False},
    "checkpoint": {"model": False},
    "precision": "fp32",
    "launch": {"device": "cpu", "threads": 1},
}  # fmt: skip
KINDS = ("own", "torchrun", "deepspeed")
FAULTS = ("stop", "loop", "sleep", "pipe", "skip", "differ")
HEALTHY = ("computes", "alone", "announced")
STEP = 25


def one(
    kind: str, fault: str, rank: int, hosts: str, seconds: float, folder: Path, lasts: float
) -> dict[str, Any]:
    """Run a job with a fault. -> what was found."""
    (folder / "planted").mkdir(parents=True)
    (folder / "planted" / "sitecustomize.py").write_text(PLANTED)
    (folder / "torchrun.py").write_text(TORCHRUN)
    (folder / "with_deepspeed.py").write_text(DEEPSPEED)
    (folder / "own.yaml").write_text(json.dumps(OWN))
    steps = 2 * STEP if fault in HEALTHY else 4000
    planted = {
        "FAULT": f"{fault}:{rank}:{STEP}/{lasts}", "PYTHONPATH": str(folder / "planted"),
        "DS_ACCELERATOR": "cpu", "STEPS": str(steps),
    }  # fmt: skip
    settings = [f"hang.seconds={seconds:g}"]
    argv = [sys.executable, "-m", "muster"]
    if kind == "own":
        argv += ["train", str(folder / "own.yaml"), "--hosts", hosts, "--json", *settings]
        argv += [f"train.max_steps={steps}"]
        argv += [f"env.{name}={value}" for name, value in planted.items()]
    else:
        argv += ["run", hosts, "--json", *settings, "launch.device=cpu", "launch.threads=1"]
        argv += [f"--env={name}={value}" for name, value in planted.items()]
        argv += ["--", {"torchrun": "torchrun.py", "deepspeed": "with_deepspeed.py"}[kind]]
    job = subprocess.Popen(argv, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        out, said = job.communicate(timeout=90 + 6 * seconds + 2 * lasts)
    except subprocess.TimeoutExpired:
        job.terminate()
        out, said = job.communicate()
    result = json.loads(out) if out.strip() else {}
    hung = result.get("hang") or {}
    return {
        "kind": kind,
        "fault": fault,
        "rank": rank,
        "named": hung.get("ranks"),
        "certain": hung.get("certain"),
        "what": hung.get("what") or result.get("failure") or said[-400:],
        "noticed_seconds": _noticed(folder),
        "steps": result.get("steps"),
    }


def _noticed(folder: Path) -> float | None:
    """Seconds from the fault to the verdict, both by this machine's clock."""
    planted, found = [], None
    for path in folder.glob("runs/*/logs/*"):
        planted += [
            float(line.split()[2]) for line in path.read_text().splitlines() if line.startswith("fault ")
        ]
    for path in folder.glob("runs/*/events.jsonl"):
        for line in path.read_text().splitlines():
            event = json.loads(line)
            found = event["time"] if event["kind"] == "hang" else found
    return round(found - min(planted), 1) if planted and found else None


def right(found: dict[str, Any]) -> bool:
    """Whether the verdict is what was done."""
    if found["fault"] in HEALTHY:
        return found["named"] is None
    return found["named"] == [found["rank"]]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", default="local:3x1")
    parser.add_argument("--kinds", nargs="*", default=KINDS, choices=KINDS)
    parser.add_argument("--faults", nargs="*", default=FAULTS, choices=FAULTS + HEALTHY)
    parser.add_argument("--tries", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--lasts", type=float, default=30, help="seconds of a healthy slow step")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    rng, all_found = random.Random(1), []
    print(f"{'program':10} {'fault':10} {'rank':>4} {'named':>8} {'seconds':>8}  what")
    for kind in asked.kinds:
        for fault in asked.faults:
            for _ in range(asked.tries if (kind, fault) != ("own", "announced") else 0):
                with tempfile.TemporaryDirectory() as place:
                    rank = rng.randrange(3)
                    found = one(
                        kind, fault, rank, asked.hosts, asked.seconds, Path(place) / "job", asked.lasts
                    )
                all_found.append(found)
                mark = " " if right(found) else "!"
                print(
                    f"{kind:10} {fault:10} {rank:4} {found['named']!s:>8} "
                    f"{found['noticed_seconds']!s:>8} {mark} "
                    f"{str(found['what'])[:150]}",
                    flush=True,
                )
    good = sum(map(right, all_found))
    print(f"{good} of {len(all_found)} right")
    if asked.out:
        about = {
            "hardware": f"{os.cpu_count()} cores of {processor()}",
            "seconds": asked.seconds,
            "hosts": asked.hosts,
            "found": all_found,
        }
        asked.out.write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
