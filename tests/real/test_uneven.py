"""Unequal micro-batches train as one process does: real ranks over gloo."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from muster.core.errors import RecipeError
from muster.inputs.read import read_inputs
from muster.runs.resume import resume
from muster.store import events
from muster.store.runfolder import RunFolder
from tests.support import TINY, gradient_norms, losses, needs_torch, run

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

STEPS = ["train.max_steps=8", "train.warmup=2", "measure.window=1", "measure.warmup=1"]
DDP = ["engine.name=ddp", "engine.zero=0"]
GLOBAL = 24


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """One process with the whole global batch."""
    needs_torch()
    done, result = run(
        tmp_path_factory.mktemp("one") / "run", "local:1", *STEPS, *DDP, f"batch.micro={GLOBAL}"
    )
    assert result.status == "succeeded", result.failure
    curve = losses(done)
    assert curve[-1] < curve[0] - 0.3  # it learns: equal curves are not equal for want of movement
    return done


def split_of(done: RunFolder) -> events.Split:
    """The last of a run's splits."""
    return [event for event in events.read_events(done.events) if isinstance(event, events.Split)][-1]


def follows(done: RunFolder, reference: RunFolder) -> None:
    """The losses of every step, and the gradients before clipping: Adam hides most of a factor."""
    assert len(gradient_norms(reference)) == len(losses(reference)) == 8
    assert gradient_norms(done) == pytest.approx(gradient_norms(reference), rel=1e-3)
    assert losses(done) == pytest.approx(losses(reference), rel=2e-4)


CASES = {
    "ddp": ("local:3x1", [1, 8, 3], ["batch.micro=4", *DDP]),
    "zero2": ("local:2x1", [9, 3], ["batch.micro=6", "engine.name=deepspeed", "engine.zero=2"]),
}


@pytest.mark.parametrize("case", CASES)
def test_given_shares_follow_one_process(case: str, reference: RunFolder, tmp_path: Path) -> None:
    """And every rank counts its own samples."""
    hosts, shares, overrides = CASES[case]
    overrides = [*overrides, "batch.accumulation=2", f"batch.split={json.dumps(shares)}"]
    done, result = run(tmp_path / "run", hosts, *STEPS, *overrides)
    assert result.status == "succeeded", result.failure
    follows(done, reference)
    assert result.samples == 8 * GLOBAL
    windows = [event for event in events.read_events(done.events) if isinstance(event, events.Window)]
    for rank, share in enumerate(shares):
        assert {w.samples for w in windows if w.rank == rank} == {2 * share}
    assert [host.share for host in result.hosts] == shares
    assert [host.speed for host in result.hosts] == [None] * len(shares)
    assert any("was split as the recipe says: local0" in note for note in result.notes)


def test_measured_shares_follow_one_process_and_resume(reference: RunFolder, tmp_path: Path) -> None:
    """Whatever the speeds are found to be, and found again when the run goes on from the middle."""
    settings = [*STEPS, *DDP, "batch.micro=12", "batch.split=measured"]
    settings += ["checkpoint.every=3", "checkpoint.keep=9"]
    done, result = run(tmp_path / "run", "local:2x1", *settings)
    assert result.status == "succeeded", result.failure
    split = split_of(done)
    assert sum(split.shares) == GLOBAL and min(split.shares) >= 1
    assert split.speeds is not None and len(split.speeds) == 2 and min(split.speeds) > 0
    assert [host.share for host in result.hosts] == split.shares
    assert any("was split by measured speed" in note for note in result.notes)
    follows(done, reference)
    for manifest in done.checkpoints.glob("*/complete.json"):
        if manifest.parent.name != "checkpoint-3":
            manifest.unlink()
    document = {**json.loads(done.result.read_text()), "status": "failed"}
    done.result.write_text(json.dumps(document))
    again = resume(done)
    assert again.status == "succeeded", again.failure
    assert done.read_json(done.job)["resume_step"] == 3
    assert sum(isinstance(e, events.Split) for e in events.read_events(done.events)) == 2
    assert again.samples == 8 * GLOBAL
    follows(done, reference)


@pytest.mark.parametrize("engine", [["engine.name=fsdp", "engine.zero=0"], ["engine.name=deepspeed"]])
def test_engines_that_cannot_measure_say_so_before_anything_starts(engine: list[str]) -> None:
    with pytest.raises(RecipeError, match="measured with the whole model") as caught:
        read_inputs("demo", "local:2", [*TINY, "batch.split=measured", *engine])
    assert caught.value.where == "batch.split"
    assert "engine.name=ddp" in (caught.value.hint or "")


def test_trying_out_leaves_the_model_as_it_was() -> None:
    """Weights, buffers, gradients, mode and random numbers; a pass is what training does."""
    needs_torch()
    import random
    from types import SimpleNamespace

    import numpy as np
    import torch
    from accelerate import Accelerator

    from muster.worker import uneven

    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.5)).eval()
    passes = []

    def compute_loss(model: torch.nn.Module, inputs: dict, num_items_in_batch: object = None) -> torch.Tensor:
        passes.append(len(inputs.pop("x")))
        assert model.training and int(num_items_in_batch) == passes[-1]
        random.random(), np.random.rand()
        return model(torch.rand(passes[-1], 4)).sum()

    trainer = SimpleNamespace(
        model=model,
        args=SimpleNamespace(gradient_checkpointing=False, device="cpu"),
        accelerator=Accelerator(cpu=True),
        train_dataset=list(range(100)),
        data_collator=lambda rows: {"x": torch.tensor(rows), "labels": torch.tensor(rows)},
        compute_loss=compute_loss,
    )
    before = {name: value.clone() for name, value in model.state_dict().items()}
    numbers = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    blocks = uneven.micro_steps(list(range(100)), 16)
    assert [block[0] for block in blocks] == [16, 48, 64]
    assert uneven._speed(trainer, "cpu", blocks, 5, 0.01) > 0
    assert len(passes) >= 1 + uneven.PASSES and set(passes) == {5}
    assert not model.training and all(p.grad is None for p in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    assert after[:2] == numbers[:2] and torch.equal(after[2], numbers[2])
