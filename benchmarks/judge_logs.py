"""How fast `muster judge` reads: 10,000 logs, made by copying real ones, and one log of several GB.

    .venv/bin/python benchmarks/judge_logs.py ARCHIVE [--logs 10000] [--large 4]

ARCHIVE: logs as a tar file; they are copied in turn, with other host names in them, so that the fleet has as
many hosts as there would be. The page cache is warm: it is reading lines that takes the time, not the disk.
The large log is one of them whose training goes on for so many GB; its line says what memory it took.
Writes benchmarks/results/judge_logs.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

from hardware import processor

from muster.judging.document import Gate

RESULTS = Path(__file__).parent / "results"
# What wait4 tells of a child's peak is at least its parent's when it started it (Linux keeps it over exec).
# So the child itself says what it took, as the last word on stderr.
MEASURED = """
import resource, sys
from pathlib import Path
from muster.cli import main
try:
    main()
finally:
    status = Path("/proc/self/status").read_text()
    own = int(status.partition("VmHWM:")[2].split()[0])
    print(max(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss), file=sys.stderr)
"""


def unpacked(archive: Path) -> list[bytes]:
    """The logs in an archive."""
    with tarfile.open(archive) as tar:
        files = (tar.extractfile(member) for member in tar if member.isfile())
        return [file.read() for file in files if file is not None]


def make_fleet(logs: list[bytes], count: int, folder: Path) -> int:
    """Write `count` logs; each round of copies is of other hosts. -> bytes."""
    size = 0
    for number in range(count):
        text = logs[number % len(logs)].replace(b"ml-512-node-", b"node-%03d-" % (number // len(logs)))
        path = folder / f"{number // 1000}" / f"job{number}.log"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(text)
        size += len(text)
    return size


def make_large(log: bytes, gigabytes: float, path: Path) -> int:
    """A log whose steps go on and on. -> bytes."""
    lines = log.decode(errors="replace").splitlines(keepends=True)
    first = next(n for n, line in enumerate(lines) if "global_step=20," in line)
    last = next(n for n, line in enumerate(lines) if "global_step=30," in line)
    window = "".join(lines[first + 1 : last + 1])
    with path.open("w", encoding="utf-8") as out:
        out.writelines(lines[: first + 1])
        step, clock, written = 20, 0.0, 0
        while written < gigabytes * 1e9:
            step, clock = step + 10, clock + 2.05
            day = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(1.72e9 + clock))
            stamp = f"{day},{int(clock % 1 * 1000):03d}"
            text = re.sub(r"2024-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}", stamp, window)
            text = re.sub(r"step=30\b", f"step={step}", text) + "loss=0.69 " * 1000 + "\n"
            written += out.write(text)
        out.writelines(lines[-12:])
    return path.stat().st_size


def timed(where: Path, output: Path) -> dict[str, Any]:
    """`muster judge --json` in a process of its own: seconds, those of processors, the peak memory of the
    largest of it and its helpers, and the summary."""
    command = [sys.executable, "-c", MEASURED, "judge", str(where), "--json"]
    before = time.monotonic()
    with output.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.PIPE, text=True)
        said = process.stderr.read() if process.stderr else ""
        _, status, usage = os.wait4(process.pid, 0)
    seconds = time.monotonic() - before
    if os.waitstatus_to_exitcode(status) not in list(Gate):
        raise SystemExit(f"muster judge failed: {said}")
    found = json.loads(output.read_text(encoding="utf-8"))
    return {
        "seconds": round(seconds, 1),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 1),
        "peak_bytes": int(said.split()[-1]) * 1024,
        "summary": found["summary"],
        "outcomes": found["outcomes"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("archive", type=Path)
    parser.add_argument("--logs", type=int, default=10_000)
    parser.add_argument("--large", type=float, default=4.0, help="GB; 0: leave it out")
    parser.add_argument("--folder", type=Path, default=None, help="where to make the logs")
    arguments = parser.parse_args()
    logs = unpacked(arguments.archive)
    folder = Path(tempfile.mkdtemp(dir=arguments.folder))
    result: dict[str, Any] = {
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
    }
    try:
        (folder / "fleet").mkdir()
        size = make_fleet(logs, arguments.logs, folder / "fleet")
        result["fleet"] = {
            "logs": arguments.logs,
            "bytes": size,
            **timed(folder / "fleet", folder / "out.json"),
        }
        shutil.rmtree(folder / "fleet")
        if arguments.large:
            size = make_large(logs[0], arguments.large, folder / "large.log")
            result["large"] = {"bytes": size, **timed(folder / "large.log", folder / "out.json")}
    finally:
        shutil.rmtree(folder)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "judge_logs.json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
