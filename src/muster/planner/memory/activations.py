"""What a forward pass keeps for the backward pass, in bytes: a closed form per family of models. Pure.

The terms are those of Korthikanti et al. 2022 ("Reducing Activation Recomputation in Large Transformer
Models", equations 1 and 2), counted anew for what Transformers' modules keep: dropout masks only where there
is dropout, ReLU's output only once, and no term in the square of a length where attention runs as fused
kernels (SDPA). tests/real/test_fit.py holds the forms against what real models keep.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from muster.core import families
from muster.core.families import llama, t5, vit
from muster.core.loss_parts import PLAIN_OUTPUT, most_rows, part_rows
from muster.core.workload import Drawing, Lengths

# Predictions and entries of the vocabulary: TRL's TOKEN_CHUNK_SIZE, _CHUNKED_LOGPROB_CHUNK_SIZE.
TILE = (4096, 32768)
# Of a tile in fp32, in the backward pass without a kernel: 8 as traced, less one since gradients are added.
TILE_COPIES = 7
SAMPLING = 5  # copies of the next token's logits in fp32
WIDTHS = ("word_embed_proj_dim", "d_model", "n_embd", "hidden_size")  # of the output layer's input


@dataclass(frozen=True)
class Kept:
    """How values are kept. `element`: bytes of one; `mixed`: by autocast, which leaves what runs between
    matrix products in fp32; `fused`: attention without its matrix of probabilities."""

    element: int
    mixed: bool = False
    fused: bool = True
    mask: int = 1  # bytes of a dropout mask's element: 1 on CUDA, a whole value on a CPU
    compiled: bool = False  # torch.compile computes pointwise values again


@dataclass(frozen=True)
class Stack:
    """Layers that are alike. `attentions`: per attention of a layer how many tokens it looks at."""

    layers: int
    tokens: int
    attentions: tuple[int, ...]
    width: int
    heads: int
    query: int  # heads x head size
    keys: int  # of grouped keys: key heads x head size
    inner: int
    per_inner: int  # values kept per inner unit of the feed-forward
    norm: float  # values kept per unit of width by a norm, in elements of fp32
    norm_bytes: int  # and bytes in half precision
    upcast: bool  # the softmax runs in fp32 where attention is not fused
    gated: bool = False  # the feed-forward has three matrices
    normed: bool = False  # queries and keys have norms of their own
    dropout: float = 0.0
    attention_dropout: float = 0.0
    inner_dropout: float = 0.0


# Values kept per inner unit. ReLU: its output; GELU: input and output; the tanh form, written out in Python:
# five; gated by SiLU: gate, its activation, the other half, their product; gated by the tanh form: seven.
_ACTIVATIONS = {"relu": 1, "gelu": 2, "gelu_new": 5, "gelu_pytorch_tanh": 2, "silu": 2, "swish": 2, "tanh": 1}


# Families whose blocks have two LayerNorms (input and output of each are kept) and one attention: the keys of
# layers, width, heads, inner, activation, dropout and the attention's dropout.
_PLAIN = {
    "opt": (
        "num_hidden_layers", "hidden_size", "num_attention_heads", "ffn_dim", "activation_function",
        "dropout", "attention_dropout",
    ),
    "gpt2": ("n_layer", "n_embd", "n_head", "n_inner", "activation_function", "resid_pdrop", "attn_pdrop"),
    "vit": (
        "num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "hidden_act",
        "hidden_dropout_prob", "attention_probs_dropout_prob",
    ),
}  # fmt: skip


def _plain(kind: str, config: Mapping[str, Any], lengths: Lengths) -> list[Stack]:
    tokens = vit.tokens(config) if kind == "vit" else lengths.tokens
    values: list[Any] = [config.get(key) for key in _PLAIN[kind]]
    layers, width, heads, inner, activation, dropout, attention_dropout = values
    stack = Stack(
        layers=int(layers),
        tokens=tokens,
        attentions=(tokens,),
        width=int(width),
        heads=int(heads),
        query=int(width),
        keys=int(width),
        inner=int(inner or 4 * width),
        per_inner=_ACTIVATIONS.get(str(activation), 5),
        norm=2,
        norm_bytes=4,
        upcast=kind != "gpt2",
        dropout=float(dropout),
        attention_dropout=float(attention_dropout),
    )
    return [stack]


def _llama(config: Mapping[str, Any], lengths: Lengths) -> list[Stack]:
    width = int(config["hidden_size"])
    heads = int(config["num_attention_heads"])
    keys = int(config.get("num_key_value_heads") or heads)
    head = llama.head_width(config)
    stack = Stack(
        layers=int(config["num_hidden_layers"]),
        tokens=lengths.tokens,
        attentions=(lengths.tokens,),
        width=width,
        heads=heads,
        query=heads * head,
        keys=keys * head,
        inner=int(config["intermediate_size"]),
        per_inner=4,
        norm=3,
        norm_bytes=8,  # an RMS norm computes in fp32: its input there, the normed values, the output
        upcast=True,
        gated=True,
        normed=config["model_type"] == "qwen3",
        attention_dropout=float(config["attention_dropout"]),
    )
    return [stack]


def _t5(config: Mapping[str, Any], lengths: Lengths) -> list[Stack]:
    gated = t5.gated(config)
    layers, rate = int(config["num_layers"]), float(config["dropout_rate"])
    inner = int(config["num_heads"]) * int(config["d_kv"])
    common: dict[str, Any] = {
        "width": int(config["d_model"]),
        "heads": int(config["num_heads"]),
        "query": inner,
        "keys": inner,
        "inner": int(config["d_ff"]),
        "per_inner": 7 if gated else 1,
        "norm": 3,
        "norm_bytes": 10,
        "upcast": False,
        "gated": gated,
        "dropout": rate,
        "attention_dropout": rate,
        "inner_dropout": rate,
    }
    decoder = int(config.get("num_decoder_layers") or layers)
    return [
        Stack(layers=layers, tokens=lengths.tokens, attentions=(lengths.tokens,), **common),
        Stack(layers=decoder, tokens=lengths.target, attentions=(lengths.target, lengths.tokens), **common),
    ]


_FORMS: dict[str, Callable[..., list[Stack]]] = {
    "llama": _llama,
    "t5": _t5,
    **{kind: partial(_plain, kind) for kind in _PLAIN},
}


def stacks(config: Mapping[str, Any], lengths: Lengths) -> list[Stack] | None:
    """The model as stacks of layers; None for a family that is not known."""
    family = families.family_of(config)
    form = _FORMS.get(family.MODEL_TYPES[0]) if family else None
    return form(families.filled(config), lengths) if form else None


def layer_bytes(stack: Stack, kept: Kept) -> int:
    """What one layer keeps for one sample.

    Per token: norms; queries, keys, values and output of each attention; the feed-forward; dropout's masks
    and outputs. Where attention is not fused: its probabilities, heads x tokens x tokens, in fp32 as well
    where the softmax runs in it. Compiled: what products take and give, and a norm's values before its
    weight; the rest is computed again (tests/real/test_graphs.py compares with PyTorch's partitioner).
    """
    element, half = kept.element, kept.element == 2
    norms = 1 + len(stack.attentions)
    norm = stack.norm_bytes if half else 4 * stack.norm
    if kept.compiled:  # autocast's fp32 values are counted below
        norm = element if kept.mixed else 2 * element
    inner = min(stack.per_inner, 3 if stack.gated else 2) if kept.compiled else stack.per_inner
    total = stack.tokens * norms * norm * stack.width
    # Autocast: norms and residuals in fp32, and a cast copy of the input for each projection.
    total += stack.tokens * (norms * 4 * stack.width if kept.mixed else 0)
    for seen in stack.attentions:
        total += element * (2 * stack.tokens * stack.query + 2 * seen * stack.keys)
        total += norm * (stack.tokens * stack.query + seen * stack.keys) if stack.normed else 0
        if not kept.fused:
            probabilities = element + (4 if half and (stack.upcast or kept.mixed) else 0)
            dropped = element + kept.mask if stack.attention_dropout else 0
            total += stack.heads * stack.tokens * seen * (probabilities + dropped)
    total += element * stack.tokens * inner * stack.inner
    if kept.compiled:
        return int(total)
    if stack.dropout:
        total += stack.tokens * norms * stack.width * kept.mask
    if stack.inner_dropout:
        total += stack.tokens * stack.inner * (element + kept.mask)
    return int(total)


def activation_bytes(
    config: Mapping[str, Any], lengths: Lengths, kept: Kept, *, checkpointing: bool
) -> int | None:
    """What a model keeps for one sample between its forward and its backward pass, without logits and loss.

    With checkpointing: every layer's input, and one layer whole while it is computed again (Korthikanti et
    al. 2022, section 5). None for a family that is not known.
    """
    found = stacks(config, lengths)
    if found is None:
        return None
    residual = 4 if kept.mixed else kept.element
    total = largest = 0
    for stack in found:
        layer = layer_bytes(stack, kept)
        # The gradients that flow through one layer: of its widest values, twice.
        scores = 0 if kept.fused else stack.heads * max(stack.attentions)
        flow = 2 * kept.element * stack.tokens * max(stack.inner, 3 * stack.query, scores)
        largest = max(largest, flow + (layer if checkpointing else 0))
        inputs = residual * stack.tokens * stack.width
        total += inputs + (stack.layers * inputs if checkpointing else stack.layers * layer)
    return total + largest


def fused_bytes(
    config: Mapping[str, Any], rows: int, kept: Kept, device: str, wanted: bool | str
) -> int | None:
    """Output layer and loss of `rows` predictions as one: of a part the logits, their logarithms
    in fp32 and their gradient; the gradients of the layer's input and, in fp32, of its weight.

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


def tile_bytes(config: Mapping[str, Any], rows: int, kept: Kept, device: str) -> int:
    """Log-probabilities of `rows` predictions by TRL (kernels/chunked_logprob.py): a tile of logits, on CPUs
    with what PyTorch's operations make of it in place of one kernel; in fp32 the gradients of the output
    layer's input and of its weight."""
    classes = int(config.get("vocab_size") or 0)
    width = int(next((config[key] for key in WIDTHS if config.get(key)), 0))
    columns = min(classes, TILE[1]) if device == "cpu" else TILE[1]
    per_value = 4 * TILE_COPIES if device == "cpu" else kept.element
    return min(rows, TILE[0]) * columns * per_value + 4 * width * (rows + classes)


def drawing_bytes(config: Mapping[str, Any], drawing: Drawing, rows: int, kept: Kept) -> dict[str, int]:
    """Drawing `rows` answers at once: the keys and values of all tokens, of one layer twice while a token's
    are added; what a layer makes of the prompts; logits of the next token, with the copies of sampling."""
    whole = Lengths(drawing.prompt + drawing.answer)
    found = stacks(config, whole) or []
    layers = sum(stack.layers for stack in found)
    one = max((2 * kept.element * rows * whole.tokens * stack.keys for stack in found), default=0)
    widest = max((max(stack.inner, 3 * stack.query) for stack in found), default=0)
    return {
        "keys and values": one * (layers + 1),
        "temporary tensors": 2 * kept.element * rows * drawing.prompt * widest,
        "logits of the next token": 4 * SAMPLING * rows * int(config.get("vocab_size") or 0),
    }


def logit_bytes(config: Mapping[str, Any], lengths: Lengths, kept: Kept) -> int:
    """Logits and loss of one sample: the logits, and three fp32 tensors of their size (their logarithms, two
    gradients) at the peak, which is inside the loss's backward pass. Nothing to speak of for images."""
    if "vocab_size" not in config:
        return 0
    tokens = lengths.target or lengths.tokens
    return int(config["vocab_size"]) * tokens * (kept.element + 12)
