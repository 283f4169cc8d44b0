"""May the hosts be handed over? One answer for `muster judge` and `muster bench`: their exit code."""

from __future__ import annotations

from dataclasses import replace

import pytest

from muster.core.state import State
from muster.judging.document import Condition, Gate, JobEntry, Judged, Subject, Verdict


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
    found = judged("fit", "fit", size=2)  # whose jobs in groups could not be compared at all
    hosts = [each.model_copy(update={"subjects": each.subjects[:1]}) for each in found.hosts]
    assert found.model_copy(update={"hosts": hosts}).gate is Gate.OPEN


def test_a_warm_up_asks_nothing_of_the_network() -> None:
    found = judged("fit", "fit", size=2, network="unknown")
    found = found.model_copy(update={"jobs": [replace(job, warm_up=True) for job in found.jobs]})
    assert found.gate is Gate.FIT


@pytest.mark.parametrize(
    ("verdict", "judged", "confidence"),
    [
        ("fit", "fit", 0.75),
        ("slow", "slow", 0.75),
        ("unknown", "unknown", 0.75),
        ("below", "fit", 1.0),  # a threshold of the suite
        ("fit", "unknown", 1.0),
        ("unknown", "fit", 0.25),  # its group missed one
        ("unfit", None, 1.0),
        ("unknown", None, 0.0),
    ],
)
def test_a_host_of_an_older_bench(verdict: Condition, judged: Condition | None, confidence: float) -> None:
    """Its row had the judge's verdict inside it."""
    inside = Verdict(hosts=["n1"], condition=judged, confidence=0.75, reason="r") if judged else None
    row = {"host": "n1", "verdict": verdict, "reason": "why", "jobs": 2, "misses": [], "subjects": []}
    host = Verdict.model_validate({**row, "beside_others": inside and inside.model_dump(mode="json")})
    assert (host.host, host.condition, host.confidence, host.reason) == ("n1", verdict, confidence, "why")


def test_a_link_that_is_slow_does_not_pass() -> None:
    link = Verdict(hosts=["n0", "n1"], condition="slow", kind="link", confidence=1.0, reason="")
    assert judged("fit", "fit").model_copy(update={"links": [link]}).gate is Gate.BAD
