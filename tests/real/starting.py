"""DeepSpeed's engine on each of some configurations: `python -m tests.real.starting FILES OUT`, both JSON
lists; out comes null where it trains two steps, else why not."""

from __future__ import annotations

import copy
import json
import logging
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.ports import free_port


def start(config: dict[str, Any]) -> str | None:
    """Train as accelerate has it: the file's optimizer, or PyTorch's AdamW, or its counterpart on hosts."""
    import deepspeed
    import torch
    from accelerate.utils.deepspeed import map_pytorch_optim_to_deepspeed

    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 16))
    weights, biases = ([each for each in model.parameters() if each.dim() == of] for of in (2, 1))
    groups = [{"params": weights, "weight_decay": 0.1}, {"params": biases, "weight_decay": 0.0}]
    given: dict[str, Any] = {"model_parameters": groups}
    if "optimizer" not in config:
        adam: Any = torch.optim.AdamW(groups, lr=1e-3)
        offload = config.get("zero_optimization", {}).get("offload_optimizer", {})
        if offload.get("device", "none") != "none" and config.get("zero_force_ds_cpu_optimizer", True):
            adam = map_pytorch_optim_to_deepspeed(adam)
        given = {"optimizer": adam}
    try:
        engine, *_ = deepspeed.initialize(model=model, config=copy.deepcopy(config), **given)
        for _ in range(2):
            batch = torch.randn(1, 16, dtype=next(engine.module.parameters()).dtype)
            engine.backward(engine(batch).float().pow(2).mean())
            engine.step()
    except Exception as error:  # whatever it fails by
        return f"{type(error).__name__}: {error}"
    return None


def main(files: str, out: str) -> None:
    """Start one after the other, in one process."""
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "DS_ACCELERATOR": "cpu"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    logging.disable(logging.CRITICAL)
    import deepspeed
    from deepspeed.ops.adam import fused_adam

    # Two minutes of compiling: an all-reduce that Muster's ranks do without as well, and a kernel whose
    # numbers nobody looks at here.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    kernel = SimpleNamespace(multi_tensor_adam=lambda *args: None)
    fused_adam.FusedAdamBuilder = lambda: SimpleNamespace(load=lambda: kernel)
    deepspeed.init_distributed("gloo")
    Path(out).write_text(json.dumps([start(each) for each in json.loads(Path(files).read_text())]))


if __name__ == "__main__":
    main(*sys.argv[1:])
