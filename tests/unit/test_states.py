"""Bytes of a rank by hand, tensor by tensor, and published figures."""

from __future__ import annotations

from typing import Any

import pytest

from muster.core import families
from muster.core.trace import Parameter
from muster.engines.spread import ModelSpread, NvmeOffload
from muster.planner.memory.fit import WORKSPACES
from muster.planner.memory.states import likely_tensors, states

# A matrix of 5 rows, one of 4 that is not trained, a vector: 10 + 12 + 3 elements.
TENSORS = (
    Parameter("a.weight", (5, 2), True, "a"),
    Parameter("b.weight", (4, 3), False, "b"),
    Parameter("a.norm.bias", (3,), True, ""),
)


def spread(engine: str = "deepspeed", ranks: int = 2, element: int = 2, **fields: Any) -> ModelSpread:
    return ModelSpread(engine, ranks, element, **{"bucket": 4, "persistence": 3, "prefetch": 2, **fields})


def test_what_offload_moves_is_rounded_up_where_it_is_pinned() -> None:
    found = states(spread(stage=2, offload="optimizer", together=True), TENSORS)  # parts of 6 and 2
    assert found.held == {"parameters": 2 * (16 + 12), "transfer buffer": 2 * 10}
    assert found.host == {
        "fp32 master": 32 + 8, "fp32 gradients": 32 + 8, "optimizer": 64, "transfer buffer": 16 + 4 + 32,
    }  # fmt: skip
    assert found.gradients == {}
    three = states(spread(stage=3, offload="optimizer+param", together=True), TENSORS)
    assert three.held == {"buckets": 8, "persistent parameters": 2 * 4}
    assert three.host == {
        "fp32 master": 28, "optimizer": 56, "fp32 gradients": 32 + 8, "gradients": 16,
        "parameters": 16 + 4 + 16, "pinned blocks kept": 16,
    }  # fmt: skip
    plain = states(spread(stage=3, offload="optimizer+param", together=True, device="cpu"), TENSORS)
    assert plain.host == {
        "fp32 master": 28, "optimizer": 56, "fp32 gradients": 28, "gradients": 14, "parameters": 14 + 12,
    }  # fmt: skip


# Shards of 2^20 and, not trained, 2^19 elements: of 1 MiB and more, which a disk takes.
LARGE = (Parameter("a.weight", (2**20, 2), True, "a"), Parameter("b.weight", (2**20,), False, "b"))


def test_what_goes_to_a_disk_is_in_no_memory_but_its_buffers_are() -> None:
    one, mib = 2**20, 2**20
    states_gone = states(spread(stage=3, offload="optimizer", disk=NvmeOffload("optimizer")), LARGE)
    assert states_gone.host == {"gradients": 2 * mib, "disk buffers": 4 * 4 * one + 8 * one}
    both = spread(
        stage=3,
        offload="optimizer+param",
        disk=NvmeOffload("optimizer+param", value_buffers=10, kept=one // 2),
    )
    there = states(both, LARGE).host
    assert there["parameters"] == 2 * one // 2  # what may stay, in half precision
    assert there["disk buffers"] == (4 * 4 + 8) * one + 2 * (10 + 2 * one)  # and one for a whole sub-group
    assert not {"fp32 master", "optimizer", "fp32 gradients", "pinned blocks kept"} & set(there)
    small = states(spread(stage=3, offload="optimizer", disk=NvmeOffload("optimizer")), TENSORS).host
    assert small["optimizer"] == 8 * 7  # too small for a disk


def test_what_has_no_weight_decay_is_a_group_of_its_own() -> None:
    names = (
        "wte.weight",
        "h.0.ln_1.weight",
        "self_attn_layer_norm.weight",
        "block.relative_attention_bias.weight",
    )
    shapes = ((7, 2), (7,), (7,), (32, 2))
    tensors = tuple(Parameter(name, shape, True, "") for name, shape in zip(names, shapes, strict=True))
    groups = ModelSpread("deepspeed", 1).optimizer_groups(tensors)
    assert [[each.name for each in group] for group in groups] == [
        [names[0]], list(names[1:]),
    ]  # fmt: skip
    assert ModelSpread("deepspeed", 1, together=True).optimizer_groups(tensors) == groups


@pytest.mark.parametrize("name", ["opt-350m", "opt-1.3b", "gpt2", "t5-large", "google/vit-base-patch16-224"])
def test_tensors_of_a_model_that_was_not_traced_are_of_its_sizes(name: str) -> None:
    config = families.size(name) or {}
    count = families.parameters(config) or 0
    tensors = likely_tensors(config, count, count)
    assert sum(each.numel for each in tensors) == count
    assert all(each.trained for each in tensors)
    matrices = sum(each.numel for each in tensors if len(each.shape) == 2)
    assert 0.9 * count < matrices <= count
    adapted = likely_tensors(config, count + 1000, 1000)
    assert sum(each.numel for each in adapted) == count + 1000
    assert sum(each.numel for each in adapted if each.trained) == 1000


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("gpt2", 121_344), ("facebook/opt-125m", 121_344), ("opt-1.3b", 643_072), ("t5-large", 125_952),
        ("google/vit-base-patch16-224", 122_114), ("meta-llama/Llama-3.2-1B", 67_584),
        ("Qwen/Qwen2.5-0.5B", 71_552),
    ],
)  # fmt: skip
def test_tables_of_a_model_that_was_not_traced_decay(name: str, plain: int) -> None:
    """Norms and biases alone do not, and T5's relative biases, by Transformers' get_decay_parameter_names of
    the same model."""
    config = families.size(name) or {}
    count = families.parameters(config) or 0
    groups = ModelSpread("ddp", 1).optimizer_groups(likely_tensors(config, count, count))
    assert [sum(each.numel for each in group) for group in groups] == [count - plain, plain]


# --- published -------------------------------------------------------------------------------------------


def held_of_a_billion(engine: str = "deepspeed", stage: int = 1) -> int:
    """Bytes of a billion parameters in fp32 on one rank, with gradients."""
    tensors = tuple(Parameter(f"m{i}.weight", (10**6, 10), True, "") for i in range(100))
    found = states(ModelSpread(engine, 1, 4, stage=stage), tensors)
    return sum(found.held.values()) + sum(found.gradients.values())


def test_the_published_example_of_a_billion_parameters() -> None:
    """22 GB in fp32: 4 for parameters, 4 for gradients, 4 + 4 + 4 for the optimizer with its copy of the
    parameters, and activations. That is ZeRO-1 on one rank: 20 bytes per parameter."""
    assert held_of_a_billion() == 20 * 10**9
    assert held_of_a_billion("ddp", 0) == 16 * 10**9


def held_of_opt_350m() -> int:
    """fp16, ZeRO-0, 24 sequences of 512 on an H100: MemAllocated=5.53GB, which is in units of 2^30 bytes
    (deepspeed/utils/timer.py). 14 bytes per parameter stay; the loop still refers to the model's output,
    24 x 512 x 50272 logits in fp16; and cuBLAS has its workspaces. -> bytes, as planned."""
    config = families.size("facebook/opt-350m") or {}
    count = families.parameters(config) or 0
    tensors = likely_tensors(config, count, count)
    held = sum(states(ModelSpread("deepspeed", 8, 2, together=True), tensors).held.values())
    assert held == 14 * count
    logits = 2 * 24 * 512 * 50272
    return held + logits + WORKSPACES


def test_the_published_memory_of_opt_350m_between_steps() -> None:
    assert round(held_of_opt_350m() / 2**30, 2) == 5.53
