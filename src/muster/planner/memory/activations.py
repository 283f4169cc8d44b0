"""What a forward pass keeps for the backward pass, in bytes: a closed form for decoders, so that a plan has
an answer where no model can be traced. Other models are traced. Pure.

The terms are those of Korthikanti et al. 2022 ("Reducing Activation Recomputation in Large Transformer
Models", equations 1 and 2), counted anew for what Transformers' modules keep: dropout masks only where there
is dropout, ReLU's output only once, and no term in the square of a length where attention runs as fused
kernels (SDPA). tests/real/test_fit.py compares the form with what real models keep.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from muster.core import families
from muster.core.families.stack import Stack
from muster.core.loss_parts import PLAIN_OUTPUT, most_rows, part_rows
from muster.core.workload import Drawing, Lengths

# Predictions and entries of the vocabulary: TRL's TOKEN_CHUNK_SIZE, _CHUNKED_LOGPROB_CHUNK_SIZE.
TILE = (4096, 32768)
# Of a tile in fp32, in the backward pass without a kernel: 8 as traced, less one since gradients are added.
TILE_COPIES = 7
SAMPLING = 5  # copies of the next token's logits in fp32
WIDTHS = ("word_embed_proj_dim", "d_model", "n_embd", "hidden_size")  # of the output layer's input


@dataclass(frozen=True)
class KeptValues:
    """How values are kept. `element`: bytes of one; `mixed`: by autocast, which leaves what runs between
    matrix products in fp32; `fused`: attention without its matrix of probabilities."""

    element: int
    mixed: bool = False
    fused: bool = True
    mask: int = 1  # bytes of a dropout mask's element: 1 on CUDA, a whole value on a CPU
    compiled: bool = False  # torch.compile computes pointwise values again


def layer_bytes(stack: Stack, tokens: int, kept: KeptValues) -> int:
    """Return what one layer of a decoder keeps for one sample of so many tokens.

    Per token: norms; queries, keys, values and output of the attention; the feed-forward; dropout's masks
    and outputs. Where attention is not fused: its probabilities, heads x tokens x tokens, in fp32 as well
    where the softmax runs in it. Compiled: what products take and give, and a norm's values before its
    weight; the rest is computed again (tests/real/test_graphs.py compares with PyTorch's partitioner).
    """
    element, half = kept.element, kept.element == 2
    norm = stack.norm_bytes if half else 4 * stack.norm
    if kept.compiled:  # autocast's fp32 values are counted below
        norm = element if kept.mixed else 2 * element
    inner = min(stack.per_inner, 3 if stack.gated else 2) if kept.compiled else stack.per_inner
    total = 2 * tokens * norm * stack.width
    # Autocast: norms and residuals in fp32, and a cast copy of the input for each projection.
    total += 2 * tokens * 4 * stack.width if kept.mixed else 0
    total += 2 * element * tokens * (stack.query + stack.keys)
    total += norm * tokens * (stack.query + stack.keys) if stack.normed else 0
    if not kept.fused:
        probabilities = element + (4 if half and (stack.upcast or kept.mixed) else 0)
        dropped = element + kept.mask if stack.attention_dropout else 0
        total += stack.heads * tokens * tokens * (probabilities + dropped)
    total += element * tokens * inner * stack.inner
    if stack.dropout and not kept.compiled:
        total += 2 * tokens * stack.width * kept.mask
    return int(total)


def activation_bytes(
    config: Mapping[str, Any], lengths: Lengths, kept: KeptValues, *, checkpointing: bool
) -> int | None:
    """Return what a decoder keeps for one sample between its forward and its backward pass, without logits
    and loss.

    With checkpointing: every layer's input, and one layer whole while it is computed again (Korthikanti et
    al. 2022, section 5). None for what is no decoder.
    """
    layers, tokens = families.stacks(config), lengths.tokens
    if not layers or not layers[0].per_inner:
        return None
    [stack] = layers
    layer = layer_bytes(stack, tokens, kept)
    # The gradients that flow through one layer: of its widest values, twice.
    scores = 0 if kept.fused else stack.heads * tokens
    flow = 2 * kept.element * tokens * max(stack.inner, 3 * stack.query, scores)
    inputs = (4 if kept.mixed else kept.element) * tokens * stack.width
    whole = stack.layers * (inputs if checkpointing else layer)
    return inputs + whole + flow + (layer if checkpointing else 0)


def activations_missing(config: Mapping[str, Any]) -> str:
    """Return the sentence for a model whose activations are not counted."""
    return (
        f"The memory has no activations, which for a {config.get('model_type')} come from a trace alone: "
        "`muster plan` without --quick makes one, with torch and transformers on this machine (pip install "
        "torch transformers)."
    )


def fused_bytes(
    config: Mapping[str, Any], rows: int, kept: KeptValues, device: str, wanted: bool | str
) -> int | None:
    """Return the bytes of output layer and loss of `rows` predictions as one: of a part the logits, their
    logarithms in fp32 and their gradient; the gradients of the layer's input and, in fp32, of its weight.

    None where they are computed one after the other (core/loss_parts.py). `wanted`: train.fused_loss.
    """
    if wanted is False or config.get("model_type") not in PLAIN_OUTPUT:
        return None
    classes = int(config.get("vocab_size") or 0)
    width = int(next((config[key] for key in WIDTHS if config.get(key)), 0))
    if not classes or (wanted == "auto" and rows <= most_rows(device, classes, width)):
        return None
    part = min(rows, part_rows(device, classes, width))
    return part * classes * (2 * kept.element + 4) + rows * width * kept.element + 4 * classes * width


def tile_bytes(config: Mapping[str, Any], rows: int, kept: KeptValues, device: str) -> int:
    """Return the bytes of `rows` log-probabilities by TRL (kernels/chunked_logprob.py): a tile of logits, on
    CPUs with the intermediate results of PyTorch's operations in place of one kernel; in fp32 the gradients
    of the output layer's input and of its weight."""
    classes = int(config.get("vocab_size") or 0)
    width = int(next((config[key] for key in WIDTHS if config.get(key)), 0))
    columns = min(classes, TILE[1]) if device == "cpu" else TILE[1]
    per_value = 4 * TILE_COPIES if device == "cpu" else kept.element
    return min(rows, TILE[0]) * columns * per_value + 4 * width * (rows + classes)


def drawing_bytes(config: Mapping[str, Any], drawing: Drawing, rows: int, kept: KeptValues) -> dict[str, int]:
    """Return the bytes of generating `rows` answers at once: the keys and values of all tokens, of one layer
    twice while a token's are added; a layer's activations over the prompts; logits of the next token, with
    the copies of sampling."""
    model, tokens = families.stacks(config), drawing.prompt + drawing.answer
    layers = sum(stack.layers for stack in model)
    one = max((2 * kept.element * rows * tokens * stack.keys for stack in model), default=0)
    widest = max((max(stack.inner, 3 * stack.query) for stack in model), default=0)
    return {
        "keys and values": one * (layers + 1),
        "temporary tensors": 2 * kept.element * rows * drawing.prompt * widest,
        "logits of the next token": 4 * SAMPLING * rows * int(config.get("vocab_size") or 0),
    }


def logit_bytes(config: Mapping[str, Any], lengths: Lengths, kept: KeptValues) -> int:
    """Return the bytes of one sample's logits and loss: the logits, and three fp32 tensors of their size
    (their logarithms, two gradients) at the peak, which is inside the loss's backward pass."""
    return int(config["vocab_size"]) * lengths.tokens * (kept.element + 12)
