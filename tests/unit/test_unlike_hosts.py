"""Plans on hosts that differ: in slots, in shares of the batch, in what their devices are fast at."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from muster.core.hardware.machines import Machines, parse_parts
from muster.core.inventory import Host, parse_hosts
from muster.core.job import SLOWER, Facts
from muster.inputs.read import check, read_recipe
from muster.planner import plan as planning
from muster.planner.document import Plan
from muster.planner.machines import MachineModel, UserFigures, by_speed, hypothetical
from muster.planner.plan import plan_hosts, plan_on
from muster.planner.time.steptime import Calibration
from tests.support import parse_machines

pytestmark = pytest.mark.usefixtures("nothing_learned")

A10, H100, L40S = "NVIDIA A10", "NVIDIA H100 PCIe", "NVIDIA L40S"
SAMPLES = 96_000


def about(gpu: str, count: int = 1) -> dict[str, Any]:
    gpus = [{"name": gpu, "memory_total": 48 * 10**9, "capability": [8, 9]}] * count
    return {"gpus": gpus, "cores": 8, "memory_total": 64 * 10**9, "network": {"megabits": 10_000}}


def planned(
    monkeypatch: pytest.MonkeyPatch, hosts: str, facts: Mapping[str, Mapping[str, Any]], *overrides: str
) -> Plan:
    monkeypatch.setattr(planning, "ask", lambda inputs: facts)
    inputs = check(read_recipe("text2sql-t5-small", list(overrides)), parse_hosts(hosts))
    return plan_hosts(inputs, UserFigures(samples=SAMPLES), traced=False).plan


def test_every_rank_counts_and_none_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight ranks and four are twelve, not twice eight."""
    facts = {"n0": about(A10, 8), "n1": about(A10, 4)}
    made = planned(monkeypatch, "n0:8,n1:4", facts, "batch.micro=8")
    assert made.time is not None
    assert (made.ranks, made.batch["global"]) == (12, 96)
    assert made.time.samples_per_second == pytest.approx(96 / made.time.step)
    assert made.time.steps == 3 * SAMPLES // 96  # three epochs
    assert [(each.hosts, each.ranks) for each in made.scaling] == [(1, 8), (2, 12)]
    assert made.scaling[1].total == pytest.approx(made.time.total)


def test_given_shares_are_of_one_number_of_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest share sets the pace; all of them are the step's samples."""
    facts = {"n0": about(A10, 2), "n1": about(A10)}
    shares = ("batch.split=[40,40,16]", "batch.micro=32", "batch.accumulation=2")
    made = planned(monkeypatch, "n0:2,n1:1", facts, *shares)
    even = planned(monkeypatch, "n0:2,n1:1", facts, "batch.micro=40", "batch.accumulation=2")
    assert made.time is not None and even.time is not None
    assert made.time.step == pytest.approx(even.time.step)
    assert made.time.samples_per_second == pytest.approx(192 / made.time.step)
    assert [each.hosts for each in made.scaling] == [2]


def real(facts: Facts, hosts: tuple[Host, ...], *, one_machine: bool = False) -> MachineModel:
    return MachineModel(facts, hosts, Calibration(), one_machine=one_machine)


@pytest.mark.parametrize(("precision", "slower"), [("fp32", H100), ("bf16", L40S)])
def test_the_slowest_device_is_so_in_the_precision_of_the_job(precision: str, slower: str) -> None:
    """An H100 PCIe has 51 TFLOP/s in fp32 and an L40S 92; in bf16 it is 756 and 362."""
    hosts = parse_hosts("a,b").hosts
    facts = {"a": about(H100), "b": about(L40S)}
    found = real(facts, hosts).on([1, 1], "cuda", precision)
    assert found is not None
    alone = real({"a": about(slower)}, hosts[:1]).on([1], "cuda", precision)
    assert alone is not None
    assert found.device == alone.device
    fastest = by_speed(hosts, facts, "auto", {}, precision)[0]
    assert fastest.name == ("b" if slower == H100 else "a")


@pytest.mark.parametrize(("precision", "slower"), [("fp32", "x"), ("bf16", "y")])
def test_the_slowest_of_machines_that_are_not_there(precision: str, slower: str) -> None:
    parts = parse_parts("x{fp32=50,bf16=700}:1,y{fp32=90,bf16=300}:1,10Gbit")
    inventory, facts, machines = hypothetical(parts, "--on", None)
    ground = MachineModel(facts, inventory.hosts, Calibration(), machines)
    found = ground.on([1, 1], "cuda", precision)
    assert found is not None and (found.device.name[0], found.hosts) == (slower, 2)
    (first, _) = inventory.hosts
    alone = ground.of((first,)).on([1], "cuda", precision)
    assert alone is not None and (alone.device.name[0], alone.hosts) == ("x", 1)


def test_pretend_hosts_have_their_own_gpus() -> None:
    """The second one's rank is on the machine's second GPU, which is the slower one in fp32."""
    machine = about(L40S)
    machine["gpus"] = [*machine["gpus"], *about(H100)["gpus"]]
    hosts, facts = parse_hosts("a,b").hosts, {"a": machine, "b": machine}
    for shared, name in ((True, H100), (False, L40S)):
        found = real(facts, hosts, one_machine=shared).on([1, 1], "cuda", "fp32")
        alone = real({"a": about(name)}, hosts[:1]).on([1], "cuda", "fp32")
        assert found is not None and alone is not None
        assert found.device == alone.device


def test_ranks_of_hosts_with_unlike_slots() -> None:
    alike = parse_machines("a10:8x4,10Gbit")
    assert alike.with_slots([8, 8, 8, 8]) == alike
    uneven = alike.with_slots([2, 8, 4, 4])
    assert (uneven.per_host, uneven.ranks) == (8, 18)
    assert [uneven.on(count).ranks for count in (1, 2, 4, 5)] == [2, 10, 18, 26]
    assert isinstance(uneven, Machines) and uneven.link == alike.link


def test_training_that_ends_before_all_is_seen() -> None:
    told = UserFigures(samples=1_000_000, price=2.0)
    recipe = read_recipe("text2sql-t5-small", ["train.max_minutes=10"])
    made = plan_on(recipe, "a10:1x2,10Gbit", told, traced=False).plan
    whole = plan_on(read_recipe("text2sql-t5-small", []), "a10:1x2,10Gbit", told, traced=False).plan
    assert made.time is not None and whole.time is not None and whole.time.total is not None
    assert made.time.total == 600
    assert made.time.cost == pytest.approx(2.0 * 2 * 600 / 3600)
    assert made.time.steps == round(600 / made.time.step)
    assert made.sentence == whole.sentence  # how long all of it would take
    share = f"{600 / whole.time.total:.0%}"
    assert f"train.max_minutes=10 ends the training after {share} of its steps" in made.notes


def test_a_global_batch_of_a_users_file_stays_on_any_number_of_hosts(tmp_path: Path) -> None:
    (file := tmp_path / "ds.json").write_text('{"train_batch_size": 64, "zero_optimization": {"stage": 1}}')
    engine = ["engine.name=deepspeed", f"engine.config={file}"]
    recipe = read_recipe("text2sql-t5-small", [*engine, "batch.micro=auto", "batch.accumulation=auto"])
    made = plan_on(recipe, "a10:1x4,10Gbit", UserFigures(samples=SAMPLES), traced=False).plan
    assert [each.hosts for each in made.scaling] == [1, 2, 4]  # 64 samples cannot be shared by three
    for each in made.scaling:
        assert each.samples_per_second * each.step == pytest.approx(64)


MIXED = "rtx-3070:1x3,gtx-1070:1x1"


def on(machines: str, *more: str) -> Plan:
    recipe = read_recipe("vit-b16-cifar10", ["data={path: /none, size: 224}", *more])
    return plan_on(recipe, machines, UserFigures(samples=48_000), traced=False).plan


def test_machines_that_differ_before_anybody_asked_them() -> None:
    made = on(f"{MIXED},100Gbit", "precision=fp32")
    assert (made.hosts, made.ranks, made.precision) == (4, 4, "fp32")
    slow, fast = on("gtx-1070:1x4,100Gbit"), on("rtx-3070:1x3,100Gbit", "precision=fp32")
    assert made.time is not None and slow.time is not None and fast.time is not None
    assert made.time.step == slow.time.step > fast.time.step  # the slowest sets the pace
    names = [each["field"] for each in made.decisions if each["value"] == SLOWER]
    assert names == ["host gtx-1070-1"]
    assert [each.step for each in made.scaling[:3]] == [
        each.step for each in fast.scaling
    ]  # the fastest first
    assert on(MIXED).time is None  # nobody says what joins them
