"""What Muster does on a real GPU: correct, within its plan, fast, and what it costs.

    python -m benchmarks.gpu run --minutes 6 --out DIR    # goes on where the last call stopped
    python -m benchmarks.gpu run --changed --out DIR      # again what failed, and what changed code concerns
    python -m benchmarks.gpu run --tiny --out DIR         # the same pieces with tiny models on a CPU
    python -m benchmarks.gpu list --minutes 6             # the pieces, their usual seconds, what fits a call
    python -m benchmarks.gpu page DIR                     # docs/gpu.md from what was measured, DIR/MACHINE/

The most valuable pieces come first: proof, several at a time, until all of it came to an end with this code;
then of each row of the table of speeds where a step goes, levers and the speed, each alone on the GPU. A
piece whose usual time is not left waits for the next call. Each has a process and a time limit of its own;
one that fails does not stop the next. DIR holds a JSON file for each group of pieces, and page.md.
`--before`: results of earlier calls in another folder, to go on from (those of the same GPU and torch).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.gpu import page
from benchmarks.gpu.calls import room_of, run_all, usual_seconds, waiting_of
from benchmarks.gpu.kit import MEASURED, ROOT, Piece, Results, child, described, every_result
from benchmarks.gpu.pieces import pieces
from benchmarks.gpu.schedule import rehearsed

H100 = {"cores": 16, "memory": 85.5e9}  # the machine of the usual seconds


def main() -> int:
    """Exit code 1: a piece failed or ran out of time."""
    given = _parser().parse_args()
    if given.verb == "list":
        print("\n".join(_listed(pieces(), every_result(given.out), given.minutes)))
        return 0
    if given.verb == "piece":
        piece = next(each for each in pieces() if each.key == given.name)
        child(piece, given.tiny, given.told, given.folder, Results(given.out), given.seconds)
        return 0
    if given.verb == "page":
        given.to.write_text(page.page(*every_result(given.folder)))
        return 0
    starts = tuple(given.only.split(","))
    chosen = [piece for piece in pieces() if piece.key.startswith(starts)]
    results = Results(given.out)
    if given.before:
        for file in results.begin_with(given.before, described(given.tiny)):
            print(f"{file} is of another machine: left out")
    counts = run_all(chosen, results, given.minutes, given.tiny, given.changed)
    (given.out / "page.md").write_text(page.page(results))
    print(", ".join(f"{count} {status}" for status, count in counts.items()))
    return 1 if counts.keys() & {"failed", "timed out"} else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("run", help="run what is left")
    run.add_argument("--minutes", type=float, default=6.0, help="no piece runs on after these")
    run.add_argument("--out", type=Path, required=True)
    run.add_argument("--before", type=Path, help="results of earlier calls")
    run.add_argument("--only", default="", help="pieces whose names begin so, separated by commas")
    run.add_argument("--changed", action="store_true", help="again what failed or was changed")
    run.add_argument("--tiny", action="store_true", help="tiny models on a CPU: proves the way alone")
    listed = verbs.add_parser("list", help="the pieces in order, and in which call each fits")
    listed.add_argument("--minutes", type=float, default=6.0)
    listed.add_argument("--out", type=Path, default=MEASURED, help="what was measured before")
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
    return parser


def _listed(every: list[Piece], machines: list[Results], minutes: float) -> list[str]:
    """Call after call on a machine like the one that was measured, as if each passed."""
    seconds = usual_seconds(every, machines)
    left = waiting_of(every, machines[0], changed=True)
    lines = []
    for call in range(1, len(left) + 1):
        begun, left = rehearsed(left, 60 * minutes, room_of(H100, False), lambda each: seconds[each.key])
        lines.append(f"call {call}, {minutes:g} minutes")
        for at, piece in begun:
            how = "with others" if piece.shared else "alone"
            lines.append(f"  {at:5.0f} s  {piece.key:<40} {seconds[piece.key]:4.0f} s  {how}")
        if not begun or not left:
            break
    return [*lines, *(f"does not fit: {piece.key}" for piece in left)]


if __name__ == "__main__":
    sys.exit(main())
