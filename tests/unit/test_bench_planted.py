"""What planted bugs in bench and judge changed, and no other test saw. Expected figures are computed by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.core.judged import Gate, Judged, Verdict
from muster.core.result import Result
from muster.planner.rota import Task
from muster.stages.bench_fold import fold_bench
from muster.stages.judge import judge
from tests.unit.benches import ended, made, suite_of
from tests.unit.logs import chat_log
from tests.unit.test_bench_doubts import BUSY, curve, on, windows
from tests.unit.test_bench_logs import SIZES, swept
from tests.unit.test_judge import FLEET, write
from tests.unit.test_judge_atleast import below, fleet


def test_a_host_that_misses_it_alone_is_to_blame_for_its_groups(tmp_path: Path) -> None:
    """Its partner ran in no other job, and is not below."""
    logs = fleet(tmp_path, {FLEET[0]: 1.5}, ((0, 1),), alone=False)
    write(logs / "alone.log", chat_log([FLEET[0]], 0.3))
    assert below(judge(logs, at_least="700samples/s/host")) == {FLEET[0]}


def test_a_switch_that_is_slow_does_not_pass() -> None:
    """Also where every host behind it is fit."""
    fit = Verdict(hosts=["a"], condition="fit", confidence=1.0, reason="")
    slow = Verdict(hosts=["a"], switch="leaf0", condition="slow", confidence=1.0, reason="")
    fields = {
        "source": "x",
        "slow": 0.01,
        "summary": {"fit": 1},
        "outcomes": {},
        "links": [],
        "peers": [],
        "jobs": [],
    }
    assert Judged.model_validate({**fields, "hosts": [fit]}).gate is Gate.FIT
    assert Judged.model_validate({**fields, "hosts": [fit], "switches": [slow]}).gate is Gate.BAD


def test_sizes_that_only_disturbed_jobs_reached_are_not_those_compared() -> None:
    """Four of six pairs were disturbed, and reached more: the two others are compared at what they reached."""

    def result(task: Task) -> Result:
        busy = not {"local0", "local2"} & set(task.hosts)
        found = swept(task.hosts, {size: 1e-3 + size * 1e-8 for size in SIZES[: 5 if busy else 3]})
        return on(found, **BUSY) if busy else found

    suite = suite_of({"recipe": "fabric", "groups": [2], "repeats": 1})
    found = fold_bench(ended(suite, "local:12x1", result))
    heard = [job for job in found.jobs if not job.not_measured]
    assert heard and len(heard) < len(found.jobs) / 2
    assert all(f"{SIZES[2]:,} bytes" in job.work and not job.notes for job in heard)


def test_a_disturbed_job_is_not_in_the_rate_of_its_size() -> None:
    """Of three jobs on two hosts, one was disturbed: the rate is that of the two others, 190 of 200."""

    def result(task: Task) -> Result:
        two = len(task.hosts) == 2
        disturbed = two and task.repeat == 1
        found = windows(made(task.hosts, (191.0 if disturbed else 190.0) if two else 100.0), 0.01)
        return on(found, stolen=0.2) if disturbed else found

    found, _ = curve(result)
    assert found.points[1].samples_per_second == pytest.approx(190.0)
    assert found.points[1].efficiency == pytest.approx(0.95) and not found.points[1].not_measured
