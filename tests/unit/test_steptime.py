"""Predicted steps: parts by hand, what calibration learns, properties, and the sentence that a person
wants."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.core.errors import UsageError
from muster.core.hardware.links import LinkFigures, between_hosts, find_link
from muster.engines.spread import ModelSpread
from muster.planner.forecast import Length, point, sentence
from muster.planner.time.learning import MeasuredRun, errors, learn
from muster.planner.time.reached import FP32
from muster.planner.time.steptime import (
    ALONE,
    USUAL,
    Calibration,
    StepCase,
    StepWork,
    between,
    case_key,
    computing,
    engine_key,
    ideal,
    key,
    lump,
    own_work,
    predict,
)
from tests.support import parse_machines

PSI = 60_000_000
WORK = StepWork(samples=32, forward=4e11, flops=12e11, moved=30e9)
PARTS = ("compute", "communication", "optimizer", "transfer", "overhead")


def case(
    on: str = "a100-40gb:1x3,10Gbit", engine: str = "deepspeed", precision: str = "fp32", **fields: Any
) -> StepCase:
    work = fields.pop("work", WORK)
    spread = ModelSpread(engine, ranks=1, **{"stage": 1 if engine == "deepspeed" else 0, **fields})
    return StepCase(parse_machines(on), precision, work, lump(PSI), spread)


def on_hosts(case: StepCase, *hosts: int) -> list[StepCase]:
    """The same micro-batch and accumulation on numbers of hosts: the global batch grows with them."""
    return [case.over(case.machines.on(each)) for each in hosts]


def words(case: StepCase, length: Length) -> str:
    """All of its hosts against one."""
    cases = on_hosts(case, 1, case.machines.hosts)
    return sentence([point(each, length) for each in cases], length)


def exchange(case: StepCase) -> float:
    """What all calls take where nothing is hidden: ranks wait for every one."""
    return predict(case, conditions=replace(USUAL, hides=False)).communication


def test_a_range_shrinks_with_what_was_measured() -> None:
    low, high = between(case())
    assert low < predict(case()).seconds < high
    surely = between(case(), learn(runs(truth(), case("a100-40gb"), case())))
    assert surely[1] / surely[0] < 0.5 * (high / low - 1) + 1


def test_what_is_hidden_is_not_waited_for() -> None:
    fast, slow = (case(f"a100-40gb:1x3,{link}", engine="ddp") for link in ("100Gbit", "1Gbit"))
    assert 0 < predict(fast).communication < exchange(fast)
    backward = predict(slow).compute * 2 / 3
    assert exchange(slow) - backward <= predict(slow).communication < exchange(slow)
    plain, beside = (predict(case(stage=2, overlap=overlap)) for overlap in (False, True))
    assert plain.communication == pytest.approx(exchange(case(stage=2)), rel=0.01)
    small = predict(case(stage=2, overlap=True, bucket=5_000_000))
    assert small.communication < beside.communication <= plain.communication
    on_cpus = "cpu{tflops=0.1,bandwidth=10e9}:1x2,1Gbit"
    blocking = case(on_cpus, stage=2, overlap=True)
    assert predict(blocking).communication == pytest.approx(exchange(blocking))


def test_accumulation_repeats_the_computation_and_not_all_of_the_exchange() -> None:
    for stage, times in ((0, 1), (1, 1), (2, 7 / 3), (3, 3)):
        once, thrice = (case(stage=stage, micro_steps=n, counts=False, clips=False) for n in (1, 3))
        assert exchange(thrice) == pytest.approx(times * exchange(once), rel=0.01), stage
        one, three = predict(once), predict(thrice)
        assert three.compute == pytest.approx(3 * one.compute)
        assert three.samples == 3 * one.samples


def test_what_cannot_be_predicted_says_what_to_give() -> None:
    with pytest.raises(UsageError, match="v100-sxm2-16gb has no stated peak in bf16") as caught:
        predict(case("v100", precision="bf16"))
    assert "fp32, fp16" in (caught.value.hint or "")
    with pytest.raises(UsageError) as caught:
        predict(case("own{fp32=10}", precision="bf16"))
    assert (caught.value.hint or "").endswith("by hand: own{bf16=TFLOPS}")
    with pytest.raises(UsageError, match="how 3 hosts are connected"):
        predict(case("a100:1x3"))
    without = predict(case("own{tflops=10}"))
    assert without.optimizer == 0 and any("its bandwidth is not known" in each for each in without.assumed)


# What measured runs teach:


def truth(**fields: Any) -> Calibration:
    return Calibration(
        efficiency={key("a100-sxm4-40gb", "fp32"): 0.41}, links={"10Gbit": LinkFigures(0.97e9)}, **fields
    )


def runs(known: Calibration, *cases: StepCase) -> list[MeasuredRun]:
    return [MeasuredRun(each, predict(each, known).seconds) for each in cases]


def test_calibration_finds_what_made_the_runs() -> None:
    known = truth()
    learned = learn(runs(known, case("a100-40gb"), case()))
    assert learned.efficiency[key("a100-sxm4-40gb", "fp32")] == pytest.approx(0.41, rel=1e-4)
    assert learned.links["10Gbit"].bandwidth == pytest.approx(0.97e9, rel=1e-4)
    others = [case("a100-40gb:1x5,10Gbit"), case(stage=2, micro_steps=4), case(engine="ddp"), case(stage=3)]
    assert errors(runs(known, *others), learned) == pytest.approx([0.0] * 4, abs=1e-3)
    assert predict(case(), learned).assumed == ()


def test_two_sizes_tell_a_constant_apart() -> None:
    name = key("a100-sxm4-40gb", "fp32")
    known = truth(fixed={name: 0.02})
    small = replace(WORK, samples=4, forward=5e10, flops=1.5e11, moved=4e9)
    learned = learn(runs(known, case("a100-40gb"), case("a100-40gb", work=small)))
    assert learned.fixed[name] == pytest.approx(0.02, rel=1e-3)
    assert learned.efficiency[name] == pytest.approx(0.41, rel=1e-3)
    again = learn(runs(truth(), case("a100-40gb"), case("a100-40gb", work=small)), learned)
    assert again.fixed.get(name, 0.0) == pytest.approx(0, abs=1e-6)  # what was learned before does not stay


def test_an_engines_own_work_is_learned_beside_ddps() -> None:
    """Of runs on one device: seconds per micro-step and per step; other engines stay as they are foretold."""
    name = engine_key(case(stage=3))
    known = truth(engines={name: (0.03, 0.2)})
    one = "a100-40gb"
    alone = [case(one, engine="ddp"), case(one, stage=3), case(one, stage=3, micro_steps=4)]
    learned = learn(runs(known, *alone))
    assert learned.engines[name] == pytest.approx((0.03, 0.2), rel=1e-3)
    assert list(learned.engines) == [name]
    assert errors(
        runs(known, case(stage=3, micro_steps=2), case(one)), replace(learned, links=known.links)
    ) == (pytest.approx([0.0, 0.0], abs=1e-3))
    single = learn(runs(truth(engines={name: (0.03, 0.0)}), *alone[:2]))
    assert single.engines[name] == pytest.approx((0.03, 0.0), rel=1e-3)
    assert learn(runs(known, case(one, stage=3))).engines == {}  # nothing tells its work from the device's


def test_an_engines_work_among_ranks_is_learned_where_the_link_was_measured() -> None:
    """What two ranks of a host leave over is the engine's, not the link's; for one rank it says nothing."""
    alone, two = case("a100-pcie", stage=3), case("a100-pcie:2", stage=3)
    name = engine_key(two, several=True)
    pcie = LinkFigures(9e9, 5e-6)
    known = Calibration(
        {key("a100-pcie-40gb", "fp32"): 0.41}, links={"pcie4": pcie}, engines={name: (0.03, 0.2)}
    )
    plain = case("a100-pcie", engine="ddp")
    made = runs(known, plain, alone, two, case("a100-pcie:2", stage=3, micro_steps=4))
    learned = learn(made, Calibration(links={"pcie4": pcie}))
    assert learned.links["pcie4"] == pcie
    assert learned.engines[name] == pytest.approx((0.03, 0.2), rel=1e-3)
    assert learned.engines[engine_key(alone)] == pytest.approx((0.0, 0.0), abs=1e-6)
    more = case("a100-pcie:4x2,10Gbit", stage=3, micro_steps=2)
    assert errors(runs(known, more, alone), learned) == pytest.approx([0.0, 0.0], abs=1e-3)
    assert own_work(more, learned) == pytest.approx(0.26, rel=1e-3)
    once = learn(made, Calibration(links={"pcie4": LinkFigures(9e9)}))  # learned from a training before
    assert name not in once.engines and once.links["pcie4"].bandwidth != 9e9


def test_runs_that_took_less_than_ddps_count_for_the_device_too() -> None:
    """All compute the same: what engines take beyond that is never less than nothing."""
    one = "a100-40gb"
    [plain, less, more] = runs(truth(), case(one, engine="ddp"), case(one), case(one, stage=3))
    plain, less, more = (
        replace(run, seconds=by * run.seconds) for run, by in ((plain, 1.1), (less, 0.9), (more, 1.2))
    )
    name = key("a100-sxm4-40gb", "fp32")
    slow, fast = (learn([run]).efficiency[name] for run in (plain, less))
    learned = learn([plain, less, more])
    assert learned.efficiency[name] == pytest.approx((slow + fast) / 2)
    assert learned.engines[engine_key(less.case)] == (0.0, 0.0)
    assert errors([plain, more], learned) == pytest.approx([0.0, 0.0], abs=1e-6)  # beyond it: their own work
    assert errors([less], learned)[0] > 0.05
    again = learn(runs(truth(), plain.case, less.case, more.case), learned)
    assert again.efficiency[name] == pytest.approx(0.41, rel=1e-3)  # what was learned before does not stay
    assert errors(runs(truth(), plain.case, less.case), again) == pytest.approx([0.0, 0.0], abs=1e-3)


@pytest.mark.parametrize(("bandwidth", "counts"), [(100e9, True), (1e9, False)])
def test_ranks_that_exchange_little_tell_of_the_device(bandwidth: float, counts: bool) -> None:
    """What an exchange takes is known less well: where it is more, the run tells nothing of computation."""
    known = replace(truth(), links={"pcie4": LinkFigures(bandwidth, 1e-6)})
    name = key("a100-pcie-40gb", "fp32")
    known = replace(known, efficiency={name: 0.41})
    alone, two = runs(known, case("a100-pcie", engine="ddp"), case("a100-pcie:2", engine="ddp"))
    share = predict(two.case, known).communication / two.seconds
    assert (share < 0.05) if counts else (share > 0.15)
    two = replace(two, seconds=0.95 * two.seconds)
    learned = learn([alone, two], Calibration(links=known.links))
    assert (learned.efficiency[name] > 0.415) == counts
    assert errors([alone], learned) == pytest.approx([0.0], abs=1e-6)


def test_a_hosts_memory_is_learned_from_offloaded_runs_once_the_device_is_known() -> None:
    name, offloaded = "a100-sxm4-40gb", {"stage": 2, "offload": "optimizer"}
    known = truth(hosts={name: 9e9})
    made = runs(known, case("a100-40gb", **offloaded), case("a100-40gb", **offloaded, micro_steps=4))
    assert learn(made) == Calibration()  # it may be the device as well
    learned = learn([*made, *runs(known, case("a100-40gb"))])
    assert learned.efficiency == pytest.approx(known.efficiency, rel=1e-3)
    assert learned.hosts == pytest.approx({name: 9e9}, rel=1e-3)
    assert learned.engines == {}
    several = runs(known, case("a100-40gb:1x3,10Gbit", **offloaded))
    assert learn(several, replace(learned, hosts={})).links == {}  # nor is it the link
    assert learn(several, learned).links["10Gbit"].bandwidth == pytest.approx(0.97e9, rel=1e-3)
    assert errors(several, replace(learned, links=known.links)) == pytest.approx([0.0], abs=1e-3)
    elsewhere = case("h100", **offloaded)
    assert "a host's memory moves 50 GB/s" in predict(elsewhere, learned).assumed


def test_operations_alone_are_learned_and_used_alone() -> None:
    """A share of operations and bytes together is no share of the operations, nor the other way round."""
    whole, bare = case("a100-40gb"), case("a100-40gb", work=replace(WORK, moved=0.0))
    assert case_key(bare) == case_key(whole) + ALONE
    of_whole, of_bare = (
        learn(runs(truth(), whole)),
        learn([MeasuredRun(bare, predict(whole, truth()).seconds)]),
    )
    assert list(of_whole.efficiency) == [case_key(whole)] and list(of_bare.efficiency) == [case_key(bare)]
    assert of_bare.efficiency[case_key(bare)] < 0.9 * of_whole.efficiency[case_key(whole)]
    for each, known in ((bare, of_whole), (whole, of_bare)):
        assert computing(each, known) == pytest.approx(ideal(each) / FP32.products)
    [said] = predict(bare, of_whole).assumed
    assert said.startswith("products reach 75%") and said.endswith("not calibrated for operations alone")
    assert predict(bare, of_bare).assumed == predict(whole, of_whole).assumed == ()
    on_cpu = case("cpu{tflops=0.1}", work=replace(WORK, moved=0.0))  # no bandwidth: never anything else
    assert ALONE not in case_key(on_cpu)


def test_links_within_a_host_are_learned_too() -> None:
    known = replace(truth(), links={"pcie4": LinkFigures(9e9)})
    alone, four = case("a100-pcie"), case("a100-pcie:4")
    known = replace(known, efficiency={key("a100-pcie-40gb", "fp32"): 0.5})
    learned = learn(runs(known, alone, four))
    assert learned.links["pcie4"].bandwidth == pytest.approx(9e9, rel=1e-3)


def test_what_a_run_does_not_show_is_not_learned() -> None:
    fast = case("a100-40gb:1x2,400Gbit", engine="ddp", work=replace(WORK, flops=1e14))
    known = Calibration(efficiency={key("a100-sxm4-40gb", "fp32"): 0.5})
    assert learn(runs(known, fast), known) == known  # all hidden: the link may be anything
    assert learn([]) == Calibration()
    with pytest.raises(ValueError, match="takes more than"):
        MeasuredRun(case(), 0.0)


# Totals, curves and words:


def test_the_sentence() -> None:
    length, there = Length(56_355, 3), case("a100-40gb:1x3,1Gbit")
    slow = words(there, length)
    assert slow.startswith("3 hosts take ") and "the 1 Gbit/s network costs" in slow
    offered = re.search(r"; (\d+ Gbit)/s or accumulation (\d+) would make 3 hosts faster", slow)
    assert offered is not None
    link, micro_steps = find_link(offered[1].replace(" ", "")), int(offered[2])
    # What is offered was tried, and nothing smaller does it.
    alone = point(case("a100-40gb"), length).total
    assert point(there.over(there.machines.over(link)), length).total < alone
    assert point(there.accumulating(micro_steps), length).total < alone
    assert point(there.accumulating(micro_steps // 2), length).total >= alone
    slower = [each for each in between_hosts() if each.stated < link.stated]
    assert all(point(there.over(there.machines.over(each)), length).total >= alone for each in slower)
    thrice = re.search(r"accumulation (\d+)", words(case("a100-40gb:1x3,1Gbit", micro_steps=3), length))
    assert thrice is not None and int(thrice[1]) % 3 == 0 and int(thrice[1]) > 3
    fast = words(case("a100-40gb:1x3,400Gbit"), length)
    assert "times as fast" in fast and "would make" not in fast
    assert words(case("a100-40gb"), length).startswith("1 host takes ")


CASES = st.builds(
    lambda on, engine, stage, steps, overlap: case(
        on, engine, stage=stage, micro_steps=steps, overlap=overlap
    ),
    st.sampled_from(["a100-40gb:1x3,10Gbit", "h100:8x4,hdr", "cpu{tflops=0.1}:2x3,50Mbit", "a10:4", "v100"]),
    st.sampled_from(["ddp", "fsdp", "deepspeed"]),
    st.integers(0, 3),
    st.integers(1, 4),
    st.booleans(),
)


@settings(max_examples=60)
@given(CASES)
def test_parts_add_up_and_are_never_negative(each: StepCase) -> None:
    found = predict(each)
    parts = [getattr(found, name) for name in PARTS]
    assert all(part >= 0 for part in parts)
    assert sum(parts) == pytest.approx(found.seconds)
    assert found.communication <= exchange(each) * (1 + 1e-9)


@settings(max_examples=60)
@given(CASES, st.floats(1.1, 100))
def test_faster_links_and_devices_never_take_longer(each: StepCase, times: float) -> None:
    now = predict(each).seconds
    link, inner = each.machines.link, each.machines.inner
    if link is not None:
        faster = replace(link, bandwidth=times * link.bandwidth)
        assert predict(each.over(each.machines.over(faster))).seconds <= now * (1 + 1e-9)
    if inner is not None:
        better = replace(each.machines, inner=replace(inner, bandwidth=times * inner.bandwidth))
        assert predict(each.over(better)).seconds <= now * (1 + 1e-9)
    name = key(each.machines.device.name, each.precision)
    assert predict(each, Calibration(efficiency={name: 0.75 * times})).seconds <= now * (1 + 1e-9)
    assert ideal(each) <= predict(each, Calibration(efficiency={name: 1.0})).compute * (1 + 1e-9)
