"""DeepSpeed ZeRO 0 to 3, with offload, from the JSON that the control side wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from muster.core.errors import RecipeError
from muster.core.zero import user_training
from muster.store import events
from muster.worker.context import Context
from muster.worker.together import PATIENCE, backend

_NAMES = {
    "learning_rate": "learning_rate",
    "beta1": "adam_beta1",
    "beta2": "adam_beta2",
    "epsilon": "adam_epsilon",
    "weight_decay": "weight_decay",
    "clip": "max_grad_norm",
    "warmup": "warmup_steps",
}  # fields of the recipe's `train` -> TrainingArguments


def join(context: Context) -> None:
    """The ranks meet, also where there is only one: DeepSpeed wants a group."""
    try:
        import deepspeed
    except ImportError as error:
        raise RecipeError(
            f"DeepSpeed cannot be imported: {error}",
            where="engine.name",
            hint="pip install 'passmuster[train]'",
        ) from None
    if context.device == "cpu":
        # Its shared-memory all-reduce is compiled at the first start (most of a minute, and a C++ compiler),
        # and
        # takes pretend hosts for one machine; gloo is there already.
        compatible = getattr(deepspeed.ops, "__compatible_ops__", {})
        compatible["deepspeed_shm_comm"] = False
    _tell_compiling(context)
    deepspeed.init_distributed(dist_backend=backend(context), verbose=False, timeout=PATIENCE)


def _tell_compiling(context: Context) -> None:
    """Say so when an operator is compiled, at its first use on this machine: everything waits for it."""
    from deepspeed.ops.op_builder.builder import OpBuilder
    from torch.utils import cpp_extension

    load = OpBuilder.jit_load

    def told(self: Any, *given: Any, **named: Any) -> Any:
        if Path(cpp_extension._get_build_directory(self.name, False), f"{self.name}.so").exists():
            return load(self, *given, **named)
        context.emit(events.Phase, name="compile", what=self.name)
        try:
            return load(self, *given, **named)
        finally:
            context.emit(events.Phase, name="compiled", what=self.name)

    OpBuilder.jit_load = told


def arguments(context: Context) -> dict[str, Any]:
    """TrainingArguments for DeepSpeed."""
    config = dict(context.deepspeed or {})
    if not context.shared:
        config["checkpoint"] = {**config.get("checkpoint", {}), "use_node_local_storage": True}
    # What a user's file or options fix wins; Transformers wants its own arguments to say the same.
    fixed = user_training(config)
    arguments: dict[str, Any] = {"deepspeed": config, **{_NAMES[name]: fixed[name] for name in fixed}}
    if "scheduler" in config:
        arguments["lr_scheduler_type"] = "linear"  # Transformers wants one; DeepSpeed's own is used
    return arguments
