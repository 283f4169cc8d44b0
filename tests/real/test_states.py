"""The bytes that the planner says a rank holds, against the tensors that every engine really has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from muster.core.recipe import recipe_from
from muster.core.trace import Parameter, from_json
from muster.engines.spread import ModelSpread
from muster.engines.states import States
from muster.planner.memory.fit import Setting, need
from muster.planner.memory.states import states
from muster.planner.setting import setting_of
from tests.support import needs_torch

pytestmark = [pytest.mark.real, pytest.mark.timeout(960)]

# 2.5 million parameters, of sizes that no number of ranks divides.
CONFIG = {
    "model_type": "opt", "hidden_size": 200, "ffn_dim": 606, "num_hidden_layers": 4, "num_attention_heads": 4,
    "word_embed_proj_dim": 104, "vocab_size": 4001, "max_position_embeddings": 61, "dropout": 0.0,
}  # fmt: skip
# 9.3 million, most of them in embeddings that are not the output as well, and are modules by themselves.
UNTIED = {
    "model_type": "llama", "hidden_size": 200, "intermediate_size": 606, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 18_001, "max_position_embeddings": 61,
}  # fmt: skip
BUCKET = {"zero_optimization": {"reduce_bucket_size": 300_000}}
FEW = {
    "zero_optimization": {
        "stage3_max_reuse_distance": 0, "stage3_prefetch_bucket_size": 50_000,
        "stage3_max_live_parameters": 500_000,
    }
}  # fmt: skip
SUMS = {"data_types": {"grad_accum_dtype": "fp32"}}
SENT = {"communication_data_type": "fp32"}
LORA = {"rank": 8, "targets": "all-linear"}
ENGINES: dict[str, dict[str, Any]] = {
    "ddp": {"name": "ddp"},
    "fsdp": {"name": "fsdp"},
    "fsdpsync": {"name": "fsdp", "sync_each_batch": True},
    "fsdpgroup": {"name": "fsdp", "group": 2},
    "zero3group": {"name": "deepspeed", "zero": 3, "group": 2},
    "zero0": {"name": "deepspeed", "zero": 0},
    "zero1": {"name": "deepspeed", "zero": 1, "options": BUCKET},
    "zero2": {"name": "deepspeed", "zero": 2, "options": BUCKET},
    "zero3": {"name": "deepspeed", "zero": 3},
    "zero3few": {"name": "deepspeed", "zero": 3, "options": FEW},
    "zero3param": {
        "name": "deepspeed",
        "zero": 3,
        "options": {"zero_optimization": {"offload_param": {"device": "cpu"}}},
    },
    "offload2": {"name": "deepspeed", "zero": 2, "offload": "optimizer", "options": BUCKET},
    "offload3": {"name": "deepspeed", "zero": 3, "offload": "optimizer+param"},
    **{
        f"file{name.lower()}{zero}": {
            "name": "deepspeed",
            "zero": zero,
            "options": {"optimizer": {"type": name, "params": {"lr": 1e-3, **params}}, **BUCKET},
        }
        for name, zero, params in (("SGD", 2, {"momentum": 0.9}), ("SGD", 3, {}))
    },
    **{
        f"{name}{zero}": {
            "name": "deepspeed", "zero": zero, "options": {**option, **(BUCKET if zero in (1, 2) else {})},
        }
        for name, option in (("sums", SUMS), ("sent", SENT))
        for zero in range(4)
        if zero or name == "sent"
    },
    "ratio": {
        "name": "deepspeed", "zero": 3, "offload": "optimizer",
        "options": {
            "zero_optimization": {"offload_optimizer": {"ratio": 0.5}, "sub_group_size": 200_000},
        },
    },
}  # fmt: skip
ELSEWHERE = ("zero3few", "fsdp", "fsdpsync", "fsdpgroup", "zero3group")
TWO = [(engine, "bf16", 2) for engine in ENGINES if engine not in ("ddp", *ELSEWHERE)]
TWO += [(engine, "fp32", 2) for engine in ("ddp", "zero1", "zero2", "zero3", "filesgd3")]
THREE = [
    ("fsdp", "bf16", 3),
    ("zero1", "bf16", 3),
    ("zero2", "fp32", 3),
    ("zero3", "bf16", 3),
]
FOUR = [("fsdpgroup", "bf16", 4), ("zero3group", "bf16", 4)]
ALONE = [("zero1", "bf16", 1), ("zero3", "fp32", 1)]
REAL = [*TWO, *THREE, *FOUR, *ALONE]
WORLDS = [
    (engine, precision, ranks)
    for ranks in (8, 64)
    for engine, precision in (("fsdp", "fp32"), ("zero1", "bf16"), ("zero2", "fp32"), ("zero3", "bf16"))
]


def named(engine: str, precision: str, ranks: int, more: str = "") -> str:
    return f"{engine}-{precision}-{ranks}{more}"


def case(
    engine: str, precision: str, ranks: int, more: str = "", *, config: Any = CONFIG, **fields: Any
) -> dict[str, Any]:
    recipe = {
        "workload": "causal-lm", "engine": ENGINES[engine], "data": {"synthetic": {}, "sequence": 4},
        "model": {"init": "random", "create": "whole", "config": config}, "train": {"max_steps": 2},
        "checkpoint": {"model": False},
    }  # fmt: skip
    asked = {"name": named(engine, precision, ranks, more), "recipe": recipe, "precision": precision}
    recipe |= fields.pop("recipe", {})
    return {**asked, "ranks": ranks, **fields}


def whole(
    engine: str,
    precision: str,
    ranks: int,
    micro: int,
    *,
    accumulation: int = 1,
    config: Any = CONFIG,
    **train: Any,
) -> Any:
    """A case whose passes are traced, with samples long enough to count. Real ranks have several steps, whose
    least peak counts."""
    real = engine in ("ddp", "fsdp", "fsdpsync")
    steps = 4 if real else 2
    recipe = {
        "batch": {"micro": micro, "accumulation": accumulation}, "train": {"max_steps": steps, **train},
        "data": {"synthetic": {}, "sequence": 60},
    }  # fmt: skip
    alone = {} if real else {"rank": 0}
    more = f"-traced{micro}x{accumulation}{'' if config is CONFIG else '-untied'}"
    return case(engine, precision, ranks, more, config=config, recipe=recipe, traced=True, **alone)


TRACED = [
    whole("ddp", "bf16", 2, 8), whole("zero0", "bf16", 4, 1), whole("zero1", "bf16", 4, 1, accumulation=2),
    whole("fsdp", "bf16", 2, 1, accumulation=2), whole("fsdp", "fp32", 2, 8), whole("zero2", "bf16", 4, 8),
    whole("fsdp", "bf16", 2, 1, config=UNTIED), whole("fsdpsync", "fp32", 2, 8, accumulation=2),
    whole("fsdpsync", "bf16", 2, 1, accumulation=2, config=UNTIED),
    *(whole(engine, "bf16", 2, 4, optimizer="adamw-bf16") for engine in ("ddp", "fsdp")),
    whole("ddp", "bf16", 2, 6, autocast=False),
    whole("ddp", "bf16", 2, 5, autocast=False, gradient_checkpointing=True),
    *(whole(f"sums{zero}", "bf16", 4, 1, accumulation=2) for zero in (1, 2, 3)),
    *(whole(f"sent{zero}", "bf16", 4, 1, accumulation=2) for zero in (0, 2)), whole("sums1", "bf16", 2, 8),
    whole("zero3few", "fp32", 4, 8), whole("zero3", "fp32", 4, 1, gradient_checkpointing=True),
]  # fmt: skip
CASES = [
    *TRACED,
    *(case(*each) for each in REAL),
    # Of a faked world: the last rank, which has the padding; ZeRO-3 compares with the first one's lists.
    *(case(*each, rank=0 if each[0] == "zero3" else each[2] - 1) for each in WORLDS),
    *(
        case(engine, "bf16", 2, "-lora", recipe={"lora": LORA})
        for engine in ("ddp", "fsdp", "zero2", "zero3")
    ),
]


Told = dict[str, dict[int, dict[str, Any]]]


def hold(folder: Path) -> Told:
    """Case -> rank -> what it said. Ranks of one case run at a time, all as forks of one process."""
    (folder / "asked.json").write_text(json.dumps(CASES))
    done = subprocess.run(
        [sys.executable, "-m", "tests.real.holding", str(folder)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "LOCAL_SIZE": "0"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: Told = {}
    for each in CASES:
        files = folder.glob(f"{each['name']}.rank*.json")
        found[each["name"]] = {
            int(file.stem.rpartition("rank")[2]): json.loads(file.read_text()) for file in files
        }
    return found


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    needs_torch()
    return hold(tmp_path_factory.mktemp("held"))


def setting(asked: dict[str, Any]) -> Setting:
    """As the planner makes it of the recipe."""
    recipe, ranks = recipe_from(asked["recipe"]), asked["ranks"]
    found = setting_of(recipe, recipe.model.config, asked["precision"], "cpu", [ranks])
    assert found is not None
    return found


def tensors_of(said: dict[str, Any]) -> tuple[Parameter, ...]:
    return tuple(
        Parameter(each["name"], tuple(each["shape"]), each["trained"], each["unit"])
        for each in said["parameters"]
    )


def spread(asked: dict[str, Any]) -> ModelSpread:
    return setting(asked).spread


def predicted(asked: dict[str, Any], rank: int, said: dict[str, Any]) -> States:
    return states(spread(asked), tensors_of(said), rank)


def expected(found: States) -> tuple[dict[str, int], dict[str, int]]:
    """Bytes of each kind before and after an optimizer step."""
    both = {name: found.held.get(name, 0) + found.host.get(name, 0) for name in {*found.held, *found.host}}
    step = found.after.get("optimizer step", {})
    return {**both, "gradients": step.get("gradients", both.get("gradients", 0))}, both


KINDS = ("parameters", "persistent parameters", "gradients", "fp32 master", "optimizer", "buckets")
SCALARS = 4 * 100  # Adam counts its steps for each tensor
DATA = 5000  # bytes of samples and scalars


@pytest.mark.parametrize("asked", CASES, ids=lambda asked: asked["name"])
def test_every_kind_of_bytes_is_as_predicted(asked: dict[str, Any], told: Told) -> None:
    """Kind by kind; all that Python can reach; and the most that was there during the optimizer's step."""
    ranks = told[asked["name"]]
    assert len(ranks) == (1 if "rank" in asked else asked["ranks"])
    for rank, said in ranks.items():
        found = predicted(asked, rank, said)
        for when, kinds in zip(("before", "after"), expected(found), strict=True):
            for kind in KINDS:
                measured = said[when].get(kind, 0)
                assert kinds.get(kind, 0) == pytest.approx(measured, rel=0.01, abs=SCALARS), (
                    rank,
                    when,
                    kind,
                )
        held = sum(found.held.values()) + sum(found.host.values())
        assert held == pytest.approx(said["after"]["all"] - said["buffers"], rel=0.01, abs=DATA), rank
        if found.after:
            step = max(sum(parts.values()) for name, parts in found.after.items() if "reduction" not in name)
            assert 0.99 < (held + step) / (said["peak"] - said["buffers"] - DATA) < 1.05, rank


def peaks(asked: dict[str, Any], said: dict[str, Any]) -> tuple[int, int]:
    """Bytes at the peak of a whole step, as planned and as they were."""
    recipe = asked["recipe"]
    planned = replace(setting(asked), trace=from_json(said["trace"]), micro=recipe["batch"]["micro"])
    planned = planned.spreading(micro_steps=recipe["batch"]["accumulation"])
    found = need(planned)
    assert found is not None and found.basis == "traced"
    held = {name: value for name, value in found.device.items() if "first rank" not in name}
    total = sum(value for name, value in held.items() if name not in ("allocator slack", "process"))
    return total, max(said["passes"], said["peak"]) - DATA


@pytest.mark.parametrize("asked", TRACED, ids=lambda asked: asked["name"])
def test_the_peak_of_a_whole_step(asked: dict[str, Any], told: Told) -> None:
    """States, engine buffers and traced activations together, against the most that was really there."""
    planned, measured = peaks(asked, told[asked["name"]][0])
    assert 0.98 < planned / measured < 1.1


def test_fsdp_keeps_whole_gradients_while_micro_batches_accumulate(told: Told) -> None:
    asked = next(each for each in TRACED if each["name"].startswith("fsdp-") and each["name"].endswith("x2"))
    for rank, said in told[asked["name"]].items():
        found = predicted(asked, rank, said)
        held = sum(found.held.values()) + found.passes["accumulated gradients"]
        assert held == pytest.approx(said["between"] - said["buffers"], rel=0.01), rank


@pytest.mark.parametrize(
    "asked", [each for each in TRACED if "fsdpsync" in each["name"]], ids=lambda asked: asked["name"]
)
def test_fsdp_keeps_shards_alone_where_it_reduces_in_every_micro_step(
    asked: dict[str, Any], told: Told
) -> None:
    for rank, said in told[asked["name"]].items():
        found = predicted(asked, rank, said)
        assert "accumulated gradients" not in found.passes
        held = sum(found.held.values()) + found.gradients["gradients"]
        assert held == pytest.approx(said["between"] - said["buffers"], rel=0.01), rank


@pytest.mark.parametrize("asked", CASES, ids=lambda asked: asked["name"])
def test_no_rank_needs_more_than_the_one_that_is_planned_for(asked: dict[str, Any], told: Told) -> None:
    for rank, said in told[asked["name"]].items():
        of, tensors = spread(asked), tensors_of(said)
        for here, most in zip(
            expected(states(of, tensors, rank)), expected(states(of, tensors)), strict=True
        ):
            assert all(here[kind] <= most[kind] for kind in here)


def test_the_optimizer_is_the_one_that_works_in_place(told: Told) -> None:
    for asked in CASES:
        own = asked["name"].startswith(
            ("offload", "file", "ratio")
        )  # DeepSpeed's own, on the host, or its file's
        assert all(said["fused"] is not own for said in told[asked["name"]].values()), asked["name"]
