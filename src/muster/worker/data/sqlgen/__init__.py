"""The generated text-to-SQL set: questions over real SQLite databases, the demo's embedded data."""

from __future__ import annotations

from .generate import SHAPES, build
from .unseen import literals, unseen_share

__all__ = ["SHAPES", "build", "literals", "unseen_share"]
