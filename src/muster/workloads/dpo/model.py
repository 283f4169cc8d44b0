"""A decoder that learns from pairs, as it is traced."""

from __future__ import annotations

from muster.dialogues.tracing import compared

TRACED = compared(2)
