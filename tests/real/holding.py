"""Ranks that train two steps and say which tensors they hold: `python -m tests.real.holding FOLDER`.

FOLDER/asked.json: cases, each with a name, a recipe, a precision, and `ranks`; with `rank`, that one alone
runs, and torch's fake process group plays the others. `traced`: a trace of the model as well. Everything is
imported once; the ranks of a case are forks of this process. Each writes FOLDER/NAME.rankN.json: bytes by
what they are for, before and after the last optimizer step, all bytes between its micro-batches, and the
most that was alive in the passes before it and during it; of several steps after the first, the least of
these: a thread of gloo may hold what a rank has let go, for as long as a busy machine keeps it from running.
"""

from __future__ import annotations

import functools
import gc
import hashlib
import importlib
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import torch

from muster.core.batch import Batch
from muster.core.recipe import recipe_from
from muster.core.registry import load_plugin
from muster.core.trace import TraceRequest, to_json
from muster.engines.base import merged, spec_of
from muster.worker.arguments import training_arguments
from muster.worker.context import Context, Emitter
from muster.worker.tracing.tracing import parameters_of, trace
from tests.ports import free_port
from tests.real.accounts import Peak, every_tensor, kinds, storages

# What ranks import sooner or later: most of the time that a case would take.
USED = (
    "deepspeed.runtime.zero.muon.muon_optimizer", "deepspeed.runtime.zero.stage3", "peft",
    "deepspeed.runtime.zero.stage_1_and_2", "torch.distributed.fsdp", "accelerate.utils.fsdp_utils",
    "deepspeed.runtime.engine", "deepspeed.module_inject.auto_ep_layer", "torch.utils.cpp_extension",
    "torch.profiler", "cpuinfo",
    "transformers.trainer", "transformers.models.opt.modeling_opt", "transformers.models.auto.modeling_auto",
    "transformers.integrations.deepspeed", "muster.workloads.causal_lm.train",
    "muster.engines.deepspeed.runtime", "torch._dynamo", "torch.testing._internal.distributed.fake_pg",
)  # fmt: skip


def context_of(folder: Path, asked: dict[str, Any], rank: int) -> Context:
    recipe, ranks = merged(recipe_from(asked["recipe"])), asked["ranks"]
    micro, accumulation = recipe.batch.micro or 1, recipe.batch.accumulation or 1
    batch = Batch(micro, accumulation, ranks * micro * accumulation)
    config = spec_of(recipe.engine.name).config(recipe, batch, asked["precision"])
    return Context(
        recipe=recipe, batch=batch, precision=asked["precision"], device="cpu", base=folder, place=folder,
        shared=True, attempt=1, resume_step=None, engine_config=config, rank=rank, local_rank=rank,
        world_size=ranks, emit=Emitter(None, rank=rank, attempt=1),
    )  # fmt: skip


def join(context: Context, engine: Any, *, fake: bool) -> None:
    """As a rank does; or all alone."""
    if fake:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        torch.distributed.init_process_group(
            "fake", store=FakeStore(), rank=context.rank, world_size=context.world_size
        )
    if not fake or context.recipe.engine.name == "deepspeed":
        engine.join(context)


def watched(trainer: Any, told: dict[str, Any]) -> Any:
    """A callback that looks at all steps but the first: at the passes, the optimizer's step, and what there
    is before and after it."""
    from transformers import TrainerCallback

    def least(name: str, found: int) -> None:
        told[name] = min(found, told.get(name, found))

    class Watch(TrainerCallback):
        peak: Peak

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            found = trainer.deepspeed or trainer.optimizer
            found.step = self.look(found.step)
            inner = trainer.optimizer
            while hasattr(inner, "optimizer"):
                inner = inner.optimizer
            told["fused"] = bool(inner.defaults.get("fused"))

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step:
                gc.collect()
                self.peak = Peak(resized=bool(args.fsdp))
                self.peak.__enter__()

        def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step:
                gc.collect()
                least("between", sum(storages(every_tensor()).values()))

        def look(self, step: Any) -> Any:
            def looking(*args: Any, **kwargs: Any) -> Any:
                if not trainer.state.global_step:
                    return step(*args, **kwargs)
                self.peak.again()
                least("passes", self.peak.restart())
                told["before"] = kinds(trainer)
                self.peak.settle()
                self.peak.restart()
                done = step(*args, **kwargs)
                least("peak", self.peak.restart())
                return done

            return looking

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step > 1:
                self.peak.__exit__(None, None, None)
                gc.collect()
                told["after"] = kinds(trainer)

    return Watch()


def hold(folder: Path, asked: dict[str, Any], rank: int) -> dict[str, Any]:
    context = context_of(folder, asked, rank)
    engine = context.engine
    workload = load_plugin("muster.worker.workloads", context.recipe.workload, "train")
    join(context, engine, fake="rank" in asked)
    arguments = {**training_arguments(context), **engine.arguments(context)}
    told: dict[str, Any] = {}
    if asked.get("traced") and context.main:
        told["trace"] = traced(context, folder)
    trainer = workload.build(context, arguments).trainer
    units = {each.name: each.unit for each in parameters_of(trainer.model)}
    told["parameters"] = [
        {
            "name": name,
            "shape": list(getattr(each, "ds_shape", each.shape)),
            "trained": each.requires_grad,
            "unit": units[name],
        }
        for name, each in trainer.model.named_parameters()
    ]
    told["buffers"] = sum(each.nbytes for each in trainer.model.buffers())
    if context.world_size > 1:
        engine.adapt(trainer.model)
    trainer.add_callback(watched(trainer, told))
    trainer.train()
    return told


def traced(context: Context, folder: Path) -> dict[str, Any]:
    """A trace of the recipe's model, for this engine's arithmetic; once for all cases that ask for it."""
    recipe = context.recipe
    half = "autocast" if recipe.engine.name == "ddp" and not recipe.computes_half else "half"
    request = TraceRequest(
        workload=recipe.workload,
        config=recipe.model.config or {},
        tokens=recipe.data.sequence or 0,  # type: ignore[attr-defined]
        arithmetic="fp32" if context.precision == "fp32" else half,
        checkpointing=recipe.train.checkpointing,
    )
    kept = folder / f"trace-{hashlib.sha256(repr(request).encode()).hexdigest()}.json"
    if not kept.exists():
        kept.write_text(json.dumps(to_json(trace(request))))
    return dict(json.loads(kept.read_text()))


def start(folder: Path, asked: dict[str, Any], rank: int, port: int) -> int:
    """A fork that runs one rank. -> its process id"""
    process = os.fork()
    if process:
        return process
    ranks = asked["ranks"]
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip
    code = 1
    try:
        torch.manual_seed(1)
        told = hold(folder, asked, rank)
        (folder / f"{asked['name']}.rank{rank}.json").write_text(json.dumps(told))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main(folder: Path) -> int:
    for name in USED:
        importlib.import_module(name)
    importlib.import_module("deepspeed.ops").__compatible_ops__  # noqa: B018 (asks a compiler, once)
    numa = importlib.import_module("deepspeed.utils.numa")
    numa.get_numa_cores = functools.cache(numa.get_numa_cores)  # type: ignore[attr-defined]  # ZeRO-3 asks a hundred times, a program each
    numa.get_numa_cores()
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()  # what is there now is nobody's tensor, and is not to be looked through again
    failed = 0
    for asked in json.loads((folder / "asked.json").read_text()):
        port = free_port()
        ranks = [asked["rank"]] if "rank" in asked else range(asked["ranks"])
        children = [start(folder, asked, rank, port) for rank in ranks]
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        if any(codes):
            print(f"{asked['name']}: {codes}", file=sys.stderr)
            failed += 1
    return failed


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
