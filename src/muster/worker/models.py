"""Making models: what every workload may use.

A model is made whole by every rank, or in shards (`model.create`), as the engine does it. Either each
module is partitioned as soon as it is made and drawn while it is gathered, so that no rank ever holds more
than its part and one module (ZeRO-3). Or the first rank makes it and hands out parts, while the others'
memory stays untouched (FSDP). The first weights are the same in every way on CPUs. On GPUs ZeRO-3 draws its
shards' weights on the device, with another generator than the CPU's: from the same distributions, but not
the same numbers.
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import MethodType
from typing import Any

import torch

from muster.core import bits, families
from muster.core.errors import MusterError, RecipeError
from muster.core.near import did_you_mean
from muster.worker.context import Context
from muster.worker.explain import known_error

# What Transformers says where a model has no such attention, or its package is missing.
_NO_ATTENTION = re.compile(
    r"flash ?attention|scaled_dot_product|attn_implementation|attention implementation", re.IGNORECASE
)
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h


def config_for(kind: str, fields: dict[str, Any]) -> Any:
    """Make a configuration of Transformers' model type `kind`. Raises RecipeError."""
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    try:
        return AutoConfig.for_model(kind, **fields)
    except (ValueError, TypeError, StrictDataclassError) as error:
        raise RecipeError(
            f"does not make a model: {' '.join(str(error).split())}", where="model.config"
        ) from None


def check_kind(config: Any, mapping: Any, lacking: str, hint: str | None = None) -> None:
    """Raise RecipeError unless Transformers' `mapping` has a class for a configuration. `lacking`: the
    error of a model without one."""
    if type(config) not in mapping:
        raise RecipeError(f"{config.model_type} {lacking}", where="model", hint=hint)


def create(context: Context, make: Callable[[], Any]) -> Any:
    """Make a model with first weights drawn from the recipe's seed. `make`: calls from_config of a class.

    The weights are the same on every rank and with every engine (above). Afterwards every rank's random state
    is the same again.
    """
    from transformers.initialization import no_init_weights

    seed = context.recipe.train.seed
    torch.manual_seed(seed)
    if _cuts(context):
        with sharded(context), _tight_heap(), _attending():
            model = make()  # Transformers draws the weights afterwards, on rank 0
    else:
        # Without first weights, as it does there: else each layer is drawn twice, by torch as well.
        with no_init_weights(), _attending():
            model = make()
        nowhere = model.device.type == "meta"  # a trace's: there is nothing to draw
        if not nowhere and (context.main or not _by_first(context)):
            model.initialize_weights()
        model.tie_weights()
    torch.manual_seed(seed + 1)
    return with_caps(model)


def with_caps(made: Any) -> Any:
    """Return what Transformers made: a model whose configuration caps attention scores (Gemma 2) with its own
    attention. SDPA has no cap, and Transformers 5.17 takes it for such models without a word."""
    config: Any = getattr(made, "config", None)
    if getattr(config, "attn_logit_softcapping", None) and config._attn_implementation == "sdpa":
        made.set_attn_implementation("eager")
    return made


@contextmanager
def _attending() -> Iterator[None]:
    """Turn the error of an attention that the model does not have, or whose package is missing, into a
    RecipeError."""
    try:
        yield
    except (ImportError, ValueError) as error:
        what = " ".join(str(error).split())
        if not _NO_ATTENTION.search(what):
            raise
        hint = "model.attention=sdpa needs no package and works with most models"
        raise RecipeError(f"cannot be used: {what}", where="model.attention", hint=hint) from None


def load(context: Context, kind: Any, name: str, **fields: Any) -> Any:
    """Load a pretrained model in fp32, by one of Transformers' Auto classes. Raises RecipeError."""
    from transformers import AutoConfig
    from transformers.initialization import no_init_weights

    fields["dtype"] = torch.float32
    torch.manual_seed(context.recipe.train.seed)  # for what the checkpoint does not have, such as a new head
    if _by_first(context) and not context.main:
        config = fields.pop("config", None)
        config = config or load_from(AutoConfig.from_pretrained, name, "model.name", **fields)
        with no_init_weights():
            model = with_caps(kind.from_config(config, dtype=torch.float32))
        model.tie_weights()
    else:
        with sharded(context), _tight_heap():
            model = load_from(kind.from_pretrained, name, "model.name", **fields)
    torch.manual_seed(context.recipe.train.seed + 1)
    return model


def load_quantized(context: Context, kind: Any, config: Any) -> Any:
    """Load a pretrained model whose linear layers are in few bits and frozen, all else in fp32, as PEFT has
    it. Raises RecipeError."""
    from peft import prepare_model_for_kbit_training
    from transformers import BitsAndBytesConfig

    spec = context.recipe.model
    assert spec.quantized is not None
    if importlib.util.find_spec(bits.PACKAGE) is None:
        raise RecipeError(
            f"is {spec.quantized}, and {bits.PACKAGE} is not installed",
            where="model.quantized",
            hint=f"pip install {bits.PACKAGE}",
        )
    model = load_from(
        kind.from_pretrained,
        spec.name or "",
        "model.name",
        config=config,
        dtype=torch.float32,
        quantization_config=BitsAndBytesConfig(
            **bits.fields_of(spec.quantized), bnb_4bit_compute_dtype=computed_in(context)
        ),
        device_map={"": context.local_rank if context.device == "cuda" else "cpu"},
    )
    return prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)


def computed_in(context: Context) -> torch.dtype:
    """Return the type of values that a frozen model computes in."""
    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(context.precision, torch.float32)


def _cuts(context: Context) -> bool:
    """Return whether modules are cut as soon as they are made."""
    return context.recipe.model.create == "sharded" and context.engine.shards_as_made


def _by_first(context: Context) -> bool:
    """Return whether the first rank makes the model for all."""
    return context.recipe.model.create == "sharded" and context.spec.made_by_first


def sharded(context: Context) -> AbstractContextManager[None]:
    """Cut models that are made inside into shards, where the recipe wants that and the engine does it so."""
    return context.engine.sharded(context) if _cuts(context) else nullcontext()


@contextmanager
def _tight_heap() -> Iterator[None]:
    """Let the C library give memory from 1 MiB on back as soon as it is freed inside.

    glibc raises that limit to 32 MiB as it goes. A module that is made whole, cut and freed then leaves a
    hole that the next ones do not fill: 880 MB where 373 MB are needed, measured with a model of 607 MB in
    halves.
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):  # another C library
        yield
        return
    library.mallopt(_MMAP_THRESHOLD, 1 << 20)
    try:
        yield
    finally:
        library.mallopt(_MMAP_THRESHOLD, 32 << 20)  # where glibc's own limit ends up
        library.mallopt(_TRIM_THRESHOLD, 64 << 20)


def fit_vocabulary(context: Context, model: Any, tokenizer: Any) -> None:
    """Give the model an embedding for every token."""
    if len(tokenizer) > model.get_input_embeddings().num_embeddings:
        if context.recipe.model.quantized is not None:  # adapters are merged into the checkpoint at the end
            raise RecipeError(
                f"has {len(tokenizer):,} tokens, more than the quantised model",
                where="model.tokenizer",
                hint="model.tokenizer=auto, or model.quantized=null",
            )
        with sharded(context):
            model.resize_token_embeddings(len(tokenizer))


def without_cache(model: Any) -> None:
    """Switch the cache of keys and values off, in each stack's configuration. With it every forward pass
    keeps them for no use, and a pass that is computed again for the backward pass meets them, so that it is
    another one."""
    for module in model.modules():
        config: Any = getattr(module, "config", None)
        if getattr(config, "use_cache", None):
            config.use_cache = False


def without_layer_drop(model: Any) -> None:
    """Let OPT's stack run all of its layers without drawing a number for each, where none is to be left out.

    Transformers 5.17 draws and compares one in training whatever the probability, which ends torch.compile's
    graph at every layer; the stack's own flag `training` decides nothing else. 5.23 draws none.
    """
    for module in model.modules():
        if type(module).__name__ == "OPTDecoder" and module.layerdrop == 0.0:
            module.train = MethodType(_train_layers, module)


def _train_layers(stack: Any, mode: bool = True) -> Any:
    """Do what Module.train does, but for the stack's own flag."""
    torch.nn.Module.train(stack, mode)
    stack.training = False
    return stack


# Attributes of layers that hand a number to a function. (A torch.nn.Dropout has its own.)
DROPOUTS = ("dropout", "attention_dropout", "activation_dropout", "layerdrop")


def without_dropout(model: Any) -> Any:
    """Switch a model's dropout off, also where a layer has none as a module (OPT's, Llama's attention), which
    TRL's disable_dropout passes over. -> the model."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for name in DROPOUTS:
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    return model


def dropouts_of(model: Any) -> Iterator[float]:
    """Yield the probabilities that `without_dropout` makes 0."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            yield float(module.p)
        yield from (value for name in DROPOUTS if isinstance(value := getattr(module, name, None), float))


def add_lora(context: Context, model: Any, task: str | None, whole: list[str] | None = None) -> Any:
    """Add low-rank adapters by PEFT; the base stays as it is. `task`: PEFT's word for the kind of model.

    `whole`: names of modules that are trained as they are, such as a new classifier.
    """
    from peft import LoraConfig, get_peft_model

    lora = context.recipe.lora
    assert lora is not None
    config = LoraConfig(
        task_type=task,
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=lora.targets,
        modules_to_save=whole,
    )
    if context.recipe.train.checkpointing:
        model.enable_input_require_grads()
    try:
        return get_peft_model(model, config)
    except ValueError as error:
        raise RecipeError(str(error).splitlines()[0], where="lora.targets") from None


def load_from(loader: Callable[..., Any], name: str, where: str, **fields: Any) -> Any:
    """Call Transformers' from_pretrained, with its many errors made one. Raises RecipeError."""
    from safetensors import SafetensorError

    try:
        with _attending():
            return with_caps(loader(name, **fields))
    except MusterError:
        raise
    except (OSError, ValueError, ImportError, SafetensorError) as error:
        what = f"cannot be loaded: {str(error).strip().splitlines()[0]}"
        match = known_error(error)
        if match and match.failure.id == "hf_offline":
            what = "could not be downloaded: the hub cannot be reached, and this machine has no copy"
        near = did_you_mean(name, families.sizes()) if where == "model.name" else None
        otherwise = "a local folder works without network access; model.init=random needs no weights"
        raise RecipeError(
            f"{name} {what}",
            where=where,
            hint=f"{near} {otherwise}" if near else otherwise,
            failure=match.failure.id if match else None,
        ) from None


@contextmanager
def whole() -> Iterator[None]:
    """Load models inside whole, also where the one that is trained is cut into shards (ZeRO-3)."""
    from transformers.integrations import deepspeed

    held = deepspeed._hf_deepspeed_config_weak_ref
    deepspeed.unset_hf_deepspeed_config()
    try:
        yield
    finally:
        deepspeed._hf_deepspeed_config_weak_ref = held
