"""What DeepSpeed gets is what is shown, "auto" filled in before the start. What is made of each of many files
stands in tests/golden/documents/filled.txt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from muster.core.job import read_job
from muster.engines.deepspeed.config import moments
from muster.inputs.read import read_inputs
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
SETTINGS = ["train.learning_rate=0.003", "train.warmup=20", "train.beta2=0.97", "train.clip=0.7"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "ds.json"
    made.write_text(json.dumps(ALL_AUTO))
    return made


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
