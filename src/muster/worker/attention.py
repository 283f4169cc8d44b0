"""Causal attention without a mask, which PyTorch computes by its flash kernels.

Transformers (masking_utils.py) builds a (batch, 1, length, length) mask for rows that need none. In a
compiled graph it always does: whether positions begin anew within a row is a question to the data. Else it
asks the data in every pass, and the host waits for the device. An attention function without a mask function
of its own gets no mask.
"""

from __future__ import annotations

from typing import Any

from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import AttentionInterface

UNMASKED = "causal_unmasked"
# Model types whose layers ask Transformers for causal masks, and for no other kind but a sliding window's.
CAUSAL = frozenset(
    {
        "cohere", "gemma", "gemma3_text", "gpt2", "gpt_neox", "granite", "llama", "mistral", "mixtral",
        "olmo", "olmo2", "opt", "phi", "phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "smollm3",
        "stablelm", "starcoder2",
    }
)  # fmt: skip


def unmask(model: Any, longest: int) -> bool:
    """Let a decoder attend causally without a mask. -> whether it does so now.

    For batches of rows that are not packed, of at most `longest` tokens, with padding at their end alone: no
    token sees what comes after it, so none sees padding, and what padding gives is not used. The model must
    not be given a mask of two dimensions then: it would be passed over. Models whose attention is not SDPA
    stay as they are, and those whose window is shorter than a row.
    """
    config = model.config
    fused = config.model_type in CAUSAL and config._attn_implementation == "sdpa"
    if not fused or not _sees_whole(config, longest):
        return False
    AttentionInterface.register(UNMASKED, sdpa_attention_forward)
    model.set_attn_implementation(UNMASKED)
    return is_unmasked(model)


def is_unmasked(model: Any) -> bool:
    """Return whether `unmask` has changed a model."""
    return bool(model.config._attn_implementation == UNMASKED)


def _sees_whole(config: Any, longest: int) -> bool:
    """Return whether every layer sees a whole row."""
    full, windowed = "full_attention", "sliding_attention"
    window = getattr(config, "sliding_window", None)
    kinds = set(getattr(config, "layer_types", None) or [windowed if window else full])
    causal = getattr(config, "is_causal", True) and not getattr(config, "use_bidirectional_attention", False)
    if not causal or not kinds <= {full, windowed}:
        return False
    return kinds == {full} or (window is not None and longest < window)
