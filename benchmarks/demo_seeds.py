"""Run the demo with several seeds of data and model; write accuracy and seconds to benchmarks/results/.

.venv/bin/python benchmarks/demo_seeds.py 1 2 3
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from hardware import processor

RESULTS = Path(__file__).parent / "results"


def one(seed: int, runs: Path) -> dict[str, object]:
    """One demo, as a user starts it."""
    argv = [sys.executable, "-m", "muster", "demo", "--json", "--runs", str(runs)]
    began = time.monotonic()
    argv += [f"data.generated.seed={seed}", f"train.seed={seed}"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    seconds = time.monotonic() - began
    result = json.loads(done.stdout)
    return {
        "seed": seed,
        "seconds": round(seconds, 1),
        "execution_match": result["quality"]["execution_match"],
        "exact_match": result["quality"]["exact_match"],
        "samples_per_second": round(result["throughput"]["samples_per_second"], 1),
        "load_before": round(os.getloadavg()[0], 2),
        "versions": result["versions"],
    }


def spread(values: list[float]) -> dict[str, float]:
    """Smallest, middle and largest."""
    return {"min": min(values), "median": statistics.median(values), "max": max(values)}


def main() -> None:
    """All seeds, one after the other."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("seeds", nargs="*", type=int, default=[1, 2, 3], metavar="SEED", help="1 2 3")
    seeds = parser.parse_args().seeds
    with tempfile.TemporaryDirectory() as folder:
        rows = [one(seed, Path(folder)) for seed in seeds]
    accuracy = [float(str(row["execution_match"])) for row in rows]
    seconds = [float(str(row["seconds"])) for row in rows]
    document = {
        "command": f"benchmarks/demo_seeds.py {' '.join(str(seed) for seed in seeds)}",
        "hardware": f"{os.cpu_count()} cores, {processor()}",
        "execution_match": spread(accuracy),
        "seconds": spread(seconds),
        "rows": rows,
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "demo_seeds.json").write_text(json.dumps(document, indent=2) + "\n")
    print(json.dumps({key: document[key] for key in ("hardware", "execution_match", "seconds")}, indent=2))


if __name__ == "__main__":
    main()
