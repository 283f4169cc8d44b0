"""Predicted steps and epochs of machines of different speeds, against a published cluster."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from muster.core import families
from muster.core.batch import Batch
from muster.core.inventory import parse_hosts
from muster.core.job import SLOWER, Decision, Job, place
from muster.core.recipe import recipe_from
from muster.planner import mixed
from muster.planner.advice import FASTEST, advise, link_speed, load_for, review, sample_flops
from muster.planner.decide import decide
from muster.planner.mixed import Load, Machine, best, predict, rounds_of, worths

GBIT = 1e9 / 8
# Five machines, ViT-B/16 on CIFAR-10 at 224 px, fp32, 16 images per GPU: published seconds per epoch with one
# to five. The order is not published; what is known of the machines suggests the RTX 3070s first.
PUBLISHED = (713, 908, 739, 986, 3436)
IMAGES, BATCH = 50_000, 16
VOLUME = 4 * families.parameters({**(families.size("vit-base") or {}), "num_labels": 10})
RTX3070, GTX1070, P4 = 1.0, 6.5 / 20.3, 5.5 / 20.3  # by stated fp32 peaks
# Fitted: one card's speed on the first row, the link on the second.
SPEED = IMAGES / PUBLISHED[0]
LINK = VOLUME / (PUBLISHED[1] / (IMAGES / (2 * BATCH)) - BATCH / SPEED)
LOAD = Load(samples=IMAGES, per_rank=BATCH, volume=VOLUME)


def machines(fourth: float, fifth: float, last_link: float = LINK) -> list[Machine]:
    speeds = [RTX3070, RTX3070, RTX3070, fourth, fifth]
    links = [LINK] * 4 + [last_link]
    return [Machine(f"m{i}", SPEED * s, k) for i, (s, k) in enumerate(zip(speeds, links, strict=True))]


def test_the_fitted_link_is_a_ten_gigabit_one() -> None:
    assert 7 * GBIT < LINK < 10 * GBIT


@pytest.mark.parametrize(("fourth", "fifth", "error"), [(GTX1070, P4, 0.02), (P4, GTX1070, 0.09)])
def test_published_epochs_up_to_four_machines(fourth: float, fifth: float, error: float) -> None:
    """The third and the fourth row were not fitted. Which slow card was the fourth is not published."""
    cluster = machines(fourth, fifth)
    for count in (3, 4):
        predicted = predict(cluster[:count], LOAD).epoch
        assert predicted == pytest.approx(PUBLISHED[count - 1], rel=error), count
    epochs = [predict(cluster[:n], LOAD).epoch for n in range(1, 5)]
    assert epochs[1] > epochs[0] and epochs[2] > epochs[0]  # more machines, a longer epoch
    assert epochs[2] < epochs[1] < epochs[3]


def test_the_fifth_needs_another_cause_than_its_card() -> None:
    """With the same link its row is out by a factor of almost 4; a 1 Gbit/s link (944 Mbit/s of payload over
    TCP) explains it, though nobody published one."""
    same = predict(machines(GTX1070, P4), LOAD).epoch
    assert same < PUBLISHED[4] / 3
    slow = machines(GTX1070, P4, 0.944 * GBIT)
    assert predict(slow, LOAD).epoch == pytest.approx(PUBLISHED[4], rel=0.02)
    found = {worth.host: worth for worth in worths(slow, LOAD)}
    assert found["m4"].without_it < found["m4"].with_it / 3
    assert best(slow, LOAD).hosts == ("m0",)
    assert best(slow[:4], LOAD, measured=True).hosts == ("m0", "m1", "m2", "m3")  # uneven shares pay off


def test_shares_by_speed_never_compute_longer() -> None:
    cluster = machines(GTX1070, P4)
    even, measured = predict(cluster, LOAD), predict(cluster, LOAD, measured=True)
    assert measured.compute < even.compute
    assert measured.communication == even.communication
    alike = [replace(each, speed=SPEED) for each in cluster]
    assert predict(alike, LOAD).compute == pytest.approx(predict(alike, LOAD, measured=True).compute)


def test_a_fixed_global_batch_is_shared_out() -> None:
    load = replace(LOAD, batch=96.0)
    one, two = (predict(machines(P4, P4)[:n], load) for n in (1, 2))
    assert one.compute == pytest.approx(2 * two.compute)
    assert one.communication == 0
    assert one.epoch == pytest.approx(IMAGES / 96 * one.step)


def test_communication_hides_behind_the_backward_pass_and_messages_have_a_latency() -> None:
    pair = machines(P4, P4)[:2]
    open_, hidden = predict(pair, LOAD), predict(pair, replace(LOAD, hidden=True))
    assert hidden.communication == pytest.approx(open_.communication - mixed.BACKWARD * open_.compute)
    small = predict(pair, replace(LOAD, hidden=True, volume=1e6))
    assert small.communication == 0
    late = predict(pair, replace(LOAD, latency=1e-3))
    assert late.communication - open_.communication == pytest.approx(2 * 1e-3 * -(-VOLUME // mixed.BUCKET))


@pytest.mark.parametrize(
    ("engine", "zero", "accumulation", "rounds"),
    [
        ("ddp", 0, 4, 2), ("fsdp", 0, 1, 3), ("fsdp", 0, 2, 5), ("deepspeed", 0, 4, 2),
        ("deepspeed", 1, 4, 3), ("deepspeed", 2, 1, 3), ("deepspeed", 2, 4, 9), ("deepspeed", 3, 4, 12),
    ],
)  # fmt: skip
def test_what_engines_move(engine: str, zero: int, accumulation: int, rounds: float) -> None:
    assert rounds_of(engine, zero, accumulation) == rounds


def test_what_engines_move_of_a_small_model() -> None:
    """ZeRO-3 does not gather it again for the backward pass."""
    assert rounds_of("deepspeed", 3, 4, 85_000_000) == pytest.approx(8, rel=1e-6)
    assert rounds_of("deepspeed", 3, 4, 13_000_000_000) == pytest.approx(12, rel=0.1)
    assert rounds_of("deepspeed", 2, 4, 85_000_000) == pytest.approx(9, rel=1e-6)


def test_of_many_hosts_the_same_choice_as_of_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search over thresholds finds what the search over all choices finds."""
    clusters = [
        [Machine(f"n{i}", 10 + 7 * (i * k % 5), GBIT * (1 + 4 * (i * k % 3))) for i in range(9)]
        for k in (1, 2, 4)
    ]
    loads = [replace(LOAD, volume=v, batch=b) for v in (1e6, 1e8, 1e9) for b in (None, 256.0)]
    whole = [best(c, load, measured=False).epoch for c in clusters for load in loads]
    monkeypatch.setattr(mixed, "SEARCHED", 0)
    assert [best(c, load, measured=False).epoch for c in clusters for load in loads] == pytest.approx(whole)


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


def advice(about: dict[str, dict[str, Any]], **changes: Any) -> list[Decision]:
    recipe = recipe_from(
        {
            "workload": "image-classification",
            "model": {"name": "vit-base"},
            "batch": {"micro": 16},
            "engine": {"name": "deepspeed"},
            **changes,
        }
    )
    inventory = parse_hosts(",".join(about))
    decided = decide(recipe, inventory, about, one_machine=False)
    assert decided.precision == ("fp32" if "c" in about else decided.precision)
    return advise(recipe, inventory, about, decided, {})


def test_a_host_behind_a_slow_link_is_named_with_seconds() -> None:
    """The two faster hosts gain nothing from the third: whatever share of their peaks they reach."""
    found = advice(facts(a=100_000, b=100_000, c=1_000))
    assert [(d.field, d.value) for d in found][:1] == [("host c", SLOWER)]
    assert found[-1].field == FASTEST and found[-1].value == "a, b"
    for each in found:
        assert "per 10,000 samples" in each.why and " min " in each.why + " min "
    digits = advice(facts(a=100_000, b=100_000, c=1_000), data={"digits": {}})
    assert "per epoch" in digits[0].why


def test_a_users_own_deepspeed_file_is_read(tmp_path: Path) -> None:
    """Its stage and its global batch count, as they do for the run itself."""
    own = tmp_path / "own.json"
    own.write_text(json.dumps({"train_batch_size": 64, "zero_optimization": {"stage": 2}}))
    plain = recipe_from({"engine": {"name": "deepspeed"}, "batch": {"micro": 8}})
    given = recipe_from({"engine": {"name": "deepspeed", "config": str(own)}, "batch": {"micro": 8}})
    batch = Batch(8, 4, 64)
    before, after = (load_for(each, batch, 10**6, "fp32", samples=1000) for each in (plain, given))
    assert (before.rounds, before.batch) == (pytest.approx(2), None)
    assert (after.rounds, after.batch) == (pytest.approx(9), 64)
    assert not after.hidden
    own.write_text(json.dumps({"zero_optimization": {"stage": 2, "overlap_comm": True}}))
    assert load_for(given, batch, 10**6, "fp32", samples=1000).hidden


def test_operations_of_a_sample_are_those_of_its_lengths() -> None:
    """A length that the recipe gives counts, whatever the workload."""
    config = families.size("gpt2-small")
    short, long = (
        sample_flops(recipe_from({"workload": "causal-lm", "data": {"sequence": n}}), config)
        for n in (128, 1024)
    )
    assert short and long and 8 < long / short < 10
    images = recipe_from({"workload": "image-classification"})
    assert sample_flops(images, families.size("vit-base"))
    assert sample_flops(images, None) is None
    assert sample_flops(recipe_from({"workload": "causal-lm"}), {"model_type": "bloom"}) is None


def test_no_prediction_rather_than_a_wrong_one() -> None:
    assert advice(facts(a=100_000, b=100_000)) == []  # nothing is slower
    assert advice(facts(a=100_000, b=100_000, c=None)) == []  # a link that does not say
    unknown = facts(a=100_000, b=100_000, c=1_000)
    unknown["c"]["gpus"][0]["name"] = "Some GPU"
    assert advice(unknown) == []
    assert advice(facts(a=1_000)) == []
    assert advice(facts(a=100_000, c=1_000), lora={}) == []
    no_gpu = {host: {**about, "gpus": []} for host, about in facts(a=10, b=10).items()}
    assert advice(no_gpu) == []


def test_infiniband_counts_where_it_may_be_used() -> None:
    about = {"network": {"interface": "eth0", "megabits": 1000, "infiniband_megabits": 200_000}}
    assert link_speed(about, {}) == pytest.approx(200 * (link_speed(about, {"NCCL_IB_DISABLE": "1"}) or 0))
    assert link_speed({}, {}) is None


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
