"""All pieces, the most valuable first."""

from __future__ import annotations

from benchmarks.gpu import ceiling, cost, memory, profile, proof, speed
from benchmarks.gpu.kit import Piece


def pieces() -> list[Piece]:
    """In the order in which they are run."""
    return [
        *proof.pieces(),
        *memory.pieces(),
        *ceiling.pieces(),
        *profile.pieces(),
        *speed.pieces(),
        *cost.pieces(),
    ]
