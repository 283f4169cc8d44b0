"""DeepSpeed's JSON: from a recipe, or a user's own with its "auto" values; an unknown key is never passed
on."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.core.batch import Batch
from muster.core.errors import RecipeError
from muster.core.recipe import Train, recipe_from
from muster.engines.base import merged, spec_of
from muster.engines.deepspeed.config import deepspeed_config, read_user_config
from muster.engines.deepspeed.reading import known_keys
from muster.inputs.model import whole_config
from muster.inputs.read import inherited_decisions, read_recipe
from muster.planner.machines import UserFigures
from muster.planner.memory.fit import need
from muster.planner.plan import plan_on
from muster.planner.setting import setting_of
from muster.planner.training import training_plan

BATCH = Batch(micro=4, accumulation=2, global_=24)


def config(precision: str = "fp32", /, **recipe: Any) -> dict[str, Any]:
    return deepspeed_config(recipe_from(recipe), BATCH, precision)


def own(tmp_path: Path, content: Any) -> dict[str, Any]:
    path = tmp_path / "ds.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return {"name": "deepspeed", "config": str(path)}


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="no such DeepSpeed configuration"):
        read_user_config(str(tmp_path / "none.json"))


def test_the_list_of_keys_is_whole() -> None:
    keys = known_keys()
    assert {"train_batch_size", "zero_optimization", "optimizer", "scheduler", "fp16", "bf16"} <= set(keys)
    assert {"stage", "offload_optimizer", "overlap_comm", "stage3_max_live_parameters"} <= set(
        keys["zero_optimization"]
    )


def test_a_field_by_its_name_is_the_key_that_stands_for_it(tmp_path: Path) -> None:
    """DeepSpeed takes both; the plan counts, options overrule, and a rank gets one of them."""

    def zero(said: dict[str, Any], **options: Any) -> Any:
        return recipe_from(
            {"engine": {**own(tmp_path, {"zero_optimization": {"stage": 3, **said}}), "options": options}}
        )

    for key in ("max_live_parameters", "stage3_max_live_parameters"):
        assert spec_of("deepspeed").spread_of(zero({key: 7}), "bf16", 64)["live"] == 7
    recipe = zero({"stage3_max_live_parameters": 7}, zero_optimization={"max_live_parameters": 8})
    made = deepspeed_config(recipe, BATCH, "bf16")["zero_optimization"]
    assert {key: value for key, value in made.items() if "max_live" in key} == {
        "stage3_max_live_parameters": 8
    }
    with pytest.raises(RecipeError, match="both"):
        spec_of("deepspeed").spread_of(
            zero({"max_live_parameters": 7, "stage3_max_live_parameters": 7}), "bf16", 64
        )


def test_another_optimizer_has_its_own_betas_and_epsilon(tmp_path: Path) -> None:
    """Neither the plan nor a rank takes the recipe's, which are AdamW's, for those of an Adagrad."""
    params: dict[str, Any] = {"lr": 0.01}
    recipe = recipe_from(
        {"engine": own(tmp_path, {"optimizer": {"type": "Adagrad", "params": params}}), "train": {"clip": 0}}
    )
    assert (
        training_plan(merged(recipe), None, BATCH, None).optimizer
        == "Adagrad, learning rate 0.01, no clipping"
    )
    recipe = recipe_from({"engine": {"name": "deepspeed"}})
    assert training_plan(recipe, None, BATCH, None).optimizer.startswith("adamw, ")

    pytest.importorskip("transformers")
    from muster.worker.settings import alike, of_optimizer

    made = SimpleNamespace(param_groups=[{"lr": 0.01, "eps": 1e-10, "betas": (0.9, 0.99), "weight_decay": 0}])

    def differs(kind: str, **more: Any) -> list[str]:
        fixed = spec_of("deepspeed").fixed({"optimizer": {"type": kind, "params": {**params, **more}}})
        train = Train().model_copy(update=dict(fixed.train))
        return [key for key, said, held in of_optimizer(fixed, train, made) if not alike(said, held)]

    assert differs("Adagrad") == []
    assert differs("Adagrad", eps=1e-6) == ["train.epsilon"]
    assert differs("Lion", betas=[0.9, 0.95]) == ["train.beta1 and beta2"]
    assert differs("AdamW") == ["train.beta1 and beta2", "train.epsilon"]


@pytest.mark.parametrize("given", [{}, {"zero_optimization": {}}, {"zero_optimization": {"stage": 0}}])
def test_a_file_without_zero_has_its_section(given: dict[str, Any], tmp_path: Path) -> None:
    """Accelerate ends a rank whose file has none (DeepSpeedPlugin.__post_init__)."""
    assert config(engine=own(tmp_path, given))["zero_optimization"] == {"stage": 0}


def test_an_untested_optimizer_is_refused_before_a_rank_asserts(tmp_path: Path) -> None:
    file = {"optimizer": {"type": "SGD", "params": {"lr": 0.1}}, "zero_optimization": {"stage": 2}}
    with pytest.raises(RecipeError) as error:
        config(engine=own(tmp_path, file))
    assert error.value.where == "optimizer.type" and "zero_allow_untested_optimizer" in (
        error.value.hint or ""
    )
    for change in ({"zero_allow_untested_optimizer": True}, {"zero_optimization": {"stage": 0}}):
        assert config(engine=own(tmp_path, {**file, **change}))["optimizer"]["type"] == "SGD"


@pytest.mark.parametrize(
    ("kind", "params", "offload", "moments"),
    [
        ("AdamW", {}, "none", 2), ("SGD", {"momentum": 0.9}, "none", 1), ("SGD", {}, "none", 0),
        ("Lion", {}, "none", 1), ("Lion", {}, "cpu", 2), ("Adagrad", {}, "cpu", 1), ("Lamb", {}, "none", 2),
    ],
)  # fmt: skip
def test_a_plan_counts_the_states_of_the_optimizer_that_a_file_names(
    kind: str, params: dict[str, Any], offload: str, moments: int
) -> None:
    """Beside a plan of the same file with Adam."""

    def planned(name: str, given: dict[str, Any]) -> Any:
        zero = {"stage": 2, "offload_optimizer": {"device": offload}}
        options = {"zero_optimization": zero, "optimizer": {"type": name, "params": {"lr": 1e-3, **given}}}
        engine = {"name": "deepspeed", "zero": 2, "options": options}
        recipe = recipe_from({"workload": "causal-lm", "engine": engine, "data": SHORT, "model": MODEL})
        setting = setting_of(recipe, whole_config(recipe), "bf16", "cuda", [4])
        assert setting is not None
        found = need(setting)
        assert found is not None
        return (found.host if offload == "cpu" else found.device).get("optimizer", 0)

    assert planned(kind, params) == planned("AdamW", {}) * moments / 2


SHORT, MODEL = {"synthetic": {}, "sequence": 16}, {"name": "gpt2-micro", "init": "random"}


def test_keys_without_effect_are_named_and_not_passed_on(tmp_path: Path) -> None:
    """As LLaMA-Factory's and DeepSpeed's own older files have them."""
    file = {
        "comms_config": {"verbose": False}, "monitor_config": {"enabled": True},
        "aio": {"thread_count": 1, "queue_depth": 8}, "comms_logger": {"enabled": False},
    }  # fmt: skip
    recipe = recipe_from({"engine": own(tmp_path, file)})
    made = deepspeed_config(recipe, BATCH, "fp32")
    assert made["aio"] == {"queue_depth": 8} and not {"comms_config", "monitor_config"} & set(made)
    said = {each.field: each.value for each in spec_of("deepspeed").decisions(recipe)}
    assert said["engine.config"] == "aio.thread_count, comms_config, monitor_config"


@pytest.mark.parametrize(("steps", "refused"), [(100, False), (101, True)])
def test_a_scheduler_of_other_steps_than_the_data_have(tmp_path: Path, steps: int, *, refused: bool) -> None:
    """800 samples in batches of 8 are 100 steps, which is known before the start."""
    data = tmp_path / "train.jsonl"
    data.write_text('{"question": "q", "answer": "a"}\n' * 800)
    (tmp_path / "dev.jsonl").write_text('{"question": "q", "answer": "a"}\n')
    scheduler = f"{{type: WarmupDecayLR, params: {{total_num_steps: {steps}}}}}"
    recipe = read_recipe(
        "seq2seq",
        [
            f"data.path={tmp_path}", "train.epochs=1", "batch.micro=4", "engine.name=deepspeed",
            "engine.zero=1", f"engine.options.scheduler={scheduler}",
        ],
    )  # fmt: skip
    if not refused:
        plan_on(recipe, "t4:2", UserFigures(), traced=False)
        return
    with pytest.raises(RecipeError, match="is 101, but the training on these data has 100 steps"):
        plan_on(recipe, "t4:2", UserFigures(), traced=False)


def test_both_switched_off_is_fp32(tmp_path: Path) -> None:
    off = {"fp16": {"enabled": False}, "bf16": {"enabled": 0}}
    engine = own(tmp_path, off)
    assert merged(recipe_from({"engine": engine, "precision": "auto"})).precision == "fp32"
    with pytest.raises(RecipeError, match="switches fp16 and bf16 off"):
        merged(recipe_from({"engine": engine, "precision": "bf16"}))


def test_a_rate_that_nobody_gave_is_noted() -> None:
    """Beside a large model; not where a user or a DeepSpeed file says which."""

    def noted(*changes: str) -> bool:
        changes = ("model.name=opt-1.3b", "engine.name=deepspeed", "batch.micro=1", *changes)
        recipe = read_recipe("causal-lm", changes)
        noted = inherited_decisions("causal-lm", changes, recipe)
        plan = plan_on(recipe, "h100:8", UserFigures(), traced=False, noted=noted).plan
        assert plan is not None
        return any("train.learning_rate=" in note for note in plan.notes)

    assert noted()
    assert not noted("train.learning_rate=0.002")
    assert not noted("engine.options.optimizer={type: AdamW, params: {lr: 0.002}}")


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"data_types": {"grad_accum_dtype": "fp32"}}, {1: ("fp32 gradients", 4, 1), 2: ("gradients", 4, 8)}),
        ({"data_types": {"grad_accum_dtype": "bf16"}}, {1: ("gradients", 2, 1)}),
    ],
)
def test_types_of_sums_by_hand(options: dict[str, Any], parts: dict[int, tuple[str, int, int]]) -> None:
    """Llama-2-7B, 6,738,415,616 parameters on 8 ranks."""
    for stage, (name, size, shared) in parts.items():
        recipe = read_recipe(
            "causal-lm",
            [
                "model.name=llama-2-7b", "engine.name=deepspeed", f"engine.zero={stage}", "precision=bf16",
                f"engine.options={json.dumps(options)}", "batch.micro=1",
            ],
        )  # fmt: skip
        plan = plan_on(recipe, "h100:8", UserFigures(), traced=False).plan
        assert plan is not None and plan.memory is not None
        assert plan.memory.device[name] == pytest.approx(size * 6_738_415_616 / shared, rel=1e-3)
        assert not any("neither memory nor time" in note for note in plan.notes)


def test_a_key_of_several_sections_is_not_sent_to_one_of_them(tmp_path: Path) -> None:
    for key, belongs in (("enabled", False), ("stage", True)):
        with pytest.raises(RecipeError) as caught:
            read_user_config(own(tmp_path, {key: 1})["config"])
        assert ("belongs to" in str(caught.value.hint)) is belongs


def test_a_ratio_is_not_planned_where_the_rest_goes_to_a_disk() -> None:
    for device, named in (("nvme", True), ("cpu", False)):
        offload = {"device": device, "nvme_path": "/tmp", "ratio": 0.5}
        options = {"zero_optimization": {"stage": 3, "offload_optimizer": offload}}
        recipe = recipe_from({"engine": {"name": "deepspeed", "options": options}})
        given = spec_of("deepspeed").uncounted(recipe.choosing(zero=3), "fp32")
        assert ("zero_optimization.offload_optimizer.ratio" in given) is named
