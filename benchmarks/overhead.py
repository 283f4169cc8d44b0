"""What Muster costs beside a bare training loop of the same model on the same batches.

    .venv/bin/python benchmarks/overhead.py [--steps 100] [--rounds 5] [WORKLOAD ...]

One process, the CPU. Three ways, in turn, several rounds, so that a machine that is busy is busy for all:
  bare       a loop of one's own: forward, loss, backward, clip, AdamW, schedule; no Muster, no Trainer
  trainer    Transformers' Trainer as the workload builds it, without Muster's instruments
  muster     the same with all instruments
Steps per second are of the steps after the first window of each round: at its end the model's operations
are counted, once in a run (the result's flops.counting_seconds). A ratio is the median of the rounds'
ratios. Writes benchmarks/results/overhead.json.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hardware import processor

RESULTS = Path(__file__).parent / "results"
SKIPPED = 22  # steps at the beginning of a round: a window of 20 at the most, and what follows it

WORKLOADS: dict[str, tuple[str, list[str]]] = {
    "text2sql": ("demo", ["data.generated.train=2000", "data.generated.validation=16"]),
    "causal-lm": (
        "causal-lm",
        [
            "model.name=gpt2-micro",
            "model.config=null",
            "data.synthetic={}",
            "data.library=null",
            "batch.micro=4",
        ],
    ),
    "image-classification": ("digits", []),
}


def context_of(name: str, steps: int, folder: Path) -> Any:
    """A rank's view of a job of one process, as the agent would give it."""
    from muster.core.batch import resolve_batch
    from muster.stages.inputs import read_inputs
    from muster.worker.context import Context, Emitter

    source, overrides = WORKLOADS[name]
    common = [
        "engine.name=ddp", "engine.zero=0", f"train.max_steps={steps}", "evaluate.after=false",
        "evaluate.every=null", "checkpoint.every=null", "precision=fp32",
    ]  # fmt: skip
    recipe = read_inputs(source, "local:1", [*overrides, *common]).recipe
    folder.mkdir(parents=True, exist_ok=True)
    return Context(
        recipe=recipe,
        batch=resolve_batch(recipe.batch.micro, 1, None, world_size=1),
        precision="fp32",
        device="cpu",
        base=folder,
        place=folder,
        shared=True,
        attempt=1,
        resume_step=None,
        deepspeed=None,
        rank=0,
        local_rank=0,
        world_size=1,
        emit=Emitter(folder / "rank0.events.jsonl", rank=0, attempt=1),
    )


def built(name: str, steps: int, folder: Path) -> tuple[Any, Any]:
    """The workload's trainer, fresh, and its context."""
    from muster.core.registry import load_plugin
    from muster.worker.arguments import training_arguments
    from muster.worker.main import prepare_process

    context = context_of(name, steps, folder)
    prepare_process(context)
    workload = load_plugin("muster.worker.workloads", name)
    return context, workload.build(context, training_arguments(context))


def stamps() -> Any:
    """A callback that notes when steps end."""
    from transformers import TrainerCallback

    class Stamps(TrainerCallback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.times: list[float] = []

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.times.append(time.perf_counter())

    return Stamps()


def rate(times: list[float]) -> float:
    """Steps per second after the first ones."""
    kept = times[SKIPPED:]
    return (len(kept) - 1) / (kept[-1] - kept[0])


def by_trainer(name: str, steps: int, folder: Path, *, instruments: bool) -> float:
    """Steps per second of the workload's trainer."""
    context, made = built(name, steps, folder)
    if instruments:
        from muster.worker.main import _instrument

        _instrument(context, made)
    marks = stamps()
    made.trainer.add_callback(marks)
    made.trainer.train()
    return rate(marks.times)


def by_hand(name: str, steps: int, folder: Path) -> float:
    """Steps per second of a plain loop over the same batches in the same order."""
    import torch
    from transformers import get_scheduler

    context, made = built(name, steps, folder)
    trainer, train = made.trainer, context.recipe.train
    sampler = trainer._get_train_sampler(trainer.train_dataset)
    loader = torch.utils.data.DataLoader(
        trainer.train_dataset,
        batch_size=context.batch.micro,
        sampler=sampler,
        collate_fn=trainer.data_collator,
        num_workers=train.workers,
    )
    model = trainer.model.train()
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=train.learning_rate,
        betas=(train.beta1, train.beta2),
        eps=train.epsilon,
        weight_decay=train.weight_decay,
        fused=True,  # as the trainer's
    )
    schedule = get_scheduler(train.schedule, optimizer, int(train.warmup), steps)
    times = []
    for batch in itertools.islice(_cycle(loader), steps):
        labels = batch["labels"]
        inputs = {key: value for key, value in batch.items() if key != "labels"}
        loss = made.trainer.compute_loss_func(model(**inputs), labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), train.clip)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        times.append(time.perf_counter())
    return rate(times)


def _cycle(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def measure(name: str, steps: int, rounds: int, folder: Path) -> dict[str, Any]:
    """All three ways, in turn."""
    ways = {
        "bare": lambda at: by_hand(name, steps, at),
        "trainer": lambda at: by_trainer(name, steps, at, instruments=False),
        "muster": lambda at: by_trainer(name, steps, at, instruments=True),
    }
    rates: dict[str, list[float]] = {way: [] for way in ways}
    order = list(ways)
    for index in range(rounds):
        for way in order[index % 3 :] + order[: index % 3]:
            rates[way].append(ways[way](folder / f"{index}-{way}"))
            gc.collect()
    return {
        "steps_per_second": {way: round(statistics.median(found), 3) for way, found in rates.items()},
        "spread": {way: [round(min(found), 3), round(max(found), 3)] for way, found in rates.items()},
        "muster_to_bare": _ratio(rates["muster"], rates["bare"]),
        "muster_to_trainer": _ratio(rates["muster"], rates["trainer"]),
        "trainer_to_bare": _ratio(rates["trainer"], rates["bare"]),
    }


def _ratio(above: list[float], below: list[float]) -> dict[str, float]:
    ratios = [a / b for a, b in zip(above, below, strict=True)]
    return {
        "median": round(statistics.median(ratios), 4),
        "min": round(min(ratios), 4),
        "max": round(max(ratios), 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workloads", nargs="*", help=", ".join(WORKLOADS))
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", str(os.cpu_count() or 1))
    table: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in asked.workloads or WORKLOADS:
            table[name] = measure(name, asked.steps, asked.rounds, Path(folder) / name)
            print(name, json.dumps(table[name], indent=2), flush=True)
    file = RESULTS / "overhead.json"
    before = json.loads(file.read_text())["workloads"] if file.exists() else {}
    document = {
        "command": f"benchmarks/overhead.py --steps {asked.steps} --rounds {asked.rounds}",
        "hardware": f"{os.cpu_count()} cores, {processor()}",
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("torch", "transformers", "accelerate")},
        },
        "load_before": round(os.getloadavg()[2], 2),
        "workloads": {**before, **table},
    }
    RESULTS.mkdir(exist_ok=True)
    file.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
