"""What the judge hears of a bench's jobs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from muster.benches.fold import fold_bench
from muster.benches.logs import logs_of
from muster.benches.schedule import Task
from muster.core.fabric import Matmul, Sweep, spread
from muster.core.recipes import load_recipe
from muster.core.result import Result
from muster.core.state import State
from muster.judging.document import Gate
from muster.judging.joblogs import observation_of, work_of
from tests.unit.benches import ended, fabric_result, made, recorded, suite_of
from tests.unit.test_bench_fold import fleet


def test_hosts_whose_fabric_jobs_time_out_are_failing() -> None:
    """Good jobs say how large their all-reduce was, failed ones do not: they are jobs of one entry all the
    same, and two hosts of sixteen are not half of it."""
    suite = suite_of({"recipe": "fabric", "groups": [1, 2]})

    def result(task: Task) -> Result:
        return fabric_result(list(task.hosts), {})

    bench = ended(suite, "local:16x1", result)
    records = {
        task.id: recorded(task, None, outcome=State.TIMEOUT, reason="timeout: not over after 600 s")
        if {"local3", "local9"} & set(task.hosts)
        else bench.records[task.id]
        for task in bench.tasks
    }
    found = fold_bench(ended(suite, "local:16x1", result, records=records))
    assert {each.host for each in found.hosts if each.verdict == "failing"} == {"local3", "local9"}
    assert not found.notes
    every = {
        task.id: recorded(task, None, outcome=State.TIMEOUT, reason=f"rank {n}: timeout: not over")
        for n, task in enumerate(bench.tasks)
    }
    found = fold_bench(ended(suite, "local:16x1", result, records=every))
    assert {(each.verdict, each.reason) for each in found.hosts} == {
        ("unknown", "its jobs ended like most jobs of the same work, so they do not show how the host is")
    }
    assert found.notes == ["24 jobs of fabric fail the same way (timeout): no evidence against their hosts"]


def swept(hosts: Sequence[str], seconds: Mapping[int, float]) -> Result:
    """A fabric result whose all-reduces of these sizes took so long."""
    found = fabric_result(list(hosts), {})
    assert found.fabric is not None
    sweeps = [
        Sweep(operation="all-reduce", method="native", bytes=size, time=spread([took] * 5), iterations=1,
              algbw=size / took, busbw=size / took, busbw_best=size / took)
        for size, took in seconds.items()
    ]  # fmt: skip
    return found.model_copy(update={"fabric": found.fabric.model_copy(update={"sweeps": sweeps})})


SIZES = (1 << 10, 1 << 14, 1 << 16, 1 << 18, 1 << 20)


@pytest.mark.parametrize("count", [4, 12])
def test_a_slow_pair_that_reached_smaller_sizes_is_compared_all_the_same(count: int) -> None:
    """A sweep has so many seconds: over a link at a fifth it ends at a smaller size, which is a sign of that
    and no other kind of work."""

    def result(task: Task) -> Result:
        cut = "local1" in task.hosts
        chance = 1 + 0.002 * (sum(map(ord, task.id)) % 5)
        took = {size: (1e-3 + size * 1e-8 * (5 if cut else 1)) * chance for size in SIZES}
        return swept(task.hosts, {size: took[size] for size in SIZES[: 3 if cut else 5]})

    suite = suite_of({"recipe": "fabric", "groups": [2], "repeats": 2})
    found = fold_bench(ended(suite, f"local:{count}x1", result))
    pairs = {tuple(job.hosts): job for job in found.jobs}
    assert len({job.work for job in found.jobs}) == 1 and all(job.judged for job in found.jobs)
    assert all((job.slower or 0) > 0.3 for hosts, job in pairs.items() if "local1" in hosts)
    assert all(abs(job.slower or 0) < 0.02 for hosts, job in pairs.items() if "local1" not in hosts)
    assert any(job.notes for hosts, job in pairs.items() if "local1" in hosts)
    assert "fit" not in {each.verdict for each in found.hosts if each.host == "local1"}


def test_a_job_that_had_less_time_and_is_as_quick_is_as_good() -> None:
    """At the sizes that both reached."""

    def result(task: Task) -> Result:
        few = "local0" in task.hosts
        return swept(task.hosts, {size: 1e-3 + size * 1e-8 for size in SIZES[: 3 if few else 5]})

    found = fold_bench(ended(suite_of({"recipe": "fabric", "groups": [2]}), "local:12x1", result))
    assert all(job.slower == pytest.approx(0, abs=1e-6) for job in found.jobs)


def test_all_reduces_that_vary_are_no_measurement() -> None:
    """A message that waits for a core takes what it takes: the largest size that is steady counts, and of a
    job without one nothing is said. One repeat that was late spoils nothing."""

    def result(task: Task) -> Result:
        found = swept(task.hosts, {size: 1e-3 + size * 1e-8 for size in SIZES})
        assert found.fabric is not None
        sweeps = found.fabric.sweeps
        for place, each in enumerate(sweeps):
            late = [*each.time.seconds[:4], 9 * each.time.median]
            wild = [each.time.median * factor for factor in (0.3, 0.5, 3.0, 5.0, 9.0)]
            shaky = "local0" in task.hosts or each.bytes < SIZES[3]
            sweeps[place] = each.model_copy(update={"time": spread(wild if shaky else late)})
        return found

    found = fold_bench(ended(suite_of({"recipe": "fabric", "groups": [2]}), "local:12x1", result))
    shaky = [job for job in found.jobs if "local0" in job.hosts]
    assert shaky and not any(job.judged for job in shaky) and all(job.not_measured for job in shaky)
    assert set(found.left) >= {host for job in shaky for host in job.hosts} and found.gate is Gate.OPEN
    assert all(found.left[host] for job in shaky for host in job.hosts)
    others = [job for job in found.jobs if "local0" not in job.hosts]
    assert all(job.slower == pytest.approx(0, abs=1e-6) and not job.notes for job in others)


def test_a_job_that_measured_what_no_other_did_is_no_measurement() -> None:
    """Nobody is fit by it, and a bench with such hosts does not pass."""

    def result(task: Task) -> Result:
        sizes = SIZES[4:] if "local0" in task.hosts else SIZES[:3]
        return swept(task.hosts, {size: 1e-3 + size * 1e-8 for size in sizes})

    found = fold_bench(ended(suite_of({"recipe": "fabric", "groups": [2]}), "local:12x1", result))
    odd = [job for job in found.jobs if "local0" in job.hosts]
    assert (
        odd
        and not any(job.judged for job in odd)
        and all("none of its" in job.not_measured[0] for job in odd)
    )
    assert all(not job.not_measured and job.slower is not None for job in found.jobs if job not in odd)
    assert found.left["local0"] and found.gate is Gate.OPEN


def test_work_that_is_left_with_too_few_jobs_does_not_pass() -> None:
    """Of four pairs one measured nothing, and three cannot be compared: a link at half its speed was among
    them, and every host was called fit by what else it did."""

    def result(task: Task) -> Result:
        if task.entry != "fabric":
            return fleet(task)
        slow = 2.0 if "local1" in task.hosts else 1.0
        apart = {"local2", "local3"} == set(task.hosts)
        return swept(
            task.hosts, {size: slow * (1e-3 + size * 1e-8) for size in (SIZES[4:] if apart else SIZES[:3])}
        )

    suite = suite_of({"recipe": "fabric", "groups": [2]}, {"groups": [1, 2]})
    found = fold_bench(ended(suite, "local:4x1", result))
    assert all(job.slower is None for job in found.jobs if job.entry == "fabric")
    assert {each.verdict for each in found.hosts} == {"fit"} and found.gate is Gate.OPEN
    assert all("fabric on 2 hosts" in found.left[f"local{n}"] for n in range(4))

    def sound(task: Task) -> Result:
        took = {size: 1e-3 + size * 1e-8 for size in SIZES}
        return swept(task.hosts, took) if task.entry == "fabric" else fleet(task)

    whole = fold_bench(ended(suite, "local:4x1", sound))
    assert whole.gate is Gate.FIT and not any(whole.left.values())


@pytest.mark.parametrize("times", [[], [math.nan, 1e-3, 1e-3], [1e-3, math.nan, 1e-3], [math.inf] * 3])
def test_an_all_reduce_without_times_is_no_measurement(times: list[float]) -> None:
    """Wherever it stands in a damaged record, a time that is none is not passed over."""

    def result(task: Task) -> Result:
        found = swept(task.hosts, dict.fromkeys(SIZES, 1e-3))
        assert found.fabric is not None
        if "local0" in task.hosts:
            for place, each in enumerate(found.fabric.sweeps):
                time = each.time.model_copy(update={"seconds": times})
                found.fabric.sweeps[place] = each.model_copy(update={"time": time})
        return found

    found = fold_bench(ended(suite_of({"recipe": "fabric", "groups": [2]}), "local:12x1", result))
    assert all(job.judged is ("local0" not in job.hosts) for job in found.jobs)


@pytest.mark.parametrize("value", [math.nan, math.inf, 0.0, -1.0])
def test_a_figure_that_is_no_number_is_unknown(value: float) -> None:
    def trained(task: Task) -> Result:
        found = made(list(task.hosts))
        assert found.throughput is not None
        odd = {"local0": {"samples_per_second": value}, "local1": {"variation": value}}
        told = found.throughput.model_copy(update=odd.get(task.hosts[0], {}))
        return found.model_copy(update={"throughput": told})

    def multiplied(task: Task) -> Result:
        found = fabric_result(list(task.hosts), {})
        assert found.fabric is not None
        if task.hosts[0] == "local0":
            found.fabric.matmul[-1] = found.fabric.matmul[-1].model_copy(update={"sustained": value})
        return found

    for suite, result in ((suite_of({"groups": [1]}), trained), (suite_of({"recipe": "fabric"}), multiplied)):
        found = fold_bench(ended(suite, "local:6x1", result))
        assert all(job.slower is None for job in found.jobs if job.hosts == ("local0",))
        assert {each.verdict for each in found.hosts if each.host in ("local2", "local3")} == {"fit"}


def measured(products: Sequence[Matmul]) -> Callable[[Task], Result]:
    """Fabric jobs in which each host has these products."""

    def result(task: Task) -> Result:
        found = fabric_result(list(task.hosts), {})
        assert found.fabric is not None
        mine = []
        for rank, host in enumerate(task.hosts):
            for each in products:
                factor = 0.3 if (host, each.precision) == ("local2", "bf16") else 1 + rank / 1e3
                news = {"host": host, "rank": rank, "sustained": each.sustained * factor}
                mine.append(each.model_copy(update=news))
        return found.model_copy(update={"fabric": found.fabric.model_copy(update={"matmul": mine})})

    return result


def product(precision: str, **more: Any) -> Matmul:
    fields: dict[str, Any] = {
        "host": "", "rank": 0, "device": "cpu", "precision": precision, "n": 1000, "threads": 1, "best": 1e12,
        "sustained": 1e12, "products": 9, "seconds": 1.0, "right": True, "peak": None,
    }  # fmt: skip
    return Matmul(**{**fields, **more})


@pytest.mark.parametrize(("training", "slow"), [("auto", set()), ("fp32", set()), ("bf16", {"local2"})])
def test_products_are_of_the_arithmetic_that_trainings_use(training: str, slow: set[str]) -> None:
    """On CPUs that is fp32 unless a recipe says otherwise: bf16 varied threefold there, with nobody bad."""
    suite = suite_of({"recipe": "fabric", "groups": ["all"], "repeats": 4}, {"groups": ["all"]})
    bench = ended(suite, "local:6x1", measured([product("fp32"), product("bf16")]))
    recipes = {**bench.inputs.recipes, "digits": load_recipe("digits", [f"precision={training}"])}
    found = fold_bench(replace(bench, inputs=replace(bench.inputs, recipes=recipes)))
    assert {each.host for each in found.hosts if each.verdict == "slow"} == slow


def test_products_that_vary_are_no_measurement() -> None:
    """Of a host whose own windows differ by more than 15 % nothing is said, and why stands in the notes."""
    suite = suite_of({"recipe": "fabric", "groups": ["all"], "repeats": 4})
    shaky = product("fp32", variation=0.4, windows=8)
    found = fold_bench(ended(suite, "local:6x1", measured([shaky])))
    assert not any("products" in each.work for each in found.peers)
    assert all(any("local3" in note and "40" in note for note in job.notes) for job in found.jobs)
    steady = product("fp32", variation=0.04, windows=16)
    task = Task("j", "fabric", ("a", "b"), 60.0)
    record = recorded(task, measured([steady])(task))
    (told,) = logs_of({"j": record}, {"fabric": load_recipe("fabric")}).values()
    seen = [observation_of(log, work_of(log)) for log in told]
    assert [each.spread for each in seen if each and len(each.hosts) == 1] == [pytest.approx(0.01)] * 2


def test_the_judge_hears_when_a_job_ran_and_what_was_an_exchange() -> None:
    tasks = [Task("f", "fabric", ("a", "b"), 60.0), Task("d", "digits", ("a", "b"), 60.0)]
    results = {"f": fabric_result(["a", "b"], {}), "d": made(["a", "b"])}
    records = {task.id: recorded(task, results[task.id]) for task in tasks}
    told = logs_of(records, {each: load_recipe(each) for each in ("fabric", "digits")})
    seen = {job: [observation_of(log, work_of(log)) for log in logs] for job, logs in told.items()}
    assert all(each and (each.began, each.ended) == (100.0, 112.0) for all_ in seen.values() for each in all_)
    assert [each.exchanges for each in seen["f"] if each] == [True, False, False]
    assert [each.exchanges for each in seen["d"] if each] == [False]
