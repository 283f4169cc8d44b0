"""Weights and moments in few bits: their bytes, what asks for them, and where they are refused."""

from __future__ import annotations

from typing import Any

import pytest

from muster.core import bits
from muster.core.errors import RecipeError, UsageError
from muster.core.inventory import parse_hosts
from muster.core.recipe import recipe_from
from muster.inputs.model import check_model
from muster.inputs.read import check, read_recipe
from muster.planner.document import Plan
from muster.planner.machines import UserFigures
from muster.planner.plan import plan_first, plan_on
from muster.runs.requirements import check_hosts, needed

LORA = ("lora.rank=8", "lora.targets=all-linear", "engine.name=ddp", "model.init=pretrained")
SEVEN = ("model.name=meta-llama/Llama-2-7b-hf", "data.sequence=2048", "precision=bf16", "batch.micro=1")


def plan(*words: str, on: str = "a100-80gb:1") -> Plan:
    made = plan_on(read_recipe("causal-lm", [*SEVEN, *words]), on, UserFigures(), traced=False).plan
    assert made is not None and made.memory is not None
    return made


# Bytes that bitsandbytes 0.50.2 holds of a Llama of two layers, 256 wide (688 inside): its linear layers.
@pytest.mark.parametrize(
    ("kind", "held"),
    [
        ("nf4", 889_344),
        ("fp4", 889_344),
        ("nf4-double", 815_624),
        ("fp4-double", 815_624),
        ("int8", 1_602_304),
    ],
)
def test_weights_take_what_bitsandbytes_takes(kind: bits.Bits, held: int) -> None:
    shapes = [*4 * [(256, 256)], *2 * [(688, 256)], (256, 688)]
    assert 2 * sum(bits.weight_bytes(kind, shape) for shape in shapes) == held


@pytest.mark.parametrize(
    ("numel", "held"), [(100, 800), (4095, 32_760), (4096, 8320), (5000, 10_160), (70_001, 142_194)]
)
def test_moments_take_what_bitsandbytes_takes(numel: int, held: int) -> None:
    assert bits.moment_bytes(numel) == held


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({"load_in_8bit": True}, "int8"),
        ({"load_in_4bit": True}, "fp4"),
        ({"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, "nf4"),
        (
            {
                "load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True,
                "bnb_4bit_compute_dtype": "bfloat16", "quant_method": "bitsandbytes",
            },
            "nf4-double",
        ),
    ],
)  # fmt: skip
def test_transformers_own_words_mean_the_same(given: dict[str, Any], kind: bits.Bits) -> None:
    config = {"quantization_config": given, "hidden_size": 8}
    model = recipe_from({"workload": "causal-lm", "model": {"config": config}}).model
    assert model.quantized == kind and model.config == {"hidden_size": 8}
    if kind != "fp4":  # what is usual is not said
        assert bits.read(bits.fields_of(kind)) == kind


@pytest.mark.parametrize(
    "given",
    [
        {"quant_method": "gptq", "bits": 4}, {"load_in_4bit": False},
        {"load_in_4bit": True, "load_in_8bit": True},
        {"load_in_8bit": True, "llm_int8_threshold": 3.0},
        {"load_in_4bit": True, "bnb_4bit_quant_type": "nf5"},
        "nf4",
    ],
)  # fmt: skip
def test_other_quantisations_are_refused_with_those_that_work(given: Any) -> None:
    with pytest.raises(ValueError, match="nf4-double"):
        recipe_from({"workload": "causal-lm", "model": {"config": {"quantization_config": given}}})


@pytest.mark.parametrize(
    ("words", "says", "hint"),
    [
        (["engine.name=ddp"], "cannot be trained", "lora.rank="),
        ([*LORA, "model.init=random"], "drawn anew", "model.init=pretrained"),
        ([*LORA, "engine.name=fsdp"], "engine ddp alone, not fsdp", "engine.name=ddp"),
        ([*LORA, "engine.name=deepspeed", "engine.zero=3"], "engine ddp alone", "engine.name=ddp"),
        ([*LORA, "launch.device=cpu"], "needs GPUs", "leave model.quantized out"),
    ],
)
def test_quantised_weights_are_refused_where_they_do_not_go(words: list[str], says: str, hint: str) -> None:
    recipe = read_recipe("causal-lm", [*SEVEN, *words, "model.quantized=nf4"])
    with pytest.raises(RecipeError, match=says) as refused:
        check_model(recipe)
    assert hint in (refused.value.hint or "")


def test_other_workloads_and_quantised_checkpoints_are_refused(tmp_path: Any) -> None:
    seq2seq = read_recipe("text2sql-t5-small", ["model.quantized=nf4", "lora.rank=8", "engine.name=ddp"])
    with pytest.raises(RecipeError, match="has no quantised weights"):
        check_model(seq2seq)
    (tmp_path / "config.json").write_text('{"model_type": "llama", "quantization_config": {"bits": 4}}')
    with pytest.raises(RecipeError, match="quantised already") as refused:
        check_model(read_recipe("causal-lm", [f"model.name={tmp_path}"]))
    assert "model.quantized=nf4-double" in (refused.value.hint or "")


def test_cpus_and_hosts_without_the_package_are_refused_before_anything_starts() -> None:
    words = [*SEVEN, *LORA, "model.quantized=nf4", "precision=auto"]
    about: dict[str, Any] = {"w": {"cores": 8, "memory_total": 64 * 10**9, "gpus": [], "network": {}}}
    inputs = check(read_recipe("causal-lm", words), parse_hosts("w:1"))
    with pytest.raises(RecipeError, match="needs GPUs"):
        plan_first(inputs, about)
    assert bits.PACKAGE in needed(inputs.recipe)
    versions = dict.fromkeys(needed(inputs.recipe), "1") | {bits.PACKAGE: None}
    with pytest.raises(UsageError, match="bitsandbytes not installed") as refused:
        check_hosts({"w": {"versions": versions, "python": "python"}}, inputs.recipe)
    assert "pip install bitsandbytes there" in (refused.value.hint or "")
    assert bits.PACKAGE not in needed(read_recipe("causal-lm", []))


@pytest.mark.parametrize(
    "precision", ["fp4", "FP8", "fp8_e4m3", "e4m3", "e5m2", "mxfp8", "nvfp4", "int8", "float8"]
)
def test_fewer_bits_of_computation_name_the_nearest_and_who_has_them(precision: str) -> None:
    with pytest.raises(RecipeError, match="does not compute in") as refused:
        read_recipe("causal-lm", [f"precision={precision}"])
    assert "precision=fp8" in str(refused.value) and "TransformerEngine" in str(refused.value)


@pytest.mark.parametrize(
    "key",
    [
        "tensor_parallel",
        "tensor_model_parallel_size",
        "pipeline_parallel",
        "context_parallel_size",
        "tp",
        "pp",
    ],
)
def test_ways_to_split_that_muster_lacks_are_told(key: str) -> None:
    with pytest.raises(RecipeError, match="Megatron-LM, NeMo and torchtitan"):
        read_recipe("causal-lm", [f"engine.{key}=2"])
    with pytest.raises(RecipeError, match="unknown key"):
        read_recipe("causal-lm", ["engine.types=2"])
