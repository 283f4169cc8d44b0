"""Whether `muster judge` reads DeepSpeed's logs rightly: each log's samples/s against a reading of its own.

    .venv/bin/python benchmarks/judge_rates.py LOGS [--within 0.002]

LOGS: a folder, or a tar archive, of DeepSpeed's logs. The other reading is the few lines of `rate_of` below,
which share no code with Muster: samples over seconds between time stamps of `RunningAvgSamplesPerSec` lines,
without windows in which `skipped=` grew, and without those that begin before ten steps were used (at most a
third of all). The rate that DeepSpeed-Chat prints itself (`Throughput:`) is shown beside it. The exit code is
1 where a log is further off than --within, or is read by one of the two alone. Writes
benchmarks/results/judge_rates.json.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from statistics import median

RESULTS = Path(__file__).parent / "results"
BATCH = re.compile(r'[^_]train_batch_size(?:"?:| \.+) ([\d.e+]+)')
STEP = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3})\].*global_step=(\d+), RunningAvgSamplesPerSec=")
SKIPPED = re.compile(r"\] step=\d+, skipped=(\d+),")
PRINTED = re.compile(r"^(?:\S+: )?Throughput: ([\d.]+) samples/sec", re.MULTILINE)


def logs_in(where: Path) -> Iterator[tuple[str, str]]:
    """(path, text) of every log, by the paths that the judge shows."""
    if where.is_dir():
        for path in sorted(where.rglob("*.log")):
            yield str(path.relative_to(where)), path.read_text(errors="replace")
        return
    with tarfile.open(where) as archive:
        for member in archive:
            file = archive.extractfile(member) if member.isfile() else None
            if file is not None:
                yield f"{where.name}/{member.name.removeprefix('./')}", file.read().decode(errors="replace")


def rate_of(text: str) -> float | None:
    """Samples/s of a log; None: it has none."""
    batches = [float(each) for each in BATCH.findall(text)]
    marks: list[tuple[float, int, int]] = []  # seconds, steps, skipped steps
    skipped = 0
    for line in text.splitlines():
        if found := SKIPPED.search(line):
            skipped = int(found[1])
        elif found := STEP.search(line):
            when = datetime.strptime(found[1], "%Y-%m-%d %H:%M:%S,%f").timestamp()
            marks.append((when, int(found[2]), skipped))
    if not batches or len(marks) < 2:
        return None
    warm = min(10, (marks[-1][1] - marks[-1][2]) // 3)
    windows = [
        (after[1] - before[1], after[0] - before[0])
        for before, after in pairwise(marks)
        if after[2] == before[2] and before[1] - before[2] >= warm
    ]
    return (
        batches[-1] * sum(steps for steps, _ in windows) / sum(took for _, took in windows)
        if windows
        else None
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("logs", type=Path)
    parser.add_argument("--within", type=float, default=0.002)
    arguments = parser.parse_args()
    own = {path: (rate_of(text), PRINTED.findall(text)) for path, text in logs_in(arguments.logs)}
    command = [sys.executable, "-m", "muster", "judge", str(arguments.logs), "--json"]
    output = subprocess.run(command, stdout=subprocess.PIPE, check=False).stdout
    judged = {job["job"]: job for job in json.loads(output)["jobs"]}
    rows, alone = [], []
    for path, (rate, printed) in own.items():
        read = judged[path]["samples_per_second"] if path in judged else None
        if rate is None and read is None:
            continue
        if rate is None or read is None:
            alone.append(path)
            continue
        rows.append(
            {
                "job": path,
                "hosts": len(judged[path]["hosts"]),
                "judge": read,
                "own": rate,
                "apart": read / rate - 1,
                "printed": float(printed[-1]) if printed else None,
            }
        )
    sizes = []
    for size in sorted({row["hosts"] for row in rows}):
        mine = [row for row in rows if row["hosts"] == size]
        sizes.append(
            {
                "hosts": size,
                "logs": len(mine),
                "median": median(row["judge"] for row in mine),
                "worst": max(abs(row["apart"]) for row in mine),
                "worst_of_printed": max(
                    (abs(row["judge"] / row["printed"] - 1) for row in mine if row["printed"]), default=None
                ),
            }
        )
    result = {"within": arguments.within, "logs": len(rows), "read_by_one_alone": alone, "sizes": sizes}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "judge_rates.json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))
    return int(bool(alone) or any(abs(row["apart"]) > arguments.within for row in rows))


if __name__ == "__main__":
    sys.exit(main())
