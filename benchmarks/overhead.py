"""What Muster costs beside a bare training loop of the same model on the same batches.

    .venv/bin/python benchmarks/overhead.py [--rounds 40] [WORKLOAD ...]

One process on the CPU for each of three ways:
  bare       a loop of one's own: forward, loss, backward, clip, AdamW, schedule; no Muster, no Trainer
  trainer    Transformers' Trainer as the workload builds it, without Muster's instruments
  muster     the same with all instruments
All three are built, and then take turns of one window of steps each, in changing order, while the others
wait: what else the machine does falls on all alike. A round is a turn of each. The first rounds are left
out: there buffers grow and the model's operations are counted, once in a run (flops.counting_seconds of a
result). A ratio is the median of the rounds' ratios, with their quartiles. Writes
benchmarks/results/overhead.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from hardware import processor

RESULTS = Path(__file__).parent / "results"
WINDOW = 20  # steps of a turn, and of the meter's window: each turn of `muster` closes one
SKIPPED = 3  # rounds

WORKLOADS: dict[str, tuple[str, list[str]]] = {
    "text2sql": ("demo", ["data.generated.train=2000", "data.generated.validation=16"]),
    "causal-lm": (
        "causal-lm",
        ["data.synthetic={}", "data.library=null", "model.config.vocab_size=2048", "batch.micro=4"],
    ),
    # vit-cifar10's model, on images that come with Muster
    "image-classification": ("vit-cifar10", ["data.path=null", "data.digits={}"]),
    # steps of 4 ms: mostly what the Trainer does between them
    "digits": ("digits", []),
}
# By benchmarks/gpu/cost.py alone.
ON_GPUS: dict[str, tuple[str, list[str]]] = {
    "gpt2-124m": (
        "opt-benchmark",
        ["model.name=gpt2-small", "data.sequence=1024", "train.learning_rate=6e-4",
         "batch={micro: 16, global: null, accumulation: 1, tokens: null}",
         "train.gradient_checkpointing=false"],
    ),
}  # fmt: skip
WAYS = ("bare", "trainer", "muster")
CPU = ("cpu", "fp32")


def context_of(name: str, steps: int, folder: Path, device: str, precision: str) -> Any:
    """A rank's view of a job of one process, as the agent would give it."""
    from muster.core.batch import resolve_batch
    from muster.inputs.read import read_inputs
    from muster.worker.context import Context, Emitter

    source, overrides = {**WORKLOADS, **ON_GPUS}[name]
    common = [
        "engine.name=ddp", "engine.zero=0", f"train.max_steps={steps}", "evaluate.after=false",
        "evaluate.every=null", "checkpoint.every=null", f"precision={precision}", f"measure.window={WINDOW}",
        "train.max_minutes=null",
    ]  # fmt: skip
    recipe = read_inputs(source, "local:1", [*overrides, *common]).recipe
    folder.mkdir(parents=True, exist_ok=True)
    return Context(
        recipe=recipe,
        batch=resolve_batch(recipe.batch.micro, 1, recipe.batch.global_, world_size=1),
        precision=precision,
        device=device,
        base=folder,
        place=folder,
        shared=True,
        attempt=1,
        resume_step=None,
        engine_config=None,
        rank=0,
        local_rank=0,
        world_size=1,
        emit=Emitter(folder / "rank0.events.jsonl", rank=0, attempt=1),
    )


def built(name: str, steps: int, folder: Path, device: str, precision: str) -> tuple[Any, Any]:
    """The workload's trainer, fresh, and its context."""
    from muster.core.registry import load_plugin
    from muster.worker.arguments import training_arguments
    from muster.worker.main import prepare_process

    context = context_of(name, steps, folder, device, precision)
    prepare_process(context)
    workload = load_plugin("muster.worker.workloads", context.recipe.workload, "train")
    return context, workload.build(context, training_arguments(context))


class Turns:
    """Lets one process train a window of steps at a time, when the other end of `wire` says so."""

    def __init__(self, wire: Connection, device: str) -> None:
        self._wire = wire
        self._device = device
        self._steps = 0

    def begin(self) -> None:
        """Wait for the turn."""
        self._wire.recv()
        self._began = time.perf_counter()

    def step(self) -> None:
        """A step has ended; with the window's last, the turn is over."""
        self._steps += 1
        if self._steps % WINDOW == 0:
            if self._device == "cuda":
                import torch

                torch.cuda.synchronize()
            self._wire.send(time.perf_counter() - self._began)
            self.begin()


def by_trainer(context: Any, made: Any, turns: Turns, *, instruments: bool) -> None:
    """The workload's trainer."""
    from transformers import TrainerCallback

    if instruments:
        from muster.worker.instruments.attach import attach_instruments

        attach_instruments(context, made)

    class Marks(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == 0:
                turns.begin()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            turns.step()

    made.trainer.add_callback(Marks())
    made.trainer.train()


def by_hand(context: Any, made: Any, steps: int, turns: Turns) -> None:
    """A plain loop over the same batches in the same order; on CPUs."""
    import torch
    from transformers import get_scheduler

    trainer, train = made.trainer, context.recipe.train
    sampler = trainer._get_train_sampler(trainer.train_dataset)
    loader = torch.utils.data.DataLoader(
        trainer.train_dataset,
        batch_size=context.batch.micro,
        sampler=sampler,
        collate_fn=trainer.data_collator,
        num_workers=train.loaders,
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
    batches = itertools.islice(_cycle(loader), steps)
    for index, batch in enumerate(batches):
        if index == 0:
            turns.begin()
        if hasattr(trainer, "normalised"):  # images are bytes
            batch = trainer.normalised(batch)
        labels = batch["labels"]
        inputs = {key: value for key, value in batch.items() if key != "labels"}
        loss = trainer.compute_loss_func(model(**inputs), labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), train.clip)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        turns.step()


def _cycle(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def play(way: str, name: str, steps: int, folder: Path, wire: Connection, kind: tuple[str, str]) -> None:
    """What one of the processes does."""
    turns = Turns(wire, kind[0])
    context, made = built(name, steps, folder, *kind)
    try:
        if way == "bare":
            by_hand(context, made, steps, turns)
        else:
            by_trainer(context, made, turns, instruments=way == "muster")
    except EOFError:
        pass  # no more turns


def measure(
    name: str, rounds: int, folder: Path, ways: Sequence[str] = WAYS, kind: tuple[str, str] = CPU
) -> dict[str, Any]:
    """These ways, in turn. `kind`: device and precision."""
    start = multiprocessing.get_context("spawn")
    steps = (SKIPPED + rounds + 1) * WINDOW
    wires: dict[str, Connection] = {}
    processes = []
    for way in ways:
        wires[way], theirs = start.Pipe()
        process = start.Process(target=play, args=(way, name, steps, folder / way, theirs, kind), daemon=True)
        process.start()
        theirs.close()
        processes.append(process)
    seconds: dict[str, list[float]] = {way: [] for way in wires}
    order = list(wires)
    for index in range(SKIPPED + rounds):
        turn = index % len(order)
        for way in order[turn:] + order[:turn]:
            wires[way].send("go")
            seconds[way].append(wires[way].recv())
    for wire in wires.values():
        wire.close()
    for process in processes:
        process.join()
    kept = {way: found[SKIPPED:] for way, found in seconds.items()}
    found: dict[str, Any] = {
        "milliseconds_per_step": {way: _spread([1000 * s / WINDOW for s in kept[way]]) for way in kept}
    }
    for one, other in (("muster", "bare"), ("muster", "trainer"), ("trainer", "bare")):
        if {one, other} <= kept.keys():
            found[f"{one}_to_{other}"] = _ratio(kept[other], kept[one])
    return found


def _ratio(above: list[float], below: list[float]) -> dict[str, float]:
    """Of the steps per second: the other's seconds over one's own."""
    return _spread([a / b for a, b in zip(above, below, strict=True)])


def _spread(values: list[float]) -> dict[str, float]:
    low, middle, high = statistics.quantiles(values, n=4)
    return {"lower_quartile": round(low, 4), "median": round(middle, 4), "upper_quartile": round(high, 4)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workloads", nargs="*", help=", ".join(WORKLOADS))
    parser.add_argument("--rounds", type=int, default=40)
    asked = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", str(os.cpu_count() or 1))
    table: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in asked.workloads or WORKLOADS:
            table[name] = measure(name, asked.rounds, Path(folder) / name)
            print(name, json.dumps(table[name], indent=2), flush=True)
    file = RESULTS / "overhead.json"
    before = json.loads(file.read_text())["workloads"] if file.exists() else {}
    document = {
        "command": f"benchmarks/overhead.py --rounds {asked.rounds}",
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
