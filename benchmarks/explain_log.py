"""How fast `muster explain` reads one large log, and in how much memory.

    .venv/bin/python benchmarks/explain_log.py [--size 1.0] [--folder DIR]

Four logs made here, of so many GB each. Their last lines are a failure and
its echoes. Before them: what eight ranks of a training print, mixed (steps with changing figures, bars,
NCCL's INFO, warnings); lines of which no two are alike; lines that all only echo a failure; and lines that
all speak of an error that is none. The page cache is warm. Writes benchmarks/results/explain_log.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hardware import processor

RESULTS = Path(__file__).parent / "results"
END = (
    '[rank5]: Traceback (most recent call last):\n[rank5]:   File "/home/u/train.py", line 33, in step\n'
    "[rank5]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 56.00 MiB.\n"
    + "".join(
        f"[rank{rank}]: RuntimeError: [gloo] Connection closed by peer [10.0.0.1]:{33212 + rank}\n"
        for rank in range(8)
        if rank != 5
    )
    + "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n"
)
# The child itself says what it took: what wait4 tells of its peak is at least its parent's.
MEASURED = """
import sys
from pathlib import Path
from muster.cli import main
try:
    main()
finally:
    print(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0], file=sys.stderr)
"""


def training(chance: random.Random, number: int) -> str:
    """What a rank prints."""
    rank, clock = number % 8, time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(1.72e9 + number / 100))
    kinds = (
        f"[{clock},{number % 1000:03d}] [INFO] [logging.py:96:log_dist] [Rank {rank}] step={number // 8}, "
        f"skipped=0, lr=[{chance.random():.3e}], mom=[(0.9, 0.95)]\n",
        f"node{rank}:{3000 + rank}:{4000 + rank} [{rank}] NCCL INFO Channel {number % 32:02d} : "
        f"{rank}[{rank}] -> {(rank + 1) % 8}[{(rank + 1) % 8}] via P2P/CUMEM\n",
        f"\r {number % 100:3d}%|{'#' * (number % 10):<10}| {number}/99999999 "
        f"[{number // 60}:00<01:00, 1.01s/it]",
        f"{{'loss': {chance.random():.4f}, 'norm': {chance.random():.4f}, 'epoch': {number / 1e6:.3f}}}\n",
        f"[default{rank}]: UserWarning: sample {chance.randrange(10**9)} is longer than 2048 tokens, cut\n",
    )
    return kinds[chance.randrange(len(kinds))]


def unlike(chance: random.Random, number: int) -> str:
    """No two lines differ in their digits alone."""
    words = (chance.randbytes(chance.randrange(2, 12)).hex().translate(LETTERS) for _ in range(8))
    return f"{' '.join(words)}\n"


def echoes(chance: random.Random, number: int) -> str:
    """What ranks print that miss another."""
    return (
        f"[rank{number % 512}]: RuntimeError: [gloo] Connection closed by peer [10.0.0.1]:{number % 65536}\n"
    )


def counting(chance: random.Random, number: int) -> str:
    """What speaks of errors that are none, and counts up."""
    return (
        f"[worker {number % 64}] sample {number}: relative error {chance.random():.4f}, {number % 977} ms\n"
    )


LINES = 300_000  # more than the reader remembers
LETTERS = str.maketrans("0123456789", "ghijklmnop")
KINDS: dict[str, Callable[[random.Random, int], str]] = {
    "training": training,
    "no two lines alike": unlike,
    "echoes": echoes,
    "errors that are none": counting,
}


def make(path: Path, size: float, line: Callable[[random.Random, int], str]) -> int:
    """A log of so many bytes: some lines over and over, and its end. -> its bytes."""
    chance, written = random.Random(1), 0
    lines = "".join(line(chance, number) for number in range(LINES))
    with path.open("w", encoding="utf-8") as out:
        while written < size:
            written += out.write(lines)
        written += out.write("\n" + END)
    return written


def timed(path: Path) -> dict[str, Any]:
    """`muster explain --json` in a process of its own."""
    before = time.monotonic()
    done = subprocess.Popen(
        [sys.executable, "-c", MEASURED, "explain", str(path), "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    out = done.stdout.read() if done.stdout else ""
    said = done.stderr.read() if done.stderr else ""
    _, _, usage = os.wait4(done.pid, 0)
    done.returncode = 0
    seconds = time.monotonic() - before
    found = json.loads(out)
    return {
        "seconds": round(seconds, 1),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 1),
        "peak_bytes": int(said.split()[-1]) * 1024,
        "found": (found["failure"] or {}).get("id"),
        "line": ((found["failure"] or {}).get("evidence") or {}).get("line"),
        "echoes": found["echoes"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=float, default=1.0, help="GB of each log")
    parser.add_argument("--folder", type=Path, default=None, help="where to make the logs")
    arguments = parser.parse_args()
    result: dict[str, Any] = {
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
    }
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        path = Path(folder) / "job.log"
        for name, line in KINDS.items():
            size = make(path, arguments.size * 1e9, line)
            took = timed(path)
            result[name] = {
                "bytes": size,
                **took,
                "mb_per_cpu_second": round(size / 1e6 / took["cpu_seconds"], 1),
            }
            print(name, result[name], file=sys.stderr)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "explain_log.json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
