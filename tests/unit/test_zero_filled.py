"""What DeepSpeed gets is what is shown: "auto" is filled in before the start; the stage is the file's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from muster.core.batch import Batch
from muster.core.errors import RecipeError
from muster.core.job import read_job
from muster.core.recipe import Train, recipe_from
from muster.core.recipes import leaves_of
from muster.engines.base import merged, spec_of
from muster.engines.deepspeed.config import (
    deepspeed_config,
    fill_auto,
    moments,
    uncounted,
    user_training,
)
from muster.inputs.read import read_inputs
from muster.planner.remedies import hidden_size
from muster.runs.dry_run import dry_run
from muster.runs.train import Attempt, agree, freeze
from muster.store.runfolder import RunFolder

ALL_AUTO: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": "auto",
    "train_batch_size": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "fp16": {"enabled": "auto"},
    "bf16": {"enabled": "auto"},
    "optimizer": {
        "type": "AdamW",
        "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"},
    },
    "scheduler": {
        "type": "WarmupDecayLR",
        "params": {
            "warmup_num_steps": "auto", "total_num_steps": "auto",
            "warmup_min_lr": "auto", "warmup_max_lr": "auto",
        },
    },
    "zero_optimization": {
        "stage": 3,
        "reduce_bucket_size": "auto",
        "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto",
    },
}  # fmt: skip
WARMUP = "scheduler.params.warmup_num_steps"
SETTINGS = ["train.learning_rate=0.003", "train.warmup=20", "train.beta2=0.97", "train.clip=0.7"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "ds.json"
    made.write_text(json.dumps(ALL_AUTO))
    return made


def test_nothing_is_left_open(file: Path, tmp_path: Path) -> None:
    told = dry_run(
        read_inputs("demo", "node1,node2", [f"engine.config={file}", *SETTINGS]), RunFolder(tmp_path / "r")
    )
    made = told["deepspeed"]
    assert "auto" not in json.dumps(made)
    width = hidden_size(told["recipe"]["model"]["config"])
    assert made["optimizer"]["params"]["lr"] == 0.003
    assert made["optimizer"]["params"]["betas"] == [0.9, 0.97]
    assert made["gradient_clipping"] == 0.7
    assert made["scheduler"]["params"]["warmup_num_steps"] == 20
    assert made["scheduler"]["params"]["warmup_max_lr"] == 0.003
    assert made["scheduler"]["params"]["total_num_steps"] == told["recipe"]["train"]["max_steps"]
    assert made["zero_optimization"]["reduce_bucket_size"] == width**2
    assert told["recipe"]["engine"]["zero"] == 3
    assert "ZeRO-3" in told["plan"]["engine"]
    assert any(d["field"] == "engine.zero" and str(file) in d["why"] for d in told["decisions"])


def test_a_run_folder_shows_what_runs_and_keeps_what_was_given(file: Path, tmp_path: Path) -> None:
    inputs = read_inputs("demo", "local:2x1", [f"engine.config={file}", *SETTINGS])
    about = {"gpus": [], "cores": 2, "python": "python3", "shared": True, "port": 1}
    about |= {
        "versions": dict.fromkeys(("torch", "transformers", "accelerate", "pydantic", "deepspeed"), "1")
    }
    run = RunFolder(tmp_path / "run")
    run.create()
    for number in (1, 2):
        decided = agree(inputs, run, {"local0": about, "local1": about}, Attempt(number))
        freeze(run, inputs, decided)
        job = run.read_json(run.job)
        assert job["recipe"]["engine"]["zero"] == 3
        assert run.read_json(run.engine_config) == job["deepspeed"]
        assert "auto" not in run.engine_config.read_text()
        assert read_job(job) is not None
        inputs = read_inputs(str(run.recipe), "local:2x1", [])
        given = Path(str(inputs.recipe.engine.config))
        assert given.parent == run.path
        assert json.loads(given.read_text()) == ALL_AUTO


def test_the_file_wins_over_another_stage(file: Path) -> None:
    recipe = read_inputs("demo", "node1", [f"engine.config={file}", "engine.zero=1"]).recipe
    assert recipe.engine.zero == 3
    options = "engine.options.zero_optimization.stage=2"
    assert read_inputs("demo", "node1", ["engine.zero=1", options]).recipe.engine.zero == 2


@pytest.mark.parametrize(
    ("train", "steps"),
    [
        ({"warmup": 0, "max_steps": 100}, (1, 100)),
        ({"warmup": 0.05, "max_steps": 90}, (5, 90)),
        ({"warmup": 7.0}, (7, "auto")),
        ({"warmup": 1, "max_steps": 90}, (1, 90)),
        ({"warmup": 0.05}, ("auto", "auto")),
    ],
)
def test_steps_are_told_where_they_are_known(train: dict[str, Any], steps: tuple[Any, Any]) -> None:
    """As Transformers would: a fraction is of all steps, which an epoch's samples decide."""
    recipe = recipe_from({"engine": {"name": "deepspeed"}, "train": train})
    made = fill_auto(ALL_AUTO, recipe, 64)
    found = made["scheduler"]["params"]
    assert (found["warmup_num_steps"], found["total_num_steps"]) == steps
    left = [
        f"scheduler.params.{name}"
        for name in ("warmup_num_steps", "total_num_steps")
        if found[name] == "auto"
    ]
    open_ = [name for name, value in leaves_of(made).items() if value == "auto"]
    assert [name for name in open_ if name.startswith("scheduler")] == left


def test_sizes_by_the_models_width() -> None:
    """As Transformers fills them; those of stage 3 with stage 3 alone."""
    stage3 = {"stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": "auto"}
    given = {"zero_optimization": {"stage": 3, "reduce_bucket_size": "auto", **stage3}}
    made = fill_auto(given, recipe_from({}), 64)["zero_optimization"]
    assert made == {
        "stage": 3, "reduce_bucket_size": 4096, "stage3_prefetch_bucket_size": 3686,
        "stage3_param_persistence_threshold": 640,
    }  # fmt: skip
    given["zero_optimization"]["stage"] = 2
    assert fill_auto(given, recipe_from({}), 64)["zero_optimization"] == {
        "stage": 2, "reduce_bucket_size": 4096,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "overruled"),
    [
        (["engine.zero=1"], ["engine.zero=1"]),
        (["engine.zero=3", "train.learning_rate=2e-4", "train.warmup=7"], []),
        (["train.learning_rate=1e-3", "train.clip=2"], ["train.clip=2.0", "train.learning_rate=0.001"]),
        (["train.beta1=0.5", "train.schedule=cosine"], ["train.beta1=0.5", "train.schedule=cosine"]),
        (["train.warmup=9", "train.max_steps=30"], ["train.warmup=9.0"]),
    ],
)
def test_what_a_command_line_gives_and_the_file_overrules_is_noted(
    file: Path, tmp_path: Path, settings: list[str], overruled: list[str]
) -> None:
    optimizer = {"type": "SGD", "params": {"lr": 2e-4}}
    scheduler = {"type": "WarmupLR", "params": {"warmup_num_steps": 7}}
    zero = {"stage": 3}
    file.write_text(
        json.dumps(
            {
                "optimizer": optimizer, "scheduler": scheduler, "zero_optimization": zero,
                "gradient_clipping": 0.5, "zero_allow_untested_optimizer": True,
            }
        )
    )  # fmt: skip
    plan = dry_run(
        read_inputs("demo", "node1,node2", [f"engine.config={file}", *settings]), RunFolder(tmp_path / "r")
    )["plan"]
    noted = [each.partition(" has no effect")[0] for each in plan["notes"] if " has no effect: " in each]
    assert noted == overruled


def test_a_plan_names_the_files_schedule(file: Path, tmp_path: Path) -> None:
    file.write_text(json.dumps({"scheduler": {"type": "WarmupCosineLR", "params": {"warmup_num_steps": 7}}}))
    inputs = read_inputs("demo", "node1,node2", [f"engine.config={file}"])
    words = dry_run(inputs, RunFolder(tmp_path / "r"))["plan"]["training"]["schedule"]
    assert "WarmupCosineLR" in words and "cosine" in words


def test_a_file_without_a_stage_is_of_stage_0(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text("{}")
    more = [f"engine.config={tmp_path / 'ds.json'}", "engine.zero=2"]
    recipe = read_inputs("demo", "node1", more).recipe
    assert (recipe.engine.zero, spec_of("deepspeed").given(recipe).stage) == (0, 0)
    decisions = spec_of("deepspeed").decisions(recipe)
    assert ("engine.zero", 0) in [(each.field, each.value) for each in decisions]


def test_the_files_own_numbers_fill_its_other_parts() -> None:
    """Its learning rate is the one that the schedule warms up to."""
    given = {
        "optimizer": {"type": "AdamW", "params": {"lr": 0.25, "betas": "auto"}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": "auto", "warmup_num_steps": "auto"}},
    }
    train = {"learning_rate": 0.5, "warmup": 3, "beta1": 0.8, "beta2": 0.9}
    engine = {"name": "deepspeed", "options": given}
    made = fill_auto(given, merged(recipe_from({"engine": engine, "train": train})), 64)
    assert made["optimizer"]["params"] == {"lr": 0.25, "betas": [0.8, 0.9]}
    assert made["scheduler"]["params"] == {"warmup_max_lr": 0.25, "warmup_num_steps": 3}


def test_the_recipe_has_what_the_file_says(file: Path) -> None:
    """Its numbers, precision and the nearest schedule, so that the record of a run is read again."""
    file.write_text(
        json.dumps(
            {
                "train_batch_size": 12,
                "gradient_clipping": 0.5,
                "bf16": {"enabled": True},
                "optimizer": {"type": "AdamW", "params": {"lr": 2e-4, "betas": [0.8, 0.9]}},
                "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 7}},
            }
        )
    )
    recipe = read_inputs(
        "demo",
        "node1",
        [
            f"engine.config={file}",
            "batch.global=auto",
            "train.schedule=constant",
            "train.warmup=0",
            "precision=auto",
        ],
    ).recipe
    assert (recipe.precision, recipe.batch.global_) == ("bf16", 12)
    train = recipe.train
    assert (train.learning_rate, train.beta1, train.beta2, train.epsilon) == (2e-4, 0.8, 0.9, 1e-8)
    assert (train.clip, train.warmup, train.schedule) == (0.5, 7, "constant_with_warmup")
    assert merged(recipe_from(recipe.as_dict())) == recipe


@pytest.mark.parametrize(
    ("sections", "given", "precision"),
    [
        ({}, "auto", "fp32"),  # as DeepSpeed alone
        ({"fp16": {"enabled": False}}, "auto", "fp32"),
        ({"fp16": {"loss_scale": 0}}, "auto", "fp32"),
        ({"fp16": {"enabled": "auto"}}, "auto", "auto"),
        ({}, "bf16", "bf16"),
        ({"bf16": {"enabled": True}}, "auto", "bf16"),
    ],
)
def test_a_file_without_a_precision_is_in_fp32(
    sections: dict[str, Any], given: str, precision: str, file: Path
) -> None:
    """Where the recipe has none of its own, and with a note."""
    file.write_text(json.dumps(sections))
    recipe = read_inputs("demo", "node1", [f"engine.config={file}", f"precision={given}"]).recipe
    assert recipe.precision == precision
    assert merged(recipe_from(recipe.as_dict())) == recipe
    noted = [each.value for each in spec_of("deepspeed").decisions(recipe) if each.field == "engine.config"]
    assert noted == (["fp32"] if precision == "fp32" else [])


def test_a_number_that_no_recipe_can_have_is_refused(file: Path) -> None:
    file.write_text(json.dumps({"optimizer": {"type": "AdamW", "params": {"lr": 0}}}))
    with pytest.raises(RecipeError, match=r"train\.learning_rate") as refused:
        read_inputs("demo", "node1", [f"engine.config={file}"])
    assert refused.value.where == str(file)


def test_a_models_width_that_is_not_known_stays_open() -> None:
    given = {**ALL_AUTO, "zero_optimization": {**ALL_AUTO["zero_optimization"], "sub_group_size": "auto"}}
    made = fill_auto(given, recipe_from({"train": Train().model_dump()}), None)
    assert made["zero_optimization"]["reduce_bucket_size"] == "auto"
    assert "sub_group_size" not in made["zero_optimization"]  # no width would fill it
    assert ALL_AUTO["optimizer"]["params"]["lr"] == "auto"


def test_what_deepspeed_drops_is_not_shown() -> None:
    """DeepSpeed reads "auto" elsewhere as not given; below stage 3 Transformers fills no prefetch bucket."""
    given = {"zero_optimization": {"stage": 2, "overlap_comm": "auto", "stage3_prefetch_bucket_size": "auto"}}
    assert fill_auto(given, recipe_from({}), 64)["zero_optimization"] == {"stage": 2}


@pytest.mark.parametrize(
    ("scheduler", "rate", "words"),
    [
        ({"type": "WarmupLR", "params": {"warmup_max_lr": 5e-4}}, 5e-4, "then constant"),
        ({"type": "WarmupDecayLR", "params": {"warmup_max_lr": 5e-4, "warmup_min_lr": 1e-6}}, 5e-4, "1e-06"),
        ({"type": "WarmupCosineLR", "params": {"cos_min_ratio": 0.1}}, 1e-3, "cosine to 0.1"),
        (
            {"type": "OneCycle", "params": {"cycle_min_lr": 1e-5, "cycle_max_lr": 2e-3}},
            2e-3,
            "beta1 from 0.9",
        ),
        ({"type": "LRRangeTest", "params": {"lr_range_test_min_lr": 2e-5}}, 2e-5, "2e-05"),
        ({"type": "LRRangeTest", "params": {}}, 1e-3, "0.001"),
        ({"type": "WarmupDecayLR", "params": {"warmup_min_lr": 1e-6}}, 1e-3, "then linear to 1e-06"),
        (
            {
                "type": "OneCycle",
                "params": {
                    "cycle_min_lr": 1e-5,
                    "cycle_max_lr": 2e-3,
                    "decay_lr_rate": 0.1,
                    "decay_step_size": 10,
                },
            },
            2e-3,
            "and falls on",
        ),
        ({"type": "WarmupLR", "params": {}}, 1e-3, "then constant"),
    ],
)
def test_the_rate_is_the_schedulers_where_that_sets_it(
    tmp_path: Path, scheduler: dict[str, Any], rate: float, words: str
) -> None:
    """Whatever the optimizer says, and as both say it to Transformers, which refuses two that differ."""
    file = tmp_path / "ds.json"
    optimizer = {"type": "AdamW", "params": {"lr": 1e-3}}
    file.write_text(json.dumps({**ALL_AUTO, "optimizer": optimizer, "scheduler": scheduler}))
    plan = dry_run(read_inputs("demo", "node1,node2", [f"engine.config={file}"]), RunFolder(tmp_path / "r"))
    decided = {each["field"]: each["value"] for each in plan["decisions"]}
    assert decided["train.learning_rate"] == rate
    assert f"learning rate {rate:g}," in plan["plan"]["training"]["optimizer"]
    assert plan["deepspeed"]["optimizer"]["params"]["lr"] == rate
    assert plan["recipe"]["train"]["learning_rate"] == rate  # one number, wherever it is shown
    assert words in decided["train.schedule"]


@pytest.mark.parametrize(
    ("scheduler", "key"),
    [
        ({"type": "WarmupDecayLR", "params": {"warmup_num_steps": 30}}, f"{WARMUP}=30"),
        ({"type": "WarmupLR", "params": {"warmup_num_steps": 31}}, f"{WARMUP}=31"),
        ({"type": "WarmupCosineLR", "params": {"warmup_num_steps": 29}}, None),
        ({"type": "WarmupLR", "params": {"warmup_num_steps": "auto"}}, "train.warmup=40"),
        (
            {"type": "OneCycle", "params": {"cycle_min_lr": 0, "cycle_max_lr": 1}},
            "scheduler.params.cycle_first_step_size=2000",
        ),
        ({"type": "LRRangeTest", "params": {}}, None),
        (None, "train.warmup=40"),
    ],
)
def test_a_warm_up_longer_than_the_training_is_noted_whosever_it_is(
    file: Path, tmp_path: Path, scheduler: dict[str, Any] | None, key: str | None
) -> None:
    file.write_text(json.dumps({"scheduler": scheduler} if scheduler else {}))
    short = [f"engine.config={file}", "train.warmup=40", "train.max_steps=30"]
    plan = dry_run(read_inputs("demo", "node1,node2", short), RunFolder(tmp_path / "r"))["plan"]
    notes = [each for each in plan["notes"] if "never reaches its peak" in each]
    assert [each.split(" is ")[0] for each in notes] == ([key] if key else [])


@pytest.mark.parametrize("steps", ["auto", None, "100", [100]])
def test_the_steps_of_a_cycle_are_a_number(file: Path, steps: Any) -> None:
    params = {"cycle_min_lr": 0, "cycle_max_lr": 1, "cycle_first_step_size": steps}
    file.write_text(json.dumps({"scheduler": {"type": "OneCycle", "params": params}}))
    with pytest.raises(RecipeError, match="cycle_first_step_size"):
        read_inputs("demo", "node1,node2", [f"engine.config={file}"])


def test_a_rate_that_an_optimizer_leaves_out_is_the_recipes(file: Path, tmp_path: Path) -> None:
    file.write_text(json.dumps({"optimizer": {"type": "AdamW"}}))
    inputs = read_inputs("demo", "node1,node2", [f"engine.config={file}", *SETTINGS])
    assert dry_run(inputs, RunFolder(tmp_path / "r"))["deepspeed"]["optimizer"]["params"]["lr"] == 0.003


@pytest.mark.parametrize(
    ("kind", "params", "coupled"),
    [
        ("Adam", {"adam_w_mode": False}, True), ("adam", {"adam_w_mode": False, "torch_adam": True}, True),
        ("Adam", {}, False), ("Adam", {"adam_w_mode": True}, False), ("AdamW", {"adam_w_mode": False}, False),
    ],
)  # fmt: skip
def test_adam_is_adamw_unless_its_mode_is_off(
    file: Path, tmp_path: Path, kind: str, params: dict[str, Any], coupled: bool
) -> None:
    file.write_text(json.dumps({"optimizer": {"type": kind, "params": {"lr": 1e-3, **params}}}))
    plan = dry_run(read_inputs("demo", "node1,node2", [f"engine.config={file}"]), RunFolder(tmp_path / "r"))
    words = plan["plan"]["training"]["optimizer"]
    assert ("adamw" not in words) == coupled
    assert "betas 0.9 and 0.999" in words


@pytest.mark.parametrize(
    ("stage", "old", "new"),
    [(2, "cpu_offload", "offload_optimizer"), (3, "cpu_offload_param", "offload_param")],
)
def test_old_names_of_offloading_are_offloading(
    file: Path, tmp_path: Path, stage: int, old: str, new: str
) -> None:
    given = []
    for number, zero in enumerate(({old: True}, {new: {"device": "cpu"}})):
        file.write_text(json.dumps({"zero_optimization": {"stage": stage, **zero}}))
        inputs = read_inputs("demo", "node1,node2", [f"engine.config={file}"])
        given.append(dry_run(inputs, RunFolder(tmp_path / str(number))))
    assert given[0]["deepspeed"] == given[1]["deepspeed"]
    assert given[0]["plan"]["memory"] == given[1]["plan"]["memory"]


@pytest.mark.parametrize(
    ("kind", "params", "values"),
    [
        ("RMSprop", {}, 1), ("RMSprop", {"momentum": 0.9, "centered": True}, 3), ("SGD", {}, 0),
        ("SGD", {"momentum": 0.9}, 1), ("Adadelta", {}, 2),
        ("AdamW", {"torch_adam": True, "amsgrad": True}, 3),
        ("ASGD", {}, 1), ("Rprop", {}, 2), ("NAdam", {}, 2), ("RAdam", {}, 2), ("Adamax", {}, 2),
    ],
)  # fmt: skip
def test_values_that_an_optimizer_keeps_are_those_of_its_state(
    kind: str, params: dict[str, Any], values: int
) -> None:
    """Held against the tensors that PyTorch's optimizers have after a step."""
    import torch

    optimizer = {"type": kind, "params": params}
    assert moments({"optimizer": optimizer}, offloaded=False) == values
    weight = torch.nn.Parameter(torch.ones(64))
    weight.grad = torch.ones(64)
    own = {name: value for name, value in params.items() if name != "torch_adam"}
    made = getattr(torch.optim, kind)([weight], lr=0.1, **own)
    made.step()
    held = [each for each in made.state[weight].values() if torch.is_tensor(each) and each.numel() == 64]
    assert len(held) == values


def test_an_optimizer_whose_states_are_not_known_is_named() -> None:
    assert uncounted({"optimizer": {"type": "Muon"}}) == ["optimizer.type"]
    assert moments({"optimizer": {"type": "Muon"}}, offloaded=False) is None
    assert moments({}, offloaded=True) == 2


def test_what_no_plan_counts_is_named() -> None:
    zero = {"stage": 3, "zero_quantized_weights": True, "offload_optimizer": {"device": "cpu", "ratio": 0.3}}
    config = {
        "zero_optimization": zero,
        "data_types": {"grad_accum_dtype": "fp32"},
        "communication_data_type": "fp32",
        "bf16": {"enabled": True, "bf16_optimizer_states": False},
    }
    assert uncounted(config) == [
        "zero_optimization.zero_quantized_weights", "data_types.grad_accum_dtype", "communication_data_type",
    ]  # fmt: skip
    assert uncounted(ALL_AUTO) == []


@pytest.mark.parametrize(
    ("optimizer", "cycles", "betas"),
    [
        ({"type": "Adam", "params": {"betas": [0.8, 0.999]}}, True, (0.85, 0.99)),
        ({"type": "Adam", "params": {}}, True, (0.85, 0.99)),
        ({"type": "Adam", "params": {"betas": [0.8, 0.999]}}, False, (0.8, 0.999)),
        ({"type": "Adagrad", "params": {}}, True, (None, None)),
    ],
)
def test_one_cycle_sets_the_betas_of_those_that_have_some(
    optimizer: dict[str, Any], cycles: bool, betas: tuple[float | None, float | None]
) -> None:
    """As the first step has them, and as Transformers is told: it refuses a file's that differ."""
    rates = {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-3, "cycle_momentum": cycles, "cycle_min_mom": 0.85}
    config = {"optimizer": optimizer, "scheduler": {"type": "OneCycle", "params": rates}}
    found = user_training(config)
    assert (found.get("beta1"), found.get("beta2")) == betas
    recipe = recipe_from({"engine": {"name": "deepspeed", "zero": 0, "options": config}})
    made = deepspeed_config(recipe, Batch(1, 1, 1), "fp32")["optimizer"]["params"]
    assert "betas" not in optimizer["params"] or made["betas"] == list(betas)


def test_a_clip_that_deepspeed_refuses_is_refused_before_the_start() -> None:
    with pytest.raises(RecipeError, match="max_grad_norm") as refused:
        user_training({"optimizer": {"type": "Adam", "params": {"max_grad_norm": 1.0}}})
    assert "gradient_clipping" in (refused.value.hint or "")
