"""A rank of each step of RLHF is killed after a checkpoint: resumed, it is as if nothing had happened."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.runs.resume import resume
from muster.store import events
from tests.real.test_resume import weights
from tests.support import needs_torch, run, said, with_ranks

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.real, pytest.mark.timeout(280)]

SHORT = [
    "train.max_steps=6", "train.warmup=1", "measure.window=1", "checkpoint.every=2", "engine.name=ddp",
    "data.generated.train=64", "data.generated.validation=4", "data.sequence=200", "batch.micro=4",
    "model.config.num_hidden_layers=1", "model.config.hidden_size=32", "model.config.intermediate_size=64",
    "model.vocab_size=300", "evaluate.after=false", "launch.threads=1",
]  # fmt: skip
DROPPED = ["model.config.attention_dropout=0.1"]
# Configurations of saved models often say that no keys and values are kept, since training keeps none.
DRAWN = [
    "generation.prompt=96", "generation.answer=8", "reward.execution=false", "model.config.use_cache=false",
]  # fmt: skip
WORKLOADS = {
    "sft": DROPPED,
    "reward": DROPPED,
    "dpo": [],
    "grpo": [*DRAWN, "grpo.epochs=2"],
    "rloo": [*DRAWN, "batch.accumulation=2"],
    "ppo": [*DRAWN, "ppo.epochs=2"],
}
# Differs from answer to answer. Refuses answers of which each token was drawn from all before it anew.
VARIED = """
import torch.nn.functional as functional

columns, look_up = set(), functional.embedding

def looked_up(tokens, *rest, **named):
    columns.add(tokens.shape[-1])
    return look_up(tokens, *rest, **named)

functional.embedding = looked_up

def reward(prompts, answers, expected):
    assert 1 in columns, "no keys and values were kept"
    return [sum(map(ord, each)) % 7 / 7 for each in answers]
"""


@pytest.mark.parametrize("recipe", WORKLOADS)
def test_a_killed_rank_changes_nothing(recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses, rewards and weights, to the bit."""
    needs_torch()
    settings = [*SHORT, *WORKLOADS[recipe]]
    if "reward.execution=false" in settings:
        (tmp_path / "rewards.py").write_text(VARIED, encoding="utf-8")
        settings.append(f"reward.function={tmp_path}/rewards.py:reward")
    whole, result = run(tmp_path / "whole", "local:2x1", *settings, recipe=recipe)
    assert result.status == "succeeded", result.failure

    settings += [f"env.PYTHONPATH={ROOT}", "env.DIES_AFTER=5"]
    with monkeypatch.context() as patch:
        with_ranks(patch, "tests.real.dying_worker")
        broken, result = run(tmp_path / "broken", "local:2x1", *settings, recipe=recipe)
    assert result.status == "failed" and result.failure and "SIGKILL" in result.failure.what, result.failure
    again = resume(broken)
    assert (again.status, again.attempt, again.steps) == ("succeeded", 2, 6), again.failure
    assert broken.read_json(broken.job)["resume_step"] == 4

    told = [
        {each.step: (each.loss, each.gradient_norm, each.figures) for each in said(done, events.Log)}
        for done in (broken, whole)
    ]
    assert told[0] == told[1] and len(told[0]) == 6
    assert len({loss for loss, *_ in told[0].values()}) > 2
    assert weights(broken.model) == weights(whole.model)
