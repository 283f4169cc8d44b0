"""No engine's step, and no held-out batch, makes the host wait for the device, but in the engine's code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import needs_torch, run, with_ranks

pytestmark = [pytest.mark.real, pytest.mark.timeout(280)]

ROOT = Path(__file__).resolve().parents[2]
STEPS = 6
CASES: dict[str, list[str]] = {
    "uneven": ["engine.name=ddp", "engine.zero=0", "batch.split=[5,3]"],
    "fsdp": ["engine.name=fsdp", "engine.zero=0"],
    "zero2": ["engine.name=deepspeed", "engine.zero=2", "precision=bf16"],
}
# DeepSpeed asks in every step whether gradients overflowed, also in bf16, and clips by what it reads.
OWN = {"zero2": ("runtime/zero/", "deepspeed/runtime/")}
# Of each epoch: the seed that ranks share. Of each evaluation: the mean of its losses.
APART = ("accelerate/data_loader.py", "transformers/trainer_pt_utils.py", "muster/worker/heldout.py")


@pytest.mark.parametrize("case", CASES)
def test_no_step_waits_for_the_device(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But the one behind a window's end, which reads the window's figures."""
    needs_torch()
    with_ranks(monkeypatch, "tests.real.waiting_worker")
    (places := tmp_path / "places").mkdir()
    settings: list[str] = [f"env.PYTHONPATH={ROOT}", f"env.WAITS={places}", "evaluate.every=4"]
    settings += [f"train.max_steps={STEPS}", f"measure.window={STEPS}", "measure.warmup=0", "train.warmup=0"]
    _, result = run(tmp_path / "run", "local:2x1", *settings, *CASES[case], "batch.micro=4")
    assert result.status == "succeeded", result.failure
    for rank in (0, 1):
        lines = (places / f"{rank}.jsonl").read_text().splitlines()
        found: list[tuple[str, list[str]]] = [tuple(json.loads(line)) for line in lines]
        kinds = [what for what, _ in found]
        assert kinds.count("step") == STEPS and kinds[4] == "held out"
        own: Any = (*APART, *OWN.get(case, ()))
        read = [[each for each in there if not any(part in each for part in own)] for _, there in found]
        assert read[1:6] == [[]] * 5
        assert all(place.startswith("tolist muster/worker/later.py") for place in read[6])
