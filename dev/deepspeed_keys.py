"""Print the keys that the installed DeepSpeed's configuration knows: src/muster/engines/deepspeed/keys.json.

Run after raising the DeepSpeed version: python dev/deepspeed_keys.py > src/muster/engines/deepspeed/keys.json
Sections whose keys DeepSpeed does not list in one place are null: Muster does not check inside them.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from typing import Any

import deepspeed
from deepspeed.runtime import config as ds_config
from deepspeed.runtime import constants
from deepspeed.runtime.activation_checkpointing import config as act
from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from deepspeed.runtime.zero.offload_config import (
    DeepSpeedZeroOffloadOptimizerConfig,
    DeepSpeedZeroOffloadParamConfig,
)


def names(model: Any) -> list[str]:
    """Field names and aliases of a pydantic model."""
    found: set[str] = set()
    for name, field in model.model_fields.items():
        found |= {name} | ({field.alias} if field.alias else set())
    return sorted(found)


def main() -> None:
    """Collect and print."""
    source = inspect.getsource(ds_config)
    top: dict[str, Any] = {}
    for constant in set(re.findall(r"\(param_dict, ([A-Z_0-9]+),", source)) | set(
        re.findall(r"param_dict(?:\.get\(|\[)([A-Z_0-9]+)", source)
    ):
        value = getattr(ds_config, constant, None) or getattr(constants, constant, None)
        if isinstance(value, str):
            top[value] = None
    for key in re.findall(r"param_dict(?:\.get\(|\[)[\"']([a-z_0-9]+)[\"']", source):
        top[key] = None
    zero: dict[str, Any] = dict.fromkeys(names(DeepSpeedZeroConfig))
    zero["offload_param"] = dict.fromkeys(names(DeepSpeedZeroOffloadParamConfig))
    zero["offload_optimizer"] = dict.fromkeys(names(DeepSpeedZeroOffloadOptimizerConfig))
    top["zero_optimization"] = zero
    top["fp16"] = dict.fromkeys([*names(DeepSpeedFP16Config), "auto_cast"])
    top["bf16"] = dict.fromkeys(names(DeepSpeedBF16Config))
    top["bfloat16"] = top["bf16"]
    top["optimizer"] = {"type": None, "params": None, "legacy_fusion": None}
    top["scheduler"] = {"type": None, "params": None}
    top["activation_checkpointing"] = {
        value: None
        for name, value in vars(act).items()
        if name.startswith("ACT_CHKPT_") and isinstance(value, str) and not name.endswith("DEFAULT")
    }
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
        "elasticity",
        "aio",
        "data_types",
        "checkpoint",
        "compression_training",
        "data_efficiency",
        "curriculum_learning",
        "progressive_layer_drop",
        "sparse_attention",
        "eigenvalue",
        "nebula",
        "communication_data_type",
        "sequence_parallel_size",
        "hybrid_engine",
        "pipeline",
        "timers",
        "amp",
        "dump_state",
        "zero_allow_untested_optimizer",
        "zero_force_ds_cpu_optimizer",
        "prescale_gradients",
        "tensor_parallel",
        "torch_autocast",
        "graph_harvesting",
        "use_node_local_storage",
        "compile",
        "fp32",
        "dataloader_drop_last",
    ]:
        top.setdefault(key, None)
    json.dump({"deepspeed": deepspeed.__version__, "keys": dict(sorted(top.items()))}, sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
