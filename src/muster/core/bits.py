"""Weights in 4 or 8 bits and Adam's moments in 8, as bitsandbytes 0.50 keeps them. Pure.

Sources: bitsandbytes/functional.py (quantize_4bit, int8_vectorwise_quant), nn/modules.py, optim/optimizer.py
(init_state); Dettmers et al. 2023 (QLoRA), section 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

PACKAGE = "bitsandbytes"
Bits = Literal["nf4", "nf4-double", "fp4", "fp4-double", "int8"]
BLOCK = 64  # weights of four bits that share a scale
SCALES = 256  # scales that share one, where they are quantised as well; and moments that do
SMALLEST = 4096  # elements of a tensor whose moments are in 8 bits
_DOUBLE = "-double"
_KNOWN = {
    "load_in_4bit", "load_in_8bit", "bnb_4bit_quant_type", "bnb_4bit_use_double_quant", "quant_method",
    "bnb_4bit_compute_dtype",
}  # fmt: skip


def weight_bytes(bits: Bits, shape: tuple[int, ...]) -> int:
    """Return the bytes of a matrix: half a byte for each weight and a scale for 64 of them, or a byte for
    each and a scale for a row."""
    rows, columns = shape[0], shape[-1]
    if bits == "int8":
        return rows * columns + 4 * rows
    blocks = -(-rows * columns // BLOCK)
    scales = blocks + 4 * -(-blocks // SCALES) if bits.endswith(_DOUBLE) else 4 * blocks
    return -(-rows * columns // 2) + scales


def moment_bytes(numel: int) -> int:
    """Return the bytes of both moments of a tensor."""
    return 8 * numel if numel < SMALLEST else 2 * (numel + 4 * -(-numel // SCALES))


def fields_of(bits: Bits) -> dict[str, Any]:
    """Return the fields of Transformers' BitsAndBytesConfig."""
    if bits == "int8":
        return {"load_in_8bit": True}
    double = bits.endswith(_DOUBLE)
    kind = bits.removesuffix(_DOUBLE)
    return {"load_in_4bit": True, "bnb_4bit_quant_type": kind, "bnb_4bit_use_double_quant": double}


def read(config: Mapping[str, Any]) -> str:
    """Return a quantization_config as one of Bits. Raises ValueError for other methods and other fields.

    4-bit weights compute in the recipe's precision, whatever the configuration says.
    """
    method = config.get("quant_method", PACKAGE)
    more = sorted(set(config) - _KNOWN)
    if method != PACKAGE or more:
        raise ValueError(f"{method if method != PACKAGE else ', '.join(more)} is not known here")
    if bool(config.get("load_in_8bit")) == bool(config.get("load_in_4bit")):
        raise ValueError("one of load_in_4bit and load_in_8bit has to be true")
    if config.get("load_in_8bit"):
        return "int8"
    double = _DOUBLE if config.get("bnb_4bit_use_double_quant") else ""
    return f"{config.get('bnb_4bit_quant_type', 'fp4')}{double}"
