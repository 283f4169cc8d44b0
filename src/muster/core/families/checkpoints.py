"""Checkpoints by their names on the hub, with the shape that their config.json gives, so that no network is
needed to know it.

Published parameter counts are in tests/unit/test_families.py, which compares them with the real models'.
"""

from __future__ import annotations

from typing import Any

TUNED = ("", "-Instruct")


def decoder(
    layers: int, width: int, heads: int, keys: int, inner: int, vocab: int, positions: int, **others: Any
) -> dict[str, Any]:
    """Return a decoder's configuration: Llama's, where `others` name no other type."""
    return {
        "model_type": "llama",
        "num_hidden_layers": layers,
        "hidden_size": width,
        "num_attention_heads": heads,
        "num_key_value_heads": keys,
        "head_dim": width // heads,
        "intermediate_size": inner,
        "vocab_size": vocab,
        "max_position_embeddings": positions,
        "tie_word_embeddings": False,
        **others,
    }


def _rope(theta: float, factor: float | None = None) -> dict[str, Any]:
    """Return the frequencies of rotary positions. `factor`: as Llama 3.1 stretches them from 8192."""
    if factor is None:
        return {"rope_theta": theta, "rope_type": "default"}
    return {
        "rope_theta": theta, "rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
    }  # fmt: skip


def _llama() -> dict[str, dict[str, Any]]:
    """Return the fields of the config.json files on the hub, under all names of the checkpoints."""
    listed: dict[str, dict[str, Any]] = {}

    def add(fields: dict[str, Any], *names: str) -> None:
        listed.update(dict.fromkeys(names, fields))

    meta = "meta-llama/"
    two: dict[str, Any] = {"positions": 4096, "vocab": 32000, "rms_norm_eps": 1e-5}
    three: dict[str, Any] = {
        "vocab": 128_256,
        "rms_norm_eps": 1e-5,
        "keys": 8,
        "bos_token_id": 128_000,
        "eos_token_id": 128_001,
    }
    newer: dict[str, Any] = {**three, "positions": 131_072, "rope_parameters": _rope(500_000.0, 8.0)}
    small: dict[str, Any] = {**newer, "rope_parameters": _rope(500_000.0, 32.0), "tie_word_embeddings": True}
    llama = {
        "7b": decoder(32, 4096, 32, keys=32, inner=11008, **two),
        "13b": decoder(40, 5120, 40, keys=40, inner=13824, **two),
        "70b": decoder(80, 8192, 64, keys=8, inner=28672, **two),
    }
    for name, fields in llama.items():
        add(fields, f"{meta}Llama-2-{name}-hf", f"{meta}Llama-2-{name}-chat-hf")
    one: dict[str, Any] = {"positions": 2048, "vocab": 32000, "rms_norm_eps": 1e-6}
    for name, (layers, width, heads, inner) in {
        "7b": (32, 4096, 32, 11008), "13b": (40, 5120, 40, 13824), "30b": (60, 6656, 52, 17920),
        "65b": (80, 8192, 64, 22016),
    }.items():  # fmt: skip
        add(decoder(layers, width, heads, heads, inner, **one), f"huggyllama/llama-{name}")
    shapes = {"8B": (32, 4096, 32), "70B": (80, 8192, 64), "405B": (126, 16384, 128)}
    for name, shape in shapes.items():
        inner = {"8B": 14336, "70B": 28672, "405B": 53248}[name]
        if name != "405B":
            first = decoder(*shape, inner=inner, positions=8192, rope_parameters=_rope(500_000.0), **three)
            add(
                first, *(f"{meta}{each}-{name}{end}" for each in ("Meta-Llama-3", "Llama-3") for end in TUNED)
            )
        second = decoder(*shape, inner=inner, **newer)
        add(
            second,
            *(f"{meta}{each}-{name}{end}" for each in ("Meta-Llama-3.1", "Llama-3.1") for end in TUNED),
        )
        if name == "70B":
            add(second, f"{meta}Llama-3.3-70B-Instruct")
    for name, shape in {"1B": (16, 2048, 32), "3B": (28, 3072, 24)}.items():
        add(decoder(*shape, inner=8192, **small), *(f"{meta}Llama-3.2-{name}{end}" for end in TUNED))
    tiny = decoder(22, 2048, 32, 4, 5632, 32000, 2048, rms_norm_eps=1e-5)
    add(
        tiny,
        "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
        "TinyLlama/TinyLlama-1.1B-intermediate-step-1431k-3T",
        "TinyLlama/TinyLlama_v1.1",
    )
    mistral: dict[str, Any] = {"model_type": "mistral", "rms_norm_eps": 1e-5, "keys": 8, "inner": 14336}
    plain: dict[str, Any] = {**mistral, "rope_parameters": _rope(1e6), "sliding_window": None}
    seven = (32, 4096, 32)
    for version, fields in {
        "v0.1": decoder(*seven, vocab=32000, positions=32768, sliding_window=4096, **mistral),
        "v0.2": decoder(*seven, vocab=32000, positions=32768, **plain),
        "v0.3": decoder(*seven, vocab=32768, positions=32768, **plain),
    }.items():
        add(fields, f"mistralai/Mistral-7B-{version}", f"mistralai/Mistral-7B-Instruct-{version}")
    nemo = decoder(40, 5120, 32, vocab=131_072, positions=131_072, head_dim=128, **plain)
    add(nemo, "mistralai/Mistral-Nemo-Base-2407", "mistralai/Mistral-Nemo-Instruct-2407")
    return listed


def _qwen2() -> dict[str, dict[str, Any]]:
    """Return Qwen2's sizes. Up to 3B the output layer is the embeddings; from 7B on there are 128 entries
    more."""
    shapes = {
        "0.5B": (24, 896, 14, 2, 4864), "1.5B": (28, 1536, 12, 2, 8960), "3B": (36, 2048, 16, 2, 11008),
        "7B": (28, 3584, 28, 4, 18944), "14B": (48, 5120, 40, 8, 13824), "32B": (64, 5120, 40, 8, 27648),
        "72B": (80, 8192, 64, 8, 29568),
    }  # fmt: skip
    listed: dict[str, dict[str, Any]] = {}
    for name, shape in shapes.items():
        tied = name in ("0.5B", "1.5B", "3B")
        common: dict[str, Any] = {
            "model_type": "qwen2", "vocab": 151_936 if tied else 152_064, "tie_word_embeddings": tied,
            "rope_parameters": _rope(1e6),
        }  # fmt: skip
        short, long = (decoder(*shape, positions=positions, **common) for positions in (32768, 131_072))
        if name in ("0.5B", "1.5B", "7B", "72B"):
            listed |= {f"Qwen/Qwen2-{name}": long, f"Qwen/Qwen2-{name}-Instruct": short}
        base = short if name in ("0.5B", "3B") else long
        listed |= {f"Qwen/Qwen2.5-{name}": base, f"Qwen/Qwen2.5-{name}-Instruct": short}
    return listed


def _qwen3() -> dict[str, dict[str, Any]]:
    """Return Qwen3's sizes. Heads are 128 wide whatever the model's width is. Those without -Base are tuned.
    """
    shapes = {
        "0.6B": (28, 1024, 16, 8, 3072), "1.7B": (28, 2048, 16, 8, 6144), "4B": (36, 2560, 32, 8, 9728),
        "8B": (36, 4096, 32, 8, 12288), "14B": (40, 5120, 40, 8, 17408), "32B": (64, 5120, 64, 8, 25600),
    }  # fmt: skip
    listed: dict[str, dict[str, Any]] = {}
    for name, shape in shapes.items():
        common: dict[str, Any] = {
            "model_type": "qwen3", "head_dim": 128, "vocab": 151_936, "rope_parameters": _rope(1e6),
            "tie_word_embeddings": name in ("0.6B", "1.7B", "4B"),
        }  # fmt: skip
        listed[f"Qwen/Qwen3-{name}"] = decoder(*shape, positions=40960, **common)
        listed[f"Qwen/Qwen3-{name}-Base"] = decoder(*shape, positions=32768, **common)
    return listed


def _gemma() -> dict[str, dict[str, Any]]:
    """Return three generations of Gemma's text models. -it: tuned."""
    listed: dict[str, dict[str, Any]] = {}
    first: dict[str, Any] = {"model_type": "gemma", "vocab": 256_000, "positions": 8192, "head_dim": 256}
    second = {**first, "model_type": "gemma2"}
    third: dict[str, Any] = {
        "model_type": "gemma3_text", "vocab": 262_144, "positions": 32768, "head_dim": 256,
        "sliding_window": 512,
    }  # fmt: skip
    shapes: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
        "gemma-2b": ((18, 2048, 8, 1, 16384), first), "gemma-7b": ((28, 3072, 16, 16, 24576), first),
        "gemma-2-2b": ((26, 2304, 8, 4, 9216), second), "gemma-2-9b": ((42, 3584, 16, 8, 14336), second),
        "gemma-2-27b": (
            (46, 4608, 32, 16, 36864), {**second, "head_dim": 128, "query_pre_attn_scalar": 144},
        ),
        "gemma-3-270m": ((18, 640, 4, 1, 2048), third), "gemma-3-1b": ((26, 1152, 4, 1, 6912), third),
    }  # fmt: skip
    for name, (shape, fields) in shapes.items():
        base = f"google/{name}-pt" if name == "gemma-3-1b" else f"google/{name}"
        listed |= dict.fromkeys(
            (base, f"google/{name}-it"), decoder(*shape, **{**fields, "tie_word_embeddings": True})
        )
    return listed


def _experts() -> dict[str, dict[str, Any]]:
    """Return mixtures of experts, of which each token uses some."""
    mixtral: dict[str, Any] = {"model_type": "mixtral", "rms_norm_eps": 1e-5, "rope_parameters": _rope(1e6)}
    small = decoder(32, 4096, 32, 8, 14336, 32000, 32768, **mixtral)
    large = (56, 6144, 48, 8, 16384)
    qwen: dict[str, Any] = {
        "model_type": "qwen3_moe", "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8,
        "rope_parameters": _rope(1e6),
    }  # fmt: skip
    few = decoder(48, 2048, 32, 4, 6144, 151_936, 40960, moe_intermediate_size=768, **qwen)
    many = decoder(94, 4096, 64, 4, 12288, 151_936, 40960, moe_intermediate_size=1536, **qwen)
    return {
        "mistralai/Mixtral-8x7B-v0.1": small,
        "mistralai/Mixtral-8x7B-Instruct-v0.1": small,
        "mistralai/Mixtral-8x22B-v0.1": decoder(*large, 32000, 65536, **mixtral),
        "mistralai/Mixtral-8x22B-Instruct-v0.1": decoder(*large, 32768, 65536, **mixtral),
        "Qwen/Qwen3-30B-A3B": few,
        "Qwen/Qwen3-235B-A22B": many,
    }


def _t5() -> dict[str, dict[str, Any]]:
    """Return T5 v1.1 and FLAN-T5, which have the same shapes."""
    shapes = {
        "small": (512, 1024, 8, 6), "base": (768, 2048, 12, 12), "large": (1024, 2816, 24, 16),
        "xl": (2048, 5120, 24, 32), "xxl": (4096, 10240, 24, 64),
    }  # fmt: skip
    listed: dict[str, dict[str, Any]] = {}
    for name, (width, inner, layers, heads) in shapes.items():
        fields = {
            "model_type": "t5", "vocab_size": 32128, "feed_forward_proj": "gated-gelu",
            "tie_word_embeddings": False, "dropout_rate": 0.1, "d_model": width, "d_kv": 64, "d_ff": inner,
            "num_layers": layers, "num_heads": heads,
        }  # fmt: skip
        listed |= dict.fromkeys((f"google/t5-v1_1-{name}", f"google/flan-t5-{name}"), fields)
    return listed


LLAMA = {**_llama(), **_qwen2(), **_qwen3()}
T5 = _t5()
TRACED = {**_gemma(), **_experts()}  # of families without closed forms: planned by tracing alone
