"""What must hold for all models, engines and ranks; and how traced passes become a peak."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from muster.core import families
from muster.core.trace import Parameter, Pass, Trace
from muster.core.workload import Lengths
from muster.engines.spread import ModelSpread
from muster.engines.states import States
from muster.planner.document import UNCOUNTED
from muster.planner.memory.fit import (
    CONTEXT,
    HEAP,
    PROCESS,
    SCATTERED_SLACK,
    SLACK,
    WORKSPACES,
    Need,
    Setting,
    moments_of,
    need,
    traced,
)
from muster.planner.memory.states import states
from muster.planner.remedies import with_buckets
from tests.support import setting_with, with_fields

KEPT = ("parameters", "persistent parameters", "gradients", "fp32 master", "optimizer")
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
        kept(states(ModelSpread("deepspeed", ranks, element, stage=s, persistence=0), tensors))
        for s in range(4)
    ]
    padding = (2 * ranks * element + 12 * 2, 0, 16 * len(tensors))
    for lower, higher, more in zip(stages, stages[1:], padding, strict=False):
        assert higher <= lower + more


@settings(max_examples=60)  # each adds up to 64 ranks
@given(SIZES, st.integers(1, 64), HALVES, st.sampled_from(["ddp", "fsdp", "deepspeed"]), st.integers(0, 3))
def test_shards_add_up_to_the_model(
    sizes: list[tuple[int, int]], ranks: int, element: int, engine: str, stage: int
) -> None:
    """Over all ranks no byte of Adam's states is missing, and none but padding is too many."""
    tensors = model(sizes)
    count = sum(each.numel for each in tensors)
    of = ModelSpread(engine, ranks, element, stage=stage, persistence=0)
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
    lambda **fields: with_buckets(setting_with(config=families.size("opt-125m") or {}, **fields)),
    parameters=st.integers(10**6, 10**9),
    trainable=st.just(0),
    lengths=st.builds(Lengths, st.integers(1, 2048)),
    engine=st.sampled_from(["ddp", "fsdp", "deepspeed"]),
    precision=st.sampled_from(["fp32", "bf16", "fp16"]),
    device=st.sampled_from(["cuda", "cpu"]),
    ranks=st.sampled_from([1, 2, 3, 8, 64]),
    ranks_per_host=st.just(1),
    micro=st.integers(1, 64),
    micro_steps=st.sampled_from([1, 4]),
    stage=st.integers(0, 3),
    offload=st.sampled_from(["none", "optimizer", "param", "optimizer+param"]),
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
    cpu = setting.spread.device == "cpu"
    tensors = sum(
        value for name, value in found.device.items()
        if name not in ("allocator slack", "CUDA context", "NCCL", "process") and "first rank" not in name
    )  # fmt: skip
    if found.moment == "making the model":
        assert found.device == {"the model while it is made": tensors, "process": PROCESS}
    else:
        scattered = setting.spread.engine == "deepspeed" and setting.spread.stage == 3
        on_gpus = SCATTERED_SLACK if scattered else SLACK
        share, slack = (HEAP if cpu else on_gpus), found.device["allocator slack"]
        assert slack == int(share * tensors) or (
            setting.spread.device == "cpu" and slack > share * tensors
        )  # holes
    if cpu:
        assert found.host == {}
    else:
        assert found.device["CUDA context"] == CONTEXT
        assert ("NCCL" in found.device) == (setting.spread.ranks > 1)


@given(SETTINGS)
def test_no_unit_slips(setting: Setting) -> None:
    """Between 1 and 60 bytes per parameter, whatever the model, beside activations and fixed costs: nothing
    is counted in elements, in bits, or in GB."""
    small = with_fields(setting, micro=1, lengths=Lengths(1), trace=None, ranks=1, bucket=0, prefetch=0)
    found = needed(small)
    fixed = CONTEXT + PROCESS + WORKSPACES + 2 * 10**7
    total = sum(found.device.values()) + sum(found.host.values())
    assert small.parameters <= total <= 60 * small.parameters + 2 * fixed


def test_activations_are_the_trace_s_where_it_is_of_this_arithmetic() -> None:
    base = setting_with(
        config={}, parameters=0, trainable=0, lengths=Lengths(8), engine="deepspeed", precision="bf16",
        device="cuda", ranks=2, ranks_per_host=2, micro=50_000, micro_steps=2, stage=2, trace=TRACE,
    )  # fmt: skip
    found, at = needed(base), TRACE.at(50_000)
    assert (found.basis, found.moment) == ("traced", "backward pass")
    assert found.device["activations"] == at.saved - at.logits
    assert found.device["logits and loss"] == at.logits == 50_000 * 300
    assert found.device["temporary tensors"] == at.backward_peak - at.saved
    assert found.device["model's buffers"] == 64
    assert found.device["gradients"] == 2 * 100_000  # of earlier micro-batches, its half
    assert needed(replace(base, checkpointing=True)).basis == UNCOUNTED  # and the family is not known
    known = with_fields(base, config=families.size("opt-125m") or {}, engine="ddp")
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
