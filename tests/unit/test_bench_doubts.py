"""What is no measurement: figures that vary, that others disturbed, or that cannot be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from muster.benches.document import Bench, Curve
from muster.benches.doubts import doubts_of
from muster.benches.schedule import Task
from muster.core.result import Result
from tests.unit.benches import ended, made, recorded, suite_of

CURVED = {"groups": "doubling", "cover": "first", "repeats": 3, "curve": "weak"}


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
    found = ended(suite_of({**CURVED, **entry}), "local:2x1", result)
    return found.curves[0], found


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
