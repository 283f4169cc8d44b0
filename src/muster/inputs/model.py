"""A recipe's model as far as it is known here, without torch and without weights: its configuration as the
run will have it, and what is wrong with it."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from muster.core import families, float8
from muster.core.errors import RecipeError
from muster.core.families import gpt2, t5
from muster.core.families.checking import (
    MISSPELT,
    FieldSource,
    check_config,
    check_names,
    closed_form_missing,
)
from muster.core.recipe import Recipe
from muster.engines.base import own_specs, spec_of

NUMBERS = "ForSequenceClassification"  # Transformers' names of models that give numbers for a text end so


def is_t5(recipe: Recipe) -> bool:
    """Return whether the model is of the T5 family, as far as that is known without loading it."""
    kind = (model_config(recipe) or {}).get("model_type")
    if kind:  # a folder's name says nothing then
        return "t5" in str(kind).lower()
    return "t5" in (recipe.model.name or "").lower() or "t5" in (recipe.usual_type() or "")


def model_config(recipe: Recipe) -> dict[str, Any] | None:
    """Return the model's configuration where it is known here: a size by name, a local folder, the recipe's
    own."""
    base = config_of(recipe.model.name)
    if base is None and (recipe.model.name or recipe.model.config is None):
        return None
    return {**(base or {}), **(recipe.model.config or {})}


def config_of(name: str | None) -> dict[str, Any] | None:
    """Return the configuration of a model by its name: a size, or a folder here; None: it is neither."""
    file = config_file(name)
    if file is None:
        return families.size(name)
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RecipeError(f"cannot be read: {error}", where=str(file)) from None
    if not isinstance(content, dict):
        raise RecipeError("is not a JSON object", where=str(file))
    return content


def config_file(name: str | None) -> Path | None:
    """Return the configuration file of a model that is a folder here."""
    if not name or families.size(name):
        return None
    file = Path(name).expanduser() / "config.json"
    return file if file.is_file() else None


def whole_config(recipe: Recipe) -> dict[str, Any] | None:
    """Return the model's configuration as the run will have it, with what a recipe leaves to workload and
    data, and every usual value. One whose vocabulary is that of a tokenizer yet to be trained has no
    vocabulary.

    Raises DataError for images that cannot be read.
    """
    config = _typed_config(recipe)
    if config is None:
        return None
    if is_t5(recipe):
        config = {"vocab_size": recipe.model.vocab_size, **config}
        config = config if recipe.model.init == "pretrained" else t5.drawn(config)
    config = {**config, **recipe.config_of_data()}
    filled = families.filled(config)
    return filled if "vocab_size" in config else {k: v for k, v in filled.items() if k != "vocab_size"}


def decided_config(recipe: Recipe, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with what a tokenizer that is trained on the data, and the data themselves,
    decide."""
    vocabulary = {"vocab_size": recipe.model.vocab_size} if recipe.tokenized else {}
    return {**vocabulary, **config, **recipe.config_of_data()}


def _typed_config(recipe: Recipe) -> dict[str, Any] | None:
    """Return the configuration with a model type: where it states none, the workload's usual one."""
    config = model_config(recipe)
    usual = "t5" if is_t5(recipe) else recipe.usual_type()
    return {"model_type": usual, **config} if config is not None and usual else config


def check_model(recipe: Recipe) -> None:
    """Raise RecipeError where the configuration is known here and makes no model for the workload: what is
    wrong, where, and the nearest that works."""
    config = _typed_config(recipe) if recipe.trains else None
    _check_bits(recipe, config or {})
    if recipe.trains and recipe.precision == float8.NAME:
        _check_float8(recipe, config or {})
    if config is None:
        _check_name(recipe.model.name or "")
        return
    own, base, decided = recipe.model.config or {}, config_file(recipe.model.name), recipe.config_of_data()
    if recipe.model.name is None and "model_type" not in own and len(recipe.families) > 1:
        kinds = ", ".join(each.MODEL_TYPES[0] for each in recipe.families)
        raise RecipeError("is not given", where="model.config.model_type", hint=f"such as {kinds}")
    elsewhere = {name: key for name, key in recipe.config_keys.items() if name in decided}
    named = "model.name" if recipe.model.name and "model_type" not in own else "model.config.model_type"
    _check_family(recipe, config, named)
    kind = config.get("model_type")
    if gpt2 in recipe.families and kind in _BOTH_WAYS and not config.get("is_decoder"):
        raise RecipeError(
            f"a {kind} sees the tokens that it is to foretell, so that {recipe.workload} teaches it nothing",
            where=named,
            hint=f"a decoder, such as {', '.join(next(iter(each.SIZES)) for each in recipe.families)}",
        )
    _check_output(recipe, config)
    if not recipe.force:
        check_names(config, own)
    config |= {name: decided[name] for name in elsewhere}
    check_config(config, FieldSource(own, str(base) if base else None, elsewhere))


def _check_bits(recipe: Recipe, config: Mapping[str, Any]) -> None:
    """Raise RecipeError for weights or moments in few bits where they are not possible."""
    if recipe.computes_half:
        _check_half(recipe)
    if "quantization_config" in config:  # of the checkpoint
        raise RecipeError(
            f"{recipe.model.name} has weights that are quantised already, which Muster does not train on",
            where="model.name",
            hint="its original checkpoint, with model.quantized=nf4-double and lora.rank=64",
        )
    if recipe.bits is None:
        return
    key, value = recipe.bits
    if recipe.model.quantized is not None:
        if not recipe.quantizes:
            raise RecipeError(f"{recipe.workload} has no quantised weights", where=key, hint=f"{key}=null")
        if recipe.lora is None:
            raise RecipeError(
                f"is {value}, and weights in so few bits cannot be trained",
                where=key,
                hint="lora.rank=64 lora.targets=all-linear trains adapters next to them",
            )
        if recipe.model.init != "pretrained" or recipe.model.name is None:
            raise RecipeError(
                f"is {value}, and the weights are drawn anew", where=key, hint="model.init=pretrained"
            )
    if not spec_of(recipe.engine.name).plain:
        able = next(each.name for each in own_specs() if each.plain)
        raise RecipeError(
            f"is {value}, which Muster does with the engine {able} alone, not {recipe.engine.name}",
            where=key,
            hint=f"engine.name={able}",
        )
    if recipe.launch.device == "cpu":
        raise no_gpu(recipe)


def _check_half(recipe: Recipe) -> None:
    """Raise RecipeError where the whole model cannot compute in bf16, or the whole training cannot be in it.
    """
    assert recipe.half is not None
    where, value, usual = recipe.half
    usual, kept, engine = f"{where}={usual}", recipe.keeps_half, recipe.engine.name
    able = [each.name for each in own_specs() if (each.keeps_half if kept else each.plain)]
    others = bool(recipe.held_models() or recipe.drawing())
    for refused, why, hint in (
        (
            engine not in able,
            f"{engine} does not do that",
            " or ".join(f"engine.name={each}" for each in able),
        ),
        (others, f"{recipe.workload} has other models in its step", usual),
        (kept and not recipe.tokenized, f"{recipe.workload} trains no model of text", usual),
        (recipe.model.quantized is not None, "the model is quantised", usual),
        (recipe.precision not in ("auto", "bf16"), f"precision is {recipe.precision}", "precision=bf16"),
    ):
        if refused:
            raise RecipeError(f"is {value}, and {why}", where=where, hint=hint)


def _check_float8(recipe: Recipe, config: Mapping[str, Any]) -> None:
    """Raise RecipeError where linear layers do not compute in fp8."""
    engine, able = recipe.engine.name, [each.name for each in own_specs() if each.float8]
    named = " or ".join(f"engine.name={each}" for each in able)
    for refused, why, hint in (
        (not recipe.float8, f"{recipe.workload} does not compute in it", "causal-lm and sft do"),
        (not spec_of(engine).float8, f"{engine} does not compute in it", named),
        # torchao computes the gradient of every weight, frozen ones as well, and adapters are thin.
        (recipe.lora is not None, "adapters gain nothing by it", "lora=null"),
        (
            families.family_of(config) is gpt2,
            "GPT-2 has none of the linear layers that torchao converts (Transformers' Conv1D)",
            "a model of another family, such as opt-125m",
        ),
    ):
        if refused:
            hint = f"precision={float8.BESIDE}; {hint}"
            raise RecipeError(f"is {float8.NAME}, and {why}", where="precision", hint=hint)


def no_gpu(recipe: Recipe) -> RecipeError:
    """Return the error for few bits on CPUs."""
    assert recipe.bits is not None
    key, value = recipe.bits
    return RecipeError(f"is {value}, which needs GPUs", where=key, hint=f"leave {key} out on CPUs")


def _check_family(recipe: Recipe, config: Mapping[str, Any], where: str) -> None:
    """Raise RecipeError for a known family that the workload does not train."""
    family = families.family_of(config)
    if family is None or not recipe.families or family in recipe.families:
        return
    raise RecipeError(
        f"{recipe.workload} does not train models of type {config['model_type']}",
        where=where,
        hint=f"such as {', '.join(next(iter(each.SIZES)) for each in recipe.families)}",
    )


# Encoders, which see what comes behind a token, but for `is_decoder` in their configuration. Transformers
# makes a language model of each, with a warning, and its loss means nothing.
_BOTH_WAYS = (
    "bert", "bert-generation", "big_bird", "camembert", "data2vec-text", "distilbert", "electra", "ernie",
    "megatron-bert", "modernbert", "rembert", "roberta", "roberta-prelayernorm", "roformer", "xlm-roberta",
    "xlm-roberta-xl", "xmod",
)  # fmt: skip


def _check_output(recipe: Recipe, config: Mapping[str, Any]) -> None:
    """Raise RecipeError for a trained model that gives numbers where one that writes is to be trained
    further: its output layer would be drawn anew, and nothing that it has learned would be left in it."""
    if recipe.model.init != "pretrained" or recipe.output == "numbers":
        return
    if any(str(kind).endswith(NUMBERS) for kind in config.get("architectures") or ()):
        raise RecipeError(
            f"{recipe.model.name} is a reward model: it gives a number for a text, and cannot write one",
            where="model.name",
            hint="the run that it started from; reward.model takes a reward model",
        )


def _check_name(name: str) -> None:
    """Raise RecipeError for a known size that is misspelt: no hub has models of such names."""
    bare = "/" not in name and not Path(name).expanduser().exists()
    near = difflib.get_close_matches(name, families.sizes(), n=1, cutoff=MISSPELT) if bare else []
    if near:
        raise RecipeError(
            f"there is no model named {name}", where="model.name", hint=f"did you mean model.name={near[0]}?"
        )


def check_closed_form(recipe: Recipe) -> None:
    """Raise RecipeError where the model's family has no closed forms."""
    config = _typed_config(recipe)
    if config is not None and families.family_of(config) is None:
        raise closed_form_missing(config)


def parameters(recipe: Recipe) -> int | None:
    """Return the number of parameters, or None where it is not known without loading the model."""
    config = whole_config(recipe)
    return None if config is None else families.parameters(config)
