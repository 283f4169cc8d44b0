"""Is a hang named, and is a slow job let alone? On the test cluster, or on pretend hosts.

    .venv/bin/python -m benchmarks.hangs --cluster --rows rows.jsonl        # 3 programs x 8 faults x 5 tries
    .venv/bin/python -m benchmarks.hangs --cluster --rows rows.jsonl --seconds auto --tries 1
    .venv/bin/python -m benchmarks.hangs --cluster --rows rows.jsonl --faults alone saves --lasts 300
    .venv/bin/python -m benchmarks.hangs --rows rows.jsonl --page           # the results file and the page

For each kind of program (a workload of Muster's own, a script under torchrun, a script with DeepSpeed's
engine) and each fault: a job of three hosts with a rank each trains, one of them gets the fault in the middle
(benchmarks/hangs_inside.py), and the verdict is held against what was done. Rows are written as they come,
and what is there already is not tried again.

  host  every process of a host is stopped, the agent and ssh as well
  cut   packets between a host and the other hosts go nowhere, while the controller still reaches all
  pair  the same between two hosts alone
  gone  a host is cut from everything

Of a host that is stopped or cut the host is to be named, of a pair one of both, or both; else the rank, for
certain. The healthy ones are slow for `--lasts` seconds, and nothing may be found.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from textwrap import fill
from typing import Any

from benchmarks.hardware import into_page, processor
from tests.cluster.cluster import Cluster

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "hangs.json"
PAGE = ROOT / "docs" / "hang.md"
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
OWN: dict[str, Any] = {
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
FAULTS = {
    "stop": "a rank gets SIGSTOP", "host": "a whole host is stopped", "loop": "an endless loop of Python",
    "sleep": "`time.sleep`", "pipe": "a pipe that nobody writes to", "skip": "a rank skips an all-reduce",
    "differ": "a rank is in another collective", "cut": "a host cut from the other hosts",
}  # fmt: skip
FURTHER = {
    "frozen": "a disk that takes nothing", "pair": "the link between two hosts",
    "gone": "a host cut from everything",
}  # fmt: skip
HEALTHY = {
    "computes": "all ranks compute", "alone": "one rank computes, as in an evaluation",
    "evaluates": "one rank works in Python alone", "saves": "one rank writes to a disk that takes 8 MB/s",
    "compiles": "a first step that compiles", "loads": "data loaders that are slow",
    "uneven": "steps of very uneven lengths", "announced": "`muster.phase`",
}  # fmt: skip
OUTSIDE = ("host", "cut", "pair", "gone")
HOSTS = ("node1", "node2", "node3")
STEP = 25


@dataclass(frozen=True)
class Try:
    """One job. `seconds`: hang.seconds; `lasts`: seconds of a healthy slow step."""

    kind: str
    fault: str
    number: int
    seconds: str
    lasts: float

    @property
    def rank(self) -> int:
        """That gets the fault: another one each time."""
        return random.Random(f"{self.kind} {self.fault} {self.number}").randrange(3)

    @property
    def key(self) -> tuple[object, ...]:
        return self.kind, self.fault, self.number, self.seconds, self.lasts if self.fault in HEALTHY else 0.0


@dataclass
class Happened:
    """What was done from outside, and when ranks of other hosts ended because of it."""

    done: float | None = None
    ended: float | None = None


def one(tried: Try, hosts: str | None, folder: Path) -> dict[str, Any]:
    """Run a job, on the test cluster where no hosts are given. -> what was found."""
    folder.mkdir()
    happened = Happened()
    with contextlib.ExitStack() as stack:
        device = stack.enter_context(disk(folder)) if tried.fault in ("saves", "frozen") else None
        cluster = stack.enter_context(Cluster(size=3)) if hosts is None else None
        if device:  # let loose first, since nothing ends a process that waits for it
            stack.enter_context((slow if tried.fault == "saves" else frozen)(device))
        argv = command(tried, hosts, cluster, folder)
        began = time.time()
        job = subprocess.Popen(argv, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if cluster is not None and tried.fault in OUTSIDE:
            stack.enter_context(watched(tried, cluster, folder, happened))
        patience = 60 if tried.seconds == "auto" else float(tried.seconds)
        try:
            out, said = job.communicate(timeout=300 + 6 * patience + 3 * tried.lasts)
        except subprocess.TimeoutExpired:
            job.terminate()
            out, said = job.communicate()
        took = time.time() - began
    result = json.loads(out) if out.strip() else {}
    hung, failure = result.get("hang") or {}, result.get("failure") or {}
    row = {
        "kind": tried.kind, "fault": tried.fault, "number": tried.number, "hang_seconds": tried.seconds,
        "lasts": tried.lasts if tried.fault in HEALTHY else None, "rank": tried.rank,
        "named": hung.get("ranks"), "certain": hung.get("certain"), "hosts": hung.get("hosts"),
        "host": failure.get("host"), "what": hung.get("what") or failure.get("what") or said[-400:],
        "status": result.get("status"), "planted": planted(folder, happened), "steps": result.get("steps"),
        "took": round(took), "load": round(os.getloadavg()[1], 1),
    }  # fmt: skip
    return {**row, "noticed": noticed(folder, happened, row["planted"]), "right": right(row)}


def command(tried: Try, hosts: str | None, cluster: Cluster | None, folder: Path) -> list[str]:
    """The command line of a job."""
    (folder / "planted").mkdir()
    shutil.copy(ROOT / "benchmarks" / "hangs_inside.py", folder / "planted" / "sitecustomize.py")
    (folder / "torchrun.py").write_text(TORCHRUN)
    (folder / "with_deepspeed.py").write_text(DEEPSPEED)
    (folder / "own.yaml").write_text(json.dumps(OWN))
    steps = 2 * STEP if tried.fault in HEALTHY else 100_000
    env = {
        "FAULT": f"{tried.fault}:{tried.rank}:{STEP}/{tried.lasts}", "PYTHONPATH": str(folder / "planted"),
        "DS_ACCELERATOR": "cpu", "STEPS": str(steps), "PLACE": str(folder), "DISK": str(folder / "disk"),
    }  # fmt: skip
    settings = [f"hang.seconds={tried.seconds}", "launch.device=cpu", "launch.threads=1"]
    if cluster is not None:
        settings += [f"launch.ssh_options=[-F, {cluster.ssh_config}]", "launch.connect_timeout=40"]
    where = hosts or ",".join(f"{host}:1" for host in HOSTS)
    argv = [sys.executable, "-m", "muster"]
    if tried.kind == "own":
        argv += ["train", str(folder / "own.yaml"), "--hosts", where, "--json", *settings]
        argv += [f"env.{name}={value}" for name, value in env.items()]
        return [*argv, f"train.max_steps={steps}"]
    argv += ["run", where, "--json", *settings]
    argv += [f"--env={name}={value}" for name, value in env.items()]
    return [*argv, "--", {"torchrun": "torchrun.py", "deepspeed": "with_deepspeed.py"}[tried.kind]]


@contextlib.contextmanager
def disk(folder: Path) -> Iterator[str]:
    """A file system of its own at FOLDER/disk, which all hosts see. -> its device"""
    place, image = folder / "disk", folder / "image"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(4 << 30)
    shell("mkfs.ext4", "-q", str(image))
    device = shell("losetup", "--find", "--show", str(image))
    try:
        shell("mount", device, str(place))
        yield device
        shell("umount", str(place))
    finally:
        shell("losetup", "--detach", device)


@contextlib.contextmanager
def slow(device: str) -> Iterator[None]:
    """The disk takes 8 MB/s meanwhile."""
    limit = Path("/sys/fs/cgroup/blkio/blkio.throttle.write_bps_device")
    number = Path(device).stat().st_rdev
    named = f"{os.major(number)}:{os.minor(number)}"
    limit.write_text(f"{named} 8000000")
    try:
        yield
    finally:
        limit.write_text(f"{named} 0")


@contextlib.contextmanager
def frozen(device: str) -> Iterator[None]:
    """What lies on the disk takes nothing meanwhile."""
    place = shell("findmnt", "--noheadings", "--output", "TARGET", device)
    shell("fsfreeze", "--freeze", place)
    try:
        yield
    finally:
        shell("fsfreeze", "--unfreeze", place)


def shell(*argv: str) -> str:
    """Run a program of the machine's. -> what it printed"""
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()


@contextlib.contextmanager
def watched(tried: Try, cluster: Cluster, folder: Path, happened: Happened) -> Iterator[None]:
    """A thread that does what comes from outside once the rank says so, and sees when the others end."""
    over = threading.Event()
    others = [host for rank, host in enumerate(HOSTS) if rank != tried.rank]

    def watch() -> None:
        while not over.wait(0.2 if happened.done else 0.05):
            if happened.done is None and (folder / "now").exists():
                happened.done = time.time()
                befall(tried, cluster)
            elif happened.done and not happened.ended and not any(ranks(cluster, host) for host in others):
                happened.ended = time.time()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def ranks(cluster: Cluster, host: str) -> list[int]:
    """Processes on a host that have a rank."""
    return [each.pid for each in cluster.processes(host) if "RANK" in each.environ]


def befall(tried: Try, cluster: Cluster) -> None:
    """Stop the host, or cut it."""
    host = HOSTS[tried.rank]
    others = [each for each in HOSTS if each != host]
    if tried.fault == "host":
        pids = [str(each.pid) for each in cluster.processes(host) if each.pid != 1]
        cluster.run(host, ["kill", "-STOP", *pids])
    elif tried.fault == "gone":
        cluster.cut(host)
    else:
        for other in others if tried.fault == "cut" else others[:1]:
            cluster.part(host, other)


def planted(folder: Path, happened: Happened) -> float | None:
    """When the fault came, by this machine's clock."""
    times = [happened.done] if happened.done else []
    for path in folder.glob("runs/*/logs/*"):
        lines = path.read_text(errors="replace").splitlines()
        times += [float(line.split()[2]) for line in lines if line.startswith("fault ")]
    return happened.done or min(times, default=None)


def noticed(folder: Path, happened: Happened, since: float | None) -> float | None:
    """Seconds from the fault to the verdict; where a host was lost, to the end of the other hosts' ranks."""
    found = happened.ended
    for path in folder.glob("runs/*/events.jsonl"):
        for line in path.read_text().splitlines():
            event = json.loads(line)
            found = event["time"] if event["kind"] == "hang" else found
    return round(found - since, 1) if since and found else None


def right(row: dict[str, Any]) -> bool:
    """Whether the verdict is what was done."""
    hosts = {row["host"], *(row["hosts"] or [])} - {None}
    victim = HOSTS[row["rank"]]
    if row["fault"] in HEALTHY:
        return row["named"] is None and row["status"] == "succeeded"
    if row["fault"] == "pair":
        return hosts <= {victim, next(each for each in HOSTS if each != victim)} and bool(hosts)
    if row["fault"] in OUTSIDE:
        return hosts == {victim}
    return bool(row["named"] == [row["rank"]] and row["certain"])


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: of each fault and program how often it was right, and seconds until it was noticed."""
    lines = [f"| what happens | {' | '.join(KINDS)} | noticed, median | worst |", "| --- " * 6 + "|"]
    for name, words in {**FAULTS, **FURTHER}.items():
        of_all = [row for row in rows if row["fault"] == name]
        cells = []
        for kind in KINDS:
            found = [row for row in of_all if row["kind"] == kind]
            cells.append(f"{sum(row['right'] for row in found)} of {len(found)}" if found else "")
        seconds = [row["noticed"] for row in of_all if row["noticed"] is not None]
        if of_all:
            times = f"{statistics.median(seconds):.1f} s | {max(seconds):.1f} s" if seconds else " | "
            lines.append(f"| {words} | {' | '.join(cells)} | {times} |")
    return "\n".join(lines)


def page(rows: list[dict[str, Any]]) -> None:
    """Write the results file and the table of docs/hang.md."""
    document = {"hardware": f"{os.cpu_count()} cores of {processor()}", "rows": rows}
    RESULTS.write_text(json.dumps(document, indent=1) + "\n")
    faults = [row for row in rows if row["fault"] not in HEALTHY]
    short = [row for row in faults if row["hang_seconds"] == "10"]
    long = [row for row in faults if row["hang_seconds"] == "auto"]
    slow = [row for row in rows if row["fault"] in HEALTHY]
    said = [f"With `hang.seconds=10`, {len(short)} tries:", "", table(short), ""]
    if long:
        said += [f"With the defaults, {len(long)} tries:", "", table(long), ""]
    if slow:
        stopped = sum(not row["right"] for row in slow)
        minutes = sum(row["took"] for row in slow) / 60
        what = ", ".join(words for name, words in HEALTHY.items() if any(r["fault"] == name for r in slow))
        told = (
            f"Healthy and slow, {len(slow)} jobs, {minutes:.0f} minutes in all: {stopped or 'none'} stopped"
        )
        said += [f"{told} ({what}).", ""]
    said = [line if line.startswith("|") else fill(line, 118) for line in said]
    into_page(PAGE, "tries", "\n".join(["", *said]))


def tries(asked: argparse.Namespace) -> Iterator[Try]:
    """Those that were asked for, round by round, so that a run that is stopped has some of each."""
    for number in range(1, asked.tries + 1):
        for fault in asked.faults:
            for kind in asked.kinds:
                if (kind, fault) != ("own", "announced"):  # it announces by itself
                    yield Try(kind, fault, number, asked.seconds, asked.lasts)


def read(path: Path | None) -> list[dict[str, Any]]:
    """The rows that are there."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path and path.exists() else []


def main() -> None:
    """Try what is left to try."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cluster", action="store_true", help="hosts with names, networks and sshd")
    parser.add_argument("--hosts", default="local:3x1", help="else")
    parser.add_argument("--kinds", nargs="*", default=KINDS, choices=KINDS)
    parser.add_argument("--faults", nargs="*", default=list(FAULTS), choices=[*FAULTS, *FURTHER, *HEALTHY])
    parser.add_argument("--tries", type=int, default=5)
    parser.add_argument("--seconds", default="10", help="hang.seconds")
    parser.add_argument("--lasts", type=float, default=30, help="seconds of a healthy slow step")
    parser.add_argument("--beside", type=int, default=1, help="tries at a time")
    parser.add_argument("--rows", type=Path, help="a file of JSON lines that rows are added to")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no try after so many")
    parser.add_argument("--keep", type=Path, help="a folder for what was seen of each hang")
    parser.add_argument("--page", action="store_true", help="write results and page from the rows there are")
    asked = parser.parse_args()
    if asked.page:
        page(read(asked.rows) or json.loads(RESULTS.read_text())["rows"])
        return
    known = {
        (row["kind"], row["fault"], row["number"], row["hang_seconds"], row["lasts"] or 0.0)
        for row in read(asked.rows)
    }
    end = time.monotonic() + 60 * asked.minutes
    with ThreadPoolExecutor(asked.beside) as pool:
        work = partial(attempt, asked, end, threading.Lock())
        found = [one for one in pool.map(work, (t for t in tries(asked) if t.key not in known)) if one]
    print(f"{sum(row['right'] for row in found)} of {len(found)} right")


def attempt(
    asked: argparse.Namespace, end: float, writing: threading.Lock, tried: Try
) -> dict[str, Any] | None:
    """Try, and write down what was found. None: there was no time for it, or the fault never came."""
    if time.monotonic() > end:
        return None
    with tempfile.TemporaryDirectory(prefix="muster-hangs-") as place:
        row = one(tried, None if asked.cluster else asked.hosts, Path(place) / "job")
        for path in Path(place).glob("job/runs/*/hang.json") if asked.keep else ():
            shutil.copy(path, asked.keep / f"{tried.kind}-{tried.fault}-{tried.number}.json")
    if tried.fault not in HEALTHY and row["planted"] is None and row["named"] is None:
        print(f"{tried}: the fault never came: {row['what']}", flush=True)
        return None
    with writing:
        if asked.rows:
            with asked.rows.open("a") as file:
                file.write(json.dumps(row) + "\n")
        print(
            f"{row['kind']:10} {row['fault']:10} {row['rank']:2} {row['named']!s:>8} {row['host']!s:>6} "
            f"{row['noticed']!s:>6} {' ' if row['right'] else '!'} {str(row['what'])[:150]}",
            flush=True,
        )
    return row


if __name__ == "__main__":
    main()
