"""A digest of the code that a piece rests on, so that a change runs again what it concerns and no more.

A piece rests on its group's module, on jobs.py, and on src/muster without the parts that a run may not need:
  - rooms that a run cannot import: they are above `runs` or beside it in the floors that import-linter keeps
  - engines and workloads, each blind to the others: a folder each
Of these parts a piece rests on those that it names (Piece.parts). "*": on all of them. None: it runs nothing
of Muster. Files are named with their whole path; a piece that names files alone rests on no others. A change
of kit.py or schedule.py runs nothing again: they start pieces, and measure nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from benchmarks.gpu.kit import ROOT, Piece

MUSTER = ROOT / "src" / "muster"
APART = ("benches", "checks", "gather", "judging", "prepare", "schemas", "suites", "profiles")
BY_FOLDER = ("engines", "workloads")


def source(piece: Piece) -> str:
    """Twelve digits, the same for the same code."""
    digest = hashlib.sha256()
    for file in files(piece):
        digest.update(str(file.relative_to(ROOT)).encode() + _content(file))
    return digest.hexdigest()[:12]


def files(piece: Piece) -> list[Path]:
    """The files that it rests on, in order."""
    here = Path(__file__).parent
    own = [here / f"{piece.group}.py", here / "jobs.py"]
    named = [ROOT / part for part in piece.parts or () if (ROOT / part).is_file()]
    if piece.parts is None or (named and len(named) == len(piece.parts)):
        return [file for file in (own[0], *named) if file.exists()]
    own += named
    return sorted({file for file in own if file.exists()} | set(_of_muster(frozenset(piece.parts))))


@cache
def _of_muster(parts: frozenset[str]) -> tuple[Path, ...]:
    return tuple(file for file in _all() if "*" in parts or _part(file) in parts | {""})


def _part(file: Path) -> str:
    """The part that a file of src/muster belongs to; "": every run rests on it."""
    room, *more = file.relative_to(MUSTER).parts
    if room in APART:
        return room
    return f"{room}/{more[0]}" if room in BY_FOLDER and len(more) > 1 else ""


@cache
def _all() -> tuple[Path, ...]:
    def kept() -> Iterator[Path]:
        for file in MUSTER.rglob("*"):
            if file.is_file() and file.suffix not in (".pyc", ".html"):
                yield file

    return tuple(sorted(kept()))


@cache
def _content(file: Path) -> bytes:
    return file.read_bytes()
