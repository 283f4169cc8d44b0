"""What ranks exchange, against sums by hand; and what a collective sends and takes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.core.errors import RecipeError, UsageError
from muster.core.hardware.links import SharedLink, find_link
from muster.core.recipes import load_recipe
from muster.core.trace import Parameter
from muster.engines.deepspeed.spec import buckets
from muster.engines.spread import ModelSpread
from muster.engines.traffic import Call, Segment, Traffic
from muster.inputs.model import whole_config
from muster.planner.setting import setting_of
from muster.planner.time.collective import ring, seconds
from muster.planner.time.steptime import traffic_of, waited
from tests.support import parse_machines

MIB = 2**20
WIDTH, LAYERS = 1024, 8
QUIET = {"clips": False, "counts": False}


def model(*, adapters: bool = False) -> tuple[Parameter, ...]:
    """Embeddings, blocks of two matrices and a norm, and small adapters where wanted."""
    made = [Parameter("embed.weight", (30_000, WIDTH), not adapters, "")]
    for i in range(LAYERS):
        unit = f"blocks.{i}"
        made += [
            Parameter(f"{unit}.up.weight", (4 * WIDTH, WIDTH), not adapters, unit),
            Parameter(f"{unit}.down.weight", (WIDTH, 4 * WIDTH), not adapters, unit),
            Parameter(f"{unit}.norm.weight", (WIDTH,), not adapters, unit),
        ]
        if adapters:
            made += [Parameter(f"{unit}.lora.weight", (8, WIDTH), True, unit)]
    return tuple(made)


MODEL = model()
PSI = sum(p.numel for p in MODEL)


def moved(traffic: Traffic, operation: str) -> int:
    """Bytes of all calls of an operation, but for half precision's overflow of one byte."""
    return sum(call.size for call in traffic.calls() if call.operation == operation and call.size > 1)


def of(parameters: tuple[Parameter, ...] = MODEL, **fields: object) -> Traffic:
    return traffic_of(parameters, ModelSpread(**{"ranks": 4, **QUIET, **fields}))  # type: ignore[arg-type]


def test_one_rank_exchanges_nothing() -> None:
    for engine, stage in (("ddp", 0), ("fsdp", 0), *(("deepspeed", s) for s in range(4))):
        assert list(of(engine=engine, stage=stage, ranks=1).calls()) == []
    with pytest.raises(UsageError, match="unknown engine 'horovod'"):
        of(engine="horovod")


def test_deepspeed_buckets() -> None:
    assert buckets([3, 3, 3, 9, 1], 6) == [6, 3, 9, 1]  # before what would overfill; a large one alone
    assert buckets([], 6) == []
    found = of(engine="deepspeed", stage=1, bucket=10 * MIB)
    reduced = [call.size // 4 for call in found.calls() if call.operation == "all-reduce"]
    assert sum(reduced) == PSI
    assert all(size <= 10 * MIB for size in reduced if size != 30_000 * WIDTH)
    one = of(engine="deepspeed", stage=1)
    assert sum(call.operation == "all-reduce" for call in one.calls()) == 1
    trained = of(model(adapters=True), engine="deepspeed", stage=2)
    assert moved(trained, "all-reduce") == 4 * LAYERS * 8 * WIDTH


@pytest.mark.parametrize("prefetch", [1, WIDTH * WIDTH, 50_000_000])
def test_prefetching_changes_when_and_not_what(prefetch: int) -> None:
    fields = {"engine": "deepspeed", "stage": 3, "persistence": 0}
    assert moved(of(**fields, prefetch=prefetch), "all-gather") == 4 * PSI
    few, many = (len(list(of(**fields, prefetch=p).calls())) for p in (50_000_000, 1))
    assert few < many


# Collectives:


def test_a_call_whose_links_are_not_known_is_refused() -> None:
    large = Call("all-reduce", 10**9)
    with pytest.raises(UsageError, match="how 4 hosts are connected"):
        seconds(large, parse_machines("h100:8x4"), "nccl")
    with pytest.raises(UsageError, match="link between the devices of a host"):
        seconds(large, parse_machines("own{tflops=1}:8"), "nccl")
    with pytest.raises(ValueError, match="no cost"):
        ring(Call("all-to-all", 1), 2, 2, "nccl")


@given(
    st.sampled_from(["all-reduce", "all-gather", "reduce-scatter"]),
    st.integers(1, 10**10),
    st.integers(1, 16),
    st.integers(1, 64),
)
def test_more_bytes_never_take_less_time(operation: str, size: int, per_host: int, hosts: int) -> None:
    machines = replace(parse_machines("h100:8x4,10Gbit"), per_host=per_host, hosts=hosts)
    for library in ("gloo", "nccl"):
        short, long = (seconds(Call(operation, n), machines, library) for n in (size, 2 * size))
        assert 0 <= short <= long
        faster = machines.over(find_link("100Gbit"))
        assert seconds(Call(operation, size), faster, library) <= short * (1 + 1e-12)


# What is waited for:

GATHER, REDUCE = Call("all-gather", 1), Call("reduce-scatter", 1)


def cost(call: Call) -> float:
    return {"all-gather": 2.0, "reduce-scatter": 3.0}[call.operation]


def test_waiting_by_hand() -> None:
    """Four segments of one second each."""
    plain = [Segment(0.25) for _ in range(4)]
    assert waited(plain, 4.0, cost, gathers_hide=True, reduces_hide=True) == 0
    assert waited([], 4.0, cost, gathers_hide=True, reduces_hide=True) == 0
    reducing = [replace(each, reduces=(REDUCE,)) for each in plain]
    assert waited(reducing, 4.0, cost, gathers_hide=True, reduces_hide=False) == 12
    # Beside the computation: the first starts after a second, and the links are busy from then on.
    assert waited(reducing, 4.0, cost, gathers_hide=True, reduces_hide=True) == 1 + 12 - 4
    early = [replace(plain[0], reduces=(REDUCE,)), *plain[1:]]
    assert waited(early, 4.0, cost, gathers_hide=True, reduces_hide=True) == 0
    late = [*plain[1:], replace(plain[0], reduces=(REDUCE,))]
    assert waited(late, 4.0, cost, gathers_hide=True, reduces_hide=True) == 3
    gathering = [replace(each, gathers=(GATHER,)) for each in plain]
    assert waited(gathering, 4.0, cost, gathers_hide=False, reduces_hide=True) == 8
    # The next one is gathered while this one computes: two seconds at first, then one for each after it.
    assert waited(gathering, 4.0, cost, gathers_hide=True, reduces_hide=True) == 2 + 3 * 1
    assert waited(gathering, 16.0, cost, gathers_hide=True, reduces_hide=True) == 2


def test_waiting_beside_by_hand() -> None:
    """Four segments of one second, and an exchange of three seconds after the first or the last."""
    plain = [Segment(0.25) for _ in range(4)]
    early = [replace(plain[0], reduces=(REDUCE,)), *plain[1:]]
    late = [*plain[1:], replace(plain[0], reduces=(REDUCE,))]

    def found(segments: list[Segment], pace: SharedLink, *, hide: bool = True) -> float:
        return waited(segments, 4.0, cost, gathers_hide=hide, reduces_hide=hide, pace=pace)

    # Three seconds at half speed leave one and a half of the computation.
    assert found(early, SharedLink(computing=0.5)) == pytest.approx(1 + 3 + 1.5 - 4)
    # Three seconds of computation do three quarters of the exchange at this pace.
    assert found(early, SharedLink(exchanging=0.5)) == pytest.approx(4 + 1.5 - 4)
    # Both: the exchange ends after six seconds, in which three seconds of computation are done.
    assert found(early, SharedLink(computing=0.5, exchanging=0.5)) == pytest.approx(1 + 6 - 4)
    assert found(early, SharedLink(computing=0.0, exchanging=0.0)) == pytest.approx(3)  # one after the other
    assert found(late, SharedLink(computing=0.5, exchanging=0.5, meeting=0.125)) == pytest.approx(3.125)
    assert found(early, SharedLink(meeting=0.125)) == 0  # nobody waits for it
    gathering = [replace(each, gathers=(GATHER,)) for each in plain]
    assert found(gathering, SharedLink(meeting=0.125), hide=False) == pytest.approx(8 + 3 * 0.125)
    assert found(plain, SharedLink(computing=0.5, exchanging=0.5, meeting=1.0)) == 0


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=8), st.floats(0, 100))
def test_hiding_never_costs_and_never_saves_more_than_there_is(
    marks: list[tuple[bool, bool]], computing: float
) -> None:
    segments = [
        Segment(1.0, (GATHER,) if gathers else (), (REDUCE,) if reduces else ()) for gathers, reduces in marks
    ]
    total = sum(2.0 * gathers + 3.0 * reduces for gathers, reduces in marks)
    blocking = waited(segments, computing, cost, gathers_hide=False, reduces_hide=False)
    assert blocking == pytest.approx(total)
    for gathers_hide in (False, True):
        for reduces_hide in (False, True):
            found = waited(segments, computing, cost, gathers_hide=gathers_hide, reduces_hide=reduces_hide)
            assert max(0.0, total - computing) - 1e-9 <= found <= total + 1e-9


def test_calls_of_a_group_by_hand() -> None:
    """Four hosts of eight, 1 GB/s in and out of each: a group's gather stays inside; between groups a rank
    reduces its eighth with three others while the seven beside it do the same."""
    machines = parse_machines("h100:8x4,8Gbit{usable=1,latency=1e-9},nvlink4{usable=1,latency=1e-9}")
    assert machines.link is not None and machines.inner is not None
    assert machines.link.bandwidth == 1e9
    inner = machines.inner.bandwidth
    whole = Call("all-gather", 8 * 10**9, 8)
    assert seconds(whole, machines, "nccl") == pytest.approx(7 / 8 * 8e9 / inner, rel=0.01)
    across = Call("all-reduce", 10**9, 8, across=True)
    assert seconds(across, machines, "nccl") == pytest.approx(8 * 2 * 3 / 4 * 1e9 / 1e9, rel=0.01)
    # Groups of two hosts gather over their link; of the two groups each host has eight ranks that reduce.
    wide = Call("all-gather", 16 * 10**9, 16)
    assert seconds(wide, machines, "nccl") == pytest.approx(15 / 16 * 16e9 / 1e9, rel=0.01)
    across = Call("all-reduce", 10**9, 16, across=True)
    assert seconds(across, machines, "nccl") == pytest.approx(8 * 2 * 1 / 2 * 1e9 / 1e9, rel=0.01)
    # Groups of four: two of each host's ranks are neighbours in a ring of eight, and four rings share a card.
    across = Call("all-reduce", 10**9, 4, across=True)
    assert seconds(across, machines, "nccl") == pytest.approx(4 * 2 * 7 / 8 * 1e9 / 1e9, rel=0.01)
    # Groups of six go over two hosts, though eight ranks are on each.
    crooked = Call("all-gather", 6 * 10**9, 6)
    three = parse_machines("h100:8x3,8Gbit{usable=1,latency=1e-9}")
    assert seconds(crooked, three, "nccl") == pytest.approx(5 / 6 * 6e9 / 1e9, rel=0.01)
    # Where some hosts have four, a group of eight goes over two of them, and all wait for it.
    unlike = machines.with_slots([8, 8, 4, 4])
    assert seconds(whole, unlike, "nccl") == pytest.approx(7 / 8 * 8e9 / 1e9, rel=0.01)
    # On one host nothing leaves it.
    one = parse_machines("h100:8")
    assert seconds(Call("all-reduce", 10**9, 4, across=True), one, "nccl") == pytest.approx(
        1e9 / 342e9, rel=0.05
    )


@pytest.mark.parametrize(
    ("settings", "normed"),
    [
        (["engine.zero=0"], False),
        (["engine.zero=1"], True),
        (["engine.zero=3"], True),
        (["engine.zero=0", "engine.options.gradient_clipping=1.0"], True),
        (["engine.zero=1", "engine.options.zero_optimization={compute_grad_norm: false}"], False),
        (["engine.name=fsdp", "engine.zero=0"], True),
    ],
)  # fmt: skip
def test_without_clipping_the_norm_is_exchanged_where_an_engine_needs_it(
    settings: list[str], normed: bool
) -> None:
    """tests/real/test_traffic.py counts the same in real ranks."""
    recipe = load_recipe(
        "s1-opt-350m", ["engine.name=deepspeed", "engine.options={}", *settings, "train.clip=0"]
    )
    config = whole_config(recipe)
    setting = setting_of(recipe, config, "fp32", "cpu", [1, 1])
    assert setting is not None and setting.spread.clips is normed
    clipped = recipe.model_copy(update={"train": recipe.train.model_copy(update={"clip": 1.0})})
    if any("compute_grad_norm" in each for each in settings):
        with pytest.raises(RecipeError, match="clipping at 1 takes the norm"):
            setting_of(clipped, config, "fp32", "cpu", [1, 1])
        return
    setting = setting_of(clipped, config, "fp32", "cpu", [1, 1])
    assert setting is not None and setting.spread.clips
