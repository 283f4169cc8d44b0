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
from muster.engines.base import spec_of
from muster.engines.deepspeed.config import (
    check_keys,
    deepspeed_config,
    known_keys,
    read_user_config,
    user_batch,
    user_decisions,
    user_precision,
    user_training,
)
from muster.inputs.model import whole_config
from muster.planner.memory.fit import need
from muster.planner.setting import setting_of
from muster.planner.training import training_plan

BATCH = Batch(micro=4, accumulation=2, global_=24)


def config(precision: str = "fp32", /, **recipe: Any) -> dict[str, Any]:
    return deepspeed_config(recipe_from(recipe), BATCH, precision)


def own(tmp_path: Path, content: Any) -> dict[str, Any]:
    path = tmp_path / "ds.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return {"name": "deepspeed", "config": str(path)}


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_from_a_recipe(zero: int, precision: str) -> None:
    made = config(precision, engine={"name": "deepspeed", "zero": zero}, train={"clip": 0.5})
    assert made["zero_optimization"]["stage"] == zero
    assert made["train_micro_batch_size_per_gpu"] == 4
    assert made["gradient_accumulation_steps"] == 2
    assert made["train_batch_size"] == 24
    assert made["gradient_clipping"] == 0.5
    assert made["bf16"] == {"enabled": precision == "bf16"}
    assert made["fp16"] == {"enabled": precision == "fp16"}
    assert "optimizer" not in made
    assert not any(key.startswith("offload") for key in made["zero_optimization"])
    check_keys(made, where="what Muster writes itself")
    json.dumps(made, allow_nan=False)


@pytest.mark.parametrize(
    ("zero", "offload", "devices"),
    [
        (1, "optimizer", {"offload_optimizer"}),
        (2, "optimizer", {"offload_optimizer"}),
        (3, "optimizer", {"offload_optimizer"}),
        (3, "optimizer+param", {"offload_optimizer", "offload_param"}),
    ],
)
def test_offloading(zero: int, offload: str, devices: set[str]) -> None:
    made = config(engine={"name": "deepspeed", "zero": zero, "offload": offload})
    section = made["zero_optimization"]
    assert {key for key in section if key.startswith("offload")} == devices
    assert all(section[key]["device"] == "cpu" for key in devices)
    assert made["optimizer"]["type"] == "AdamW"
    check_keys(made, where="what Muster writes itself")


@pytest.mark.parametrize(
    ("zero", "offload", "what"),
    [
        (0, "optimizer", "offloading needs ZeRO"),
        (0, "optimizer+param", "offloading needs ZeRO"),
        (1, "optimizer+param", "parameters can be offloaded by ZeRO-3 only"),
        (2, "optimizer+param", "parameters can be offloaded by ZeRO-3 only"),
    ],
)
def test_offloading_that_cannot_be(zero: int, offload: str, what: str) -> None:
    with pytest.raises(RecipeError, match=what) as caught:
        config(engine={"name": "deepspeed", "zero": zero, "offload": offload})
    assert caught.value.where == "engine.offload"


@pytest.mark.parametrize(
    ("scale", "power"), [(65536, 16), (65535, 15), (32.0, 5), (1, 0), (0.25, 0), (2.0**24, 24)]
)
def test_the_initial_loss_scale(scale: float, power: int) -> None:
    made = config("fp16", loss_scale=scale)
    assert made["fp16"] == {"enabled": True, "loss_scale": 0, "initial_scale_power": power}
    assert config("bf16", loss_scale=scale)["fp16"] == {"enabled": False}


def test_options_lie_on_top() -> None:
    made = config(
        engine={
            "name": "deepspeed",
            "zero": 3,
            "options": {
                "zero_optimization": {"sub_group_size": 7},
                "fp16": {"hysteresis": 4},
                "gradient_clipping": 9,
            },
        }
    )
    assert made["zero_optimization"]["stage"] == 3
    assert made["zero_optimization"]["sub_group_size"] == 7
    assert made["fp16"] == {"hysteresis": 4, "enabled": False}
    assert made["gradient_clipping"] == 9


@pytest.mark.parametrize(
    ("options", "what", "hint"),
    [
        ({"train_batch_size": 8}, "train_batch_size is decided by the recipe's batch", "batch.global"),
        ({"train_micro_batch_size_per_gpu": 8}, "is decided by the recipe's batch", "batch.micro"),
        ({"fp16": {"enabled": True}}, "fp16.enabled is decided by the recipe's precision", "precision="),
        (
            {"gradient_cliping": 1},
            "'gradient_cliping' is not a key that DeepSpeed knows",
            "gradient_clipping",
        ),
    ],
)
def test_options_that_would_be_lost(options: dict[str, Any], what: str, hint: str) -> None:
    with pytest.raises(RecipeError) as caught:
        config(engine={"name": "deepspeed", "options": options})
    assert caught.value.where == "engine.options"
    assert what in caught.value.what
    assert hint in (caught.value.hint or "")


def test_a_users_own_file_keeps_what_it_says(tmp_path: Path) -> None:
    content = {
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "train_batch_size": "auto",
        "gradient_clipping": "auto",
        "steps_per_print": 5,
        "bf16": {"enabled": "auto"},
        "bfloat16": {"enabled": "auto"},
        "fp16": {"enabled": "auto", "loss_scale_window": 100},
        "optimizer": {"type": "AdamW", "params": {"lr": "auto", "anything": 1}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": "auto"}},
        "zero_optimization": {
            "stage": 2,
            "reduce_bucket_size": "auto",
            "offload_optimizer": {"device": "cpu"},
        },
    }
    made = config("bf16", engine=own(tmp_path, content))
    for key in ("optimizer", "zero_optimization", "gradient_clipping", "steps_per_print"):
        assert made[key] == content[key]
    assert made["train_micro_batch_size_per_gpu"] == 4
    assert made["gradient_accumulation_steps"] == 2
    assert made["train_batch_size"] == 24
    assert made["bf16"] == {"enabled": True}
    assert made["fp16"] == {"enabled": False, "loss_scale_window": 100}
    assert "bfloat16" not in made


@pytest.mark.parametrize(
    ("content", "key", "hint"),
    [
        ({"micro_batch_per_gpu": 4}, "'micro_batch_per_gpu'", "did you mean train_micro_batch_size_per_gpu?"),
        ({"gradient_acumulation_steps": 4}, "'gradient_acumulation_steps'", "gradient_accumulation_steps"),
        ({"stage": 3}, "'stage'", "zero_optimization.stage"),
        ({"zero_optimization": {"stge": 3}}, "'zero_optimization.stge'", "stage"),
        ({"zero_optimization": {"offload_param": {"devise": "cpu"}}}, "offload_param.devise'", "device"),
        ({"fp16": {"enable": True}}, "'fp16.enable'", "enabled"),
    ],
)
def test_an_unknown_key_names_the_nearest_real_one(
    tmp_path: Path, content: dict[str, Any], key: str, hint: str
) -> None:
    path = own(tmp_path, content)["config"]
    with pytest.raises(RecipeError) as caught:
        read_user_config(path)
    assert key in caught.value.what
    assert "ignore it silently" in caught.value.what
    assert caught.value.where == path
    assert hint in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("content", "what"), [("{", "is not JSON"), ("[1]", "must be a JSON object"), (b"\xff", "is not JSON")]
)
def test_a_file_that_is_no_configuration(tmp_path: Path, content: str | bytes, what: str) -> None:
    path = tmp_path / "ds.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(RecipeError, match=what):
        read_user_config(str(path))


@pytest.mark.parametrize(
    "text",
    [
        '{"zero_optimization": {"stage": 2,}, "gradient_clipping": 1.0,}',
        '{\n  // stage two\n  "zero_optimization": {"stage": 2}, # old\n  "gradient_clipping": 1.0\n}',
        '{"_comment": "old", "zero_optimization": {"_why": "fits", "stage": 2}, "gradient_clipping": 1.0}',
    ],
)
def test_what_deepspeed_reads_is_read(tmp_path: Path, text: str) -> None:
    path = tmp_path / "ds.json"
    path.write_text(text)
    assert read_user_config(str(path)) == {"zero_optimization": {"stage": 2}, "gradient_clipping": 1.0}


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "is empty"),
        ('{"zero_optimization": {"stage": 2, "stage": 3}}', "'stage' is given 2 times"),
        ('{"bf16": {"enabled": true}, "bf16": {"enabled": false}}', "'bf16' is given 2 times"),
        ('{"zero_optimization": {"stage": 2,}, "bf16": {}, "bf16": {},}', "'bf16' is given 2 times"),
        ('{"zero_optimization": true}', "zero_optimization is true"),
        ('{"zero_optimization": 2}', "zero_optimization is 2"),
        ('{"zero_optimization": {"stage": "2"}}', 'stage is "2"'),
        ('{"zero_optimization": {"stage": null}}', "stage is null"),
        ('{"zero_optimization": {"stage": [2]}}', "stage is \\[2\\]"),
        ('{"zero_optimization": {"stage": true}}', "stage is true"),
        ('{"zero_optimization": {"stage": 2.0}}', "stage is 2.0"),
        ('{"fp16": {"enabled": "true"}}', 'fp16.enabled is "true"'),
        ('{"bf16": {"enabled": 1}}', "bf16.enabled is 1"),
        ('{"torch_autocast": {"enabled": true, "dtype": "float16"}}', "torch_autocast computes"),
        ('{"optimizer": {"type": ["Adam"]}}', 'optimizer.type is \\["Adam"\\]'),
        ('{"optimizer": {"type": "AdamW", "params": [1]}}', "optimizer.params is \\[1\\]"),
        ('{"scheduler": {"type": ["WarmupLR"]}}', 'scheduler.type is \\["WarmupLR"\\]'),
        ('{"a": ' + 9999 * "[" + 9999 * "]" + "}", "is not JSON"),
        ('{"fp16": true}', "fp16 is true"),
        ('{"optimizer": "AdamW"}', 'optimizer is "AdamW"'),
        ('{"tensorboard": true}', "tensorboard is true"),
        ('{"tensor_parallel": {"autotp_size": 2}}', "tensor_parallel.autotp_size is 2"),
        ('{"tensor_parallel": {"tp": {"tp_size": 2}}}', "tensor_parallel.tp.tp_size is 2"),
        ('{"pipeline": {"stages": 2}}', "pipeline.stages is 2"),
        ('{"gradient_allreduce_op": "SUM"}', 'gradient_allreduce_op is "SUM"'),
        ('{"managed_gradient_accumulation": false}', "managed_gradient_accumulation is false"),
        ('{"graph_harvesting": true}', "graph_harvesting is true"),
        ('{"sequence_parallel_size": 4}', "sequence_parallel_size is 4"),
        ('{"amp": {"enabled": true, "opt_level": "O1"}}', "amp is Apex's"),
        ('{"curriculum_learning": {"enabled": true}}', "curriculum_learning needs"),
        ('{"progressive_layer_drop": {"enabled": true}}', "progressive_layer_drop needs"),
        ('{"elasticity": {"enabled": true}}', "elasticity changes"),
        ('{"compression_training": {"weight_quantization": {}}}', "compression_training changes"),
        ('{"optimizer": {"type": "OneBitAdam", "params": {"lr": 0.001}}}', "OneBitAdam needs"),
    ],
)
def test_what_would_be_trained_otherwise_is_refused(tmp_path: Path, text: str, what: str) -> None:
    path = tmp_path / "ds.json"
    path.write_text(text)
    with pytest.raises(RecipeError, match=what) as caught:
        read_user_config(str(path))
    assert caught.value.where == str(path)


@pytest.mark.parametrize(
    "key",
    [
        "amp", "autotuning", "compression_training", "curriculum_learning", "data_efficiency", "eigenvalue",
        "elasticity", "expert_parallel", "hybrid_engine", "nebula", "progressive_layer_drop",
        "sparse_attention", "weight_quantization",
    ],
)  # fmt: skip
def test_what_muster_does_not_train_with_is_refused(key: str, tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(json.dumps({key: {"enabled": True}}))
    with pytest.raises(RecipeError, match=key):
        read_user_config(str(tmp_path / "ds.json"))


@pytest.mark.parametrize("kind", ["OneBitAdam", "OneBitLamb", "ZeroOneAdam", "onebitadam"])
def test_compressed_optimizers_are_refused(kind: str, tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(json.dumps({"optimizer": {"type": kind}}))
    with pytest.raises(RecipeError, match=kind):
        read_user_config(str(tmp_path / "ds.json"))


def test_what_is_switched_off_is_no_matter(tmp_path: Path) -> None:
    """Public files have switched-off sections of what DeepSpeed has no longer, and refuses even so."""
    text = (
        '{"curriculum_learning": {"enabled": false}, "elasticity": {"enabled": false}, "nebula": {}, '
        '"graph_harvesting": false, "tensor_parallel": {"autotp_size": 1}, "pipeline": {"stages": "auto"}, '
        '"zero_optimization": {"stage": 1}}'
    )
    made = config(engine=own(tmp_path, text))
    assert made.keys() >= {"tensor_parallel", "pipeline", "zero_optimization"}
    assert not made.keys() & {"curriculum_learning", "elasticity", "nebula", "graph_harvesting"}


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="no such DeepSpeed configuration"):
        read_user_config(str(tmp_path / "none.json"))


def test_the_batch_of_a_users_file() -> None:
    assert user_batch({}) == {}
    assert user_batch({"train_batch_size": 64, "gradient_accumulation_steps": "auto"}) == {"global": 64}
    assert user_batch({"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2}) == {
        "micro": 4,
        "accumulation": 2,
    }


@pytest.mark.parametrize("value", ["32", 3.5, True, None, [4]])
def test_a_batch_number_that_is_none(value: Any) -> None:
    with pytest.raises(RecipeError, match="train_batch_size must be a whole number"):
        user_batch({"train_batch_size": value})


@pytest.mark.parametrize(
    ("content", "precision"),
    [
        ({}, None),
        ({"fp16": {"enabled": "auto"}, "bf16": {"enabled": False}}, None),
        ({"fp16": {"enabled": True}}, "fp16"),
        ({"bf16": {"enabled": True}, "fp16": {"enabled": False}}, "bf16"),
        ({"bfloat16": {"enabled": True}}, "bf16"),
    ],
)
def test_the_precision_of_a_users_file(content: dict[str, Any], precision: str | None) -> None:
    assert user_precision(content) == precision


def test_two_precisions_at_once() -> None:
    with pytest.raises(RecipeError, match="fp16 and bf16 are both enabled"):
        user_precision({"fp16": {"enabled": True}, "bf16": {"enabled": True}})


def test_the_list_of_keys_is_whole() -> None:
    keys = known_keys()
    assert {"train_batch_size", "zero_optimization", "optimizer", "scheduler", "fp16", "bf16"} <= set(keys)
    assert {"stage", "offload_optimizer", "overlap_comm", "stage3_max_live_parameters"} <= set(
        keys["zero_optimization"]
    )


def test_the_training_numbers_of_a_users_file() -> None:
    """What is "auto" or not there is the recipe's."""
    assert user_training({}) == {}
    auto = {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}
    assert user_training({"optimizer": {"params": auto}, "gradient_clipping": "auto"}) == {}
    optimizer = {"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.8, 0.9], "eps": 1e-6, "weight_decay": 0}}
    scheduler = {"params": {"warmup_max_lr": 1e-3, "warmup_num_steps": 7, "total_num_steps": "auto"}}
    content = {"optimizer": optimizer, "scheduler": scheduler, "gradient_clipping": 0.5}
    assert user_training(content) == {
        "learning_rate": 1e-3,
        "beta1": 0.8,
        "beta2": 0.9,
        "epsilon": 1e-6,
        "weight_decay": 0,
        "clip": 0.5,
        "warmup": 7,
    }
    assert user_training({"scheduler": scheduler}) == {"learning_rate": 1e-3, "warmup": 7}
    for kind, betas in (("AdamW", {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}), ("Lion", {})):
        fixed = user_training({"optimizer": {"type": kind, "params": {"lr": 0.1}}})  # DeepSpeed's defaults
        assert fixed == {"learning_rate": 0.1, **betas}
    asked = {"type": "adam", "params": {"betas": "auto", "eps": "auto"}}
    assert user_training({"optimizer": asked}) == {}


def test_another_optimizer_has_its_own_betas_and_epsilon(tmp_path: Path) -> None:
    """Neither the plan nor a rank takes the recipe's, which are AdamW's, for those of an Adagrad."""
    params: dict[str, Any] = {"lr": 0.01}
    recipe = recipe_from(
        {"engine": own(tmp_path, {"optimizer": {"type": "Adagrad", "params": params}}), "train": {"clip": 0}}
    )
    assert training_plan(recipe, None, BATCH, None).optimizer == "Adagrad, learning rate 0.01, no clipping"
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


@pytest.mark.parametrize("value", ["1e-3", True, None, [1, 2, 3]])
def test_a_training_number_that_is_none(value: Any) -> None:
    with pytest.raises(RecipeError, match="learning_rate must be a number"):
        user_training({"optimizer": {"params": {"lr": value}}})


def test_numbers_are_finite() -> None:
    for value in (float("nan"), float("inf")):
        with pytest.raises(RecipeError, match="clip must be a number"):
            user_training({"gradient_clipping": value})


def test_zero_3_gathers_the_model_when_it_is_saved(tmp_path: Path) -> None:
    """Else Transformers would end the run with a folder without weights."""
    key = "stage3_gather_16bit_weights_on_model_save"

    def zero(**section: Any) -> dict[str, Any]:
        return config(engine=own(tmp_path, {"zero_optimization": section}))["zero_optimization"]

    assert zero(stage=3)[key] is True
    assert key not in zero(stage=2)
    for refused in (False, "false"):
        with pytest.raises(RecipeError, match="could not be saved whole") as caught:
            zero(stage=3, **{key: refused})
        assert caught.value.where == f"zero_optimization.{key}"


AUTO_RATES = {"warmup_min_lr": "auto", "warmup_max_lr": "auto"}


@pytest.mark.parametrize(
    ("kind", "params", "made"),
    [
        (
            "WarmupDecayLR",
            {},
            {"warmup_type": "linear", "warmup_num_steps": "auto", "total_num_steps": "auto", **AUTO_RATES},
        ),
        ("WarmupLR", {}, {"warmup_type": "linear", "warmup_num_steps": "auto", **AUTO_RATES}),
        (
            "WarmupCosineLR",
            {"cos_min_ratio": 0.1},
            {
                "cos_min_ratio": 0.1,
                "warmup_type": "linear",
                "warmup_num_steps": "auto",
                "total_num_steps": "auto",
            },
        ),
        (
            "WarmupDecayLR",
            {"warmup_max_lr": 6e-4, "warmup_min_lr": 0, "warmup_num_steps": 4000, "total_num_steps": 400_000},
            {
                "warmup_max_lr": 6e-4,
                "warmup_min_lr": 0,
                "warmup_num_steps": 4000,
                "total_num_steps": 400_000,
                "warmup_type": "linear",
            },
        ),
        (
            "WarmupLR",
            {"warmup_type": "log", "warmup_num_steps": 10},
            {"warmup_type": "log", "warmup_num_steps": 10, **AUTO_RATES},
        ),
        ("OneCycle", {"cycle_min_lr": 0}, {"cycle_min_lr": 0}),
    ],
)
def test_what_a_scheduler_leaves_out_is_the_recipes(
    kind: str, params: dict[str, Any], made: dict[str, Any], tmp_path: Path
) -> None:
    """DeepSpeed would take a logarithmic warm-up, 1000 steps of it, and a rate of 0.001."""
    content = {"scheduler": {"type": kind, "params": params}}
    for engine in (
        own(tmp_path, content),
        {"name": "deepspeed", "zero": 1, "options": content},
    ):
        assert config(engine=engine)["scheduler"] == {"type": kind, "params": made}
    assert config(engine={"name": "deepspeed", "options": {"scheduler": {"type": kind}}})["scheduler"]


def test_the_plan_says_whose_schedule_it_is(tmp_path: Path) -> None:
    """A warm-up that is made linear, one that stays logarithmic, and the numbers of file and options."""

    def said(engine: dict[str, Any]) -> dict[str, tuple[Any, str]]:
        recipe = recipe_from({"engine": engine})
        return {each.field: (each.value, each.why) for each in user_decisions(recipe)}

    open_ = own(tmp_path, {"scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 8}}})
    found = said(open_)
    assert found["train.schedule"][0] == "WarmupDecayLR of DeepSpeed: linear warm-up, then linear to 0"
    assert "ds.json says so; warmup_type is left out" in found["train.schedule"][1]
    assert found["train.warmup"][0] == 8
    chosen = own(tmp_path, {"scheduler": {"type": "WarmupLR", "params": {"warmup_type": "log"}}})
    value, why = said(chosen)["train.schedule"]
    assert value == "WarmupLR of DeepSpeed: logarithmic warm-up, then constant"
    assert why.endswith("says so")
    options = {"scheduler": {"type": "OneCycle"}, "optimizer": {"type": "Adam", "params": {"lr": 0.5}}}
    found = said({"name": "deepspeed", "options": options})
    assert found["train.schedule"] == ("OneCycle of DeepSpeed", "engine.options says so")
    assert found["train.learning_rate"] == (0.5, "engine.options says so")
    assert said({"name": "deepspeed", "zero": 2}) == {}


def test_a_warm_up_that_deepspeed_does_not_know(tmp_path: Path) -> None:
    """It would say so in a log, and take its logarithmic one."""
    content = {"scheduler": {"type": "WarmupLR", "params": {"warmup_type": "linera"}}}
    with pytest.raises(RecipeError, match="'linera' is none of linear, log"):
        config(engine=own(tmp_path, content))


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


def test_adagrad_under_zero_is_refused_before_the_start() -> None:
    """DeepSpeed 0.19 ends it with an IndexError in the first step; its own one in host memory works."""

    def made(stage: int, device: str) -> dict[str, Any]:
        zero = {"offload_optimizer": {"device": device}}
        options = {"zero_optimization": zero, "optimizer": {"type": "Adagrad", "params": {"lr": 1e-3}}}
        return config(engine={"name": "deepspeed", "zero": stage, "options": options})

    for stage in (1, 2, 3):
        with pytest.raises(RecipeError) as caught:
            made(stage, "none")
        assert caught.value.where == "optimizer.type"
        assert made(stage, "cpu")["optimizer"]["type"] == "Adagrad"
    assert made(0, "none")["zero_optimization"]["stage"] == 0
