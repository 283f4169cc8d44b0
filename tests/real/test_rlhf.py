"""The steps of RLHF on two ranks: as one process does, whatever the engine; rewards that go wrong."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from muster.core.result import Result
from muster.store import events
from muster.store.runfolder import RunFolder
from tests.support import losses, run, said

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

SHORT = [
    "train.max_steps=4", "train.warmup=1", "measure.window=1", "data.generated.train=96",
    "data.generated.validation=12", "checkpoint.model=false", "evaluate.after=false", "data.sequence=96",
]  # fmt: skip
DRAWN = ["generation.prompt=96", "generation.answer=12", "grpo.answers=4", "reward.execution=false"]
VARIED = (
    "def reward(prompts, answers, expected):\n    return [sum(map(ord, each)) % 7 / 7 for each in answers]\n"
)


def trained(folder: Path, recipe: str, hosts: str, *changes: str) -> tuple[RunFolder, Result]:
    done, result = run(folder, hosts, *SHORT, *changes, recipe=recipe)
    assert result.status == "succeeded", result.failure
    return done, result


@pytest.mark.parametrize(
    ("recipe", "engine"),
    [
        ("reward", ["engine.name=fsdp"]),
        ("dpo", ["engine.name=deepspeed", "engine.zero=3"]),
    ],
    ids=["reward-fsdp", "dpo-zero3"],
)
def test_pairs_on_two_ranks_are_as_on_one(recipe: str, engine: list[str], tmp_path: Path) -> None:
    """Losses, and the figures over held-out pairs: 12 of them are no whole batches for two ranks."""
    held = ["evaluate.after=true", "evaluate.limit=11"]
    alone, one = trained(tmp_path / "one", recipe, "local:1", "engine.name=ddp", "batch.micro=8", *held)
    done, two = trained(tmp_path / "two", recipe, "local:2x1", *engine, "batch.micro=4", *held)
    assert losses(done) == pytest.approx(losses(alone), rel=1e-3)
    assert two.evaluation_loss == pytest.approx(one.evaluation_loss, rel=1e-3)
    figures = {each.name: each.held_out for each in two.figures}
    known = {each.name: each.held_out for each in one.figures}
    assert figures["pair_accuracy"] == known["pair_accuracy"]
    assert figures["pair_accuracy"] * 11 == pytest.approx(round(figures["pair_accuracy"] * 11))
    assert figures["margin"] == pytest.approx(known["margin"], rel=1e-2, abs=1e-4)
    assert two.samples == 4 * 8 and two.evaluation_loss and two.evaluation_loss > 0


def test_answers_are_drawn_alike_under_zero3(tmp_path: Path) -> None:
    """With the same seeds on each rank, sharded parameters draw the same answers, and learn the same."""
    rewards = tmp_path / "rewards.py"
    rewards.write_text(VARIED, encoding="utf-8")
    changes = [*DRAWN, "batch.micro=8", f"reward.function={rewards}:reward"]
    plain, _ = trained(tmp_path / "ddp", "grpo", "local:2x1", "engine.name=ddp", *changes)
    cut, result = trained(
        tmp_path / "zero3", "grpo", "local:2x1", "engine.name=deepspeed", "engine.zero=3", *changes
    )
    told = [[each.figures["reward"] for each in said(folder, events.Log)] for folder in (plain, cut)]
    assert told[0] == pytest.approx(told[1], abs=1e-6) and len(set(told[0])) > 1
    assert losses(cut) == pytest.approx(losses(plain), rel=1e-3, abs=1e-5)
    assert any(abs(each) > 1e-4 for each in losses(cut))  # there was something to compare
    assert {each.name for each in result.phases} == {"generating", "scoring", "training"}
    assert result.samples == 4 * 16 and sum(each.share for each in result.phases) == pytest.approx(
        1, abs=0.02
    )


@pytest.mark.parametrize("recipe", ["reward", "dpo", "rloo"])
def test_adapters_are_trained_and_saved_whole(recipe: str, tmp_path: Path) -> None:
    """Adapters begin at nothing, so the first loss is that of the model without them; the saved model needs
    neither its base nor the reference."""
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

    rewards = tmp_path / "rewards.py"
    rewards.write_text(VARIED, encoding="utf-8")
    drawn = [*(each for each in DRAWN if "grpo" not in each), f"reward.function={rewards}:reward"]
    changes = ["batch.micro=8", "lora.rank=2", "train.max_steps=2", "checkpoint.model=true"]
    changes += drawn if recipe == "rloo" else []
    done, _ = trained(tmp_path / "run", recipe, "local:1", "engine.name=ddp", *changes)
    if recipe == "dpo":
        assert losses(done)[0] == pytest.approx(math.log(2), abs=1e-4)
    kind = AutoModelForSequenceClassification if recipe == "reward" else AutoModelForCausalLM
    _, told = kind.from_pretrained(str(done.model), output_loading_info=True)
    assert not any(told.values()), told
    adapters = load_file(done.model / "adapter" / "adapter_model.safetensors")
    assert adapters and all(".ref" not in name for name in adapters)


def test_a_training_that_gives_the_model_of_its_start_fails(tmp_path: Path) -> None:
    """All answers are worth the same: there is nothing to learn."""
    rewards = tmp_path / "rewards.py"
    rewards.write_text(VARIED.replace("% 7 / 7", "* 0 + 1.0"), encoding="utf-8")
    changes = [*SHORT, *DRAWN, "batch.micro=8", f"reward.function={rewards}:reward", "train.max_steps=2"]
    changes = [each for each in changes if each not in ("checkpoint.model=false", "train.max_steps=4")]
    done, result = run(tmp_path / "run", "local:1", *changes, recipe="grpo")
    assert result.status == "failed" and result.failure and not result.failure.usage
    assert "the weights did not change in 2 steps" in result.failure.what
    assert done.state() == "failed" and result.steps == 2


def test_a_reward_that_goes_wrong_is_one_line(tmp_path: Path) -> None:
    rewards = tmp_path / "rewards.py"
    body = "    return [1 / 0 for _ in answers]\n"
    rewards.write_text(f"def reward(prompts, answers, expected):\n{body}", encoding="utf-8")
    changes = [*SHORT, *DRAWN, "engine.name=ddp", "batch.micro=8", f"reward.function={rewards}:reward"]
    _, result = run(tmp_path / "run", "local:1", *changes, recipe="grpo")
    assert result.status == "failed" and result.failure and result.failure.usage
    assert "raised ZeroDivisionError" in result.failure.what
    assert str(rewards) in f"{result.failure.where} {result.failure.what}"
    assert "Traceback" not in result.failure.what
