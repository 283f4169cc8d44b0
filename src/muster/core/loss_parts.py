"""How many rows of logits are in memory at once: for ranks (worker/loss.py) and for plans.

A row is the logits of one prediction, of a token or an image.
"""

from __future__ import annotations

SMALL = 1 << 24  # logits of a part on a CPU, where small parts stay in its caches
SMALL_ON_CPU = 1 << 28  # logits up to which a CPU takes all at once: memory is cheap there
# Logits of a part on a GPU: each part reads and writes the gradient of the output layer's weight, and small
# products do not fill the device.
SMALL_ON_GPU = 1 << 27
# Of a device's memory that the logits of a compiled graph and their gradient may take.
WHOLE_SHARE = 0.25
# Model types whose logits are what their output layer gives, unchanged: the layer may compute the loss as
# well. Others scale or cap them afterwards.
PLAIN_OUTPUT = frozenset({"t5", "gpt2", "opt", "llama", "mistral", "qwen2", "qwen3"})


def part_rows(device: str, classes: int, width: int = 0) -> int:
    """Return how many rows of logits are in memory at once, where they are computed in parts. At least half
    of the output layer's `width`: each part reads and writes the whole gradient of its weight."""
    part = SMALL if device == "cpu" else SMALL_ON_GPU
    return max(1, part // classes, width // 2)


def most_rows(device: str, classes: int, width: int = 0) -> int:
    """Return the number of rows up to which all logits are in memory."""
    return SMALL_ON_CPU // classes if device == "cpu" else part_rows(device, classes, width)


def fits_whole(rows: int, classes: int, element: int, memory: int) -> bool:
    """Return whether a compiled graph has room for all logits and their gradient, of `element` bytes each, on
    a device of `memory` bytes."""
    return 2 * rows * classes * element <= WHOLE_SHARE * memory
