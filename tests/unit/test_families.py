"""The families of models against Transformers' own: usual values, names of fields, parameters."""

from __future__ import annotations

from typing import Any

import pytest

from muster.core import families
from muster.core.errors import RecipeError
from muster.core.families.checking import ACTIVATIONS, FieldSource, check_config
from muster.core.recipe import recipe_classes


def model_of(fields: dict[str, Any]) -> Any:
    """Without weights."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    kinds = {
        "seq2seq": transformers.AutoModelForSeq2SeqLM, "causal-lm": transformers.AutoModelForCausalLM,
        "image-classification": transformers.AutoModelForImageClassification,
    }  # fmt: skip
    family = families.family_of(fields)
    known = ((name, kind) for name, kind in recipe_classes().items() if family in kind.families)
    task = next(known, ("causal-lm", None))[0]  # also of families without closed forms
    others = {name: value for name, value in fields.items() if name != "model_type"}
    with torch.device("meta"):
        model = kinds[task].from_config(transformers.AutoConfig.for_model(fields["model_type"], **others))
    model.tie_weights()
    return model


SMALL = {"t5": "num_layers", "gpt2": "n_layer", "opt": "num_hidden_layers", "llama": "num_hidden_layers",
         "vit": "num_hidden_layers"}  # fmt: skip


@pytest.mark.parametrize(
    "given",
    [
        *({"model_type": kind} for family in families.FAMILIES for kind in family.MODEL_TYPES),
        {"model_type": "gpt2", "hidden_size": 96, "num_attention_heads": 3, "max_position_embeddings": 50},
        {"model_type": "gpt2", "n_embd": 96, "hidden_size": 48, "n_head": 3, "tie_word_embeddings": False},
        {"model_type": "t5", "hidden_size": 96, "head_dim": 7, "num_attention_heads": 3},
        {"model_type": "t5", "tie_word_embeddings": False, "vocab_size": 100},
        {"model_type": "umt5", "num_decoder_layers": 3, "vocab_size": 100},
        {
            "model_type": "t5",
            "num_decoder_layers": 3,
            "feed_forward_proj": "gated-gelu",
            "d_kv": 3,
            "num_heads": 2,
        },
        {"model_type": "llama", "attention_bias": True, "mlp_bias": True, "num_key_value_heads": 4},
        {"model_type": "mistral", "hidden_size": 100, "num_attention_heads": 12, "num_key_value_heads": 4},
        {"model_type": "opt", "layer_norm_elementwise_affine": False, "enable_bias": False},
        {
            "model_type": "vit",
            "image_size": [32, 64],
            "patch_size": [8, 16],
            "qkv_bias": False,
            "num_labels": 7,
        },
    ],
)
def test_usual_values_and_general_names_are_transformers_own(given: dict[str, Any]) -> None:
    """The same number of parameters as the real model, and the same fields as its configuration."""
    family = families.family_of(given)
    assert family is not None
    layers = {SMALL[family.MODEL_TYPES[0]]: 2}
    model = model_of({**given, **layers})
    assert families.parameters({**given, **layers}) == parameters_of(model, given)
    made = model.config.to_dict()
    for name, value in families.filled({**given, **layers}).items():
        if name not in ("model_type", "num_labels", "tie_word_embeddings") and value is not None:
            assert made.get(name, value) == value, name  # Mistral's has no biases


def parameters_of(model: Any, given: dict[str, Any]) -> int:
    """As a checkpoint has them: Transformers ties the output of a T5 that it draws, not of one it loads."""
    own = "t5" in given["model_type"] and given.get("tie_word_embeddings") is False
    return sum(each.numel() for each in model.parameters()) + (model.lm_head.weight.numel() if own else 0)


# As safetensors on the hub count them.
PUBLISHED = {
    "huggyllama/llama-7b": 6_738_415_616, "huggyllama/llama-30b": 32_528_943_616,
    "huggyllama/llama-65b": 65_285_660_672,
    "meta-llama/Llama-2-7b-hf": 6_738_415_616, "meta-llama/Llama-2-13b-chat-hf": 13_015_864_320,
    "meta-llama/Llama-2-70b-hf": 68_976_648_192, "meta-llama/Meta-Llama-3-8B": 8_030_261_248,
    "meta-llama/Llama-3.1-8B-Instruct": 8_030_261_248, "meta-llama/Llama-3.3-70B-Instruct": 70_553_706_496,
    "meta-llama/Llama-3.1-405B": 405_853_388_800, "meta-llama/Llama-3.2-1B": 1_235_814_400,
    "meta-llama/Llama-3.2-3B": 3_212_749_824, "TinyLlama/TinyLlama-1.1B-Chat-v1.0": 1_100_048_384,
    "mistralai/Mistral-7B-v0.1": 7_241_732_096, "mistralai/Mistral-7B-v0.3": 7_248_023_552,
    "mistralai/Mistral-Nemo-Base-2407": 12_247_782_400, "mistralai/Mixtral-8x7B-v0.1": 46_702_792_704,
    "mistralai/Mixtral-8x22B-v0.1": 140_620_634_112, "Qwen/Qwen2-0.5B": 494_032_768,
    "Qwen/Qwen2-1.5B": 1_543_714_304, "Qwen/Qwen2.5-3B": 3_085_938_688, "Qwen/Qwen2.5-7B": 7_615_616_512,
    "Qwen/Qwen2.5-14B": 14_770_033_664, "Qwen/Qwen2.5-32B": 32_763_876_352,
    "Qwen/Qwen2-72B": 72_706_203_648, "Qwen/Qwen3-0.6B": 596_049_920, "Qwen/Qwen3-1.7B": 1_720_574_976,
    "Qwen/Qwen3-4B": 4_022_468_096, "Qwen/Qwen3-8B-Base": 8_190_735_360, "Qwen/Qwen3-14B": 14_768_307_200,
    "Qwen/Qwen3-32B": 32_762_123_264, "Qwen/Qwen3-30B-A3B": 30_532_122_624,
    "Qwen/Qwen3-235B-A22B": 235_093_634_560, "google/gemma-2b": 2_506_172_416,
    "google/gemma-7b-it": 8_537_680_896, "google/gemma-2-2b": 2_614_341_888,
    "google/gemma-2-9b": 9_241_705_984, "google/gemma-2-27b": 27_227_128_320,
    "google/gemma-3-270m": 268_098_176, "google/gemma-3-1b-pt": 999_885_952, "t5-11b": 11_307_321_344,
    "t5-small": 60_506_624, "google-t5/t5-small": 60_506_624, "t5-base": 222_903_552,
    "t5-large": 737_668_096, "t5-3b": 2_851_598_336,
    "google/flan-t5-small": 76_961_152, "google/t5-v1_1-base": 247_577_856,
    "google/flan-t5-large": 783_150_080, "google/flan-t5-xl": 2_849_757_184,
    "google/flan-t5-xxl": 11_135_332_352,
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_checkpoint_by_its_name_has_as_many_parameters_as_published(name: str) -> None:
    """Without a network: the real model of its fields, and the closed form, where there is one."""
    fields = families.size(name)
    assert fields is not None
    assert families.parameters(fields) in (None, PUBLISHED[name])
    assert parameters_of(model_of(fields), fields) == PUBLISHED[name]


def test_every_checkpoint_makes_a_model() -> None:
    for name in families.sizes():
        fields = families.size(name) or {}
        check_config(fields, FieldSource())
        assert families.positions(fields) or fields["model_type"] in ("t5", "vit"), name


def test_the_activations_are_transformers_own() -> None:
    activations = pytest.importorskip("transformers.activations")
    assert set(ACTIVATIONS) == set(activations.ACT2FN)


@pytest.mark.parametrize(
    "given",
    [
        {"model_type": "gpt2", "n_embd": 100, "n_head": 12},
        {"model_type": "gpt2", "hidden_size": 100},
        {"model_type": "opt", "hidden_size": 100},
        {"model_type": "llama", "hidden_size": 100, "num_attention_heads": 12},
        {"model_type": "llama", "hidden_size": 36, "num_attention_heads": 12},
        {"model_type": "mistral", "head_dim": 25},
        {"model_type": "llama", "num_key_value_heads": 5},
        {"model_type": "t5", "relative_attention_num_buckets": 3, "num_heads": 1},
    ],
)
def test_what_is_refused_makes_no_model(given: dict[str, Any]) -> None:
    """Each relation, held against what Transformers makes of it."""
    torch = pytest.importorskip("torch")
    with pytest.raises(RecipeError):
        check_config(given, FieldSource(own=given))
    family = families.family_of(given)
    assert family is not None
    small = {SMALL[family.MODEL_TYPES[0]]: 1, "vocab_size": 50}
    tokens = torch.zeros((1, 4), dtype=torch.long, device="meta")
    with pytest.raises(Exception):  # noqa: B017 (each configuration has its own)
        model_of({**given, **small})(tokens, **({"labels": tokens} if family is families.t5 else {}))
