"""What a call of muster.step, muster.phase and muster.note costs, without Muster around and with it.

    .venv/bin/python benchmarks/progress.py [--calls 200000]

A program of its own each time: with a copy of src/muster/progress.py and nothing else, with the package
installed, and with that file as `muster run` has it, which gives a folder for events. Seconds of a call are
the least of nine rounds, with the empty loop taken off: other work on the machine only adds. The median is
there as well. With Muster around a line is written once a second at most, and its share is in the calls.
Bar: below a microsecond each where there is no Muster. Writes benchmarks/results/progress.json; docs/run.md
has the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hardware import processor

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "progress.json"
BAR = 1e-6

# A program of a user's: argv: the folder of progress.py, calls. Prints seconds of a call, per round.
PROGRAM = """
import json, os, sys, timeit
if sys.argv[1]:
    sys.path.insert(0, sys.argv[1])
    import progress as muster
else:
    import muster
calls = int(sys.argv[2])
told = {
    "step": "muster.step(loss=0.5, samples=8)",
    "phase": "with muster.phase('forward'): pass",
    "note": "muster.note('it was a pleasure')",
}
if "MUSTER_EVENTS" in os.environ:
    del told["note"]  # every note is a line: nobody writes one in a step
def rounds(statement):
    times = timeit.repeat(statement, repeat=9, number=calls, globals={"muster": muster})
    return [each / calls for each in times]
empty = min(rounds("pass"))
print(json.dumps({name: [each - empty for each in rounds(statement)] for name, statement in told.items()}))
"""


def measured(calls: int, folder: str | None, *, installed: bool = False) -> dict[str, dict[str, float]]:
    """Seconds of each call. `folder`: that of the events; None: there is no Muster around."""
    around = {name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")}
    if folder is not None:
        around |= {"MUSTER_EVENTS": folder, "MUSTER_ATTEMPT": "1", "RANK": "0"}
    home = "" if installed else str(ROOT / "src" / "muster")
    argv = [sys.executable, "-c", PROGRAM, home, str(calls)]
    said = subprocess.run(argv, env=around, cwd="/", capture_output=True, text=True, check=True).stdout
    return {
        name: {"least": min(rounds), "median": statistics.median(rounds)}
        for name, rounds in json.loads(said).items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=200_000)
    calls = parser.parse_args().calls
    with tempfile.TemporaryDirectory() as folder:
        found: dict[str, Any] = {
            "processor": processor(),
            "python": platform.python_version(),
            "calls": calls,
            "without": measured(calls, None),
            "installed": measured(calls, None, installed=True),
            "with": measured(calls, folder),
        }
    for around in ("without", "installed", "with"):
        for name, seconds in found[around].items():
            least, median = (f"{1e9 * seconds[each]:7.0f} ns" for each in ("least", "median"))
            print(f"{around:<9} {name:<6} {least} (median {median})")
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    slow = [
        f"{name} ({around})"
        for around in ("without", "installed")
        for name, seconds in found[around].items()
        if seconds["least"] >= BAR
    ]
    if slow:
        sys.exit(f"above {1e6 * BAR:g} microsecond without Muster: {', '.join(slow)}")


if __name__ == "__main__":
    main()
