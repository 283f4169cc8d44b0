"""Floating-point operations of a training step: arithmetic on matrix products, and nothing else.

Only matrix products count (a multiply-accumulate is two operations), as the field does: norms, softmax,
activations and the optimizer are left out. Attention counts in full, also where half of it is masked
(Chowdhery et al. 2022, PaLM, appendix B).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from math import comb

DEGREE = 2  # attention grows with the square of a length, all the rest in proportion to it


@dataclass(frozen=True)
class Shape:
    """A batch: samples, and tokens of each with padding. `target`: the decoder's, where there are two stacks.

    Images have no tokens here: their number follows from the model's configuration.
    """

    samples: int
    tokens: int = 0
    target: int = 0


@dataclass(frozen=True)
class Products:
    """Multiply-accumulates of a forward pass, by kind of product."""

    weights: int  # activations with a parameter matrix
    attention: int  # activations with activations
    outside: int = 0  # those of `weights` that are not in a transformer block: patches and output
    entry: int = 0  # those of `weights` whose input is the data itself, which needs no gradient

    @property
    def forward(self) -> int:
        """Floating-point operations of a forward pass."""
        return 2 * (self.weights + self.attention)


@dataclass(frozen=True)
class MatmulWork:
    """Floating-point operations of a forward and backward pass.

    `model`: what the gradient needs; `hardware`: with what gradient checkpointing computes again.
    """

    forward: int
    model: int
    hardware: int


def training(products: Products, *, checkpointing: bool = False, frozen: bool = False) -> MatmulWork:
    """Return the operations of a forward and backward pass: every product has a gradient for each of its two
    sides, so three in all.

    frozen: the model's own matrices need none (LoRA), so theirs are two. checkpointing: every transformer
    block is computed twice (an upper bound: PyTorch stops where nothing more is needed, which saves a block's
    last product where no dropout follows it).
    """
    forward = products.forward
    times = 2 if frozen else 3
    model = 2 * (times * products.weights - products.entry + 3 * products.attention)
    again = forward - 2 * products.outside if checkpointing else 0
    return MatmulWork(forward, model, model + again)


def quadratic(
    count: Callable[[tuple[int, ...]], Fraction], top: Sequence[int]
) -> Callable[[tuple[int, ...]], Fraction]:
    """Return the polynomial of degree 2 in some lengths that equals `count`, from as few of its values as
    possible.

    `count` is called for 1, 3 or 6 points (no, one, two lengths), none above `top`. Newton's interpolation on
    the principal lattice, in exact fractions. Raises ValueError where a length of `top` is below 3.
    """
    steps = [length // (DEGREE + 1) for length in top]
    if any(step < 1 for step in steps):
        raise ValueError(f"lengths {tuple(top)} are too short for a polynomial")
    powers = [p for p in product(range(DEGREE + 1), repeat=len(steps)) if sum(p) <= DEGREE]
    value = {p: count(tuple(h * (1 + i) for h, i in zip(steps, p, strict=True))) for p in powers}
    differences = {p: _difference(value, p) for p in powers}

    def polynomial(lengths: tuple[int, ...]) -> Fraction:
        at = [Fraction(length, h) - 1 for length, h in zip(lengths, steps, strict=True)]
        terms = []
        for power, difference in differences.items():
            for u, i in zip(at, power, strict=True):
                difference *= (Fraction(1), u, u * (u - 1) / 2)[i]
            terms.append(difference)
        return sum(terms, Fraction(0))

    return polynomial


def _difference(value: dict[tuple[int, ...], Fraction], power: tuple[int, ...]) -> Fraction:
    """Return the forward difference of order `power` at the lattice's origin."""
    total = Fraction(0)
    for below in product(*(range(i + 1) for i in power)):
        factor = 1
        for i, a in zip(power, below, strict=True):
            factor *= (-1) ** (i - a) * comb(i, a)
        total += factor * value[below]
    return total
