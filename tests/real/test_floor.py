"""A learning rate that falls to a floor, in real ranks of every engine, against the formula."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from muster.core.learning_rate import learning_rate
from muster.core.recipe import Train
from muster.store import events
from tests.support import needs_torch, run

pytestmark = [pytest.mark.real, pytest.mark.timeout(280)]

STEPS, WARMUP, RATE, FLOOR = 6, 2, 6e-4, 1.5e-4
# DeepSpeed makes the optimizer, and its file the rate. torch_adam: nothing has to be compiled.
OWN = {
    "optimizer": {"type": "AdamW", "params": {"lr": RATE / 2, "weight_decay": 0.0, "torch_adam": True}},
    "zero_optimization": {"stage": 3},
}
ENGINES = {
    "ddp": (["engine.name=ddp", "engine.zero=0"], RATE),
    "fsdp": (["engine.name=fsdp", "engine.zero=0"], RATE),
    "zero 2": (["engine.name=deepspeed", "engine.zero=2"], RATE),
    "zero 3, its own optimizer": (["engine.name=deepspeed", "engine.config=own.json"], RATE / 2),
}


@pytest.mark.parametrize("name", ENGINES)
def test_rates_are_the_formulas(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_torch()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.json").write_text(json.dumps(OWN))
    settings, rate = ENGINES[name]
    folder, result = run(
        tmp_path / "run", "local:2", f"train.max_steps={STEPS}", "train.schedule=cosine",
        f"train.warmup={WARMUP}", f"train.learning_rate={RATE}", f"train.min_learning_rate={FLOOR}",
        "measure.window=1", "batch.micro=4", "batch.global=8", *settings,
    )  # fmt: skip
    assert result.status == "succeeded", result.failure
    logs = sorted(
        (each for each in events.read_events(folder.events) if isinstance(each, events.Log)),
        key=lambda each: each.step,
    )
    train = Train(schedule="cosine", warmup=WARMUP, learning_rate=rate, min_learning_rate=FLOOR)
    wanted = [learning_rate(train, step, STEPS) for step in range(1, STEPS + 1)]
    assert [each.learning_rate for each in logs] == pytest.approx(wanted, rel=1e-6, abs=1e-12)
    assert not [note for note in result.notes if "learning rate" in note]
