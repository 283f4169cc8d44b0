"""precision=fp8: what it may be used with, on which devices, and what plans make of it."""

from __future__ import annotations

from typing import Any

import pytest

from muster.core import float8
from muster.core.errors import RecipeError, UsageError
from muster.core.inventory import parse_hosts
from muster.core.job import Decision
from muster.core.workload import Lengths
from muster.inputs.model import check_model
from muster.inputs.read import check, read_recipe
from muster.planner.memory.fit import Setting
from muster.planner.plan import plan_first
from muster.planner.predict import case_of
from muster.planner.time.steptime import ideal
from muster.runs.requirements import check_hosts, needed
from tests.support import on_hosts, parse_machines, setting_with

SEVEN = ("model.name=meta-llama/Llama-2-7b-hf", "data.sequence=2048", "batch.micro=1", "model.init=random")
LLAMA = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 1000,
}  # fmt: skip
INSIDE = 3 * (4 * 64 * 64 + 3 * 64 * 96)  # weights of its blocks


@pytest.mark.parametrize("engine", ["ddp", "fsdp"])
@pytest.mark.parametrize("name", ["causal-lm", "sft"])
def test_decoders_may_use_it(name: str, engine: str) -> None:
    check_model(read_recipe(name, [*SEVEN, f"engine.name={engine}", "precision=fp8"]))


def host(*gpus: dict[str, Any]) -> dict[str, Any]:
    return {"w": {"cores": 8, "memory_total": 64 * 10**9, "gpus": list(gpus), "network": {}}}


def decisions(about: dict[str, Any], *words: str) -> list[Decision]:
    recipe = read_recipe("causal-lm", [*SEVEN, "precision=fp8", "force=true", *words])
    made = on_hosts(recipe, parse_hosts("w"), about)
    return [each for each in made.job.decisions if each.field == "precision"]


H100 = {"name": "NVIDIA H100 80GB HBM3", "memory_total": 80 * 10**9, "capability": [9, 0]}
MI250X = {"name": "AMD Instinct MI250X", "memory_total": 64 * 10**9, "capability": [9, 0]}


def test_devices_without_it_are_refused_before_the_start() -> None:
    """An MI250 tells 9.0 as an H100 does, by the name of its architecture, and has no fp8."""
    inputs = check(read_recipe("causal-lm", [*SEVEN, "precision=fp8"]), parse_hosts("w"))
    for gpu, needs in (({**H100, "name": "A100", "capability": [8, 0]}, "8.9"), (MI250X, "9.4")):
        with pytest.raises(RecipeError, match=f"fp8 needs compute capability {needs}") as refused:
            plan_first(inputs, host(gpu))
        assert refused.value.where == "precision" and refused.value.hint
        assert decisions(host(gpu))[0].why.startswith("forced, although")


def test_a_run_hears_of_emulation_and_of_casts_that_nothing_fuses() -> None:
    assert "emulated" in decisions(host())[0].why
    assert "train.compile=true" in decisions(host(H100))[0].why
    assert decisions(host(H100), "train.compile=true") == []


def test_hosts_are_asked_for_the_package() -> None:
    recipe = read_recipe("causal-lm", [*SEVEN, "precision=fp8"])
    assert float8.PACKAGE in needed(recipe)
    assert float8.PACKAGE not in needed(read_recipe("causal-lm", [*SEVEN, "precision=bf16"]))
    versions = dict.fromkeys(needed(recipe), "1") | {float8.PACKAGE: None}
    with pytest.raises(UsageError, match="torchao not installed") as refused:
        check_hosts({"w": {"versions": versions, "python": "python"}}, recipe)
    assert "pip install torchao there" in (refused.value.hint or "")


# --- plans -----------------------------------------------------------------------------------------------


def setting(precision: str = "fp8", **fields: Any) -> Setting:
    """A small Llama on a GPU by itself, two sequences of 40 tokens."""
    count = INSIDE + 2 * 64 * 1000 + 7 * 64
    known: dict[str, Any] = {
        "config": LLAMA, "parameters": count, "trainable": count, "lengths": Lengths(40), "engine": "ddp",
        "precision": precision, "device": "cuda", "ranks": 1, "ranks_per_host": 1, "micro": 2,
        "compiled": True,
    }  # fmt: skip
    return setting_with(**{**known, **fields})


def test_matrices_of_blocks_compute_in_it_and_others_do_not() -> None:
    assert sum(each.numel for each in setting().in_fp8) == INSIDE
    odd = setting(config={**LLAMA, "intermediate_size": 100}, parameters=300_000, trainable=300_000)
    assert sum(each.numel for each in odd.in_fp8) == 3 * 4 * 64 * 64
    assert setting("bf16").in_fp8 == ()


def test_a_device_without_a_peak_in_fp8_is_named() -> None:
    few = case_of(setting(), parse_machines("mydev{tflops=100,memory=48GB,bandwidth=900e9,capability=9}:1"))
    assert few is not None
    with pytest.raises(UsageError, match="no stated peak in fp8") as refused:
        ideal(few)
    assert "fp8=TFLOPS" in (refused.value.hint or "")
