"""What Muster does on a real GPU: correct, within its plan, fast, and what it costs.

    python -m benchmarks.gpu run --minutes 9 --out DIR    # goes on where the last call stopped
    python -m benchmarks.gpu run --tiny --out DIR         # the same pieces with tiny models on a CPU
    python -m benchmarks.gpu list
    python -m benchmarks.gpu page DIR                     # docs/gpu.md from what was measured

The most valuable pieces come first. Each has a process and a time limit of its own; one that fails does not
stop the next. DIR holds a JSON file for each group of pieces, and page.md.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.gpu import page
from benchmarks.gpu.kit import ROOT, Results, child, run_all
from benchmarks.gpu.pieces import pieces


def main() -> int:
    """Exit code 1: a piece failed or ran out of time."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("run", help="run what is left")
    run.add_argument("--minutes", type=float, default=9.0, help="no piece runs on after these")
    run.add_argument("--out", type=Path, required=True)
    run.add_argument("--only", default="", help="pieces whose names begin so, separated by commas")
    run.add_argument("--tiny", action="store_true", help="tiny models on a CPU: proves the way alone")
    verbs.add_parser("list", help="the pieces, in order")
    shown = verbs.add_parser("page", help="write the page of what was measured")
    shown.add_argument("folder", type=Path)
    shown.add_argument("--to", type=Path, default=ROOT / "docs" / "gpu.md")
    one = verbs.add_parser("piece")
    one.add_argument("name")
    one.add_argument("--tiny", action="store_true")
    one.add_argument("--told", type=Path, required=True)
    one.add_argument("--folder", type=Path, required=True)
    one.add_argument("--out", type=Path, required=True)
    one.add_argument("--seconds", type=float, required=True)
    told = parser.parse_args()
    if told.verb == "list":
        print("\n".join(f"{piece.key:<36} {piece.limit:4.0f} s" for piece in pieces()))
        return 0
    if told.verb == "piece":
        piece = next(each for each in pieces() if each.key == told.name)
        child(piece, told.tiny, told.told, told.folder, Results(told.out), told.seconds)
        return 0
    if told.verb == "page":
        told.to.write_text(page.page(Results(told.folder)))
        return 0
    starts = tuple(told.only.split(","))
    chosen = [piece for piece in pieces() if piece.key.startswith(starts)]
    results = Results(told.out)
    counts = run_all(chosen, results, told.minutes, told.tiny)
    (told.out / "page.md").write_text(page.page(results))
    print(", ".join(f"{count} {status}" for status, count in counts.items()))
    return 1 if counts.keys() & {"failed", "timed out"} else 0


if __name__ == "__main__":
    sys.exit(main())
