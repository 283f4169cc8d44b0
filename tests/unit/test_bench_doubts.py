"""What is no measurement: figures that vary, that others disturbed, or that cannot be."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from muster.benches.bench import table_of
from muster.benches.document import Bench, Curve
from muster.benches.doubts import doubts_of
from muster.benches.fold import fold_bench
from muster.benches.schedule import Task
from muster.cli.views.benches import print_bench
from muster.core.result import Result
from muster.judging.document import Gate
from tests.unit.benches import ended, made, recorded, suite_of
from tests.unit.test_bench_fold import fleet

CURVED = {"groups": "doubling", "cover": "first", "repeats": 3, "curve": "weak"}
PUBLISHED = {"source": "a paper", "on": "cpu", "samples_per_second": {1: 100}}


def windows(found: Result, variation: float) -> Result:
    """Whose samples/s vary so much over its windows."""
    assert found.throughput is not None
    speed = found.throughput.model_copy(update={"variation": variation, "measured_steps": 2000})
    return found.model_copy(update={"throughput": speed})


def on(found: Result, machine: str = "", **report: Any) -> Result:
    """Whose hosts report this."""
    return found.model_copy(
        update={
            "hosts": [
                each.model_copy(update={**report, "facts": {**each.facts, "machine": machine or each.host}})
                for each in found.hosts
            ]
        }
    )


def curve(result: Callable[[Task], Result], **entry: Any) -> tuple[Curve, Bench]:
    found = fold_bench(ended(suite_of({**CURVED, **entry}), "local:2x1", result))
    return found.curves[0], found


def test_figures_that_vary_have_no_efficiency_and_no_verdict() -> None:
    """By 47 % over a job's windows: no efficiency, no threshold, nothing published beside it, no judging."""
    bound = {"figure": "samples_per_second", "at_least": 1e9}
    found = fold_bench(
        ended(
            suite_of({**CURVED, "thresholds": [bound], "published": [PUBLISHED]}),
            "local:2x1",
            lambda task: windows(fleet(task), 0.47 if len(task.hosts) == 1 else 0.01),
        )
    )
    alone = [job for job in found.jobs if job.size == 1]
    assert all(job.not_measured and not job.misses and not job.judged for job in alone)
    assert all(job.figures["samples_per_second"] for job in alone)  # it stands there all the same
    (points,) = [each.points for each in found.curves]
    assert [point.efficiency for point in points] == [None, None]
    assert points[0].not_measured and "47" in points[0].not_measured[0]
    assert {each.ranks for each in found.published} == {2}
    assert {row["Status"] for row in csv.DictReader(io.StringIO(table_of(found)))} == {
        "not a measurement",
        "below threshold",
    }
    console = Console(file=io.StringIO(), width=200)
    print_bench(found, every=True, console=console)
    assert isinstance(console.file, io.StringIO) and "not a measurement" in console.file.getvalue()
    assert all(job.misses for job in found.jobs if job.size == 2)


def test_jobs_that_differ_are_no_measurement_of_their_size() -> None:
    factor = {1: 1.0, 2: 0.6, 3: 1.4}

    def result(task: Task) -> Result:
        own = factor[task.repeat] if len(task.hosts) == 2 else 1.0
        return windows(made(task.hosts, 100.0 * len(task.hosts) * own), 0.01)

    found, _ = curve(result)
    assert [point.efficiency for point in found.points] == [1.0, None]
    assert [bool(point.not_measured) for point in found.points] == [False, True]


@pytest.mark.parametrize(("rate", "sound"), [(8000.0, False), (225.0, False), (215.0, True)])
def test_an_efficiency_that_cannot_be_is_none(rate: float, sound: bool) -> None:
    """3,990 %: the smaller job was no measurement."""
    found, bench = curve(
        lambda task: windows(made(task.hosts, rate if len(task.hosts) == 2 else 100.0), 0.01)
    )
    assert (found.points[1].efficiency is not None) is sound
    assert bool(found.points[1].not_measured) is not sound
    assert bench.gate is not Gate.FIT


BUSY = {"cpu_use": [(100.0, 0.0, 0.0), (105.0, 9.0, 6.0), (110.0, 18.0, 12.0)]}  # of two cores: 0.6 others'
QUIET = {"cpu_use": [(100.0, 0.0, 0.0), (105.0, 9.0, 8.8), (110.0, 18.0, 17.6)]}
ROOM = {"cpu_use": [(100.0, 0.0, 0.0), (105.0, 6.0, 3.0), (110.0, 12.0, 6.0)]}  # 0.8 cores were idle


@pytest.mark.parametrize(
    ("report", "words"),
    [
        (BUSY, "0.6 of 2 cores"),
        (QUIET, ""),
        (ROOM, ""),
        ({"stolen": 0.2}, "20%"),
        ({"stolen": 0.01}, ""),
        ({"strangers": 1}, "GPU"),
        ({"strangers": 0}, ""),
        ({"slowed": 0.5}, "50%"),
        ({"slowed": 0.0}, ""),
        ({}, ""),
    ],
)
def test_what_disturbed_a_job_is_said(report: dict[str, Any], words: str) -> None:
    task = Task("j", "digits", ("a",), 60.0)
    record = recorded(task, on(made(["a"]), **report))
    (found,) = doubts_of({"j": record}).values()
    assert (words in "; ".join(found.all)) and bool(found.all) is bool(words)
    assert bool(found.slowed) is ("slowed" in report and bool(words))  # which is the host's own doing


def test_what_no_job_of_a_host_measured_is_said_and_does_not_pass() -> None:
    """Though other jobs found it fit."""
    suite = suite_of({"groups": [1]}, {"name": "other", "groups": [1]})

    def result(task: Task) -> Result:
        return windows(fleet(task), 0.3 if task.entry == "other" and "local2" in task.hosts else 0.01)

    found = fold_bench(ended(suite, "local:8x1", result))
    assert {each.verdict for each in found.hosts} == {"fit"} and found.gate is Gate.OPEN
    assert [host for host, why in found.left.items() if why] == ["local2"] and "other" in found.left["local2"]
    console = Console(file=io.StringIO(), width=200)
    print_bench(found, every=False, console=console)
    assert isinstance(console.file, io.StringIO) and "not measured by other" in console.file.getvalue()


def test_jobs_of_the_same_bench_on_one_machine_are_no_others() -> None:
    """Pretend hosts share it: what the jobs beside a job used is known."""
    one, two = Task("one", "digits", ("a",), 60.0), Task("two", "digits", ("b",), 60.0)
    late = {"cpu_use": [(105.0, 0.0, 0.0), (110.0, 7.0, 6.0), (115.0, 9.0, 7.0)]}
    records = {
        "one": recorded(one, on(made(["a"]), "here", **BUSY)),
        "two": recorded(two, on(made(["b"]), "here", **late)),
    }
    assert not doubts_of(records)["one"].all
    elsewhere = {**records, "two": recorded(two, on(made(["b"]), "there", **late))}
    assert doubts_of(elsewhere)["one"].all


def test_the_controllers_of_a_bench_are_no_others() -> None:
    """On a machine that is a host as well: what they use is known, from before the hosts were sampled."""
    task, use = Task("one", "digits", ("a",), 60.0), [(98.0, 0.0), (100.0, 1.0), (104.0, 6.0), (111.0, 6.5)]
    found = on(made(["a"]), "here", **BUSY)
    beside = {"machine": "here", "controller_use": use}
    assert not doubts_of({"one": recorded(task, found, **beside)})["one"].all
    assert doubts_of({"one": recorded(task, found, **{**beside, "machine": "there"})})["one"].all
    early = {**beside, "controller_use": [(90.0, 0.0), (99.0, 6.5)]}
    assert doubts_of({"one": recorded(task, found, **early)})["one"].all


def test_two_hosts_of_a_job_that_are_one_machine_are_counted_together() -> None:
    task = Task("j", "digits", ("a", "b"), 60.0)
    use = [(100.0, 0.0, 0.0), (110.0, 16.0, 7.6)]
    record = recorded(task, on(made(["a", "b"]), "here", cpu_use=use))
    assert not doubts_of({"j": record})["j"].all


def test_a_disturbed_host_is_not_judged_and_a_throttled_one_is() -> None:
    """Others' work is not the host's doing. A GPU that slows itself down is."""

    def result(task: Task, **report: Any) -> Result:
        return on(fleet(task, {"local3": 1.5}), **report) if "local3" in task.hosts else fleet(task)

    def busy(task: Task) -> Result:
        later = 50 * task.repeat
        return result(task, cpu_use=[(time + later, *both) for time, *both in BUSY["cpu_use"]])

    suite = suite_of({"groups": [1], "repeats": 2})
    found = fold_bench(ended(suite, "local:8x1", busy))
    named = {each.host: each for each in found.hosts}
    assert named["local3"].verdict == "unknown" and "cores" in named["local3"].reason
    assert {each.verdict for host, each in named.items() if host != "local3"} == {"fit"}
    assert found.gate is Gate.OPEN
    hot = fold_bench(ended(suite, "local:8x1", lambda task: result(task, slowed=0.9)))
    assert {each.host for each in hot.hosts if each.verdict == "slow"} == {"local3"}
