"""PyTorch FSDP2: parameters, gradients and optimizer states are sharded over the ranks."""

from __future__ import annotations

from typing import Any

from accelerate.parallelism_config import ParallelismConfig
from accelerate.state import AcceleratorState, DistributedType, PartialState
from torch import nn

from muster.core.errors import WorkerError
from muster.worker.context import Context
from muster.worker.engine import EngineRuntime
from muster.worker.together import backend, join_group


class FsdpRuntime(EngineRuntime):
    """Let accelerate shard with FSDP2."""

    def join(self, context: Context) -> None:
        """Meet the other ranks; what is offloaded to host memory is reduced there, over gloo."""
        offloads = context.recipe.engine.offload != "none" and context.device == "cuda"
        join_group(context, "cpu:gloo,cuda:nccl" if offloads else backend(context))

    def arguments(self, context: Context) -> dict[str, Any]:
        """Return TrainingArguments for FSDP2; the model's own transformer blocks are the units (its
        _no_split_modules)."""
        engine = context.recipe.engine
        if not context.grouped:
            return {}  # nothing to shard over: one rank holds everything
        config = {
            "version": 2,
            "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "state_dict_type": "FULL_STATE_DICT",
            "reshard_after_forward": True,
            # On a CPU it is there already.
            "cpu_offload": engine.offload == "optimizer+param" and context.device == "cuda",
            "cpu_ram_efficient_loading": context.recipe.model.create == "sharded",
            "activation_checkpointing": context.recipe.train.checkpointing,
        }
        arguments: dict[str, Any] = {
            "fsdp": True,
            "fsdp_config": config,
            "ddp_backend": backend(context),
            "gradient_checkpointing": False,  # FSDP's own, above
        }
        if engine.group and engine.group < context.world_size:
            apart = context.world_size // engine.group
            arguments["parallelism_config"] = ParallelismConfig(
                dp_replicate_size=apart, dp_shard_size=engine.group
            )
        if engine.sync_each_batch is True:  # open: micro-batches do not accumulate
            each = {"gradient_accumulation_kwargs": {"sync_each_batch": True}}
            arguments["accelerator_config"] = each
        return arguments

    def before_trainer(self) -> None:
        """Shard on CPUs as well: accelerate 1.15 (state.py, AcceleratorState) looks for FSDP's plugin under
        MULTI_GPU alone, and would train with DDP without a word."""
        if PartialState().distributed_type == DistributedType.MULTI_CPU:
            PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU

    def adapt(self, model: Any) -> None:
        """Make a model one that accelerate can shard. Raises WorkerError where accelerate would not.

        Modules with one and the same weight become one and the same module (T5's embeddings of both
        stacks): a shared parameter may be visible to one FSDP group alone (torch 2.13), and accelerate 1.15
        groups the input and the output embeddings, not others that are tied to them. States have each of
        them once, since torch's distributed checkpoints visit a module by its first name only.
        """
        made = AcceleratorState().distributed_type
        if made != DistributedType.FSDP:
            raise WorkerError(f"accelerate chose {made} where FSDP was asked for", where="engine.name")
        whole: Any = model.get_input_embeddings() if hasattr(model, "get_input_embeddings") else None
        _part(model, whole)
        if not isinstance(whole, nn.Embedding):
            return
        twins = []
        for path, module in list(model.named_modules()):
            for name, child in module.named_children():
                if child is not whole and type(child) is type(whole) and child.weight is whole.weight:
                    setattr(module, name, whole)
                    twins.append(f"{path}.{name}.weight".lstrip("."))
        if not twins:
            return
        first = next(f"{name}.weight" for name, module in model.named_modules() if module is whole)
        twins = [name for name in twins if name != first]

        def leave_out(module: Any, state: Any, prefix: str, metadata: Any) -> None:
            for name in twins:
                state.pop(f"{prefix}{name}", None)

        def put_in(module: Any, state: Any, prefix: str, *rest: Any) -> None:
            for name in twins:
                if f"{prefix}{first}" in state:
                    state.setdefault(f"{prefix}{name}", state[f"{prefix}{first}"])

        model.register_state_dict_post_hook(leave_out)
        model.register_load_state_dict_pre_hook(put_in)


def _part(model: Any, embeddings: Any) -> None:
    """Take units that hold the input embeddings (as ViTEmbeddings does) off the model's list: accelerate 1.15
    shards the embeddings by themselves, after the units, and a parameter can be sharded once."""
    units = getattr(model, "_no_split_modules", None)
    if units and embeddings is not None:
        holders = {
            type(module).__name__
            for module in model.modules()
            if module is not embeddings and embeddings in module.modules()
        }
        model._no_split_modules = [name for name in units if name not in holders]


RUNTIME = FsdpRuntime
