"""What is left of `muster run` on three hosts, whatever is run and whatever ends it. On the test cluster.

    .venv/bin/python benchmarks/run_endings.py [--programs ddp,mpirun] [--ends host]
    .venv/bin/python benchmarks/run_endings.py --page              # the table of docs/run.md alone

Needs root: the hosts are the test cluster's (network namespaces on this machine, jobs over ssh). Five
programs after their libraries' documentation, whose ranks have two processes each that load data:
DistributedDataParallel under torchrun, Accelerate, DeepSpeed's engine, a program for mpirun, and a single
file as nanoGPT is one. Each is ended four ways once all ranks train: the controller by SIGKILL, the second
rank by SIGKILL, the second host as if its plug were pulled, and Ctrl-C.

`seconds`: until no process with the job's token, and no agent, is on a host that lives. A host that is down
is known to be after `launch.lease`, here LEASE. Writes benchmarks/results/run_endings.json after each.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from hardware import into_page, machine  # noqa: E402
from tests.cluster.cluster import Cluster  # noqa: E402
from tests.cluster.namespaces import Process  # noqa: E402
from tests.cluster.scenarios import HOSTS, over_ssh  # noqa: E402

from muster.store.runfolder import RunFolder  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "run_endings.json"
PAGE, NAME = ROOT / "docs" / "run.md", "endings"
ENDS = {
    "controller": "controller -9",
    "rank": "rank -9",
    "host": "host down",
    "interrupt": "Ctrl-C",
}
LEASE, PATIENCE, WITHIN = 5, 240, 60

DATA = """
import os, sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

dataset = TensorDataset(torch.randn(64, 10), torch.randn(64, 5))
"""
MODEL = "nn.Sequential(nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 5))"
# After PyTorch's tutorial "Distributed data parallel training".
DDP = f"""{DATA}
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("gloo")
model = DDP({MODEL})
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=4, sampler=sampler, num_workers=2, persistent_workers=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for epoch in range(100000):
    sampler.set_epoch(epoch)
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
    print(f"epoch {{epoch}} loss {{loss.item():.4f}}", flush=True)
    time.sleep(0.1)
"""
# After Accelerate's quick tour.
ACCELERATE = f"""{DATA}
from accelerate import Accelerator

accelerator = Accelerator()
model = {MODEL}
optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
loader = DataLoader(dataset, batch_size=4, num_workers=2, persistent_workers=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
assert accelerator.num_processes == 3
for epoch in range(100000):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
    print(f"epoch {{epoch}} loss {{loss.item():.4f}}", flush=True)
    time.sleep(0.1)
"""
# After DeepSpeed's "Getting started".
DEEPSPEED = f"""{DATA}
import argparse
import deepspeed

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=-1)
parser = deepspeed.add_config_arguments(parser)
args = parser.parse_args()
deepspeed.init_distributed()
net = {MODEL}
engine, optimizer, loader, _ = deepspeed.initialize(
    args=args, model=net, model_parameters=net.parameters(), training_data=dataset)
workers = DataLoader(dataset, batch_size=4, num_workers=2, persistent_workers=True)
for epoch in range(100000):
    for x, y in workers:
        loss = nn.functional.mse_loss(engine(x), y)
        engine.backward(loss)
        engine.step()
    print(f"epoch {{epoch}} loss {{loss.item():.4f}}", flush=True)
    time.sleep(0.1)
"""
CONFIG = {
    "train_micro_batch_size_per_gpu": 4,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.001, "torch_adam": True}},
    "zero_optimization": {"stage": 1},
}
MPIRUN = f"""{DATA}
import torch.distributed as dist

rank, size = int(os.environ["OMPI_COMM_WORLD_RANK"]), int(os.environ["OMPI_COMM_WORLD_SIZE"])
dist.init_process_group("gloo", rank=rank, world_size=size)
model = {MODEL}
loader = DataLoader(dataset, batch_size=4, num_workers=2, persistent_workers=True)
for epoch in range(100000):
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        model.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.data -= 0.001 * parameter.grad / size
    print(f"epoch {{epoch}} loss {{loss.item():.4f}}", flush=True)
    time.sleep(0.1)
"""
# As nanoGPT's train.py: one file, its settings at the top, ddp by RANK in the environment.
NANOGPT = f"""{DATA}
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel as DDP

backend, max_iters, log_interval = "gloo", 10000000, 10
ddp = int(os.environ.get("RANK", -1)) != -1
if ddp:
    init_process_group(backend=backend)
    ddp_rank, ddp_local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    master_process = ddp_rank == 0
    torch.manual_seed(1337 + ddp_rank)
model = {MODEL}
optimizer = torch.optim.AdamW(model.parameters())
model = DDP(model) if ddp else model
loader = DataLoader(dataset, batch_size=4, num_workers=2, persistent_workers=True)
iter_num, t0 = 0, time.time()
while iter_num < max_iters:
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        dt, t0 = time.time() - t0, time.time()
        if iter_num % log_interval == 0 and master_process:
            print(f"iter {{iter_num}}: loss {{loss.item():.4f}}, time {{dt*1000:.2f}}ms, mfu -100.00%")
        iter_num += 1
    time.sleep(0.1)
destroy_process_group()
"""
# Name -> the text, Muster's words, the program's.
PROGRAMS: dict[str, tuple[str, Sequence[str], Sequence[str]]] = {
    "ddp": (DDP, (), ()),
    "accelerate": (ACCELERATE, ("--start", "rank", "--env", "ACCELERATE_USE_CPU=true"), ()),
    "deepspeed": (DEEPSPEED, (), ("--deepspeed", "--deepspeed_config", "ds_config.json")),
    "mpirun": (MPIRUN, ("--start", "rank", "--names", "ompi"), ()),
    "nanogpt": (NANOGPT, (), ()),
}
TITLES = {
    "ddp": "DDP, torchrun",
    "accelerate": "Accelerate, per rank",
    "deepspeed": "DeepSpeed's engine, torchrun",
    "mpirun": "`OMPI_COMM_WORLD_RANK`, per rank",
    "nanogpt": "one file as nanoGPT, torchrun",
}


def of_job(cluster: Cluster, name: str) -> list[tuple[str, Process]]:
    """Living processes of the job, on hosts that live."""
    found = []
    for node in cluster.hosts:
        for each in cluster.processes(node):
            if each.environ.get("MUSTER_TOKEN", "").startswith(f"{name}.") or name in each.argv:
                found.append((node.name, each))
    return [each for each in found if each[1].state not in "ZX"]


def rank_of(cluster: Cluster, name: str) -> int:
    """The process of the second host that trains: the program's own, which is not a child of another one."""
    there = {
        each.pid: each for host, each in of_job(cluster, name) if host == "node2" and "train.py" in each.argv
    }
    ranks = [each for each in there.values() if "torch.distributed.run" not in each.argv]
    own = [
        each for each in ranks if each.ppid not in there or "torch.distributed.run" in there[each.ppid].argv
    ]
    return own[0].pid


def trains(run: RunFolder, cluster: Cluster, name: str) -> bool:
    """The first rank says so, and all loaders are there: a rank has itself and two of them."""
    log = run.rank_log("node1", 0)
    said = log.exists() and any(word in log.read_text() for word in ("epoch 3", "iter 40"))
    programs = [each for _, each in of_job(cluster, name) if "train.py" in each.argv]
    return said and len(programs) >= 9


@contextmanager
def running(cluster: Cluster, folder: Path, program: str, name: str) -> Iterator[subprocess.Popen[str]]:
    text, own, words = PROGRAMS[program]
    (folder / "train.py").write_text(text)
    (folder / "ds_config.json").write_text(json.dumps(CONFIG))
    launch = [f"launch.workdir={cluster.private_dir}/muster", f"launch.lease={LEASE}", *over_ssh(cluster)]
    argv = [sys.executable, "-m", "muster", "run", HOSTS, "--name", name, "--json", *launch, *own, "--"]
    started = [sys.executable, "train.py"] if "rank" in own else ["train.py"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*argv, *started, *words], cwd=folder, **pipes) as job:  # type: ignore[call-overload]
        try:
            yield job
        finally:
            job.kill()


def one(cluster: Cluster, program: str, end: str) -> dict[str, Any]:
    """A run and its end. -> its row."""
    name = f"end-{os.getpid()}-{program}-{end}"
    with tempfile.TemporaryDirectory(prefix="muster-endings-") as place:
        folder = Path(place)
        with running(cluster, folder, program, name) as job:
            run = RunFolder(folder / "runs" / name)
            limit = time.monotonic() + PATIENCE
            while not trains(run, cluster, name):
                if job.poll() is not None or time.monotonic() > limit:
                    job.kill()
                    raise SystemExit(f"{program} does not train: {job.communicate()}")
                time.sleep(0.5)
            before = len(of_job(cluster, name))
            if end == "rank":
                cluster.signal("node2", rank_of(cluster, name), signal.SIGKILL)
            elif end == "host":
                cluster.kill("node2")
            else:
                job.send_signal(signal.SIGKILL if end == "controller" else signal.SIGINT)
            began = time.monotonic()
            while (there := of_job(cluster, name)) and time.monotonic() < began + WITHIN:
                time.sleep(0.1)
            seconds = time.monotonic() - began
            left = [f"{host}: {each.pid} {' '.join(each.argv[:4])}" for host, each in there]
            said, _ = job.communicate(timeout=120)
        result = json.loads(said) if said.strip() else {}
    failure = result.get("failure") or {}
    return {
        "program": program, "end": end, "processes": before, "seconds": seconds, "left": left,
        "status": result.get("status"), "what": failure.get("what"), "host": failure.get("host"),
    }  # fmt: skip


def cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    if row["left"]:
        return f"**{len(row['left'])} left**"
    right = row["host"] == "node2" and (row["end"] == "host" or row["what"].startswith("rank 1 was killed"))
    named = {True: "", False: f", {'' if right else 'not '}named"}[row["end"] in ("controller", "interrupt")]
    return f"{row['seconds']:.1f} s{named}"


def table(rows: Sequence[dict[str, Any]]) -> str:
    """For docs/run.md."""
    made = [f"| | {' | '.join(ENDS.values())} |", f"| --- {'| --- ' * len(ENDS)}|"]
    known = {(row["program"], row["end"]): row for row in rows}
    for program, title in TITLES.items():
        made.append(f"| {title} | {' | '.join(cell(known.get((program, end))) for end in ENDS)} |")
    return "\n".join(made)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--programs", default=",".join(PROGRAMS))
    parser.add_argument("--ends", default=",".join(ENDS))
    parser.add_argument("--page", action="store_true")
    wanted = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # behind `&` it is ignored
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"rows": []}
    if not wanted.page:
        with Cluster(size=3) as cluster:
            for program in wanted.programs.split(","):
                for end in wanted.ends.split(","):
                    row = one(cluster, program, end)
                    print(json.dumps(row), flush=True)
                    rows = [
                        each for each in known["rows"] if (each["program"], each["end"]) != (program, end)
                    ]
                    known = {**machine(), "rows": [*rows, row]}
                    RESULTS.write_text(json.dumps(known, indent=1) + "\n")
                    cluster.heal()
    into_page(PAGE, NAME, table(known["rows"]))


if __name__ == "__main__":
    main()
