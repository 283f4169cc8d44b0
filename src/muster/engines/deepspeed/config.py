"""DeepSpeed's configuration from a recipe; a user's own file checked and completed. Pure but for reading
that file.

What is "auto" is filled as Transformers would fill it from the same recipe, so that what is shown is what
runs. The number of steps stays "auto" where the recipe counts epochs: the ranks know it once the data is
read.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Mapping
from functools import reduce
from typing import Any

from muster.core.batch import Batch
from muster.core.errors import RecipeError
from muster.core.job import Decision
from muster.core.near import did_you_mean
from muster.core.recipe import Recipe
from muster.engines.deepspeed.reading import (
    AUTO,
    chosen,
    converted,
    read_file,
    section,
    source,
    without_effect,
)
from muster.engines.deepspeed.refused import UNTESTED, check_together, dtype_bytes, offloads

_BATCH_KEYS = {
    "train_micro_batch_size_per_gpu": "micro",
    "gradient_accumulation_steps": "accumulation",
    "train_batch_size": "global",
}
# DeepSpeed's schedulers -> the nearest schedule of a recipe, which the run's record names.
NEAREST_SCHEDULES = {
    "WarmupLR": "constant_with_warmup",
    "WarmupDecayLR": "linear",
    "WarmupCosineLR": "cosine",
}
_WARMUPS = {"linear": "linear warm-up", "log": "logarithmic warm-up"}
_RATES = ("warmup_min_lr", "warmup_max_lr")
# Its schedulers with a warm-up: what comes after that, and what Transformers fills where it is "auto".
_SCHEDULERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "WarmupLR": ("then constant", ("warmup_num_steps", *_RATES)),
    "WarmupDecayLR": ("then linear to 0", ("warmup_num_steps", "total_num_steps", *_RATES)),
    "WarmupCosineLR": ("", ("warmup_num_steps", "total_num_steps")),
}
# Its schedulers that set the rate themselves, whatever the optimizer says: by which number, and its default
# (runtime/lr_schedules.py). WarmupCosineLR scales the optimizer's.
_OVERRULES: dict[str, tuple[str, float | str]] = {
    "WarmupLR": ("warmup_max_lr", "auto"),
    "WarmupDecayLR": ("warmup_max_lr", "auto"),
    "OneCycle": ("cycle_max_lr", "auto"),
    "LRRangeTest": ("lr_range_test_min_lr", 0.001),
}
_WHOLE = "each rank has whole layers and samples of its own"
_SHARDS = "leave it out; stage 3 shards the model"
# What would make ranks or their gradients something else than the recipe says: the values that do not, why,
# and a hint.
_FIXED: dict[str, tuple[tuple[Any, ...], str, str]] = {
    **{
        f"{section}.{name}": ((0, 1, "auto"), _WHOLE, _SHARDS)
        for section, name in (
            ("tensor_parallel", "autotp_size"),
            ("tensor_parallel", "tp_size"),
            ("tensor_parallel.tensor_parallel", "tp_size"),
            ("tensor_parallel.tp", "tp_size"),
            ("pipeline", "stages"),
        )
    },
    "sequence_parallel_size": (
        (0, 1, "auto"),
        _WHOLE,
        "leave it out; train.gradient_checkpointing=true makes room for long sequences",
    ),
    "gradient_allreduce_op": (("mean", "auto"), "gradients are means over all ranks", "leave it out"),
    "managed_gradient_accumulation": ((True, "auto"), "DeepSpeed counts micro-batches", "leave it out"),
}
# What needs a training loop, a model or a package that Muster does not bring.
_NOT_TRAINED_WITH = {
    "autotuning": "ends the process after some steps",
    "data_efficiency": "needs a training loop that takes its samples",
    "expert_parallel": "spreads experts over ranks",
    "hybrid_engine": "needs DeepSpeed-Chat's training loop",
    "torch_autocast": "computes in what the recipe does not say: precision has its place",
    "weight_quantization": "changes the model, and needs calls in the training loop",
}
# Fields of the recipe's `train` -> where DeepSpeed's file has them.
_PLACES = {
    "learning_rate": "optimizer.params.lr, or the scheduler's own rate,",
    "beta1": "each of the two optimizer.params.betas",
    "beta2": "each of the two optimizer.params.betas",
    "epsilon": "optimizer.params.eps",
    "weight_decay": "optimizer.params.weight_decay",
    "clip": "gradient_clipping",
    "warmup": "scheduler.params.warmup_num_steps",
}
REDUCE_BUCKET = 500_000_000  # elements, of stages 1 and 2
GROUP = "zero_hpz_partition_size"
_BUCKET = "reduce_bucket_size"
_GATHER = "stage3_gather_16bit_weights_on_model_save"


def read_user_config(path: str) -> dict[str, Any]:
    """Read a user's DeepSpeed JSON, every key known; comments and trailing commas are read as DeepSpeed reads
    them (hjson), and keys that begin with _ are comments. Raises RecipeError naming the nearest real key."""
    return checked(read_file(path), where=path)


def checked(config: Mapping[str, Any], *, where: str) -> dict[str, Any]:
    """Check a configuration. -> it, with the values that DeepSpeed makes of it, and one name for each field
    of ZeRO: DeepSpeed takes stage3_max_live_parameters and others without stage3_ too. Raises RecipeError at
    the first key that DeepSpeed would silently ignore, that has a value which it refuses, or that asks for
    what Muster does not train with."""
    config = converted(config, where=where)
    zero, aliases = section(config, "zero_optimization"), source()["aliases"]
    for name, alias in aliases.items():
        if name in zero and alias in zero:
            what = f"zero_optimization has both {name} and {alias}, which are one: DeepSpeed refuses that"
            raise RecipeError(what, where=where, hint="leave one out")
    if "bf16" in config and config.get("bfloat16", config["bf16"]) != config["bf16"]:
        what = "bf16 and bfloat16 differ, and are one section: DeepSpeed reads bf16 alone"
        raise RecipeError(what, where=where, hint="leave bfloat16 out")
    if zero.get("stage") == AUTO:
        what = 'zero_optimization.stage is "auto", and must be 0, 1, 2 or 3'
        raise RecipeError(what, where=where)
    for key in ("offload_optimizer", "offload_param"):
        offload = section(zero, key)
        if offload.get("device") == "nvme" and not isinstance(offload.get("nvme_path"), str):
            what = f"zero_optimization.{key} goes to a disk, and nvme_path does not say to which folder"
            raise RecipeError(what, where=where)
    for key in ("optimizer", "scheduler"):
        given = section(config, key)
        kind, params = given.get("type"), given.get("params")
        if not isinstance(kind, str | None):
            raise RecipeError(f"{key}.type is {json.dumps(kind)}, and must be a name", where=where)
        if not isinstance(params, dict | None):
            what = f"{key}.params is {json.dumps(params)}, and must be a section"
            raise RecipeError(what, where=where)
    for path, (values, why, hint) in _FIXED.items():
        *sections, name = path.split(".")
        value = reduce(section, sections, config).get(name)
        if value is not None and (value.lower() if isinstance(value, str) else value) not in values:
            raise RecipeError(f"{path} is {json.dumps(value)}, and {why}", where=where, hint=hint)
    for key, why in _NOT_TRAINED_WITH.items():
        asked = section(config, key)
        if config.get(key) is not None and not isinstance(config[key], Mapping):
            raise RecipeError(f"{key} is {json.dumps(config[key])}, and must be a section", where=where)
        if asked.get("enabled", bool(asked)):
            raise RecipeError(f"{key} {why}", where=where, hint=f"leave {key} out")
    if zero:
        config["zero_optimization"] = {aliases.get(key, key): each for key, each in zero.items()}
    return config


def user_batch(config: Mapping[str, Any]) -> dict[str, int]:
    """Return the batch numbers that a user's file fixes: any of micro, accumulation, global. Raises
    RecipeError."""
    fixed = {}
    for key, name in _BATCH_KEYS.items():
        value = config.get(key, "auto")
        if value == "auto":
            continue
        if not isinstance(value, int) or isinstance(value, bool):
            raise RecipeError(
                f'{key} must be a whole number or "auto", not {value!r}', where="the DeepSpeed configuration"
            )
        fixed[name] = value
    return fixed


def _optimizer_class(config: Mapping[str, Any]) -> str:
    """Name the class that DeepSpeed makes of the optimizer that a file names (_configure_basic_optimizer of
    runtime/engine.py); empty: it names none."""
    kind, params = chosen(config, "optimizer")
    if _is_adam(config) and params.get("torch_adam"):
        return "AdamW"
    on_device, on_host = _CLASSES.get(kind.lower(), (kind, kind))
    return on_host if offloads(config) else on_device


# DeepSpeed's own names, in any case -> the class that it makes, on the device and in host memory.
_CLASSES = {
    **dict.fromkeys(("adam", "adamw"), ("FusedAdam", "DeepSpeedCPUAdam")),
    "adagrad": ("Adagrad", "DeepSpeedCPUAdagrad"),
    "lion": ("FusedLion", "DeepSpeedCPULion"),
    "lamb": ("FusedLamb", "FusedLamb"),
    "muon": ("MuonWithAuxAdam", "MuonWithAuxAdam"),
}
# Its classes, which it does not take as names -> the name of which it makes them.
_MADE_OF = {
    "FusedAdam": "AdamW",
    "DeepSpeedCPUAdam": "AdamW",
    "DeepSpeedCPUAdagrad": "Adagrad",
    "FusedLion": "Lion",
    "DeepSpeedCPULion": "Lion",
    "FusedLamb": "Lamb",
    "MuonWithAuxAdam": "Muon",
}


def _check_name(key: str, given: str) -> None:
    """Raise RecipeError for the name of an optimizer or a scheduler that there is not (_do_sanity_check of
    runtime/engine.py)."""
    own = _MADE_OF if key == "optimizer" else {}
    names = {*source()[f"{key}s"], *own.values()} - {*own}
    if given in names or (own and given.lower() in _CLASSES):
        return
    same = next((each for each in (*names, *own) if each.lower() == given.lower()), given)
    hint = did_you_mean(same, names) or _INSTEAD[key]
    if same in own:
        place = " with zero_optimization.offload_optimizer" if "CPU" in same else ""
        hint = f"{own[same]}{place}, of which DeepSpeed makes a {same}"
    what = f"is {given}, and neither DeepSpeed nor PyTorch has one of that name"
    raise RecipeError(what, where=f"{key}.type", hint=hint)


def _check_classes(config: Mapping[str, Any]) -> None:
    """Raise RecipeError for an optimizer or a scheduler that there is not, and for what its class does not
    take, or lacks: ranks would end with a TypeError."""
    for key in ("optimizer", "scheduler"):
        named, params = chosen(config, key)
        kind = _optimizer_class(config) if key == "optimizer" else named
        if not kind or kind.lower() in _OF_MUP:
            continue
        _check_name(key, named)
        half = any(section(config, name).get("enabled") for name in ("fp16", "bf16"))
        wrapped = half or section(config, "zero_optimization").get("stage")
        if key == "scheduler" and wrapped and kind not in (*_OVERRULES, "WarmupCosineLR"):
            what = f"is {kind} of PyTorch, which takes no optimizer that DeepSpeed has wrapped"
            raise RecipeError(what, where=f"{key}.type", hint=_INSTEAD[key])
        taken = {name.rstrip("!"): name.endswith("!") for name in source()[f"{key}s"][kind].split()}
        if kind in _ADAMS:
            taken |= dict.fromkeys(_POPPED, False)
        for name, value in params.items():
            if name not in taken or name in _MEANT:
                hint = _MEANT.get(name) or did_you_mean(name, taken) or f"it takes {', '.join(taken)}"
                raise RecipeError(f"{kind} does not take it", where=f"{key}.params.{name}", hint=hint)
            if value == "auto" and name not in _FILLED:
                what = 'is "auto", and nothing fills it in'
                raise RecipeError(what, where=f"{key}.params.{name}", hint="a value, or leave it out")
            if name == "betas" and value != "auto" and (not isinstance(value, list) or len(value) != 2):
                what = f"is {json.dumps(value)}, and must be two numbers"
                raise RecipeError(what, where="optimizer.params.betas", hint="[0.9, 0.999]")
        for name in (name for name in ("warmup_num_steps", "lr_range_test_step_size") if name in taken):
            steps = params.get(name, 1)
            if steps != "auto" and (not isinstance(steps, int) or steps < 1):
                what = f"is {json.dumps(steps)}, and {kind} takes a whole number from 1 on"
                hint = '"auto": train.warmup' if name in _FILLED else "leave it out: 2000"
                raise RecipeError(what, where=f"{key}.params.{name}", hint=hint)
        lacking = [name for name, needed in taken.items() if needed and name not in params]
        if lacking:
            raise RecipeError(f"{kind} needs {' and '.join(lacking)}", where=f"{key}.params")


_MEANT = {"max_grad_norm": "gradient_clipping, at the top level, clips gradients"}
_OF_MUP = ("muadam", "muadamw", "musgd")  # of a package of its own
_INSTEAD = {
    "optimizer": "AdamW; or leave the section out: train.optimizer",
    "scheduler": "WarmupDecayLR; or leave the section out: train.schedule",
}
_ADAMS = ("FusedAdam", "DeepSpeedCPUAdam", "AdamW", "MuonWithAuxAdam")
_POPPED = ("torch_adam", "adam_w_mode", "fp32_optimizer_states")  # taken out before they are made
# What Transformers fills in (integrations/deepspeed.py, trainer_config_process and trainer_config_finalize).
_FILLED = frozenset({"lr", "betas", "eps", "weight_decay", "warmup_num_steps", "total_num_steps", *_RATES})
# What FusedAdam, DeepSpeedCPUAdam and torch.optim.AdamW have where a file leaves a key out.
_ADAM = {"betas": {"beta1": 0.9, "beta2": 0.999}, "eps": {"epsilon": 1e-8}}


def _is_adam(config: Mapping[str, Any]) -> bool:
    """Return whether the optimizer that a file names is Adam or AdamW."""
    return chosen(config, "optimizer")[0].lower() in ("adam", "adamw")


def _adam_defaults(config: Mapping[str, Any]) -> dict[str, float]:
    """Return the fields of the recipe's `train` that an Adam of the file leaves to DeepSpeed."""
    if not _is_adam(config):
        return {}
    _, params = chosen(config, "optimizer")
    return {name: value for key, each in _ADAM.items() if key not in params for name, value in each.items()}


def other_optimizer(config: Mapping[str, Any]) -> str | None:
    """Name a file's optimizer where it is not AdamW. DeepSpeed's Adam is AdamW unless adam_w_mode is false
    (_configure_basic_optimizer of runtime/engine.py)."""
    kind, params = chosen(config, "optimizer")
    if not _is_adam(config):
        return kind or None
    coupled = kind.lower() == "adam" and not params.get("adam_w_mode", True)
    return "adam, its decay an L2 term of the gradient" if coupled else None


# The fp32 values that optimizers keep of each weight, and of those parameters that are switched on one more.
_KEPT: dict[str, tuple[int, tuple[str, ...]]] = {
    "": (2, ()),  # the recipe's AdamW
    **dict.fromkeys(("lamb", "adadelta", "adamax", "nadam", "radam", "rprop"), (2, ())),
    **dict.fromkeys(("adagrad", "asgd", "lion"), (1, ())),
    "rmsprop": (1, ("momentum", "centered")),
    "sgd": (0, ("momentum",)),
}


def moments(config: Mapping[str, Any], *, offloaded: bool) -> int | None:
    """Count the fp32 values that the optimizer keeps of each weight beside its copy; None: not known here.

    Sources: deepspeed/runtime/engine.py (_configure_basic_optimizer), ops/lion/cpu_lion.py (which keeps a
    second one that it never reads), torch/optim.
    """
    name, params = chosen(config, "optimizer")
    kind = name.lower()
    if _is_adam(config):
        return 3 if params.get("torch_adam") and params.get("amsgrad") else 2
    if kind not in _KEPT:
        return None
    kept, more = _KEPT[kind]
    return kept + sum(bool(params.get(name)) for name in more) + (kind == "lion" and offloaded)


def user_training(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the recipe's `train` that a user's file fixes ("auto" fixes nothing). Raises
    RecipeError.

    Of an Adam that the file names, what it leaves out is DeepSpeed's default.
    """
    (_, optimizer), (_, scheduler) = (chosen(config, key) for key in ("optimizer", "scheduler"))
    betas = optimizer.get("betas", "auto")
    beta1, beta2 = betas if isinstance(betas, list) and len(betas) == 2 else (betas, betas)
    given = {
        "learning_rate": optimizer.get("lr", "auto"),
        "beta1": beta1,
        "beta2": beta2,
        "epsilon": optimizer.get("eps", "auto"),
        "weight_decay": optimizer.get("weight_decay", "auto"),
        "clip": config.get("gradient_clipping", "auto"),
        "warmup": scheduler.get("warmup_num_steps", "auto"),
    }
    overruled = _overruling(config)
    given["learning_rate"] = overruled if overruled != "auto" else given["learning_rate"]
    if _cycles_momentum(config):
        given["beta1"], given["beta2"] = _cycled_betas(config)
    if "max_grad_norm" in optimizer:
        raise RecipeError(
            "optimizer.params.max_grad_norm is refused by DeepSpeed",
            where="the DeepSpeed configuration",
            hint="gradient_clipping clips gradients",
        )
    for name, value in given.items():
        number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if value != "auto" and not number:
            raise RecipeError(
                f'{_PLACES[name]} must be a number or "auto", not {value!r}',
                where="the DeepSpeed configuration",
            )
    return {**_adam_defaults(config), **{name: value for name, value in given.items() if value != "auto"}}


def _cycles_momentum(config: Mapping[str, Any]) -> bool:
    """Return whether OneCycle sets the betas of the optimizer, which it does where that has some."""
    kind, params = chosen(config, "scheduler")
    cycles = kind == "OneCycle" and params.get("cycle_momentum", True)
    taken = source()["optimizers"].get(_optimizer_class(config), "betas")
    return bool(cycles) and "betas" in taken.split()


def _overruling(config: Mapping[str, Any]) -> Any:
    """Return the rate that the file's scheduler sets in place of the optimizer's; "auto": it leaves that
    open."""
    kind, params = chosen(config, "scheduler")
    name, default = _OVERRULES.get(kind, ("", "auto"))
    return params.get(name, default)


def _cycled_betas(config: Mapping[str, Any]) -> list[Any]:
    """Return the betas with which OneCycle begins (lr_schedules.py, OneCycle._initialize_momentum)."""
    return [chosen(config, "scheduler")[1].get("cycle_min_mom", 0.8), 0.99]


# What changes the type in which master weights, states and sums of gradients are held or sent: section, key.
_UNPLANNED = (
    ("bf16", "bf16_master_weights_and_grads"),
    ("bf16", "bf16_optimizer_states"),
    ("fp16", "fp16_master_weights_and_grads"),
    ("zero_optimization", "zero_quantized_weights"),
    ("zero_optimization", "zero_quantized_nontrainable_weights"),
    ("zero_optimization", "zero_quantized_gradients"),
    ("zero_optimization", "zenflow"),
    ("compile", "deepcompile"),
)


def given_config(recipe: Recipe) -> dict[str, Any]:
    """Merge what the user gives DeepSpeed itself: the own file, if any, with engine.options laid over it; old
    keys are the sections that DeepSpeed takes them for (zero/config.py, cpu_offload)."""
    engine = recipe.engine
    config = _lay(read_user_config(engine.config) if engine.config else {}, _options(engine.options))
    zero = section(config, "zero_optimization")
    zero.pop("cpu_offload_use_pin_memory", None)  # which it ignores
    for old, new in (("cpu_offload", "offload_optimizer"), ("cpu_offload_param", "offload_param")):
        if zero.pop(old, False):
            zero.setdefault(new, {"device": "cpu"})
    return {**config, "zero_optimization": zero} if "zero_optimization" in config else config


def uncounted(config: Mapping[str, Any]) -> list[str]:
    """Name the keys of a configuration that change what ranks hold or send, and that no plan counts."""
    values = {
        f"{name}.{key}" if key else name: section(config, name).get(key) if key else config.get(name)
        for name, key in _UNPLANNED
    }
    offload = section(section(config, "zero_optimization"), "offload_optimizer")
    on_disk = offload.get("device") == "nvme" and offload.get("ratio", 1.0) != 1.0
    values["zero_optimization.offload_optimizer.ratio"] = on_disk
    values["zero_optimization.offload_optimizer.super_offload"] = offload.get("super_offload")
    values["optimizer.type"] = moments(config, offloaded=False) is None
    if not gradient_bytes(config):  # also where it is as the model's
        for name, key in (("data_types", "grad_accum_dtype"), ("communication_data_type", "")):
            values[f"{name}.{key}".rstrip(".")] = section(config, name).get(key) if key else config.get(name)
    return [name for name, value in values.items() if value not in (None, False, "auto")]


def gradient_bytes(config: Mapping[str, Any]) -> dict[str, int]:
    """Return the fields of ModelSpread for gradients that are added up, or sent, in another type than the
    model's: where it is known what ranks hold of them."""
    zero = section(config, "zero_optimization")
    stage, kept = zero.get("stage", 0), section(config, "data_types").get("grad_accum_dtype")
    sent = config.get("communication_data_type")
    half = next((name for name in ("fp16", "bf16") if section(config, name).get("enabled") is True), None)
    asked = {"sums": kept, "sent": sent}
    made = {name: dtype_bytes(dtype.lower()) for name, dtype in asked.items() if dtype is not None}
    moved = section(zero, "offload_optimizer").get("device", "none") != "none"
    apart = half == "fp16" and stage == 1 and kept
    return made if (half or made.get("sums", 4) == 4) and not moved and not apart else {}


def user_rise(config: Mapping[str, Any]) -> tuple[str, int] | None:
    """Return the key and the steps after which a file's scheduler reaches its highest rate, 0 where it has no
    such steps; None: the recipe's warm-up counts. Raises RecipeError."""
    kind, params = chosen(config, "scheduler")
    if not kind:
        return None
    if kind == "OneCycle":
        where, cycle = "scheduler.params.cycle_first_step_size", params.get("cycle_first_step_size", 2000)
        if not isinstance(cycle, int | float) or isinstance(cycle, bool) or cycle <= 0:
            raise RecipeError(f"is {json.dumps(cycle)}, and must be a number above 0", where=where)
        return where, int(cycle)
    if kind not in _SCHEDULERS:
        return "scheduler.type", 0
    steps = params.get("warmup_num_steps", "auto")
    return None if steps == "auto" else ("scheduler.params.warmup_num_steps", int(steps))


def user_schedule(config: Mapping[str, Any]) -> tuple[str, str] | None:
    """Describe the scheduler of a user's configuration: (what it does, what it leaves to Muster); None: the
    recipe's schedule. Raises RecipeError for a warm-up that DeepSpeed does not know."""
    name, params = chosen(config, "scheduler")
    if not name:
        return None
    if name not in _SCHEDULERS:
        return f"{name} of DeepSpeed{_course(config)}", ""
    kind = params.get("warmup_type", "auto")
    if kind not in ("auto", *_WARMUPS):
        raise RecipeError(
            f"warmup_type {kind!r} is none of {', '.join(_WARMUPS)}, and DeepSpeed would take log",
            where="the DeepSpeed configuration",
        )
    words = f"{name} of DeepSpeed: {_WARMUPS[kind if kind != 'auto' else 'linear']}{_course(config)}"
    open_ = "warmup_type is left out, which DeepSpeed would make logarithmic; the recipe's warm-up is linear"
    return words, open_ if kind == "auto" else ""


def _course(config: Mapping[str, Any]) -> str:
    """Describe from where to where a scheduler takes the rate, and what else it changes."""
    name, params = chosen(config, "scheduler")
    if name == "LRRangeTest":
        return f": it rises from {_overruling(config)} on"
    if name == "OneCycle":
        beta1 = ""
        if _cycles_momentum(config):
            low, high = params.get("cycle_min_mom", 0.8), params.get("cycle_max_mom", 0.9)
            beta1 = f", and beta1 from {high} to {low} and back"
        falls = params.get("decay_lr_rate", 0) and params.get("decay_step_size", 0)
        back = "and back, and falls on after that" if falls else "and back"
        return f": from {params.get('cycle_min_lr')} to {params.get('cycle_max_lr')} {back}{beta1}"
    if name not in _SCHEDULERS:
        return ""
    least = params.get("warmup_min_lr", "auto")
    start = f" from {least}" if least not in ("auto", 0) else ""
    if name == "WarmupCosineLR":
        ratio = params.get("warmup_min_ratio", 0)
        start = f" from {ratio} of the rate" if ratio else ""
        return f"{start}, then cosine to {params.get('cos_min_ratio', 0.0001)} of it"
    end = f"then linear to {least}" if start and name == "WarmupDecayLR" else _SCHEDULERS[name][0]
    return f"{start}, {end}"


def user_decisions(recipe: Recipe, stage: int | None) -> list[Decision]:
    """Return ZeRO's `stage`, numbers and the schedule of the user's own DeepSpeed configuration as decisions:
    they win."""
    given, source = given_config(recipe), recipe.engine.config or "engine.options"
    passed = without_effect(read_file(recipe.engine.config)) if recipe.engine.config else []
    numbers = user_training(given).items()
    left = f"DeepSpeed's default, which the optimizer of {source} leaves as it is"
    whys = dict.fromkeys(_adam_defaults(given), left)
    if _cycles_momentum(given):
        whys |= {
            "beta1": f"the OneCycle of {source} begins with it",
            "beta2": f"the OneCycle of {source} sets it",
        }
    made = [Decision(f"train.{name}", value, whys.get(name, f"{source} says so")) for name, value in numbers]
    if stage is not None:
        made.insert(0, Decision("engine.zero", stage, f"{source} says so"))
    scheduler = user_schedule(given)
    if scheduler:
        why = "; ".join(filter(None, (f"{source} says so", scheduler[1])))
        made.append(Decision("train.schedule", scheduler[0], why))
    if recipe.engine.config and recipe.precision == "fp32" and leaves_precision(given):
        why = "it switches neither fp16 nor bf16 on; precision=bf16 or fp16 is faster on most GPUs"
        made.append(Decision("engine.config", "fp32", why))
    if passed:
        made.append(Decision("engine.config", ", ".join(passed), "DeepSpeed knows no such key: no effect"))
    field = "engine.config" if recipe.engine.config else "engine.options"
    return [*made, *(Decision(field, key, why) for key, why in _idle(given).items())]


def _idle(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the keys that DeepSpeed reads and that change nothing here, each with the reason."""
    zero, below = section(config, "zero_optimization"), (user_stage(config) or 0) < 3
    moved = {name: section(zero, f"offload_{name}").get("device", "none") for name in ("param", "optimizer")}
    made = {}
    if section(config, "activation_checkpointing"):
        made["activation_checkpointing"] = "no effect: Transformers' models do not call it"
    if below and moved["param"] != "none":
        made["zero_optimization.offload_param"] = "no effect below stage 3"
    if below and moved["optimizer"] == "nvme":
        made["zero_optimization.offload_optimizer.nvme_path"] = "no effect below stage 3: in host memory"
    return made


def _complete(config: dict[str, Any]) -> None:
    """Fill what a scheduler and an optimizer of DeepSpeed leave out from the recipe, where DeepSpeed has a
    default of its own: a logarithmic warm-up, 1000 steps of it, a rate of 0.001. Rate and betas of the
    optimizer are the scheduler's where that sets them: Transformers refuses two that differ."""
    kind, params = chosen(config, "scheduler")
    if kind in _SCHEDULERS:
        for name in _SCHEDULERS[kind][1]:
            params.setdefault(name, "auto")
        if params.get("warmup_type", "auto") == "auto":
            params["warmup_type"] = "linear"
        config["scheduler"] = {**config["scheduler"], "params": params}
    kind, params = chosen(config, "optimizer")
    if kind:
        rate = _overruling(config)
        params["lr"] = params.get("lr", "auto") if rate == "auto" else rate
        if "betas" in params and _cycles_momentum(config):
            params["betas"] = _cycled_betas(config)
        config["optimizer"] = {**config["optimizer"], "params": params}


_HALF = ("fp16", "bf16", "bfloat16")


def user_precision(config: Mapping[str, Any]) -> str | None:
    """Return fp16 or bf16 where a user's file switches one on, fp32 where it switches both off. Raises
    RecipeError where it switches both on."""
    off = {key for key in _HALF if section(config, key).get("enabled") is False}
    on = {key for key in _HALF if section(config, key).get("enabled") is True}
    if "fp16" in on and len(on) > 1:
        raise RecipeError("fp16 and bf16 are both enabled", where="the DeepSpeed configuration")
    if not on:
        return "fp32" if "fp16" in off and len(off) > 1 else None
    return "fp16" if "fp16" in on else "bf16"


def leaves_precision(config: Mapping[str, Any]) -> bool:
    """Return whether a user's file says nothing of its precision, not even "auto": DeepSpeed alone then
    computes in fp32."""
    return all(section(config, key).get("enabled") in (None, False) for key in _HALF)


def deepspeed_config(recipe: Recipe, batch: Batch, precision: str) -> dict[str, Any]:
    """Make the JSON that DeepSpeed gets: Muster's from engine.zero and engine.offload, or the user's file;
    with engine.options laid over it, and the batch and precision that were decided. Raises RecipeError."""
    config = given_config(recipe)
    if not recipe.engine.config:
        config = _lay(_own_config(recipe), config)
    for key in _NOT_TRAINED_WITH:
        config.pop(key, None)  # switched off
    user_schedule(config)
    _complete(config)
    config["train_micro_batch_size_per_gpu"] = batch.micro
    config["gradient_accumulation_steps"] = batch.accumulation
    config["train_batch_size"] = batch.global_
    config.setdefault("gradient_clipping", recipe.train.clip)
    config.pop("bfloat16", None)
    config["bf16"] = {**section(config, "bf16"), "enabled": precision == "bf16"}
    fp16 = {**section(config, "fp16"), "enabled": precision == "fp16"}
    if precision == "fp16" and recipe.loss_scale is not None:
        fp16["loss_scale"] = 0  # dynamic, from this power of two
        fp16["initial_scale_power"] = max(0, round(recipe.loss_scale).bit_length() - 1)
    config["fp16"] = fp16
    config.setdefault("steps_per_print", 1_000_000_000)
    # Accelerate refuses a file without the section, for which DeepSpeed has a default.
    zero = config["zero_optimization"] = {"stage": 0, **section(config, "zero_optimization")}
    _check_classes(config)
    clip = config["gradient_clipping"]
    check_together(config, _optimizer_class(config), recipe.train.clip if clip == "auto" else clip)
    gathers = zero["stage"] == 3 and "stage3_gather_fp16_weights_on_model_save" not in zero  # its old name
    if gathers and zero.setdefault(_GATHER, True) not in (True, "auto"):
        raise RecipeError(
            f"is {json.dumps(zero[_GATHER])}, and the trained model could not be saved whole",
            where=f"zero_optimization.{_GATHER}",
            hint="leave it out, or set it to true",
        )
    return config


def fill_auto(config: Mapping[str, Any], recipe: Recipe, width: int | None) -> dict[str, Any]:
    """Fill the "auto" values of a decided recipe's configuration. `width`: the model's hidden size; None: not
    known here.

    Source: transformers/integrations/deepspeed.py, trainer_config_process and trainer_config_finalize.
    """
    train = recipe.train
    rate, warmup = train.rate, train.warmup
    steps: dict[str, Any] = {"total_num_steps": train.max_steps} if train.max_steps else {}
    if warmup >= 1 or warmup == 0:
        steps["warmup_num_steps"] = max(1, int(warmup))
    elif train.max_steps:
        steps["warmup_num_steps"] = max(1, math.ceil(train.max_steps * warmup))
    made = copy.deepcopy(dict(config))
    _fill(made, {"gradient_clipping": train.clip})
    adam = {"betas": [train.beta1, train.beta2], "eps": train.epsilon, "weight_decay": train.weight_decay}
    _fill(_inside(made, "optimizer", "params"), {"lr": rate, **adam})
    _fill(_inside(made, "scheduler", "params"), {"warmup_min_lr": 0, "warmup_max_lr": rate, **steps})
    zero, sizes = _inside(made, "zero_optimization"), by_width(width or 0)
    if width:
        _fill(zero, {key: value for key, value in sizes.items() if zero.get("stage") == 3 or key == _BUCKET})
    for key in [key for key, value in zero.items() if value == "auto" and (width or key not in sizes)]:
        del zero[key]  # DeepSpeed takes it for not given
    return made


def by_width(width: int) -> dict[str, int]:
    """Return what Transformers makes of sizes that are "auto", by the model's hidden size: all of stage 3,
    and the bucket of any stage."""
    return {
        _BUCKET: width**2,
        "stage3_prefetch_bucket_size": int(0.9 * width**2),
        "stage3_param_persistence_threshold": 10 * width,
    }


def _fill(there: dict[str, Any], values: Mapping[str, Any]) -> None:
    there.update({key: value for key, value in values.items() if there.get(key) == "auto"})


def _inside(config: dict[str, Any], *path: str) -> dict[str, Any]:
    """Return a section to be changed in place; for one that is not there, an empty one that is in nothing."""
    for key in path:
        own = config.get(key)
        config = own if isinstance(own, dict) else {}
    return config


def user_stage(config: Mapping[str, Any]) -> int | None:
    """Return the stage of ZeRO in a configuration."""
    stage = section(config, "zero_optimization").get("stage")
    return stage if isinstance(stage, int) else None


def _options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Read engine.options as DeepSpeed does. Raises RecipeError for what would lose against the recipe's own
    keys."""
    options = checked(options, where="engine.options")
    for key, name in _BATCH_KEYS.items():
        if key in options:
            raise RecipeError(
                f"{key} is decided by the recipe's batch", where="engine.options", hint=f"batch.{name}=..."
            )
    for key in ("fp16", "bf16", "bfloat16"):
        if "enabled" in section(options, key):
            raise RecipeError(
                f"{key}.enabled is decided by the recipe's precision",
                where="engine.options",
                hint="precision=...",
            )
    return options


def _own_config(recipe: Recipe) -> dict[str, Any]:
    engine = recipe.engine
    if engine.offload != "none" and engine.stage == 0:
        raise RecipeError(
            "offloading needs ZeRO",
            where="engine.offload",
            hint="engine.zero=1, 2 or 3 with offload=optimizer",
        )
    if engine.offload == "optimizer+param" and engine.stage != 3:
        raise RecipeError(
            "parameters can be offloaded by ZeRO-3 only", where="engine.offload", hint="engine.zero=3"
        )
    zero: dict[str, Any] = {"stage": engine.stage}
    if engine.stage in (1, 2):
        zero |= {_BUCKET: REDUCE_BUCKET, "contiguous_gradients": True}
    if engine.group and engine.stage != 3:
        raise RecipeError(
            f"is {engine.group}, and ZeRO-{engine.stage} cuts no weights",
            where="engine.group",
            hint="engine.zero=3, or leave it out",
        )
    if engine.group:
        zero[GROUP] = engine.group
    if engine.stage == 3:
        zero |= {**dict.fromkeys(by_width(0), "auto"), _GATHER: True}
    config: dict[str, Any] = {"zero_optimization": zero, UNTESTED: True}
    if "optimizer" in engine.offload:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
        # DeepSpeed's own CPU Adam: the point of offloading the optimizer
        config["optimizer"] = {
            "type": "AdamW",
            "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"},
        }
    if "param" in engine.offload:
        zero["offload_param"] = {"device": "cpu", "pin_memory": True}
    return config


def _lay(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = _lay(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged
