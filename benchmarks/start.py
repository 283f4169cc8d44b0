"""How long verbs take that look at what is there, beside an interpreter that does nothing.

    .venv/bin/python benchmarks/start.py [--rounds 30] [--runs 20] [--most 5]

Runs `python -c pass` and each verb in turns, in a folder with so many finished runs. For each, the processor
time of the process (user and system) and the time on the clock: the smallest of the rounds, since whatever
else the machine does only adds. Prints a table and writes benchmarks/results/start.json. Exit code 1: a verb
takes more than --most times `python -c pass` of processor time.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

from hardware import processor

RESULT = Path(__file__).parent / "results" / "start.json"
VERBS: dict[str, list[str]] = {
    "muster --help": ["--help"],
    "muster ls": ["ls"],
    "muster stop RUN": ["stop", "run000"],
    "muster show RUN": ["show", "run000"],
    "muster train --help": ["train", "--help"],
}
NOTHING = "python -c pass"


def make_runs(root: Path, count: int) -> None:
    """Finished runs as `muster train` leaves them, as far as these verbs look."""
    for number in range(count):
        run = root / f"run{number:03d}"
        run.mkdir(parents=True)
        (run / "job.json").write_text(json.dumps({"placements": [{"host": "local"}]}))
        result = {
            "id": run.name, "status": "succeeded", "attempt": 1, "workload": "text2sql", "model": "t5",
            "engine": "ddp", "precision": "fp32", "world_size": 2, "global_batch": 32, "started": 0.0,
            "ended": 9.0, "seconds": {"total": 9.0}, "steps": 100, "samples": 3200, "memory": {}, "hosts": [],
        }  # fmt: skip
        (run / "result.json").write_text(json.dumps(result))


def once(argv: list[str], folder: Path, env: dict[str, str]) -> tuple[float, float]:
    """(processor seconds, seconds on the clock) of one process."""
    begun = time.perf_counter()
    process = subprocess.Popen(
        argv, cwd=folder, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, _, used = os.wait4(process.pid, 0)
    return used.ru_utime + used.ru_stime, time.perf_counter() - begun


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--most", type=float, default=5.0)
    told = parser.parse_args()
    muster = [sys.executable, "-c", "from muster.cli import main; main()"]
    commands = {NOTHING: [sys.executable, "-c", "pass"]} | {
        name: [*muster, *words] for name, words in VERBS.items()
    }
    least = dict.fromkeys(commands, (float("inf"), float("inf")))
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        make_runs(folder / "runs", told.runs)
        env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        env["PYTHONPYCACHEPREFIX"] = str(folder / "compiled")  # as after the first start of an installation
        for argv in commands.values():
            once(argv, folder, env)
        for _ in range(told.rounds):
            for name, argv in commands.items():
                used, clock = once(argv, folder, env)
                least[name] = (min(least[name][0], used), min(least[name][1], clock))
    base = least[NOTHING]
    rows = {
        name: {
            "processor_ms": 1000 * used, "clock_ms": 1000 * clock,
            "times_processor": used / base[0], "times_clock": clock / base[1],
        }
        for name, (used, clock) in least.items()
    }  # fmt: skip
    print(f"{'':<22}{'processor':>12}{'clock':>10}{'times':>8}{'':>8}")
    for name, row in rows.items():
        print(
            f"{name:<22}{row['processor_ms']:>9.0f} ms{row['clock_ms']:>7.0f} ms"
            f"{row['times_processor']:>8.1f}{row['times_clock']:>8.1f}"
        )
    RESULT.write_text(
        json.dumps(
            {
                "processor": processor(), "python": platform.python_version(), "click": version("click"),
                "rounds": told.rounds, "runs": told.runs, "rows": rows,
            },
            indent=1,
        )
        + "\n"
    )  # fmt: skip
    return 1 if any(row["times_processor"] > told.most for row in rows.values()) else 0


if __name__ == "__main__":
    raise SystemExit(main())
