"""`muster run` on many pretend hosts: how long until all have started and until all are gone, what the one
controller takes, and what is lost of what the hosts print.

    .venv/bin/python benchmarks/run_scale.py --hosts 10,100,1000 [--hold 30]
    .venv/bin/python benchmarks/run_scale.py --page                # the table of docs/run.md alone

Two commands, once per host: one that sleeps, and one that prints ten lines a second. All agents and all
commands share this machine with the controller: on real hosts each has its own. So of the controller its
own processor time and memory count; the times until all have started, and until all are gone, are mostly
those of a thousand interpreters on the cores of one machine.

`cores`: of the controller, while all run. `peak_memory`: its own. `lost`: lines that commands printed, by
their own count, and are not in the hosts' logs after Ctrl-C. Hosts are refused where there is no memory for
so many agents. After each run nothing of it may be left. Writes benchmarks/results/run_scale.json, a row
per run; rows of other numbers of hosts stay.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hardware import into_page, machine

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "run_scale.json"
PAGE, NAME = ROOT / "docs" / "run.md", "scale"
BYTES_A_HOST = 10 << 20  # of memory, an agent with its command
MOST_MINUTES = 15  # until all have started
TICKS = os.sysconf("SC_CLK_TCK")
# bash waits without a process for each wait, so that the printing itself costs little. $1: where it says, at
# its end, how many lines it printed.
PRINTS = """
trap 'echo $n > "$1/$NODE_RANK"; exit 0' TERM
exec 3<> <(:)
n=0
while :; do echo "line $n"; n=$((n + 1)); read -t 0.1 -u 3; done
"""
COMMANDS = {
    "sleeps": ["bash", "-c", "echo line 0; exec sleep 3600"],
    "prints": ["bash", "-c", PRINTS, "bash"],
}


def cpu_seconds(pid: int, fields: int = 2) -> float:
    """That a process has used; with 4 fields, and its children that have ended."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, words[11 : 11 + fields])) / TICKS


def agents_of(pid: int) -> list[int]:
    """The controller's children."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def lives(pid: int) -> bool:
    """Whether it is there, and more than a number that waits for its parent."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() != b""
    except OSError:
        return False


def peak_memory(pid: int) -> int:
    """Bytes, of a process."""
    told = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(told[1]) * 1024 if told else 0


def left(run: str) -> list[int]:
    """Living processes of a run but its controller: agents by their command line, what they started by its
    environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes()
                if run.encode() in words + (entry / "environ").read_bytes() and b"--name" not in words:
                    found.append(int(entry.name))
    return found


def memory_free() -> int:
    told = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    return int(told[1]) * 1024 if told else 0


def one(hosts: int, what: str, hold: float) -> dict[str, Any]:
    """A run. -> its row."""
    if memory_free() < hosts * BYTES_A_HOST:
        sys.exit(f"no memory for {hosts} agents: {memory_free() >> 20} MiB are free")
    name = f"scale-{os.getpid()}-{hosts}-{what}"
    with tempfile.TemporaryDirectory(prefix="muster-scale-") as place:
        folder = Path(place)
        counts = folder / "counts"
        counts.mkdir()
        command = [*COMMANDS[what], *([str(counts)] if what == "prints" else [])]
        own = ["--start", "host", "--name", name, "launch.lease=120", "launch.connect_timeout=900"]
        argv = [sys.executable, "-m", "muster", "run", f"local:{hosts}x1", *own, "--", *command]
        with (folder / "said").open("w") as said, subprocess.Popen(argv, cwd=folder, stderr=said) as job:
            try:
                row = watched(job, folder, name, hosts, hold)
            finally:
                job.kill()
                for pid in left(name):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
        logs = [folder / "runs" / name / "logs" / f"local{n}.log" for n in range(hosts)]
        row |= lost(logs, counts) if what == "prints" else {}
    return {"hosts": hosts, "what": what, **row}


def lost(logs: Sequence[Path], counts: Path) -> dict[str, int]:
    """Lines that commands printed, by their own count, and those that are in no log."""
    printed, missing = 0, 0
    for number, log in enumerate(logs):
        told = (counts / str(number)).read_text() if (counts / str(number)).exists() else ""
        known = {line for line in log.read_text().splitlines() if line.startswith("line ")}
        count = int(told or 0)
        printed += count
        missing += sum(f"line {n}" not in known for n in range(count))
    noted = sum("may be missing here" in log.read_text() for log in logs)
    return {
        "printed": printed,
        "lost": missing,
        "hosts_noted": noted,
        "not_counted": len(logs) - len(list(counts.iterdir())),
    }


def watched(job: subprocess.Popen[bytes], folder: Path, name: str, hosts: int, hold: float) -> dict[str, Any]:
    """From the start to the end by Ctrl-C."""
    began = time.monotonic()
    logs = [folder / "runs" / name / "logs" / f"local{n}.log" for n in range(hosts)]
    missing = logs
    while missing:
        if job.poll() is not None or time.monotonic() > began + 60 * MOST_MINUTES:
            sys.exit(f"{len(missing)} of {hosts} did not start: {(folder / 'said').read_text()[-2000:]}")
        time.sleep(0.5)
        missing = [log for log in missing if not (log.exists() and "line 0" in log.read_text())]
    row: dict[str, Any] = {"started_seconds": time.monotonic() - began, "start_cpu": cpu_seconds(job.pid)}
    agents = agents_of(job.pid)
    row["agent_start_cpu"] = sum(cpu_seconds(pid, 4) for pid in agents) / hosts
    time.sleep(5)
    used, at, written = cpu_seconds(job.pid), time.monotonic(), sum(log.stat().st_size for log in logs)
    theirs = sum(map(cpu_seconds, agents))
    time.sleep(hold)
    passed = time.monotonic() - at
    row["cores"] = (cpu_seconds(job.pid) - used) / passed
    row["agent_cores"] = (sum(map(cpu_seconds, agents)) - theirs) / passed / hosts
    row["bytes_a_second"] = (sum(log.stat().st_size for log in logs) - written) / passed
    row["load"] = os.getloadavg()[0]
    there = left(name)
    used, asked = cpu_seconds(job.pid), time.monotonic()
    row["peak_memory"] = peak_memory(job.pid)
    job.send_signal(signal.SIGINT)
    while there and time.monotonic() < asked + 300:
        while there and not lives(there[-1]):  # a look at all costs time that they need
            there.pop()
        there = there or left(name)
        if job.poll() is None:
            with contextlib.suppress(OSError, TypeError):
                row["end_cpu"] = cpu_seconds(job.pid) - used
                row["peak_memory"] = max(row["peak_memory"], peak_memory(job.pid))
        time.sleep(0.25)
    row["gone_seconds"], row["left"] = time.monotonic() - asked, len(there)
    job.wait(300)
    row["controller_gone_seconds"] = time.monotonic() - asked
    return row


def table(rows: Sequence[dict[str, Any]]) -> str:
    """For docs/run.md."""
    heads = ("hosts", "command", "all started", "controller: cores", "its memory", "all gone", "lines lost")
    made = [f"| {' | '.join(heads)} |", f"| {' | '.join('---' for _ in heads)} |"]
    for row in sorted(rows, key=lambda each: (each["what"] == "prints", each["hosts"])):
        cells = [
            f"{row['hosts']:,}", row["what"], f"{row['started_seconds']:.0f} s", f"{row['cores']:.3f}",
            f"{row['peak_memory'] / 1e6:.0f} MB", f"{row['gone_seconds']:.1f} s",
            f"{row['lost']:,} of {row['printed']:,}" if "lost" in row else "",
        ]  # fmt: skip
        made.append(f"| {' | '.join(cells)} |")
    return "\n".join(made)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", default="10,100,1000")
    parser.add_argument("--what", default=",".join(COMMANDS))
    parser.add_argument(
        "--hold", type=float, default=30.0, help="seconds over which the controller is watched"
    )
    parser.add_argument("--page", action="store_true")
    wanted = parser.parse_args()
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # behind `&` it is ignored, by what is started too
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"rows": []}
    for hosts in [] if wanted.page else map(int, wanted.hosts.split(",")):
        for what in wanted.what.split(","):
            row = one(hosts, what, wanted.hold)
            print(
                json.dumps(
                    {name: round(each, 3) if isinstance(each, float) else each for name, each in row.items()}
                ),
                flush=True,
            )
            rows = [each for each in known["rows"] if (each["hosts"], each["what"]) != (hosts, what)]
            known = {**machine(), "rows": [*rows, row]}
            RESULTS.write_text(json.dumps(known, indent=1) + "\n")
    into_page(PAGE, NAME, table(known["rows"]))


if __name__ == "__main__":
    main()
