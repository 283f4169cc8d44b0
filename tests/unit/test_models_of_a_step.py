"""What a plan counts of a step with several models: bytes and passes of each, and answers that are drawn."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from muster.core import families
from muster.core.hardware.machines import parse_parts
from muster.core.trace import Pass, Trace, TraceRequest
from muster.core.workload import Drawing, HeldModel, Lengths
from muster.inputs.read import read_recipe
from muster.planner.machines import UserFigures
from muster.planner.memory.fit import Setting, need
from muster.planner.plan import plan_on
from muster.planner.predict import case_of
from muster.planner.setting import setting_of
from muster.planner.tracing import request_of

SMALL = {
    "model_type": "llama", "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 32, "tie_word_embeddings": True,
}  # fmt: skip
COUNT = families.parameters(SMALL) or 0


def setting(recipe: str, *overrides: str, ranks: int = 2, device: str = "cuda") -> Setting:
    """A recipe with the small model in bf16 on GPUs of one host."""
    config = f"model.config={json.dumps(SMALL)}"
    made = read_recipe(recipe, [config, "engine.name=deepspeed", *overrides])
    found = setting_of(made, SMALL, "bf16", device, [ranks])
    assert found is not None
    return found


def parts(made: Setting) -> dict[str, int]:
    found = need(made)
    assert found is not None
    return found.device


def test_a_reference_is_whole_below_stage_3_cut_in_it_and_nowhere_with_adapters() -> None:
    whole = parts(setting("dpo", "engine.zero=0"))
    assert whole["reference model"] == parts(setting("dpo", "engine.zero=2"))["reference model"] == 2 * COUNT
    cut = parts(setting("dpo", "engine.zero=3", ranks=4))["reference model"]
    assert COUNT / 2 <= cut < 2 * COUNT  # a quarter, and small tensors whole
    assert parts(setting("dpo", "engine.name=ddp", "engine.zero=0"))["reference model"] == 4 * COUNT
    assert "reference model" not in parts(setting("dpo", "engine.zero=0", "lora.rank=2"))
    grpo = ("reward.execution=true", "engine.zero=0")
    assert "reference model" not in parts(setting("grpo", *grpo))
    assert parts(setting("grpo", *grpo, "grpo.beta=0.1"))["reference model"] == 2 * COUNT


def test_a_reward_model_is_whole_on_every_rank_and_of_its_own_shape(tmp_path: Path) -> None:
    larger = {**SMALL, "num_hidden_layers": 5}
    (tmp_path / "config.json").write_text(json.dumps(larger))
    made = setting("grpo", f"reward.model={tmp_path}", "reward.execution=false", "engine.zero=3")
    assert parts(made)["reward model"] == 2 * (families.parameters(larger) or 0)


def test_a_shape_that_is_not_known_is_assumed_and_said() -> None:
    changes = ["model.name=facebook/opt-350m", "model.config=null", "reward.model=some/where"]
    recipe = read_recipe("grpo", [*changes, "launch.device=cuda", "precision=bf16"])
    made = plan_on(recipe, "h100:8", UserFigures(), traced=False).plan
    assert made is not None
    assert any("reward model is taken to be as large as the model: some/where" in note for note in made.notes)


@pytest.mark.parametrize("workload", ["grpo", "rloo", "ppo"])
def test_a_step_that_draws_answers_has_no_planned_time(workload: str) -> None:
    """One that was planned so, with a small model on an H100, was 89 times too short."""
    words = ["reward.execution=true"] if workload != "ppo" else ["reward.model=facebook/opt-125m"]
    recipe = read_recipe(workload, [*words, "launch.device=cuda", "precision=bf16", "launch.hosts=auto"])
    told = UserFigures(price=2.0, samples=1000)
    made = plan_on(recipe, "h100:8x2,100Gbit", told, traced=False).plan
    assert made is not None
    assert made.memory is not None
    assert made.time is None
    assert (made.scaling, made.sentence, made.fastest_hosts) == ([], None, None)
    assert made.hosts == 2
    assert [note for note in made.notes if note.startswith("time not planned: answers are drawn")]
    assert [note for note in made.notes if note.startswith("no cost")]


def test_a_critic_is_trained_with_the_actor() -> None:
    alone = setting("grpo", "engine.zero=0")
    both = setting("ppo", "engine.zero=0")
    assert sum(each.numel for each in alone.tensors) == COUNT
    assert sum(each.numel for each in both.tensors) == 2 * COUNT
    assert all(each.trained for each in both.tensors)
    assert len({each.name for each in both.tensors}) == len(both.tensors)
    assert parts(both)["optimizer"] == 2 * 8 * COUNT
    assert parts(both)["reference model"] == 2 * COUNT  # the actor's


def test_stage_3_gathers_all_that_is_trained_to_draw_answers() -> None:
    made = replace(setting("ppo", "engine.zero=3"), drawing=Drawing(2, 10**6))
    found = need(made)
    assert found is not None
    assert found.moment == "drawing answers"
    assert found.device["gathered parameters"] == 2 * 2 * COUNT


def test_a_pair_is_two_sequences_and_has_one_request() -> None:
    made = read_recipe("dpo", [f"model.config={json.dumps(SMALL)}", "data.sequence=64", "data.padding=fixed"])
    assert made.lengths(SMALL) == Lengths(64, sequences=2)
    request = request_of(made, SMALL, precision="fp32", device="cpu", ranks=2)
    assert isinstance(request, TraceRequest)
    assert (request.workload, request.tokens) == ("dpo", 64)


@pytest.mark.parametrize(
    ("recipe", "overrides", "passes"),
    [
        ("sft", [], 3),
        ("reward", [], 6),  # two sequences of a sample, forward and backward
        ("dpo", [], 8),  # and the reference's forward
        ("grpo", ["reward.execution=true"], 3),
        ("grpo", ["reward.execution=true", "grpo.beta=0.1"], 4),
        ("ppo", [], 9),  # actor and critic: forward before the step, forward and backward; the reference
    ],
)
def test_passes_of_a_step(recipe: str, overrides: list[str], passes: int) -> None:
    """In forward passes over a sample's tokens. A backward pass is two."""
    tokens = ["data.sequence=64"] if recipe in ("sft", "reward", "dpo") else []
    drawn = [] if tokens else ["generation.prompt=32", "generation.answer=32"]
    made = setting(recipe, *overrides, *tokens, *drawn, "engine.zero=0")
    case = case_of(replace(made, drawing=None), parse_parts("h100:2")[0])  # which has no time
    one = case_of(setting("sft", "data.sequence=64", "engine.zero=0"), parse_parts("h100:2")[0])
    assert case is not None
    assert one is not None
    assert case.work.samples == 1
    assert case.work.flops == pytest.approx(passes * one.work.forward, rel=0.01)


def test_shorter_samples_take_as_many_operations() -> None:
    """Each of which is asked for."""
    made = setting("sft", "data.sequence=64", "engine.zero=0", device="cuda")
    one = Pass(1, 10, 0, 0, 10, 10, 100, 300, 50, operations=7)
    traced = Trace(made.tensors, (one, replace(one, samples=2)), 0, "half", "cuda", False, (2,), {}, 0.0)
    whole, half = (
        case_of(replace(made, checkpointing=False, trace=traced, mean_tokens=mean), parse_parts("h100:2")[0])
        for mean in (None, 32.0)
    )
    assert whole is not None and half is not None and whole.work.launches > 0
    assert (half.work.launches, half.work.operations) == (whole.work.launches, whole.work.operations)
    assert (half.work.flops, half.work.moved) == (whole.work.flops / 2, whole.work.moved / 2)


def test_a_shared_model_takes_no_memory() -> None:
    made = setting("sft", "engine.zero=0")
    again = replace(made, others=(HeldModel("again", shared=True),))
    assert parts(again) == parts(made)
