"""A rank that makes models, one of them with little memory; with FOLDER as its argument.

FOLDER/asked.json: the engine, its ZeRO stage, and parts. A part: create (whole, sharded), config (fields of a
model's configuration), limit (bytes that this rank may add to what it holds, None: no limit), step (train
one). Each rank writes FOLDER/rankN.json: per part what it added at its peak while it made the model, the sum
of each weight's absolute values, and the loss of the step; or the error that ended the part.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def status(name: str) -> int:
    """A line of /proc/self/status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


@contextmanager
def limited(more: int | None) -> Iterator[None]:
    """At most so many more bytes of anonymous memory, whether it is touched or not."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if more is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (status("VmData") + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


def context_of(folder: Path, asked: dict[str, Any], create: str) -> Any:
    from muster.core.batch import Batch
    from muster.core.recipe import recipe_from
    from muster.engines.base import spec_of
    from muster.worker.context import Context, Emitter

    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    plain = {
        "workload": "causal-lm",
        "engine": {"name": asked["engine"], "zero": asked["zero"]},
        "model": {"init": "random", "create": create},
        "train": {"max_steps": 1},
    }
    recipe, batch = recipe_from(plain), Batch(1, 1, world_size)
    config = spec_of(recipe.engine.name).config(recipe, batch, "fp32")
    return Context(
        recipe=recipe, batch=batch, precision="fp32", device="cpu", base=folder, place=folder, shared=True,
        attempt=1, resume_step=None, engine_config=config,
        rank=rank, local_rank=rank, world_size=world_size, emit=Emitter(None, rank=rank, attempt=1),
    )  # fmt: skip


def train(context: Any, engine: Any, model: Any) -> float:
    """One optimizer step over one random sequence a rank, by Transformers' trainer. -> its loss."""
    import torch
    from transformers import Trainer, TrainingArguments

    from muster.worker.arguments import training_arguments

    rows = torch.randint(0, model.config.vocab_size, (64, 8), generator=torch.Generator().manual_seed(1))
    data = [{"input_ids": row, "labels": row} for row in rows]
    arguments = {**training_arguments(context), **engine.arguments(context), "logging_steps": 1}
    trainer = Trainer(model=model, args=TrainingArguments(**arguments), train_dataset=data)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return float(losses[0])


def part(context: Any, engine: Any, asked: dict[str, Any]) -> dict[str, Any]:
    import torch
    from transformers import (
        AutoConfig,
        AutoModelForCausalLM,
        AutoModelForImageClassification,
        AutoModelForSeq2SeqLM,
    )

    from muster.worker.models import create

    fields = dict(asked["config"])
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    text = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    kind = AutoModelForImageClassification if config.model_type == "vit" else text
    with torch.device("meta"):
        kind.from_config(config)  # all is imported now: what is added from here on is the model
    with limited(asked["limit"]):
        Path("/proc/self/clear_refs").write_text("5")  # the peak of resident memory starts anew
        before = status("VmRSS")
        model = create(context, lambda: kind.from_config(config, dtype=torch.float32))
        said: dict[str, Any] = {"added": status("VmHWM") - before}
    sums = {}
    for name, parameter in model.named_parameters():
        with engine.gathered(parameter):
            sums[name] = parameter.detach().double().abs().sum().item()
    said |= {"sums": sums, "next": float(torch.rand(1))}
    if asked["step"]:
        said["loss"] = train(context, engine, model)
    return said


def main(folder: Path) -> None:
    from muster.worker.engine import runtime_of

    asked = json.loads((folder / "asked.json").read_text())
    engine = runtime_of(asked["engine"])
    engine.join(context_of(folder, asked, "whole"))
    told = []
    for each in asked["parts"]:
        try:
            told.append(part(context_of(folder, asked, each["create"]), engine, each))
        except (RuntimeError, MemoryError) as error:
            told.append({"error": str(error)})
        (folder / f"rank{os.environ['RANK']}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
