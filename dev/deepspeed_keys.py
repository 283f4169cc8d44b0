"""Print the keys that the installed DeepSpeed's configuration knows: src/muster/engines/deepspeed/keys.json.

Run after raising the DeepSpeed version, with DS_ACCELERATOR=cpu and into that file. Sections whose keys
DeepSpeed does not list in one place are null: Muster does not check inside them. The name of a type is what a
key takes, with its bounds, a ~ where no bool is a number, and a ? where null means not given; words with |
between them are all that it takes; null, anything. Aliases are of zero_optimization: a field's name, and the
key that stands for the same. Strict sections are read by pydantic, which converts values and refuses a key
that it does not know; the others are taken as they are. Absent sections may be null. Optimizers and
schedulers have the names that they take, with a ! where they do not work without. Removed keys are refused
even where they are switched off, for the reason given.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
import types
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import deepspeed
import torch
from deepspeed.comm.config import CommsLoggerConfig
from deepspeed.compile.config import CompileConfig
from deepspeed.monitor.config import CometConfig, CSVConfig, TensorBoardConfig, WandbConfig
from deepspeed.ops.adagrad import DeepSpeedCPUAdagrad
from deepspeed.ops.adam import DeepSpeedCPUAdam, FusedAdam
from deepspeed.ops.lamb import FusedLamb
from deepspeed.ops.lion import DeepSpeedCPULion, FusedLion
from deepspeed.runtime import config as ds_config
from deepspeed.runtime import constants, lr_schedules
from deepspeed.runtime.engine import DeepSpeedEngine
from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
from deepspeed.runtime.tensor_parallel.config import TPTrainingConfig
from deepspeed.runtime.zenflow.zenflow_config import ZenFlowConfig
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from deepspeed.runtime.zero.leaf_module_config import DeepSpeedZeroLeafModuleConfig
from deepspeed.runtime.zero.offload_config import (
    DeepSpeedZeroOffloadOptimizerConfig,
    DeepSpeedZeroOffloadParamConfig,
)
from deepspeed.utils.config import DeepSpeedThroughputTimerConfig

TYPES = (bool, int, float, str, Path, list)
OWN = (FusedAdam, DeepSpeedCPUAdam, DeepSpeedCPUAdagrad, FusedLamb, FusedLion, DeepSpeedCPULion)
SECTIONS = {
    "tensorboard": TensorBoardConfig,
    "wandb": WandbConfig,
    "csv_monitor": CSVConfig,
    "comet": CometConfig,
    "comms_logger": CommsLoggerConfig,
    "compile": CompileConfig,
    "tensor_parallel": TPTrainingConfig,
    "fp16": DeepSpeedFP16Config,
    "bf16": DeepSpeedBF16Config,
    "bfloat16": DeepSpeedBF16Config,
    "zero_optimization": DeepSpeedZeroConfig,
}
IN_ZERO = {
    "offload_param": DeepSpeedZeroOffloadParamConfig,
    "offload_optimizer": DeepSpeedZeroOffloadOptimizerConfig,
    "leaf_module": DeepSpeedZeroLeafModuleConfig,
    "zenflow": ZenFlowConfig,
}

# What DeepSpeed takes as it is, and where it is used must be of this type (runtime/config.py and others).
DTYPES = "fp32|fp16|bf16|float32|float16|bfloat16|torch.float32|torch.float16|torch.bfloat16|float|half"
SENT = "fp16|bf16|fp32|FP16|BF16|FP32?"
RAW: dict[str, Any] = {
    **dict.fromkeys(
        (
            "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
            "vocabulary_size",
        ),
        "int?",
    ),
    "steps_per_print": "float?",
    "sequence_parallel_size": "int",
    **dict.fromkeys(("communication_data_type", "seq_parallel_communication_data_type"), SENT),
    "activation_checkpointing": {
        **dict.fromkeys(
            (
                "partition_activations", "contiguous_memory_optimization", "cpu_checkpointing", "profile",
                "synchronize_checkpoint_boundary",
            ),
            "bool",
        ),
        "number_checkpoints": None,
    },
    "flops_profiler": {
        **dict.fromkeys(("enabled", "detailed"), "bool"),
        **dict.fromkeys(("profile_step", "module_depth", "top_modules"), "int"),
        "recompute_fwd_factor": "float",
        "output_file": "str?",
    },
    "data_types": {
        **dict.fromkeys(("grad_accum_dtype", "param_dtype", "buffer_dtype"), f"{DTYPES}?"),
        "keep_in_fp32_modules": None,
    },
    "checkpoint": {
        "tag_validation": "Ignore|Warn|Fail|ignore|warn|fail|IGNORE|WARN|FAIL",
        **dict.fromkeys(("load_universal", "use_node_local_storage", "checkpoint_serialization"), "bool"),
        "parallel_write": {"pipeline_stage": "bool"},
        "writer": None,
    },
    "aio": {
        **dict.fromkeys(("block_size", "queue_depth", "intra_op_parallelism"), "int"),
        **dict.fromkeys(("single_submit", "overlap_events", "use_gds"), "bool"),
    },
}  # fmt: skip


def type_of(annotation: Any, bounds: Sequence[Any] = ()) -> str | None:
    """What a scalar takes; None where it takes others."""
    if get_origin(annotation) in (Union, types.UnionType):
        found = [type_of(each, bounds) for each in get_args(annotation) if each is not type(None)]
        return f"{found[0]}?" if len(found) == 1 and found[0] else None
    if get_origin(annotation) is Literal:
        return "|".join(get_args(annotation))
    if get_origin(annotation) is list and get_args(annotation) == (str,):
        return "list[str]"
    if isinstance(annotation, type) and issubclass(annotation, int) and issubclass(annotation, Enum):
        values = [int(each) for each in annotation]
        return f"int>={min(values)}<={max(values)}"
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return "|".join(each.value for each in annotation)
    if annotation not in TYPES:
        return None
    signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    limits = {name: getattr(each, name) for name in signs for each in bounds if hasattr(each, name)}
    return annotation.__name__.lower() + "".join(f"{signs[name]}{value:g}" for name, value in limits.items())


def names(model: Any) -> dict[str, str | None]:
    """Field names and aliases of a pydantic model, with their types."""
    found: dict[str, str | None] = {}
    for name, field in model.model_fields.items():
        found |= dict.fromkeys({name, field.alias or name}, type_of(field.annotation, field.metadata))
    return dict(sorted(found.items()))


def taken(made: Any) -> str:
    """What a class takes behind its first parameter."""
    _, *rest = inspect.signature(made).parameters.values()
    named = [each for each in rest if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
    return " ".join(each.name + ("!" if each.default is each.empty else "") for each in named)


def subclasses(module: Any, base: type) -> list[Any]:
    """The public classes of a module that derive from another."""
    return [
        each
        for name, each in sorted(vars(module).items())
        if isinstance(each, type) and issubclass(each, base) and each is not base and name[0] != "_"
    ]


def main() -> None:
    """Collect and print."""
    source = inspect.getsource(ds_config)
    top: dict[str, Any] = {}
    for constant in set(re.findall(r"\(param_dict, ([A-Z_0-9]+),", source)) | set(
        re.findall(r"param_dict(?:\.get\(|\[)([A-Z_0-9]+)", source)
    ):
        value = getattr(ds_config, constant, None) or getattr(constants, constant, None)
        if isinstance(value, str):
            default = getattr(constants, f"{constant}_DEFAULT", None)
            top[value] = type(default).__name__ if type(default) in (bool, int, float, str) else None
    for key in re.findall(r"param_dict(?:\.get\(|\[)[\"']([a-z_0-9]+)[\"']", source):
        top[key] = None
    top["optimizer"] = {"type": None, "params": None, "legacy_fusion": None}
    top["scheduler"] = {"type": None, "params": None}
    top |= {key: names(model) for key, model in SECTIONS.items()}
    top |= RAW
    top["zero_optimization"] |= {key: names(model) for key, model in IN_ZERO.items()}
    top["fp16"] |= {
        "loss_scale": "float~>=0",
        "loss_scale_window": "int~",
        "min_loss_scale": "int~",
    }  # validators
    top["timers"] = {"throughput": names(DeepSpeedThroughputTimerConfig)}
    strict = {**SECTIONS, **{f"zero_optimization.{key}": model for key, model in IN_ZERO.items()}}
    strict["timers.throughput"] = DeepSpeedThroughputTimerConfig
    fields = DeepSpeedZeroConfig.model_fields
    absent = ["leaf_module", *(key for key in IN_ZERO if type(None) in get_args(fields[key].annotation))]
    for key in [
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "gradient_accumulation_steps",
        "gradient_clipping",
        "steps_per_print",
        "wall_clock_breakdown",
        "flops_profiler",
        "tensorboard",
        "wandb",
        "csv_monitor",
        "comet",
        "comms_logger",
        "autotuning",
        "aio",
        "data_types",
        "checkpoint",
        "data_efficiency",
        "communication_data_type",
        "sequence_parallel_size",
        "hybrid_engine",
        "pipeline",
        "timers",
        "dump_state",
        "zero_allow_untested_optimizer",
        "zero_force_ds_cpu_optimizer",
        "prescale_gradients",
        "torch_autocast",
        "use_node_local_storage",
        "fp32",
        "dataloader_drop_last",
    ]:
        top.setdefault(key, None)
    removed = {
        **ds_config._REMOVED_TOP_LEVEL_CONFIG_KEYS,
        **{f"zero_optimization.{key}": why for key, why in ds_config._REMOVED_ZERO_CONFIG_KEYS.items()},
    }
    optimizers = [*OWN, *subclasses(torch.optim, torch.optim.Optimizer)]
    schedulers = [getattr(lr_schedules, name) for name in lr_schedules.VALID_LR_SCHEDULES]
    schedulers += subclasses(torch.optim.lr_scheduler, torch.optim.lr_scheduler.LRScheduler)
    muon = {*DeepSpeedEngine._MUON_HALF_KEYS, *DeepSpeedEngine._ADAM_HALF_KEYS, "muon_lr", "adam_lr"}
    made = {
        "deepspeed": deepspeed.__version__,
        "keys": {key: each for key, each in sorted(top.items()) if key not in removed},
        "removed": {key: re.split("[.;] ", why)[0] for key, why in sorted(removed.items())},
        "aliases": {
            name: field.alias for name, field in DeepSpeedZeroConfig.model_fields.items() if field.alias
        },
        "absent": ["aio", "bf16", *(f"zero_optimization.{key}" for key in sorted(absent))],
        "strict": sorted(key for key, model in strict.items() if model.model_config.get("extra") == "forbid"),
        "optimizers": {
            "MuonWithAuxAdam": " ".join(sorted(muon)),
            **{each.__name__: taken(each) for each in optimizers},
        },
        "schedulers": {each.__name__: taken(each) for each in schedulers},
    }
    json.dump(made, sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
