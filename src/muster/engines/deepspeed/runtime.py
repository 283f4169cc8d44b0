"""DeepSpeed ZeRO 0 to 3, with offload, from the JSON that the control side wrote."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, ClassVar

from muster.core.errors import RecipeError, WorkerError
from muster.engines.deepspeed.reading import section
from muster.store import events
from muster.store.atomic import write_text
from muster.store.sealed import MANIFEST
from muster.worker.context import Context
from muster.worker.engine import EngineRuntime
from muster.worker.together import PATIENCE, backend, barrier

_JOB_NAME = "DeepSpeedJobName"  # of a monitor's folder, where none is given
_RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class DeepSpeedRuntime(EngineRuntime):
    """Let DeepSpeed spread the model, as its JSON says."""

    shards_as_made: ClassVar[bool] = True

    def join(self, context: Context) -> None:
        """Meet the other ranks. DeepSpeed wants a group of one rank alone too. Raises RecipeError."""
        try:
            import deepspeed
        except ImportError as error:
            raise RecipeError(
                f"DeepSpeed cannot be imported: {error}",
                where="engine.name",
                hint="pip install deepspeed there, or `muster prepare`",
            ) from None
        if context.device == "cpu":
            # Its shared-memory all-reduce is compiled at the first start (most of a minute, and a C++
            # compiler), and takes pretend hosts for one machine; gloo is there already.
            compatible = getattr(deepspeed.ops, "__compatible_ops__", {})
            compatible["deepspeed_shm_comm"] = False
        _announce_compiling(context)
        deepspeed.init_distributed(dist_backend=backend(context), verbose=False, timeout=PATIENCE)

    def arguments(self, context: Context) -> dict[str, Any]:
        """Return TrainingArguments for DeepSpeed."""
        config = dict(context.engine_config or {})
        if not context.shared:
            config["checkpoint"] = {**config.get("checkpoint", {}), "use_node_local_storage": True}
        if recut(context, context.resumed):
            config["checkpoint"] = {**config.get("checkpoint", {}), "load_universal": True}
        arguments: dict[str, Any] = {"deepspeed": config}
        if "scheduler" in config:
            arguments["lr_scheduler_type"] = "linear"  # Transformers wants one; DeepSpeed's own is used
        return arguments

    @contextmanager
    def sharded(self, context: Context) -> Iterator[None]:
        """Let Transformers know inside that models are cut into shards (ZeRO-3), and how to draw weights."""
        from transformers.integrations import HfDeepSpeedConfig, deepspeed

        held = HfDeepSpeedConfig(context.engine_config)  # Transformers asks for it as long as it lives
        theirs = getattr(deepspeed, "initialize_weights_zero3", None)
        deepspeed.initialize_weights_zero3 = _draw_weights
        try:
            yield
        finally:
            deepspeed.initialize_weights_zero3 = theirs
            del held

    @contextmanager
    def gathered(self, parameter: Any) -> Iterator[bool]:
        """Gather a parameter inside; the first rank changes it for all."""
        if not hasattr(parameter, "ds_id"):
            yield True
            return
        with _gathered([parameter]) as mine:
            yield mine

    @contextmanager
    def readable(self, context: Context, checkpoint: Path) -> Iterator[Path]:
        """Yield the checkpoint as it is. One that was cut for another number of ranks becomes DeepSpeed's
        universal checkpoint, which the first rank makes beside it and removes afterwards."""
        if not recut(context, checkpoint):
            yield checkpoint
            return
        made = context.base / "universal" / checkpoint.name
        if context.main:
            _convert(checkpoint, made)
        barrier()
        try:
            yield made
        finally:
            if context.main:
                shutil.rmtree(made.parent, ignore_errors=True)

    def complete(self, folder: Path, model: Any) -> None:
        """Write the file `latest`, which DeepSpeed writes on rank 0 alone (0.19, runtime/engine.py)."""
        steps = sorted(path.name for path in folder.glob("global_step*"))
        if steps and not (folder / "latest").exists():
            write_text(folder / "latest", steps[-1])

    def skipped_steps(self, trainer: Any) -> int | None:
        """Count skipped steps as DeepSpeed does, those before a checkpoint included; None: no engine yet."""
        count: int | None = getattr(trainer.deepspeed, "skipped_steps", None)
        return count

    def written(self, context: Context) -> dict[str, Path]:
        """Name what DeepSpeed wrote by itself, in the rank's own folder -> the file or folder."""
        config, paths = context.engine_config or {}, {}
        profiler = section(config, "flops_profiler")
        if profiler.get("enabled") and profiler.get("output_file"):
            paths["flops_profiler"] = Path(profiler["output_file"])
        for key in ("tensorboard", "csv_monitor"):
            own = section(config, key)
            if own.get("enabled"):
                paths[key] = Path(own.get("output_path") or "") / (own.get("job_name") or _JOB_NAME)
        return {what: path.absolute() for what, path in paths.items() if path.exists()}


RUNTIME = DeepSpeedRuntime


def _draw_weights(model: Any) -> None:
    """Draw a model's first weights on the first rank, module by module; what has no weights, such as a table
    of positions, is made on every rank. A module's own function may change its children's weights too (GPT-2,
    T5), so these are gathered with its own: Transformers 5.17 left them out, and changed shards."""
    import torch
    from transformers import PreTrainedModel
    from transformers.initialization import guard_torch_init_functions

    foreign = model.is_remote_code()

    def draw(module: Any, by: Any) -> None:
        for child in module.children():
            draw(child, child._initialize_weights if isinstance(child, PreTrainedModel) else by)
        own = [child for child in module.children() if not isinstance(child, PreTrainedModel)]
        weights = [each for part in (module, *own) for each in part.parameters(recurse=False)]
        with _gathered(weights) if weights else nullcontext(True) as mine:
            if mine:
                by(module, foreign)

    with torch.no_grad(), guard_torch_init_functions():
        draw(model, model._initialize_weights)


@contextmanager
def _gathered(parameters: list[Any]) -> Iterator[bool]:
    """Gather parameters inside; True on the first rank, which changes them for all."""
    import deepspeed

    with deepspeed.zero.GatheredParameters(parameters, modifier_rank=0):
        yield deepspeed.comm.get_rank() == 0


def _announce_compiling(context: Context) -> None:
    """Emit when an operator is compiled, at its first use on this machine: everything waits for it.

    DeepSpeed has no callback for it, so its method is replaced (deepspeed 0.19, ops/op_builder/builder.py).
    """
    from deepspeed.ops.op_builder.builder import OpBuilder
    from torch.utils import cpp_extension

    load = OpBuilder.jit_load

    def announced(self: Any, *given: Any, **named: Any) -> Any:
        if Path(cpp_extension._get_build_directory(self.name, False), f"{self.name}.so").exists():
            return load(self, *given, **named)
        context.emit(events.Phase, name="compile", what=self.name)
        try:
            return load(self, *given, **named)
        finally:
            context.emit(events.Phase, name="compiled", what=self.name)

    OpBuilder.jit_load = announced


def recut(context: Context, checkpoint: Path | None) -> bool:
    """Return whether a checkpoint's optimizer states were cut for another number of ranks. On a disk of its
    own a host has its ranks' parts alone, and `muster resume` has refused other numbers of ranks."""
    if checkpoint is None or not context.shared:
        return False
    parts = list(checkpoint.glob("global_step*/*_optim_states.pt"))
    return bool(parts) and len(parts) != context.world_size


def _convert(checkpoint: Path, made: Path) -> None:
    """Write a checkpoint into the folder `made` as a universal one. Raises WorkerError."""
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True)
    for path in checkpoint.iterdir():
        if path.is_file() and path.name != MANIFEST:
            (made / path.name).symlink_to(path)
    tag = (checkpoint / "latest").read_text(encoding="utf-8").strip()
    argv = [sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", "--inject_missing_state"]
    argv += ["--input_folder", str(checkpoint / tag), "--output_folder", str(made / tag)]
    alone = {name: value for name, value in os.environ.items() if name not in _RANKS}
    done = subprocess.run(argv, env=alone, capture_output=True, text=True, check=False)
    if done.returncode:
        words = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise WorkerError(f"{checkpoint.name} cannot be cut for other ranks: {words}", where="deepspeed")
