"""precision=fp8: products of linear layers in float8 by torchao, a scale for each row of a matrix. Pure.

Source: torchao 0.18, float8/float8_linear.py, float8_ops.py (its rowwise recipe).
"""

from __future__ import annotations

from collections.abc import Sequence

NAME, BESIDE = "fp8", "bf16"  # what all else computes in, and what MFU's peak is of
PACKAGE = "torchao"
SIDE = 16  # torch._scaled_mm: of a product's matrices, sides are multiples of it
# Of a layer's six casts in both passes (input, weight and output's gradient, each along both sides): bytes
# that one moves per element, and operations. Compiled: read for the largest, read and written; else every
# operation by itself, as counted with torchao 0.18.
MOVED = {True: 5, False: 33}
OPERATIONS = {True: 2, False: 14}
# Share of fp8's peak that products reach, over the share of bf16's that those in bf16 do: so that Llama 3 8B
# on 8 H100 is 10 % faster, as torchao's training benchmarks have it (rowwise; 47.79 GB in place of 47.65).
REACHED = 0.82


def peak_of(precision: str) -> str:
    """Return the precision whose stated peak MFU counts against: torchtitan's convention, so that a run in
    fp8 compares with one in bf16."""
    return BESIDE if precision == NAME else precision


def converts(shape: Sequence[int]) -> bool:
    """Return whether a linear layer with a weight of this shape computes in fp8."""
    return len(shape) == 2 and not any(side % SIDE for side in shape)
