"""Runs of Muster for the pieces: by its command line, as a user starts them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.kit import ROOT, Machine, joined

TAIL = 4_000  # characters of each log of a failed run
MUSTER = (sys.executable, "-m", "muster")
PLAIN = (
    "evaluate.after=false", "evaluate.every=null", "checkpoint.model=false", "checkpoint.every=null",
    "train.max_minutes=null",
)  # fmt: skip


class Failed(Exception):
    """A command that should have succeeded; the text holds all of what it said."""


def muster(*words: str, okay: Sequence[int] = (0,)) -> str:
    """A verb's standard output. Raises Failed where it exits otherwise than `okay`."""
    return _output([*MUSTER, *words], okay)


def _output(argv: Sequence[str], okay: Sequence[int] = (0,), env: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, env=env)
    if done.returncode not in okay:
        raise Failed(f"{' '.join(argv[1:])}\nexit code {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def training(machine: Machine, name: str, recipe: str, *overrides: str) -> list[str]:
    """The command of a run of one rank, in the piece's folder."""
    device = [f"launch.device={machine.device}", *(["launch.threads=1"] if machine.device == "cpu" else [])]
    return [*MUSTER, "train", recipe, "--hosts", "local:1", "--name", name, *overrides, *device]


def in_turn(environment: Mapping[str, str]) -> list[str]:
    """Overrides of a run whose rank waits for its turn (Machine.turn). It makes no progress meanwhile."""
    return ["hang.seconds=off", *(f"env.{key}={value}" for key, value in environment.items())]


def train(machine: Machine, name: str, recipe: str, *overrides: str) -> dict[str, Any]:
    """result.json of that run. Raises Failed with the ends of its logs."""
    try:
        _output(training(machine, name, recipe, *overrides))
    except Failed as error:
        raise Failed(f"{error}\n{logs(Path('runs') / name)}") from None
    return result(name)


def peer(
    name: str,
    work: Mapping[str, Any],
    module: str = "benchmarks.gpu.peers",
    env: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """What a run of a peer (peers.py) came to. `module`: whose command line starts it."""
    told = Path("peer.json")
    argv = [sys.executable, "-m", module, name, str(told), json.dumps(work)]
    threads = {"OMP_NUM_THREADS": "1"} if work["device"] == "cpu" else {}  # as Muster's
    _output(argv, env=environment({**threads, **(env or {})}))
    found: dict[str, Any] = json.loads(told.read_text())
    return found


def environment(more: Mapping[str, str]) -> dict[str, str]:
    """Of a process that imports this checkout, with `more` over this one's."""
    whole = {**os.environ, **more}
    return {**whole, "PYTHONPATH": joined(str(ROOT / "src"), str(ROOT), whole.get("PYTHONPATH"))}


def result(name: str) -> dict[str, Any]:
    """result.json of a run of this piece."""
    found: dict[str, Any] = json.loads((Path("runs") / name / "result.json").read_text())
    return found


def logs(run: Path) -> str:
    """The end of each log."""
    files = sorted(file for file in run.rglob("*.log") if file.is_file())
    return "\n".join(f"==> {file}\n{file.read_text(errors='replace')[-TAIL:]}" for file in files)


def events(name: str) -> list[dict[str, Any]]:
    """A run's events, as they were written."""
    lines = (Path("runs") / name / "events.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines if line]


def shape(machine: Machine, model: str, sequence: int) -> list[str]:
    """Overrides of the OPT benchmark: the model, or one of 8 M parameters where this is the tiny kit."""
    if not machine.tiny:
        return [f"model.name={model}", f"data.sequence={sequence}"]
    return ["model.name=opt-8m", "data.sequence=64", "model.config.vocab_size=1000"]
