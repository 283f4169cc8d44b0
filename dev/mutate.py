"""Change the pure rooms in small ways, and list the changes that no test notices: what tests do not guard.

    python dev/mutate.py [--count N] [--seed N] [--jobs N] [ROOM ...]

A mutant is one change of one expression: a comparison, an operator, a constant, a condition. It lies in a
copy of src, and a fork of this process runs the room's tests with it; only muster is imported anew. `make
mutate` writes the survivors to dev/survivors.txt; some of them change nothing that anybody could see.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 300  # a mutant that takes longer is noticed: it does not end
# Room -> its modules, and the tests that are to notice.
ROOMS: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "readers": (
        ("readers/*.py", "failures/*.py", "runs/explain.py"),
        ("tests/golden/test_rooms.py", "tests/golden/test_judged.py", "tests/golden/test_explained.py",
         "tests/unit/test_readers*.py", "tests/unit/test_explain.py"),
    ),
    "checks": (
        ("checks/families/*.py", "checks/kinds.py"),
        ("tests/golden/test_rooms.py", "tests/golden/test_checked.py", "tests/unit/test_checks_*.py"),
    ),
    "decisions": (
        ("planner/decide.py", "planner/ways.py", "core/batch.py"),
        ("tests/golden/test_rooms.py", "tests/golden/test_planned.py", "tests/unit/test_decide.py",
         "tests/unit/test_sizing.py", "tests/unit/test_choose.py"),
    ),
    "memory": (
        ("planner/memory/*.py",),
        ("tests/golden/test_rooms.py", "tests/golden/test_planned.py", "tests/unit/test_fit*.py",
         "tests/unit/test_states.py", "tests/unit/test_sizing.py"),
    ),
    "time": (
        ("planner/time/*.py",),
        ("tests/golden/test_planned.py", "tests/unit/test_steptime.py", "tests/unit/test_traffic.py",
         "tests/unit/test_calibrate.py", "tests/unit/test_published.py", "tests/unit/test_mixed.py"),
    ),
    "engines": (
        ("engines/*/spec.py", "engines/spread.py", "engines/states.py", "engines/traffic.py"),
        ("tests/golden/test_rooms.py", "tests/unit/test_engines.py", "tests/unit/test_states*.py",
         "tests/unit/test_traffic.py"),
    ),
    "deepspeed": (
        ("engines/deepspeed/config.py",),
        ("tests/golden/test_rooms.py", "tests/unit/test_zero*.py"),
    ),
    "recipes": (
        ("core/recipes.py", "store/records.py"),
        ("tests/golden/test_rooms.py", "tests/golden/test_refused.py", "tests/unit/test_recipes.py",
         "tests/unit/test_records.py"),
    ),
    "judging": (
        ("judging/*.py",),
        ("tests/golden/test_rooms.py", "tests/golden/test_judged.py", "tests/golden/test_verdicts.py",
         "tests/unit/test_judg*.py"),
    ),
    "results": (
        ("results/*.py",),
        ("tests/golden/test_folded.py", "tests/golden/test_shown.py", "tests/golden/test_rooms.py",
         "tests/golden/test_planned.py", "tests/unit/test_fold*.py", "tests/unit/test_stragglers.py",
         "tests/unit/test_metrics.py", "tests/unit/test_flops.py"),
    ),
}  # fmt: skip

COMPARED = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
COMPUTED = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Div,
    ast.Mod: ast.Mult, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """A module with one expression changed."""

    file: Path  # below src
    line: int
    before: str
    after: str
    text: str  # of the module

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.before}  ->  {self.after}"


def changed(node: ast.AST) -> ast.AST | None:
    """The expression with its one change; None: it has none."""
    new = copy.deepcopy(node)
    match new:
        case ast.Compare(ops=[only]) if type(only) in COMPARED:
            new.ops = [COMPARED[type(only)]()]
        case ast.BinOp(op=op) if type(op) in COMPUTED:
            new.op = COMPUTED[type(op)]()
        case ast.BoolOp():
            new.op = ast.And() if isinstance(new.op, ast.Or) else ast.Or()
        case ast.UnaryOp(op=ast.Not()):
            return new.operand
        case ast.Constant(value=bool()):
            new.value = not new.value
        case ast.Constant(value=int() | float()):
            new.value = new.value + 1
        case ast.IfExp():
            new.body, new.orelse = new.orelse, new.body
        case _:
            return None
    return new


def unchanged(tree: ast.AST) -> Iterator[ast.AST]:
    """What is left as it is: annotations, and parts of formatted texts, which have no place of their own."""
    for node in ast.walk(tree):
        parts = [getattr(node, name, None) for name in ("annotation", "returns")]
        for part in [*parts, node if isinstance(node, ast.JoinedStr) else None]:
            if part is not None:
                yield from ast.walk(part)


def mutants(file: Path) -> Iterator[Mutant]:
    """Every mutant of a module."""
    source = (ROOT / "src" / file).read_text(encoding="utf-8")
    starts = [0]
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    tree, data = ast.parse(source), source.encode()
    unseen = {id(each) for each in unchanged(tree)}
    for node in ast.walk(tree):
        new = changed(node) if isinstance(node, ast.expr) and id(node) not in unseen else None
        if new is None or not isinstance(node, ast.expr) or node.end_lineno is None:
            continue
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + (node.end_col_offset or 0)
        text = data[:begin] + f"({ast.unparse(new)})".encode() + data[end:]
        yield Mutant(file, node.lineno, ast.unparse(node), ast.unparse(new), text.decode())


def noticed(mutant: Mutant, tests: Sequence[str]) -> bool:
    """Whether a test fails with the mutant, or does not end."""
    with tempfile.TemporaryDirectory(prefix="muster-mutant-") as holder:
        source = Path(holder) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        (source / mutant.file).write_text(mutant.text, encoding="utf-8")
        child = os.fork()
        if child == 0:
            os._exit(tested(source, tests))
        return os.waitpid(child, 0)[1] != 0


def tested(source: Path, tests: Sequence[str]) -> int:
    """Run the tests with this source in place of the repository's; the exit code."""
    import pytest

    os.setpgrp()
    signal.alarm(SECONDS)
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    os.environ["PYTHONPATH"] = os.pathsep.join((str(source), str(ROOT)))
    sys.path[:0] = [str(source), str(ROOT)]
    sys.dont_write_bytecode = True
    return int(pytest.main(["-q", "-x", "-n", "0", "--no-header", "--tb=no", *tests]))


def survivors(room: str, count: int, draw: random.Random, jobs: int) -> tuple[int, list[Mutant]]:
    """How many mutants of a room were tried, and those that no test noticed."""
    patterns, tests = ROOMS[room]
    source = ROOT / "src" / "muster"
    if gone := [each for each in patterns if not any(source.glob(each))]:
        sys.exit(f"{room}: there is no {gone[0]}")
    if gone := [each for each in tests if not any(ROOT.glob(each))]:
        sys.exit(f"{room}: there is no {gone[0]}")
    files = sorted({file for pattern in patterns for file in source.glob(pattern)})
    every = [each for file in files for each in mutants(file.relative_to(ROOT / "src"))]
    chosen = draw.sample(every, min(count, len(every)))
    paths = [str(file) for pattern in tests for file in sorted(ROOT.glob(pattern))]
    plain = Mutant(files[0].relative_to(ROOT / "src"), 0, "", "", files[0].read_text(encoding="utf-8"))
    if noticed(plain, paths):
        sys.exit(f"{room}: its tests fail without a change")
    with ThreadPoolExecutor(jobs) as pool:
        verdicts = list(pool.map(lambda each: noticed(each, paths), chosen))
    return len(chosen), [each for each, seen in zip(chosen, verdicts, strict=True) if not seen]


def main() -> None:
    """Try some mutants of each room, and print the survivors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rooms", nargs="*", default=list(ROOMS), metavar="ROOM")
    parser.add_argument("--count", type=int, default=20, help="mutants of each room")
    parser.add_argument("--seed", type=int, default=0, help="another one draws other mutants")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    asked = parser.parse_args()
    os.chdir(ROOT)
    import click  # noqa: F401  # imported once, for all forks
    import hypothesis  # noqa: F401
    import numpy  # noqa: F401
    import pydantic  # noqa: F401
    import pytest  # noqa: F401
    import rich.console  # noqa: F401

    for room in asked.rooms:
        tried, left = survivors(room, asked.count, random.Random(f"{asked.seed} {room}"), asked.jobs)
        print(f"{room}: {tried - len(left)} of {tried} are noticed", flush=True)
        for each in sorted(left, key=str):
            print(f"  {each}", flush=True)


if __name__ == "__main__":
    main()
