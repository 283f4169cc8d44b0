"""What Muster costs: its instruments on and off, its start beside bare torchrun, and whether a step waits for
the device.
"""

from __future__ import annotations

import os
import socket
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.gpu.jobs import PLAIN, Failed
from benchmarks.gpu.kit import ROOT, Figures, Machine, NotApplicable, Piece

INSTRUMENTS = 0.01  # of a step, at most
ROUNDS = 12
WINDOW = 10  # steps
STEPS = 60
SYNCED = {
    "text2sql": ("demo", ["data.generated={train: 800, validation: 16, seed: 1}", "batch.micro=16"]),
    "causal-lm": (
        "opt-benchmark",
        ["model.name=opt-125m", "data.sequence=512", "train.learning_rate=1e-4", "batch.micro=8",
         "batch.tokens=null", "batch.global=null", "batch.accumulation=1",
         "train.gradient_checkpointing=false"],
    ),
}  # fmt: skip


def pieces() -> list[Piece]:
    """Waits by workload, instruments by workload, the start."""
    return [
        *(Piece("cost", f"sync-{name}", 120, _sync(name), 35) for name in SYNCED),
        *(Piece("cost", f"instruments-{name}", 150, _instruments(name), 75,
                parts=("*", "benchmarks/overhead.py"))
          for name in ("text2sql", "gpt2-124m", "digits")),
        Piece("cost", "start", 240, start, 150, parts=("*", "benchmarks/job_start.py")),
    ]  # fmt: skip


def _instruments(name: str) -> Callable[[Machine], Figures]:
    def run(machine: Machine) -> Figures:
        """The same trainer with the instruments and without, in turn, each in a process."""
        _beside()
        from overhead import ON_GPUS, measure

        if machine.tiny and name in ON_GPUS:
            raise NotApplicable("its model is too large for a CPU")
        kind = ("cuda", "bf16") if machine.device == "cuda" else ("cpu", "fp32")
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        rounds = 2 if machine.tiny else ROUNDS
        found = measure(name, rounds, Path("overhead").resolve(), ("trainer", "muster"), kind)
        cost = 1 / found["muster_to_trainer"]["median"] - 1
        return {
            **found, "rounds": rounds, "precision": kind[1], "cost": cost,
            "bars": {"cost": {"bar": INSTRUMENTS, "found": cost, "met": cost <= INSTRUMENTS}},
        }  # fmt: skip

    return run


def start(machine: Machine) -> Figures:
    """A whole job of two steps of one rank, beside torchrun with a script of twenty lines."""
    _beside()
    from job_start import measure

    found = measure(2 if machine.tiny else 5, 1, machine.device)
    ratio = found["clock"]["ratio"]["median"]
    return {**found, "bars": {"ratio": {"bar": 1.0, "found": ratio, "met": ratio <= 1.0}}}


def _beside() -> None:
    """The scripts of benchmarks/, which import each other by bare names."""
    folder = str(ROOT / "benchmarks")
    if folder not in sys.path:
        sys.path.append(folder)


# ----------------------------------------------------------------------------------------------------


class Watch:
    """Counts what makes the host wait for the device: operations that PyTorch warns of, and
    torch.cuda.synchronize. Steps beside a window's end are left out: there the meter waits on purpose, and
    the trainer logs. So is the first window."""

    def __init__(self, device: str) -> None:
        self.cuda = device == "cuda"
        self.step = 1
        self.waits = 0
        self.places: Counter[str] = Counter()
        self.steps: set[int] = set()

    def begin(self, done: int) -> None:
        """That many steps are done."""
        self.step = done + 1
        if self.watched():
            self.steps.add(self.step)

    def watched(self) -> bool:
        """Whether this step counts."""
        return self.step > WINDOW and self.step % WINDOW not in (0, 1)

    def wait(self) -> None:
        """Something waits, here."""
        if self.watched():
            self.waits += 1
            frames = [each for each in traceback.extract_stack() if each.filename != __file__]
            self.places[" < ".join(f"{Path(f.filename).name}:{f.lineno}" for f in frames[:-5:-1])] += 1

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Inside, waits are counted."""
        import torch

        original = torch.cuda.synchronize

        def synchronize(*given: Any, **named: Any) -> None:
            self.wait()
            original(*given, **named)

        def show(message: Warning | str, *_: Any, **__: Any) -> None:
            if "synchronizing CUDA operation" in str(message):
                self.wait()

        with warnings.catch_warnings(), mock.patch.object(torch.cuda, "synchronize", synchronize):
            warnings.simplefilter("always")
            warnings.showwarning = show
            if self.cuda:
                torch.cuda.set_sync_debug_mode("warn")
            try:
                yield
            finally:
                if self.cuda:
                    torch.cuda.set_sync_debug_mode("default")


def waits(device: str, precision: str, source: str, overrides: list[str], folder: Path) -> Watch:
    """Train as a rank does, in this process, watched. Raises Failed."""
    from transformers import TrainerCallback

    from muster.inputs.read import read_inputs
    from muster.worker import main
    from muster.worker.instruments import attach

    words = [*PLAIN, "engine.name=ddp", "engine.zero=0", f"train.max_steps={STEPS}", *overrides]
    words += [f"measure={{window: {WINDOW}, warmup: {WINDOW}}}", f"precision={precision}"]
    recipe = read_inputs(source, "local:1", words).recipe
    micro = recipe.batch.micro
    job = {
        "recipe": recipe.as_dict(), "batch": {"micro": micro, "accumulation": 1, "global": micro},
        "precision": precision, "device": device, "attempt": 1, "resume_step": None,
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    port = socket.create_server(("127.0.0.1", 0))
    os.environ |= {
        "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port.getsockname()[1]),
        "MUSTER_RENDEZVOUS": str(port.detach()),  # open, as from an agent
    }  # fmt: skip
    watch, instrument = Watch(device), attach.attach_instruments

    class Steps(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            watch.begin(state.global_step)

    def instrumented(context: Any, built: Any) -> Any:
        made = instrument(context, built)
        built.trainer.add_callback(Steps())
        return made

    with mock.patch.object(attach, "attach_instruments", instrumented), watch.watching():
        code = main.run({"job": job, "place": str(folder), "base": str(folder), "shared": True})
    if code:
        raise Failed((folder / "rank0.events.jsonl").read_text()[-4000:])
    return watch


def _sync(name: str) -> Callable[[Machine], Figures]:
    def run(machine: Machine) -> Figures:
        """How often the host waits for the device within a step."""
        machine.needs_cuda()
        watch = waits("cuda", "bf16", *SYNCED[name], folder=Path("rank").resolve())
        each = watch.waits / len(watch.steps)
        return {
            "steps": len(watch.steps), "waits": watch.waits, "per_step": each,
            "places": dict(watch.places.most_common(10)),
            "bars": {"per_step": {"bar": 0, "found": each, "met": watch.waits == 0}},
        }  # fmt: skip

    return run
