"""Of a bench's document: curves over the number of hosts, entries beside each other, the table of jobs."""

from __future__ import annotations

import csv
import io
import os

import pytest

from muster.benches.bench import table_of
from muster.benches.document import Bench, Curve
from muster.benches.fold import fold_bench
from muster.benches.inputs import read_bench
from muster.benches.schedule import Task
from muster.benches.suite import load_suite
from muster.core.recipes import load_recipe
from muster.core.result import Result
from muster.judging.document import Judged
from tests.unit.benches import ended, made, suite_of
from tests.unit.test_bench_fold import PER_SLOT, fleet


def test_the_efficiency_curve() -> None:
    """Weak and strong: rates of 100, 190 (95 %) and 300 (75 %) samples/s on 1, 2 and 4 hosts."""
    rates = {1: 100.0, 2: 190.0, 4: 300.0}

    def result(task: Task) -> Result:
        return made(task.hosts, rates[len(task.hosts)] * (1 + 0.01 * (task.repeat - 2)), slots=8)

    suite = suite_of(
        {"groups": "doubling", "cover": "first", "repeats": 3, "curve": "weak"}, {"name": "other"}
    )
    found = fold_bench(ended(suite, "local:4x8", result))
    (curve,) = found.curves
    assert (curve.entry, curve.kind) == ("digits", "weak")
    assert [(point.hosts, point.ranks, point.jobs) for point in curve.points] == [
        (1, 8, 3),
        (2, 16, 3),
        (4, 32, 3),
    ]
    assert [point.efficiency for point in curve.points] == pytest.approx([1.0, 0.95, 0.75])
    assert [point.speedup for point in curve.points] == pytest.approx([1.0, 1.9, 3.0])
    assert all(point.variation == pytest.approx(0.01) for point in curve.points)


def curve_of(
    rates: dict[int, float],
    variation: float = 0.01,
    steps: int = 200,
    first: float | None = None,
    slots: dict[int, int] | None = None,
) -> Curve:
    """Of jobs with these rates by size, each over so many steps of 8 samples for each rank. `first`: the
    variation of the smallest; `slots`: of each host by size, where not one."""

    def result(task: Task) -> Result:
        size = len(task.hosts)
        whole = made(task.hosts, rates[size], slots=slots[size] if slots else 1)
        assert whole.throughput is not None
        own = first if first is not None and size == min(rates) else variation
        speed = whole.throughput.model_copy(update={"variation": own, "measured_steps": steps})
        return whole.model_copy(update={"throughput": speed})

    suite = suite_of({"groups": "doubling", "cover": "first", "curve": "weak"})
    (found,) = fold_bench(ended(suite, f"local:{max(rates)}x1", result)).curves
    return found


@pytest.mark.parametrize(
    ("second", "variation", "noted"),
    [(215.0, 0.01, True), (204.0, 0.03, False), (190.0, 0.01, False)],
)
def test_more_than_all_of_it_is_marked(second: float, variation: float, noted: bool) -> None:
    """Where it is beyond what the measurement itself varies by."""
    curve = curve_of({1: 100.0, 2: second}, variation, steps=2000)
    assert curve.points[1].efficiency == pytest.approx(second / 200)
    assert any("more than the spread" in note for note in curve.notes) is noted
    shaky = curve_of({1: 100.0, 2: second}, 0.0, steps=2000, first=0.14)  # the job it is compared with
    assert not any("more than the spread" in note for note in shaky.notes)


def test_an_efficiency_is_by_ranks() -> None:
    """Of hosts with unlike numbers of slots: two with half as many ranks are no more than one."""
    curve = curve_of({1: 100.0, 2: 100.0}, slots={1: 4, 2: 2})
    assert [point.efficiency for point in curve.points] == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize(("rates", "steps"), [({1: 3000.0, 2: 6000.0}, 200), ({1: 10.0, 2: 20.0}, 9)])
def test_what_was_too_short_to_measure_has_no_efficiency(rates: dict[int, float], steps: int) -> None:
    """Half a second; and nine steps, however long."""
    curve = curve_of(rates, steps=steps)
    assert [(point.speedup, point.efficiency) for point in curve.points] == [(None, None)] * 2
    assert [point.samples_per_second for point in curve.points] == list(rates.values())
    assert any("too short to measure on 1, 2 hosts" in note for note in curve.notes)


def test_only_a_long_enough_pair_is_compared() -> None:
    curve = curve_of({1: 100.0, 2: 190.0, 4: 20_000.0})
    assert [point.efficiency is None for point in curve.points] == [False, False, True]
    curve = curve_of({1: 20_000.0, 2: 190.0})  # too short is what the other is compared with
    assert [point.efficiency for point in curve.points] == [None, None]


def test_sizes_of_pretend_hosts_have_the_same_threads() -> None:
    """Else one rank alone gets all cores, and is not what two hosts are compared with."""
    cores = len(os.sched_getaffinity(0))
    for hosts, slots in (("local:2x1", 2), ("local:3x4", 12)):
        inputs = read_bench("scaling", hosts, recipe="digits")
        assert {each.launch.threads for each in inputs.recipes.values()} == {max(1, cores // slots)}
    given = read_bench("scaling", "local:2x1", ["launch.threads=3"], recipe="digits")
    assert {each.launch.threads for each in given.recipes.values()} == {3}
    far = read_bench("scaling", "node[1-2]:8", recipe="digits")
    assert {each.launch.threads for each in far.recipes.values()} == {None}


def test_a_comparison_names_what_else_differs() -> None:
    suite = suite_of(
        {"name": "no-zero", "recipe": "text2sql-t5-small"},
        {"name": "zero1", "recipe": "text2sql-t5-small-zero1"},
        compare=["engine"],
    )

    def result(task: Task) -> Result:
        return made(task.hosts, 200.0 if task.entry == "no-zero" else 180.0)

    found = fold_bench(ended(suite, "local:3x1", result)).comparison
    assert found is not None and found.confounded_by == {}
    assert [row.settings["engine.name"] for row in found.rows] == ["ddp", "deepspeed"]
    assert [row.figures["samples_per_second"] for row in found.rows] == [200.0, 180.0]
    bench = ended(suite, "local:3x1", result)
    recipes = {
        **bench.inputs.recipes,
        "no-zero": load_recipe("text2sql-t5-small", ["train.gradient_checkpointing=true"]),
    }
    confounded = fold_bench(ended(suite, "local:3x1", result, recipes=recipes)).comparison
    assert confounded is not None
    assert confounded.confounded_by == {"train.gradient_checkpointing": {"no-zero": "True", "zero1": "False"}}


def test_the_table() -> None:
    """S1's columns first, then what is known besides; unknown is empty."""
    found = fold_bench(ended(suite_of({"groups": [1, 2]}, thresholds=[PER_SLOT]), "local:3x1", fleet))
    rows = list(csv.DictReader(io.StringIO(table_of(found))))
    assert len(rows) == 6
    assert rows[3]["Hostnames"] == "local0,local1"
    assert float(rows[3]["Throughput (samples/sec)"]) == pytest.approx(200, rel=0.01)
    assert (rows[0]["Status"], rows[0]["recipe"], rows[0]["group"], rows[0]["reason"]) == (
        "succeeded",
        "digits",
        "1",
        "",
    )
    assert rows[0]["memory"] == "500000000" and float(rows[0]["seconds"]) == 12.0
    assert "-1" not in {value for row in rows for value in row.values()}


def test_documents_of_judged_and_bench_share_their_peers() -> None:
    """So `--baseline` takes either."""
    assert Judged.model_fields["peers"].annotation == Bench.model_fields["peers"].annotation


def test_published_figures_stand_beside_measured_ones() -> None:
    """Of as many ranks where there are some, else scaled from the nearest; another device is said."""
    own = {"source": "a paper", "on": "h100-80gb", "samples_per_second": {1: 12, 16: 160}, "memory": "40GB"}
    suite = suite_of({"groups": [1, 2], "published": [own]}, {"name": "other", "groups": [1]})
    bench = ended(suite, "local:2x8", lambda task: made(task.hosts, 80.0 * len(task.hosts), slots=8))
    for record in bench.records.values():
        record.devices.update(dict.fromkeys(("local0", "local1"), "NVIDIA H100 80GB HBM3"))
    one, two = fold_bench(bench).published
    assert (one.entry, one.ranks, one.jobs, one.published_ranks) == ("digits", 8, 2, 16)
    assert (one.published, one.ratio, one.same_device) == (80.0, 1.0, True)
    assert (two.ranks, two.published_ranks, two.published) == (16, 16, 160.0)
    assert (two.published_memory, two.source) == (40e9, "a paper")
    for record in bench.records.values():
        record.devices["local1"] = "NVIDIA A100-SXM4-80GB"
    one, two = fold_bench(bench).published
    assert not one.same_device and two.devices == ["NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3"]


def test_the_published_benchmark_has_published_figures() -> None:
    """H100, per device: within a percent of each other on 1 to 512 of them but for the smallest numbers."""
    for entry in load_suite("s1").jobs:
        assert entry.published
        for each in entry.published:
            rates = {count: rate / count for count, rate in each.samples_per_second.items() if count >= 8}
            assert max(rates.values()) / min(rates.values()) < 1.03
