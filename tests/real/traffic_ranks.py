"""A rank that trains with one engine after the other and notes what goes to gloo:
`python -m tests.ranks 2 tests.real.traffic_ranks FOLDER`.

FOLDER/asked.json: per case its recipe, accumulation and precision. Each rank writes FOLDER/rankN.json: per
case the collectives of one optimizer step (operation, bytes of the whole array, ranks), from torch's flight
recorder, which sees C++ callers (DDP's reducer) too; and the parameters of the first case's model.
"""

from __future__ import annotations

import json
import math
import os
import pickle
import sys
from pathlib import Path
from typing import Any

os.environ["TORCH_FR_BUFFER_SIZE"] = "5000"  # more than the steps of a case call
STEADY = 4  # the optimizer step that is looked at: ZeRO-3 knows the order of modules from its third on


def recorded() -> list[dict[str, Any]]:
    """The flight recorder's entries, oldest first."""
    import torch

    dump = pickle.loads(torch._C._distributed_c10d._dump_fr_trace(includeStackTraces=False))
    return sorted(dump.get("entries", []), key=lambda entry: entry["record_id"])


def size(entry: dict[str, Any], side: str) -> int:
    """Bytes of the tensors of a call."""
    import torch

    names = {
        "Float": torch.float32, "BFloat16": torch.bfloat16, "Half": torch.float16, "Double": torch.float64,
        "Long": torch.int64, "Int": torch.int32, "Byte": torch.uint8, "Bool": torch.bool,
    }  # fmt: skip
    return sum(
        math.prod(shape) * names[kind].itemsize
        for shape, kind in zip(entry[f"{side}_sizes"], entry[f"{side}_dtypes"], strict=True)
    )


def members() -> dict[str, int]:
    """Ranks of each process group, by its name."""
    from torch.distributed import distributed_c10d as c10d

    return {name: c10d.get_world_size(group) for group, name in c10d._world.pg_names.items()}


def calls(entries: list[dict[str, Any]]) -> list[tuple[str, int, int]]:
    """Operation, bytes, ranks."""
    found, ranks = [], members()
    for entry in entries:
        operation = entry["profiling_name"].partition(":")[2]
        side = "output" if operation == "all_gather" else "input"
        found.append((operation.replace("_", "-"), size(entry, side), ranks[entry["process_group"][0]]))
    return found


def context_of(folder: Path, case: dict[str, Any]) -> Any:
    from muster.core.batch import Batch
    from muster.core.recipe import recipe_from
    from muster.engines.base import spec_of
    from muster.worker.context import Context, Emitter

    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    recipe = recipe_from(case["recipe"])
    batch = Batch(1, case["accumulation"], case["accumulation"] * world_size)
    precision = case["precision"]
    return Context(
        recipe=recipe, batch=batch, precision=precision, device="cpu", base=folder, place=folder, shared=True,
        attempt=1, resume_step=None,
        engine_config=spec_of(recipe.engine.name).config(recipe, batch, precision),
        rank=rank, local_rank=rank, world_size=world_size, emit=Emitter(None, rank=rank, attempt=1),
    )  # fmt: skip


def forget() -> None:
    """Accelerate and Transformers keep the engine of the last trainer for the whole process."""
    from accelerate.state import AcceleratorState
    from transformers.integrations.deepspeed import unset_hf_deepspeed_config

    AcceleratorState._reset_state(True)
    unset_hf_deepspeed_config()
    for name in [name for name in os.environ if name.startswith(("ACCELERATE_", "FSDP_"))]:
        del os.environ[name]


def shard_on_cpus() -> None:
    """accelerate shards on GPUs alone: on CPUs, it takes FSDP's trainer for DDP's without a word."""
    import transformers
    from accelerate.state import DistributedType, PartialState

    ask = transformers.Trainer._build_accelerator_args

    def build(trainer: Any, **arguments: Any) -> Any:
        if arguments.get("fsdp_plugin") is not None:
            PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
        return ask(trainer, **arguments)

    transformers.Trainer._build_accelerator_args = build


def train(context: Any) -> dict[str, Any]:
    """A few steps as the worker does them. -> the calls of one of them, and the model's parameters."""
    from transformers import TrainerCallback

    from muster.worker.arguments import training_arguments
    from muster.worker.tracing.tracing import parameters_of
    from muster.workloads.causal_lm import train as causal_lm

    built = causal_lm.build(context, {**training_arguments(context), **context.engine.arguments(context)})
    marks: list[int] = []

    class Marks(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
            if state.global_step >= STEADY - 1:
                marks.append(recorded()[-1]["record_id"])

    parameters = [(p.name, list(p.shape), p.trained, p.unit) for p in parameters_of(built.trainer.model)]
    built.trainer.add_callback(Marks())
    built.trainer.train()
    first, last = marks
    step = [entry for entry in recorded() if first < entry["record_id"] <= last]
    return {"calls": calls(step), "parameters": parameters}


def main(folder: Path) -> None:
    import torch

    torch.set_num_threads(1)
    from muster.worker.engine import runtime_of

    asked = json.loads((folder / "asked.json").read_text())
    shard_on_cpus()
    found = {}
    for number, (name, case) in enumerate(asked.items()):
        context = context_of(folder, case)
        if number == 0:
            runtime_of("deepspeed").join(context)  # one group for all engines
        else:
            forget()
        found[name] = train(context)
    (folder / f"rank{os.environ['RANK']}.json").write_text(json.dumps(found))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
