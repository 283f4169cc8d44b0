"""The layers of a model by their sizes. Parameters, matrix products and a plan's figures of a layer follow
from them."""

from __future__ import annotations

from dataclasses import dataclass

# Values kept per inner unit. ReLU: its output; GELU: input and output; the tanh form, written out in Python:
# five; gated by SiLU: gate, its activation, the other half, their product.
PER_INNER = {
    "relu": 1,
    "gelu": 2,
    "gelu_new": 5,
    "gelu_pytorch_tanh": 2,
    "silu": 2,
    "swish": 2,
    "tanh": 1,
}


@dataclass(frozen=True)
class Stack:
    """Layers that are alike, by their sizes; of decoders also what they keep for the backward pass."""

    layers: int
    width: int
    heads: int
    query: int  # heads x head size
    keys: int  # of grouped keys: key heads x head size
    inner: int
    gated: bool = False  # the feed-forward has three matrices
    attentions: int = 1  # of a layer
    per_inner: int = 0  # values kept per inner unit of the feed-forward; 0: no decoder, so not known
    norm: float = 2  # values kept per unit of width by a norm, in elements of fp32
    norm_bytes: int = 4  # and bytes in half precision
    upcast: bool = True  # the softmax runs in fp32 where attention is not fused
    normed: bool = False  # queries and keys have norms of their own
    dropout: float = 0.0
    attention_dropout: float = 0.0

    @property
    def matrices(self) -> list[tuple[int, int]]:
        """Shapes (out, in) of a layer's matrices."""
        query, keys, width = self.query, self.keys, self.width
        attention = [(query, width), (keys, width), (keys, width), (width, query)]
        gated = [(self.inner, width)] if self.gated else []
        return attention * self.attentions + [(self.inner, width), *gated, (width, self.inner)]

    @property
    def weights(self) -> int:
        """Elements of a layer's matrices."""
        return sum(rows * columns for rows, columns in self.matrices)
