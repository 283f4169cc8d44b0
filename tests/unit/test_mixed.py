"""Predicted steps and epochs of machines of different speeds, against a published cluster; and that no two
predictions of one job contradict each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from muster.core import families
from muster.core.batch import Batch
from muster.core.hardware.devices import Device, driver_device, entries
from muster.core.hardware.links import LinkSpec
from muster.core.hardware.machines import Machines, machines_of
from muster.core.inventory import parse_hosts
from muster.core.job import FASTEST, SLOWER, Job, place
from muster.core.recipe import recipe_from
from muster.core.units import format_seconds
from muster.engines.spread import ModelSpread
from muster.inputs.read import check, read_recipe
from muster.planner import advice as mixed
from muster.planner import plan as planning
from muster.planner.advice import Forecast, MixedHost, Predicted, review
from muster.planner.document import Plan
from muster.planner.machines import UserFigures
from muster.planner.plan import plan_hosts
from muster.planner.time.reached import speed
from muster.planner.time.steptime import StepCase, StepWork, computing, lump
from muster.planner.time.steptime import predict as predict_step

pytestmark = pytest.mark.usefixtures("nothing_learned")

GBIT = 1e9 / 8
# Five machines, ViT-B/16 on CIFAR-10 at 224 px, fp32, 16 images per GPU: published seconds per epoch with one
# to five. The order is not published; what is known of the machines suggests the RTX 3070s first.
PUBLISHED = (713, 908, 739, 986, 3436)
IMAGES, BATCH = 50_000, 16
PARAMETERS = families.parameters({**(families.size("vit-base") or {}), "num_labels": 10}) or 0
VOLUME = 4 * PARAMETERS
RTX3070, GTX1070, P4 = 1.0, 6.5 / 20.3, 5.5 / 20.3  # by stated fp32 peaks
# Fitted: one card's speed on the first row, the link on the second.
SPEED = IMAGES / PUBLISHED[0]
LINK = VOLUME / (PUBLISHED[1] / (IMAGES / (2 * BATCH)) - BATCH / SPEED)
GPU = Device("a GPU", {"fp32": 1e13})  # its speed is given
SPREAD = ModelSpread("deepspeed", ranks=1, clips=False, counts=False)  # ZeRO 0: exchanged after the passes
WORK = StepWork(BATCH, 1.0, 3.0)


def alone(bandwidth: float, ranks: int = 1) -> Machines:
    inner = LinkSpec("inside", 1e12, 1e12, 0.0, "given")
    return machines_of(GPU, ranks, 1, LinkSpec(f"{bandwidth:g}", bandwidth, bandwidth, 0.0, "fitted"), inner)


LOAD = Forecast((), StepCase(alone(LINK), "fp32", WORK, lump(PARAMETERS), SPREAD), IMAGES)


def machines(fourth: float, fifth: float, last_link: float = LINK) -> list[MixedHost]:
    speeds = [RTX3070, RTX3070, RTX3070, fourth, fifth]
    links = [LINK] * 4 + [last_link]
    return [
        MixedHost(f"m{i}", alone(k), SPEED * s) for i, (s, k) in enumerate(zip(speeds, links, strict=True))
    ]


def predict(members: list[MixedHost], load: Forecast, *, measured: bool = False) -> Predicted:
    return replace(load, members=members, measured=measured).predict()


def test_the_fitted_link_is_a_ten_gigabit_one() -> None:
    assert 7 * GBIT < LINK < 10 * GBIT


@pytest.mark.parametrize(("fourth", "fifth", "error"), [(GTX1070, P4, 0.02), (P4, GTX1070, 0.1)])
def test_published_epochs_up_to_four_machines(fourth: float, fifth: float, error: float) -> None:
    """The third and the fourth row were not fitted. Which slow card was the fourth is not published."""
    cluster = machines(fourth, fifth)
    epochs = [predict(cluster[:n], LOAD).epoch for n in range(1, 5)]
    assert epochs[:2] == pytest.approx(PUBLISHED[:2], rel=0.002)
    assert epochs[2:] == pytest.approx(PUBLISHED[2:4], rel=error)
    assert epochs[1] > epochs[0] and epochs[2] > epochs[0]  # more machines, a longer epoch
    assert epochs[2] < epochs[1] < epochs[3]


def test_the_fifth_needs_another_cause_than_its_card() -> None:
    """With the same link its row is out by a factor of almost 4; a 1 Gbit/s link (944 Mbit/s of payload over
    TCP) explains it, though nobody published one."""
    same = predict(machines(GTX1070, P4), LOAD).epoch
    assert same < PUBLISHED[4] / 3
    slow = machines(GTX1070, P4, 0.944 * GBIT)
    assert predict(slow, LOAD).epoch == pytest.approx(PUBLISHED[4], rel=0.02)
    load = replace(LOAD, members=slow)
    assert load.without("m4") < load.predict().epoch / 3
    assert load.best().hosts == ("m0",)
    uneven = replace(LOAD, members=slow[:4], measured=True)
    assert uneven.best().hosts == ("m0", "m1", "m2", "m3")  # uneven shares pay off


def test_a_measured_speed_is_of_all_the_hosts_ranks() -> None:
    host = MixedHost("a", machines_of(Device("gpu", {"fp32": 1e12}), per_host=4), speed=100.0)
    assert replace(LOAD, members=[host]).seconds == {"a": 4 / 100.0}


def test_shares_by_speed_never_compute_longer() -> None:
    cluster = machines(GTX1070, P4)
    even, measured = predict(cluster, LOAD).step, predict(cluster, LOAD, measured=True).step
    assert measured.compute < even.compute
    assert measured.communication == pytest.approx(even.communication, rel=0.02)
    alike = [replace(each, speed=SPEED) for each in cluster]
    assert predict(alike, LOAD).step.compute == pytest.approx(
        predict(alike, LOAD, measured=True).step.compute
    )


def test_a_fixed_global_batch_is_shared_out() -> None:
    load = replace(LOAD, batch=96)
    one, two = (predict(machines(P4, P4)[:n], load) for n in (1, 2))
    assert one.step.compute == pytest.approx(2 * two.step.compute)
    assert one.step.communication == 0
    assert one.epoch == pytest.approx(IMAGES / 96 * one.step.seconds)


def test_of_many_hosts_the_same_choice_as_of_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thresholds of speeds find what trying every number of the fastest finds, where no two are alike."""
    clusters = [
        [MixedHost(f"n{i}", alone(GBIT * (1 + 4 * (i * k % 3))), 10 + 7 * (i * k % 9)) for i in range(9)]
        for k in (1, 2, 4)
    ]
    loads = [
        replace(LOAD, case=replace(LOAD.case, parameters=lump(count)), batch=batch)
        for count in (10**6, 10**8)
        for batch in (None, 256)
    ]
    whole = [replace(load, members=c).best().epoch for c in clusters for load in loads]
    monkeypatch.setattr(mixed, "SEARCHED", 0)
    assert [replace(load, members=c).best().epoch for c in clusters for load in loads] == pytest.approx(whole)


def test_a_cluster_of_many_hosts_is_searched() -> None:
    many = [
        MixedHost(f"n{i}", alone(100 * LINK, 8), SPEED * 8 * (0.5 if i == 77 else 1.0)) for i in range(300)
    ]
    forecast = replace(LOAD, members=many)
    assert len(forecast.best().hosts) == 299
    assert [n for n in range(300) if forecast.without(f"n{n}") < forecast.predict().epoch] == [77]


# From what hosts say of themselves:

NAMES = {"a": "NVIDIA GeForce RTX 3070", "b": "NVIDIA GeForce RTX 3070", "c": "NVIDIA GeForce GTX 1070"}
CAPABILITY = {"3070": [8, 6], "1070": [6, 1]}


def facts(**megabits: float | None) -> dict[str, dict[str, Any]]:
    return {
        host: {
            "cores": 8,
            "gpus": [
                {"name": NAMES[host], "capability": CAPABILITY[NAMES[host][-4:]], "memory_total": 8 * 2**30}
            ],
            "network": {"interface": "eth0", "megabits": speed, "infiniband_megabits": None},
        }
        for host, speed in megabits.items()
    }


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> Any:
    def made(about: Mapping[str, Mapping[str, Any]], *more: str, samples: int | None = None) -> Plan:
        monkeypatch.setattr(planning, "ask", lambda inputs: about)
        words = ["batch.micro=16", "engine.name=deepspeed", "data={path: /none, size: 224}", *more]
        inputs = check(read_recipe("vit-b16-cifar10", words), parse_hosts(",".join(about)))
        return plan_hosts(inputs, UserFigures(samples=samples), traced=False).plan

    return made


def advice(plan: Plan) -> list[dict[str, Any]]:
    return [each for each in plan.decisions if each["value"] == SLOWER or each["field"] == FASTEST]


def test_a_host_behind_a_slow_link_is_named_with_seconds(planned: Any) -> None:
    """The two faster hosts gain nothing from the third: whatever share of their peaks they reach."""
    found = advice(planned(facts(a=100_000, b=100_000, c=1_000)))
    assert [(d["field"], d["value"]) for d in found][:1] == [("host c", SLOWER)]
    assert found[-1]["field"] == FASTEST and found[-1]["value"] == "a, b"
    for each in found:
        assert "per 10,000 samples" in each["why"]
    told = advice(planned(facts(a=100_000, b=100_000, c=1_000), samples=50_000))
    assert "per epoch" in told[0]["why"]


def test_no_host_is_named_where_all_are_alike(planned: Any) -> None:
    """Fewer of them would be faster over such links, and none of them is to blame."""
    found = advice(planned(facts(a=10, b=10), "precision=fp32"))
    assert [(d["field"], d["value"]) for d in found] == [(FASTEST, "any 1 of 2")]


@pytest.mark.parametrize(("gigabytes", "found"), [(8, "any 1 of 2"), (3, None)])
def test_no_number_of_hosts_on_which_the_job_does_not_fit(
    planned: Any, gigabytes: float, found: str | None
) -> None:
    """One host holds all that ZeRO-3 cuts, before the start and by the speeds that were measured."""
    about = facts(a=10, b=10)
    for each in about.values():
        each["gpus"][0]["memory_total"] = int(gigabytes * 2**30)
    plan = planned(about, "precision=fp32", "engine.zero=3", "batch.micro=1", samples=100)
    assert plan.memory is not None and plan.memory.lacking is None
    assert [each["value"] for each in advice(plan)] == ([found] if found else [])
    words = ["batch.micro=1", "engine.name=deepspeed", "engine.zero=3", "data={path: /none, size: 224}"]
    recipe = read_recipe("vit-b16-cifar10", words)
    job = Job(
        id="run", launcher="ssh", placements=place([(host, 1) for host in parse_hosts("a,b").hosts]),
        batch=Batch(1, 1, 2), precision="fp32", device="cuda", recipe=recipe.as_dict(),
    )  # fmt: skip
    reviewed = review(recipe, job, about, [50.0, 50.0], PARAMETERS, 100)
    assert [each.value for each in reviewed if each.field == FASTEST] == ([found] if found else [])


@pytest.mark.parametrize(("batch", "two"), [("12", True), ("9", False)])
def test_no_number_of_hosts_that_the_global_batch_is_no_multiple_of(
    planned: Any, batch: str, two: bool
) -> None:
    words = [f"batch.micro={int(batch) // 3}", f"batch.global={batch}"]
    found = advice(planned(facts(a=100_000, b=100_000, c=1_000), *words))
    assert any(each["value"] == "a, b" for each in found) is two


def test_no_prediction_rather_than_a_wrong_one(planned: Any) -> None:
    assert advice(planned(facts(a=100_000, b=100_000))) == []  # nothing is slower
    assert advice(planned(facts(a=100_000, b=100_000, c=None))) == []  # a link that does not say
    unknown = facts(a=100_000, b=100_000, c=1_000)
    unknown["c"]["gpus"][0]["name"] = "Some GPU"
    assert advice(planned(unknown)) == []
    assert advice(planned(facts(a=1_000))) == []
    no_gpu = {host: {**about, "gpus": []} for host, about in facts(a=10, b=10).items()}
    assert advice(planned(no_gpu)) == []


@pytest.mark.parametrize("engine", ["engine.name=ddp", "engine.zero=0", "engine.zero=2", "engine.zero=3"])
@pytest.mark.parametrize("batch", ["batch.global=auto", "batch.global=192"])
def test_the_advice_and_the_plan_foretell_the_same_epoch(planned: Any, engine: str, batch: str) -> None:
    """With all hosts, an epoch takes what the plan says; without one, what a plan without it says."""
    about = facts(a=10_000, b=10_000, c=100)
    more = [
        engine,
        *(["engine.name=deepspeed"] if "zero" in engine else []),
        batch,
        "batch.accumulation=auto",
    ]
    whole = planned(about, *more, samples=48_000)
    without = planned({name: about[name] for name in "ab"}, *more, "precision=fp32", samples=48_000)
    assert whole.time is not None and without.time is not None
    slower, *_ = advice(whole)
    seconds = [format_seconds(each.time.epoch) for each in (whole, without)]
    assert f"predicted {seconds[0]} per epoch with it, {seconds[1]} without it" in slower["why"]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_slowest_of_two_devices_is_the_same_for_plan_and_advice(precision: str) -> None:
    """A plan takes the one whose products are slower, the advice the one that computes longer."""
    work = StepWork(16, 5e11, 1.5e12, 1e9, 1000)
    devices = [found for entry in entries() if (found := driver_device(" ".join(entry["words"])))]
    able = [each for each in devices if each.peak(precision)]
    case = StepCase(machines_of(able[0]), precision, work, lump(10**8), ModelSpread("ddp", ranks=2))
    took = {each.name: computing(case.over(machines_of(each)), LOAD.calibration) for each in able}
    wrong = [
        (one.name, other.name)
        for one in able
        for other in able
        if speed(one, precision) < speed(other, precision) and took[one.name] < 0.9 * took[other.name]
    ]
    assert wrong == []


def test_measured_speeds_say_it_for_cpus_too() -> None:
    """A fast pair and a host behind 10 Mbit/s; a link that does not say gives no word."""
    hosts = parse_hosts("a,b,c").hosts
    recipe = recipe_from({"batch": {"micro": 8, "split": "measured"}})
    job = Job(
        id="run", launcher="ssh", placements=place([(host, 1) for host in hosts]), batch=Batch(8, 1, 24),
        precision="fp32", device="cpu", recipe=recipe.as_dict(),
    )  # fmt: skip
    about = facts(a=10_000, b=10_000, c=10)
    found = review(recipe, job, about, [50.0, 50.0, 50.0], 1_000_000, 8000)
    assert [(d.field, d.value) for d in found] == [("host c", SLOWER), (FASTEST, "a, b")]
    assert "measured speeds" in found[0].why and "per epoch" in found[0].why
    assert review(recipe, job, facts(a=10_000, b=10_000, c=None), [50.0] * 3, 1_000_000, 8000) == []
    assert review(recipe, job, facts(a=10_000, b=10_000, c=10_000), [50.0] * 3, 1_000_000, 8000) == []


def test_a_step_of_a_known_computation_is_the_plans_step() -> None:
    case = LOAD.case.over(replace(alone(LINK), hosts=4))
    assert predict_step(case, micro=computing(case, LOAD.calibration)).seconds == predict_step(case).seconds
