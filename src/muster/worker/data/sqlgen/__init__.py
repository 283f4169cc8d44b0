"""The generated text-to-SQL set: questions over real SQLite databases, the demo's embedded data."""

from __future__ import annotations

from .generate import build
from .shapes import SHAPES

__all__ = ["SHAPES", "build"]
