"""Bytes of a rank by hand, tensor by tensor; and what must hold for all models, engines and ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.core import families
from muster.core.trace import Parameter, Pass, Trace
from muster.planner.activations import Lengths
from muster.planner.fit import CONTEXT, PROCESS, SLACK, WORKSPACES, Need, Setting, need
from muster.planner.memory import Spread, States, optimizer_groups
from muster.planner.passing import moments_of, traced
from muster.planner.remedies import with_buckets
from muster.planner.states import likely_tensors, states

# A matrix of 5 rows, one of 4 that is not trained, a vector: 10 + 12 + 3 elements.
TENSORS = (
    Parameter("a.weight", (5, 2), True, "a"),
    Parameter("b.weight", (4, 3), False, "b"),
    Parameter("a.norm.bias", (3,), True, ""),
)
KEPT = ("parameters", "persistent parameters", "gradients", "fp32 master", "optimizer")


def spread(engine: str = "deepspeed", ranks: int = 2, element: int = 2, **fields: Any) -> Spread:
    return Spread(engine, ranks, element, **{"bucket": 4, "persistence": 3, "prefetch": 2, **fields})


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
    several = states(spread("fsdp", accumulates=True), TENSORS)
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
    assert states(spread(stage=1, element=element, buckets=2), TENSORS).backward["buckets"] == element * 8
    assert two.backward["gradients in flight"] == element * (10 + 4)
    flat = 6 if element == 2 else 4
    assert one.after["optimizer step"] == {"gradients": element * 13, "fp32 gradients": flat * 6}
    assert states(spread(stage=1, together=True), TENSORS).held["optimizer"] == 8 * 8  # 13 -> 16


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
    assert "buckets" in states(spread(stage=1, accumulates=True), TENSORS).passes  # it stays between them
    tiles = states(spread(stage=3, sub_group=4, together=True), TENSORS).after["optimizer step"]
    assert tiles == {"fp32 gradients": 6 * 5}


def test_what_offload_moves_is_rounded_up_where_it_is_pinned() -> None:
    found = states(spread(stage=2, offload="optimizer", together=True), TENSORS)  # one part of 8
    assert found.held == {"parameters": 2 * (16 + 12), "transfer buffer": 2 * 10}
    assert found.host == {
        "fp32 master": 32, "fp32 gradients": 32, "optimizer": 64, "transfer buffer": 16 + 32,
    }  # fmt: skip
    assert found.gradients == {}
    three = states(spread(stage=3, offload="optimizer+param", together=True), TENSORS)
    assert three.held == {"buckets": 8, "persistent parameters": 2 * 4}
    assert three.host == {
        "fp32 master": 28, "optimizer": 56, "fp32 gradients": 32, "gradients": 16,
        "parameters": 16 + 16, "pinned blocks kept": 16,
    }  # fmt: skip
    plain = states(spread(stage=3, offload="optimizer+param", together=True, device="cpu"), TENSORS)
    assert plain.host == {
        "fp32 master": 28, "optimizer": 56, "fp32 gradients": 28, "gradients": 14, "parameters": 14 + 12,
    }  # fmt: skip


def test_what_has_no_weight_decay_is_a_group_of_its_own() -> None:
    names = (
        "wte.weight",
        "h.0.ln_1.weight",
        "self_attn_layer_norm.weight",
        "block.relative_attention_bias.weight",
    )
    shapes = ((7, 2), (7,), (7,), (32, 2))
    tensors = tuple(Parameter(name, shape, True, "") for name, shape in zip(names, shapes, strict=True))
    assert [[each.name for each in group] for group in optimizer_groups(tensors, together=False)] == [
        [names[0]], list(names[1:]),
    ]  # fmt: skip
    assert optimizer_groups(tensors, together=True) == [tensors]


@pytest.mark.parametrize("name", ["opt-350m", "opt-1.3b", "gpt2", "t5-large", "google/vit-base-patch16-224"])
def test_tensors_of_a_model_that_was_not_traced_are_of_its_sizes(name: str) -> None:
    config = families.size(name) or {}
    count = families.parameters(config) or 0
    tensors = likely_tensors(config, Lengths(96, 96), count, count)
    assert sum(each.numel for each in tensors) == count
    assert all(each.trained for each in tensors)
    matrices = sum(each.numel for each in tensors if len(each.shape) == 2)
    assert 0.9 * count < matrices <= count
    adapted = likely_tensors(config, Lengths(96, 96), count + 1000, 1000)
    assert sum(each.numel for each in adapted) == count + 1000
    assert sum(each.numel for each in adapted if each.trained) == 1000


# --- published -------------------------------------------------------------------------------------------


def test_the_published_example_of_a_billion_parameters() -> None:
    """22 GB in fp32: 4 for parameters, 4 for gradients, 4 + 4 + 4 for the optimizer with its copy of the
    parameters, and activations. That is ZeRO-1 on one rank: 20 bytes per parameter."""
    tensors = tuple(Parameter(f"m{i}.weight", (10**6, 10), True, "") for i in range(100))
    found = states(Spread("deepspeed", 1, 4, stage=1), tensors)
    total = sum(found.held.values()) + sum(found.gradients.values())
    assert total == 20 * 10**9
    bare = states(Spread("ddp", 1, 4), tensors)
    assert sum(bare.held.values()) + sum(bare.gradients.values()) == 16 * 10**9


def test_the_published_memory_of_opt_350m_between_steps() -> None:
    """fp16, ZeRO-0, 24 sequences of 512 on an H100: MemAllocated=5.53GB, which is in units of 2^30 bytes
    (deepspeed/utils/timer.py). 14 bytes per parameter stay; the loop still refers to the model's output,
    24 x 512 x 50272 logits in fp16; and cuBLAS has its workspaces."""
    config = families.size("facebook/opt-350m") or {}
    count = families.parameters(config) or 0
    tensors = likely_tensors(config, Lengths(512), count, count)
    held = sum(states(Spread("deepspeed", 8, 2, together=True), tensors).held.values())
    assert held == 14 * count
    logits = 2 * 24 * 512 * 50272
    assert round((held + logits + WORKSPACES) / 2**30, 2) == 5.53


# --- what must hold for all ------------------------------------------------------------------------------

SIZES = st.lists(st.tuples(st.integers(1, 5000), st.integers(1, 300)), min_size=1, max_size=12)
HALVES = st.sampled_from([2, 4])


def model(sizes: list[tuple[int, int]]) -> tuple[Parameter, ...]:
    return tuple(Parameter(f"layers.{i}.weight", size, True, f"layers.{i}") for i, size in enumerate(sizes))


def kept(found: States) -> int:
    """Parameters, gradients, copies and optimizer states."""
    return sum(parts.get(name, 0) for name in KEPT for parts in (found.held, found.gradients, found.host))


@given(SIZES, st.integers(2, 64), HALVES)
def test_a_higher_stage_never_needs_more_for_states(
    sizes: list[tuple[int, int]], ranks: int, element: int
) -> None:
    """But for padding: a part to a multiple of the ranks, a tensor to the ranks."""
    tensors = model(sizes)
    stages = [
        kept(states(Spread("deepspeed", ranks, element, stage=s, persistence=0), tensors)) for s in range(4)
    ]
    padding = (2 * ranks * element + 12 * 2, 0, 16 * len(tensors))
    for lower, higher, more in zip(stages, stages[1:], padding, strict=False):
        assert higher <= lower + more


@given(SIZES, st.integers(1, 64), HALVES, st.sampled_from(["ddp", "fsdp", "deepspeed"]), st.integers(0, 3))
def test_shards_add_up_to_the_model(
    sizes: list[tuple[int, int]], ranks: int, element: int, engine: str, stage: int
) -> None:
    """Over all ranks no byte of Adam's states is missing, and none but padding is too many."""
    tensors = model(sizes)
    count = sum(each.numel for each in tensors)
    of = Spread(engine, ranks, element, stage=stage, persistence=0)
    held = [states(of, tensors, rank).held["optimizer"] for rank in range(ranks)]
    if engine == "ddp" or (engine == "deepspeed" and stage == 0):
        assert set(held) == {8 * count}
    elif engine == "fsdp":
        assert sum(held) == 8 * count
    else:
        assert 8 * count <= sum(held) <= 8 * (count + ranks * max(len(tensors), 2))
    most = states(of, tensors)
    for rank in range(ranks):
        assert sum(states(of, tensors, rank).gradients.values()) <= sum(most.gradients.values())
        assert kept(states(of, tensors, rank)) <= kept(most)


TRACE = Trace(
    parameters=model([(1000, 100), (2000, 50)]),
    passes=(
        Pass(1, 1000, 300, 0, 1100, 1500, 10, 30, 100, growing_peak=400_500),
        Pass(2, 1900, 600, 0, 2000, 2900, 20, 60, 200, growing_peak=400_900),
    ),
    buffers=64, arithmetic="half", device="cuda", checkpointing=False, layers=(2,), versions={}, seconds=0.0,
)  # fmt: skip
SETTINGS = st.builds(
    lambda **fields: with_buckets(Setting(config=families.size("opt-125m") or {}, **fields)),
    parameters=st.integers(10**6, 10**9),
    trainable=st.just(0),
    lengths=st.builds(Lengths, st.integers(1, 2048)),
    engine=st.sampled_from(["ddp", "fsdp", "deepspeed"]),
    precision=st.sampled_from(["fp32", "bf16", "fp16"]),
    device=st.sampled_from(["cuda", "cpu"]),
    ranks=st.sampled_from([1, 2, 3, 8, 64]),
    ranks_per_host=st.just(1),
    micro=st.integers(1, 64),
    accumulation=st.sampled_from([1, 4]),
    stage=st.integers(0, 3),
    offload=st.sampled_from(["none", "optimizer", "optimizer+param"]),
    checkpointing=st.booleans(),
    trace=st.sampled_from([None, TRACE]),
).map(lambda made: replace(made, trainable=made.parameters))


def needed(setting: Setting) -> Need:
    found = need(setting)
    assert found is not None
    return found


@given(SETTINGS, st.integers(1, 8))
def test_more_micro_batch_never_needs_less(setting: Setting, more: int) -> None:
    here, there = needed(setting), needed(replace(setting, micro=setting.micro + more))
    assert sum(there.device.values()) >= sum(here.device.values())
    assert here.host == there.host


@given(SETTINGS)
def test_parts_are_positive_whole_numbers_of_bytes_that_add_up(setting: Setting) -> None:
    found = needed(setting)
    for parts in (found.device, found.host):
        assert all(type(value) is int and value > 0 for value in parts.values())
    tensors = sum(
        value for name, value in found.device.items()
        if name not in ("allocator slack", "CUDA context", "NCCL", "process")
    )  # fmt: skip
    if found.moment == "making the model":
        assert found.device == {"the model while it is made": tensors, "process": PROCESS}
    else:
        assert found.device["allocator slack"] == int(SLACK * tensors)
    if setting.device == "cpu":
        assert found.host == {}
    else:
        assert found.device["CUDA context"] == CONTEXT
        assert ("NCCL" in found.device) == (setting.ranks > 1)


@given(SETTINGS)
def test_no_unit_slips(setting: Setting) -> None:
    """Between 1 and 60 bytes per parameter, whatever the model, beside activations and fixed costs: nothing
    is counted in elements, in bits, or in GB."""
    small = replace(setting, micro=1, lengths=Lengths(1), trace=None, ranks=1, bucket=0, prefetch=0)
    found = needed(small)
    fixed = CONTEXT + PROCESS + WORKSPACES + 2 * 10**7
    total = sum(found.device.values()) + sum(found.host.values())
    assert small.parameters <= total <= 60 * small.parameters + 2 * fixed


def test_activations_are_the_trace_s_where_it_is_of_this_arithmetic() -> None:
    base = Setting(
        config={}, parameters=0, trainable=0, lengths=Lengths(8), engine="deepspeed", precision="bf16",
        device="cuda", ranks=2, ranks_per_host=2, micro=50_000, accumulation=2, stage=2, trace=TRACE,
    )  # fmt: skip
    found, at = needed(base), TRACE.at(50_000)
    assert (found.basis, found.moment) == ("traced", "backward pass")
    assert found.device["activations"] == at.saved - at.logits
    assert found.device["logits and loss"] == at.logits == 50_000 * 300
    assert found.device["temporary tensors"] == at.backward_peak - at.saved
    assert found.device["model's buffers"] == 64
    assert found.device["gradients"] == 2 * 100_000  # of earlier micro-batches, its half
    assert need(replace(base, checkpointing=True)) is None  # and the family is not known
    known = replace(base, config=families.size("opt-125m") or {}, engine="ddp")
    assert needed(known).basis == "closed form"
    assert needed(replace(known, precision="fp32")).basis == "closed form"


PARTS = {"forward: x": (60, 60), "backward: after the blocks": (150, 155), "backward: x": (90, 130)}
PASS = Pass(1, 100, 40, 8, 60, 150, 0, 0, 0, growing_peak=155, peaks=PARTS)


def test_the_loss_comes_before_there_are_gradients() -> None:
    found = traced(PASS)
    assert found.top == {"activations": 60, "logits and loss": 40, "temporary tensors": 50}
    assert found.later == {"activations": 60, "logits and loss": 40, "temporary tensors": 0}
    assert found.growing == 130 - 100
    plain = traced(replace(PASS, peaks={}))  # parts were not told apart
    assert plain.later == plain.top == found.top
    assert plain.growing == 155 - 150


def test_activations_go_as_gradients_come() -> None:
    """Whole gradients were traced with the activations; of others, the peak is at one end of the pass."""
    busy = {"buckets": 5, "gradients in flight": 7}
    whole = States({}, {}, {"gathered": 1}, {"gradients": 70}, busy, {"optimizer step": {"x": 3}}, whole=True)

    def sums(found: States, *, accumulates: bool) -> dict[str, int]:
        moments = moments_of(found, traced(PASS), accumulates=accumulates)
        return {name: sum(parts.values()) for name, parts in moments.items()}

    always = 1 + 8  # what is gathered, and copies of weights
    assert sums(whole, accumulates=False) == {
        "backward pass": always + 5 + 100 + 30 - 8, "loss": always + 150, "optimizer step": 3,
    }  # fmt: skip
    assert sums(whole, accumulates=True) == {
        "backward pass": always + 12 + 100 + 70, "loss": always + 150 + 70, "optimizer step": 3,
    }  # fmt: skip
    assert sums(replace(whole, whole=False), accumulates=False) == {
        "backward pass": always + 12 + 100, "loss": always + 150,
        "end of the backward pass": always + 12 + 70, "optimizer step": 3,
    }  # fmt: skip
