"""How many rows of logits lie in memory at once: what ranks do (worker/loss.py), and what plans reckon with.

A row is the logits of one prediction, of a token or an image.
"""

from __future__ import annotations

SMALL = 1 << 24  # logits up to which memory is no matter; larger ones are worked through in parts of this
SMALL_ON_CPU = 1 << 28  # there memory is cheap
# Model types whose logits are what their output layer gives, unchanged: the layer may compute the loss as
# well. Others scale or cap them afterwards.
PLAIN_OUTPUT = frozenset({"t5", "gpt2", "opt", "llama", "mistral", "qwen2", "qwen3"})


def part_rows(classes: int, width: int = 0) -> int:
    """Rows whose logits lie in memory at once, where they are worked through in parts. At least half of the
    output layer's `width`: each part reads and writes the whole gradient of its weight."""
    return max(1, SMALL // classes, width // 2)


def most_rows(device: str, classes: int, width: int = 0) -> int:
    """Rows up to which all logits lie in memory."""
    return SMALL_ON_CPU // classes if device == "cpu" else part_rows(classes, width)
