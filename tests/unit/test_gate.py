"""May the hosts be handed over? One answer for `muster judge` and `muster bench`: their exit code."""

from __future__ import annotations

from dataclasses import replace

import pytest

from muster.benches.fold import fold_bench
from muster.benches.schedule import Task
from muster.core.result import Result
from muster.core.state import State
from muster.judging.document import Condition, Gate, JobEntry, Judged, Subject, Verdict
from tests.unit.benches import ended, made, suite_of
from tests.unit.test_bench_fold import PER_SLOT, fleet


def judged(*conditions: Condition, size: int = 1, network: Condition = "fit") -> Judged:
    """Hosts with these conditions, all in jobs of `size` hosts, whose network was found to be so."""
    subjects = [Subject(name="compute", condition="fit"), Subject(name="card", condition=network)]
    hosts = [
        Verdict(hosts=[f"n{i}"], condition=each, confidence=1.0, reason="", subjects=subjects)
        for i, each in enumerate(conditions)
    ]
    names = [each.hosts[0] for each in hosts]
    jobs = [
        JobEntry(job="j", outcome=State.SUCCEEDED, hosts=names[at : at + size]) for at in range(len(hosts))
    ]
    return Judged(source="", slow=0.01, hosts=hosts, links=[], peers=[], jobs=jobs)


@pytest.mark.parametrize(
    ("conditions", "said"),
    [
        (("fit", "fit"), Gate.FIT),
        (("fit", "differs"), Gate.FIT),
        (("fit", "unknown"), Gate.OPEN),
        (("fit", "probably fit"), Gate.OPEN),
        (("unknown", "slow"), Gate.BAD),
        (("failing", "fit"), Gate.BAD),
        ((), Gate.OPEN),
    ],
)
def test_only_what_was_judged_passes(conditions: tuple[Condition, ...], said: Gate) -> None:
    assert judged(*conditions).gate is said


def test_a_network_that_jobs_used_and_no_reading_told_of_does_not_pass() -> None:
    assert judged("fit", "fit", size=2, network="unknown").gate is Gate.OPEN
    assert judged("fit", "fit", size=2, network="fit").gate is Gate.FIT
    assert judged("fit", "fit", size=1, network="unknown").gate is Gate.FIT  # nobody asked


def test_a_link_that_is_slow_does_not_pass() -> None:
    link = Verdict(hosts=["n0", "n1"], condition="slow", kind="link", confidence=1.0, reason="")
    assert judged("fit", "fit").model_copy(update={"links": [link]}).gate is Gate.BAD


def test_a_bench_passes_where_all_hosts_were_judged() -> None:
    whole = fold_bench(ended(suite_of({"groups": [1, 2]}), "local:8x1", fleet))
    assert whole.gate is Gate.FIT
    unknown = fold_bench(ended(suite_of({"groups": [1]}), "local:2x1", fleet))
    assert unknown.gate is Gate.OPEN
    bound = fold_bench(ended(suite_of({"groups": [1]}, thresholds=[PER_SLOT]), "local:2x1", fleet))
    assert bound.gate is Gate.FIT
    slow = fold_bench(ended(suite_of({"groups": [1, 2]}), "local:8x1", lambda t: fleet(t, {"local5": 1.5})))
    assert slow.gate is Gate.BAD
    assert whole.model_copy(update={"complete": False}).gate is Gate.OPEN
    lead = replace(whole.jobs[0], warm_up=True)
    assert all(whole.model_copy(update={"jobs": jobs}).gate is Gate.OPEN for jobs in ([], [lead]))


def test_a_bench_with_a_failed_job_or_a_missed_threshold_does_not_pass() -> None:
    def result(task: Task) -> Result:
        return made(task.hosts, 40.0 * len(task.hosts))

    missed = fold_bench(ended(suite_of({"groups": [1]}, thresholds=[PER_SLOT]), "local:2x1", result))
    assert missed.gate is Gate.BAD
    unfit = ended(suite_of({}), "local:2x1", fleet, dropped={"local9": "disk.free: 1 GB"})
    assert fold_bench(unfit).gate is Gate.BAD
