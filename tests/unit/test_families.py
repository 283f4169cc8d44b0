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
    task = next(name for name, kind in recipe_classes().items() if family in kind.families)
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
    assert families.parameters({**given, **layers}) == sum(each.numel() for each in model.parameters())
    made = model.config.to_dict()
    for name, value in families.filled({**given, **layers}).items():
        if name not in ("model_type", "num_labels", "tie_word_embeddings") and value is not None:
            assert made.get(name, value) == value, name  # Mistral's has no biases


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
