"""All pieces, the most valuable first."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

from benchmarks.gpu.kit import GROUPS, Piece


def pieces() -> list[Piece]:
    """Of every group that has a module here, in the order of the groups."""
    names = [f"benchmarks.gpu.{group}" for group in GROUPS]
    return [piece for name in names if find_spec(name) for piece in import_module(name).pieces()]
