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


def test_ddp() -> None:
    found = states(spread("ddp", element=4), TENSORS)
    assert found.held == {"parameters": 4 * 25, "optimizer": 8 * 13, "buckets": 4 * 13}
    assert found.gradients == {"gradients": 4 * 13}
    assert found.backward == {"gradients in flight": 4 * 10}
    assert "buckets" not in states(spread("ddp", ranks=1), TENSORS).held
    assert states(spread("fsdp", ranks=1), TENSORS) == states(spread("ddp", ranks=1), TENSORS)


def test_fsdp_cuts_rows_and_pads_them() -> None:
    first, second = (states(spread("fsdp"), TENSORS, rank) for rank in range(2))
    assert first.held["parameters"] == second.held["parameters"] == 4 * (3 * 2 + 2 * 3 + 2)
    assert (first.held["optimizer"], second.held["optimizer"]) == (8 * (3 * 2 + 2), 8 * (2 * 2 + 1))
    assert first.gradients == {"gradients": 4 * (3 * 2 + 2)}
    root, module = 2 * 2, 2 * 3 * 2  # padded: a's rows, which are as many elements as b's
    assert first.passes == {"gathered layers": 2 * root}
    assert first.backward == {"gathered layers": 2 * 2 * module, "gradients in flight": 2 * 2 * module}
    several = states(spread("fsdp", micro_steps=2), TENSORS)
    assert several.passes["accumulated gradients"] == 2 * 13  # whole, and as they go shards come
    assert several.gradients == {"gradients": 4 * (3 * 2 + 2) - 2 * 13}
    assert states(spread("fsdp", ranks=64), TENSORS, 63).held == {
        "parameters": 4 * (2 + 3 + 1),
        "optimizer": 0,
    }


def test_fsdp_with_offload_pins_every_tensor() -> None:
    found = states(spread("fsdp", offload="optimizer+param"), TENSORS)
    assert found.held == {}
    assert found.host == {"parameters": 32 + 32 + 8, "gradients": 32 + 8, "optimizer": 8 * 8}
    plain = states(spread("fsdp", offload="optimizer+param", pins=False), TENSORS)
    assert plain.host == {"parameters": 4 * 14, "gradients": 4 * 8, "optimizer": 8 * 8}


def test_zero_0() -> None:
    half, full = (states(spread(element=element), TENSORS) for element in (2, 4))
    assert half.held == {"parameters": 2 * 25, "fp32 master": 4 * 13, "optimizer": 8 * 13}
    assert full.held == {"parameters": 4 * 25, "optimizer": 8 * 13}
    assert half.after == {
        "gradient reduction": {"gradients": 2 * 13, "buckets": 2 * 13},
        "optimizer step": {"gradients": 2 * 13, "fp32 gradients": 4 * 13},
    }
    assert full.after["optimizer step"] == {"gradients": 4 * 13}


@pytest.mark.parametrize("element", [2, 4])
def test_zero_1_and_2_pad_each_optimizer_group_to_twice_the_ranks(element: int) -> None:
    """10 -> 12 and 3 -> 4 elements for two ranks: parts of 6 and 2."""
    one, two = (states(spread(stage=stage, element=element), TENSORS) for stage in (1, 2))
    assert (
        one.held == two.held == {"parameters": element * (16 + 12), "fp32 master": 4 * 8, "optimizer": 8 * 8}
    )
    assert one.gradients == {"gradients": element * 13}
    assert two.gradients == {"gradients": element * 13}  # both parts have some of both tensors
    assert one.backward["buckets"] == two.backward["buckets"] == element * 4
    assert states(spread(stage=1, element=element, overlap=True), TENSORS).backward["buckets"] == element * 8
    assert two.backward["gradients in flight"] == element * (10 + 4)
    flat = 6 if element == 2 else 4
    assert one.after["optimizer step"] == {"gradients": element * 13, "fp32 gradients": flat * 6}
    assert states(spread(stage=1, together=True), TENSORS).held["optimizer"] == 8 * 8  # as the Trainer's


def test_tensors_at_the_edge_of_a_part_stay_whole() -> None:
    tensors = tuple(Parameter(f"m{i}.weight", (n, 1), True, "") for i, n in enumerate((3, 6, 3, 12)))

    def gradients(ranks: int, rank: int | None) -> int:
        return states(spread(stage=2, ranks=ranks), tensors, rank).gradients["gradients"] // 2

    assert [gradients(4, rank) for rank in range(4)] == [3 + 6, 6 + 3, 12, 12]  # parts of 6
    assert gradients(4, None) == 12
    assert [gradients(2, rank) for rank in range(2)] == [3 + 6 + 3, 12]
    assert gradients(12, None) == 12  # parts of 2, most of them inside the last tensor


def test_zero_3_pads_each_tensor_to_the_ranks() -> None:
    """Shards of 5, 6 and 2 elements; the vector, of 3, is gathered for good."""
    half, full = (states(spread(stage=3, element=element), TENSORS) for element in (2, 4))
    for found, e in ((half, 2), (full, 4)):
        assert found.held == {
            "parameters": e * 13, "persistent parameters": e * 4, "gradients": e * 7, "buckets": e * 4,
            "fp32 master": 4 * 7, "optimizer": 8 * 7,
        }  # fmt: skip
        assert found.backward == {"gradients in flight": e * (10 + 4)}
    assert half.after["optimizer step"] == {"fp32 gradients": 6 * 5}
    assert half.passes == {"gathered parameters": 2 * (22 + 2)}
    few = states(spread(stage=3, reuse=8, prefetch=0), TENSORS).passes["gathered parameters"]
    assert few == 2 * (4 + 12)  # half of what is reused, and a module
    ahead = states(spread(stage=3, reuse=8, live=5), TENSORS).passes["gathered parameters"]
    assert ahead == 2 * (5 + 12 + 2)  # fetching runs ahead up to what may live
    alone = states(spread(stage=3, ranks=1), TENSORS)
    assert not {"persistent parameters"} & set(alone.held)
    assert alone.passes == {"gathered parameters": 0}
    assert "buckets" in states(spread(stage=1, micro_steps=2), TENSORS).passes  # it stays between them
    tiles = states(spread(stage=3, sub_group=4, together=True), TENSORS).after["optimizer step"]
    assert tiles == {"fp32 gradients": 6 * 5}


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


def test_parameters_alone_leave_the_optimizer_on_the_device() -> None:
    """DeepSpeed sets the two independently: master, Adam and gradients stay, as without offload."""
    none, found = (states(spread(stage=3, offload=offload), TENSORS) for offload in ("none", "param"))
    assert found.held == {name: size for name, size in none.held.items() if name != "parameters"}
    assert found.held["fp32 master"] == 4 * 7 and found.held["gradients"] == 2 * 7
    assert found.after == none.after
    assert found.host == {
        "parameters": 16 + 4 + 16,
        "pinned blocks kept": 16,
    }  # two groups, and what is frozen
    assert ModelSpread("deepspeed", 2, stage=3, offload="param").own_adam is False


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
