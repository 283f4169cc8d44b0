"""Predicted steps against published runs: three systems on A100, H100 and RTX 3070.

The works are what `muster.worker.tracing` counts of the real models with eager attention, as these were
(torch 2.13, transformers 5.23): a rank's micro-step as operations of the forward pass and of both, bytes that
they move and how many they are; of these the operations and bytes of thin products, and what Python takes.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from muster.core import families
from muster.core.flops import Shape, training
from muster.core.trace import Parameter
from muster.engines.spread import ModelSpread
from muster.planner.forecast import Length, point, sentence
from muster.planner.time.collective import seconds as call_seconds
from muster.planner.time.learning import MeasuredRun, errors, learn
from muster.planner.time.steptime import (
    USUAL,
    Calibration,
    StepCase,
    StepWork,
    _pace,
    between,
    computing,
    ideal,
    lump,
    measured_links,
    predict,
    traffic_of,
    waited,
)
from tests.support import parse_machines

# T5 on WikiSQL, fp32, 32 x (96, 96) tokens; A100-PCIE-40GB, one per host. The single-GPU run was
# checkpointed.
T5 = {
    "t5-small, checkpointed": StepWork(
        32,
        382_520_524_800,
        1_429_016_150_016,
        29_757_139_750,
        2358,
        thin=43_486_543_872,
        thin_moved=3_170_893_824,
        launches=3301,
    ),
    "t5-small": StepWork(
        32,
        382_520_524_800,
        1_147_561_574_400,
        23_643_928_358,
        1758,
        thin=32_614_907_904,
        thin_moved=2_378_170_368,
        launches=1758,
    ),
    "t5-large": StepWork(
        32,
        4_618_432_020_480,
        13_855_296_061_440,
        137_675_548_454,
        6294,
        thin=260_919_263_232,
        thin_moved=19_025_362_944,
        launches=6294,
    ),
}
WIKISQL = Length(samples=56_355, epochs=3)
HELD_OUT = 8421
OFFLOAD = {"stage": 3, "offload": "optimizer+param", "bucket": 10**7, "prefetch": 10**7, "overlap": True}
# Seconds of the whole run, optimizer steps.
PUBLISHED = {
    "t5-small, 1 GPU": (742.54, 5286), "t5-small, 3 hosts, ZeRO-1": (922.05, 1764),
    "t5-large, 3 hosts, ZeRO-1": (10_530.28, 1764), "t5-large, 3 hosts, ZeRO-3 offload": (11_044.56, 1764),
}  # fmt: skip


def t5(work: str, hosts: int, engine: str = "deepspeed", **fields: object) -> StepCase:
    config = families.size(work.partition(",")[0]) or {}
    spread = ModelSpread(engine, ranks=hosts, **({"stage": 1} | fields if engine == "deepspeed" else fields))  # type: ignore[arg-type]
    machines = parse_machines(f"a100-pcie-40gb:1x{hosts},10Gbit")
    return StepCase(machines, "fp32", T5[work], lump(families.parameters(config) or 0), spread)


def on_hosts(case: StepCase, *hosts: int) -> list[StepCase]:
    """The same micro-batch and accumulation on numbers of hosts: the global batch grows with them."""
    return [case.over(case.machines.on(each)) for each in hosts]


ROWS = {
    "t5-small, 1 GPU": t5("t5-small, checkpointed", 1, "ddp"),
    "t5-small, 3 hosts, ZeRO-1": t5("t5-small", 3),
    "t5-large, 3 hosts, ZeRO-1": t5("t5-large", 3),
    "t5-large, 3 hosts, ZeRO-3 offload": t5("t5-large", 3, **OFFLOAD),
}


def measured(row: str) -> float:
    """Seconds of a step: evaluation and saving are in it, as published."""
    seconds, steps = PUBLISHED[row]
    return seconds / steps


def evaluation(case: StepCase, calibration: Calibration) -> float:
    """Seconds of the held-out passes, which gather all weights again under ZeRO-3."""
    machines = measured_links(case.machines, calibration)
    traffic = traffic_of(case.parameters, case.placed)
    forward = computing(case, calibration) * case.work.forward / case.work.flops
    gathering = waited(
        traffic.last.forward,
        forward,
        lambda call: call_seconds(call, machines, "nccl"),
        gathers_hide=traffic.gathers_hide,
        reduces_hide=traffic.reduces_hide,
        pace=_pace(machines),
    )
    return -(-HELD_OUT // (case.work.samples * case.machines.ranks)) * (forward + gathering)


@pytest.fixture(scope="module")
def known() -> Calibration:
    """Learned from the two runs of t5-small alone."""
    return learn([MeasuredRun(ROWS[row], measured(row)) for row in list(ROWS)[:2]])


def test_the_network_that_comes_out_is_a_ten_gigabit_one(known: Calibration) -> None:
    """TCP over 10 Gbit/s Ethernet carries 94 % of it."""
    bandwidth = known.links["10Gbit"].bandwidth
    assert bandwidth is not None and 0.93 < bandwidth / 1.25e9 < 0.96


def test_t5_large_on_three_hosts_is_within_five_percent(known: Calibration) -> None:
    row = "t5-large, 3 hosts, ZeRO-1"
    found = predict(ROWS[row], known)
    assert found.seconds == pytest.approx(measured(row), rel=0.05)
    assert found.communication > 0.75 * found.seconds
    assert found.assumed == ()


def test_without_the_checkpointing_of_the_single_run_it_is_worse(known: Calibration) -> None:
    """Who takes the single run for a plain one finds a slower device."""
    naive = learn([
        MeasuredRun(t5("t5-small", 1, "ddp"), measured("t5-small, 1 GPU")),
        MeasuredRun(ROWS["t5-small, 3 hosts, ZeRO-1"], measured("t5-small, 3 hosts, ZeRO-1")),
    ])  # fmt: skip
    name = "a100-pcie-40gb fp32"
    assert naive.efficiency[name] < 0.85 * known.efficiency[name]


def test_offloading_is_slower_than_zero_1_only_by_what_nobody_published(known: Calibration) -> None:
    """ZeRO-3 with offload is out by more than a quarter: how fast the pods' processors ran Adam, and what
    really ran side by side over sockets, is not published. With nothing hidden it is within an eighth. The
    held-out passes, one per epoch, gather all weights again and are in the published time."""
    row = "t5-large, 3 hosts, ZeRO-3 offload"
    found = predict(ROWS[row], known)
    held_out = WIKISQL.epochs * evaluation(ROWS[row], known) / PUBLISHED[row][1]
    assert 0.68 < (found.seconds + held_out) / measured(row) < 0.8
    low, high = between(ROWS[row], known)
    assert low < found.seconds < measured(row) - held_out < high
    all_waited = predict(ROWS[row], known, conditions=replace(USUAL, hides=False))
    waiting = found.seconds - found.communication + all_waited.communication
    assert waiting + held_out == pytest.approx(measured(row), rel=1 / 8)


def test_the_sentence_of_the_published_runs(known: Calibration) -> None:
    one, three = (ROWS[row] for row in list(ROWS)[:2])
    alone, together = (point(each, WIKISQL, known) for each in (one, three))
    assert sentence([alone, together], WIKISQL, known) == (
        "3 hosts take 922 s, 1 host 743 s: the 10 Gbit/s network costs 410 ms of every 523 ms step; "
        "25 Gbit/s or accumulation 2 would make 3 hosts faster."
    )


def test_t5_large_on_one_to_three_hosts(known: Calibration) -> None:
    """Two hosts and three take longer than one, as with t5-small; no times of one and two were published."""
    one, two, three = (point(each, WIKISQL, known) for each in on_hosts(t5("t5-large", 1), 1, 2, 3))
    assert one.total < three.total < two.total


# OPT on H100 nodes of eight, fp16, ZeRO-0, sequences of 512: samples/s by number of GPUs.
OPT = {
    "facebook/opt-350m": (24, {1: 119, 8: 943, 16: 1874, 64: 7443, 512: 59_233}),
    "facebook/opt-13b": (16, {8: 73, 64: 580, 512: 4587}),  # LoRA of rank 128, checkpointed; one GPU: 9
}
OPT_350M = StepWork(
    24, 8_698_516_733_952, 26_095_550_201_856, 225_642_312_648, 2229,
    thin=1_855_425_871_872, thin_moved=36_238_786_560, launches=2229,
)  # fmt: skip


def _adapted(count: int, adapters: int) -> tuple[Parameter, ...]:
    """Frozen layers, and adapters beside them."""
    return (
        *(replace(each, trained=False) for each in lump(count)),
        Parameter("adapter", (adapters,), True, ""),
    )


def opt(name: str, gpus: int) -> StepCase:
    """Eight 400 Gbit/s InfiniBand cards per host, as such nodes have. 13b: by its formula."""
    config, micro = families.size(name) or {}, OPT[name][0]
    count = families.parameters(config) or 0
    products = families.products(config, Shape(micro, 512))
    assert products is not None
    adapters = None if name.endswith("350m") else 128 * 40 * (4 * 2 * 5120 + 2 * 5 * 5120)
    done = training(products, checkpointing=adapters is not None, frozen=adapters is not None)
    work = OPT_350M if adapters is None else StepWork(micro, done.forward, done.hardware)
    tensors = lump(count) if adapters is None else _adapted(count, adapters)
    machines = parse_machines(f"h100:{min(gpus, 8)}x{-(-gpus // 8)},3200Gbit-ib")
    return StepCase(machines, "fp16", work, tensors, ModelSpread("deepspeed", gpus, element=2, counts=False))


@pytest.mark.parametrize("name", OPT)
def test_opt_on_up_to_512_gpus(name: str) -> None:
    """Calibrated on the fewest GPUs, all others within 2.5 %."""
    micro, rows = OPT[name]
    first = min(rows)
    runs = [MeasuredRun(opt(name, gpus), micro * gpus / rate) for gpus, rate in rows.items()]
    alone = MeasuredRun(opt(name, 1), micro * first / rows[first])  # on 8 GPUs of a host: 0.2 % is exchange
    assert max(map(abs, errors(runs, learn([alone])))) < 0.025


# ViT-B/16 on CIFAR-10 at 224 pixels, fp32, 16 images per GPU: seconds of an epoch on one, two, three RTX
# 3070.
VIT = StepWork(
    16, 562_018_172_928, 1_682_355_142_656, 11_811_070_352, 671,
    thin=68_672_176_128, thin_moved=3_540_567_976, launches=671,
)  # fmt: skip
EPOCHS = {1: 713, 2: 908, 3: 739}
IMAGES = Length(50_000)


def vit(hosts: int) -> StepCase:
    count = families.parameters({**(families.size("vit-base") or {}), "num_labels": 10}) or 0
    machines = parse_machines(f"rtx-3070:1x{hosts},10Gbit")
    return StepCase(machines, "fp32", VIT, lump(count), ModelSpread("deepspeed", hosts, counts=False))


def test_vit_on_one_to_three_machines() -> None:
    """Calibrated on one and two; the third within 3 %, and who is faster than whom as published."""
    runs = [MeasuredRun(vit(n), EPOCHS[n] / -(-50_000 // (16 * n))) for n in (1, 2)]
    known = learn(runs)
    points = {n: point(vit(n), IMAGES, known).total for n in EPOCHS}
    assert points[3] == pytest.approx(EPOCHS[3], rel=0.03)
    assert sorted(points, key=points.__getitem__) == sorted(EPOCHS, key=EPOCHS.__getitem__) == [1, 3, 2]
    alone, _, together = (point(each, IMAGES, known) for each in on_hosts(vit(1), 1, 2, 3))
    assert "; 25 Gbit/s" in sentence([alone, together], IMAGES, known)


def test_what_is_assumed_without_a_measurement_holds_for_the_published_runs() -> None:
    """Of the shares that devices are taken to reach, two were chosen with these runs in view: an H100's of
    memory, and an RTX 3070's in fp32. The others come from other runs."""
    alone = {
        "a100": (ROWS["t5-small, 1 GPU"], measured("t5-small, 1 GPU")),
        "h100": (opt("facebook/opt-350m", 1), 24 / 119),
        "rtx-3070": (vit(1), 713 / 3125),
    }
    for name, (case, seconds) in alone.items():
        assert predict(case).seconds == pytest.approx(seconds, rel=0.25), name
        low, high = between(case)
        assert low < seconds < high, name
        assert ideal(case) < seconds
