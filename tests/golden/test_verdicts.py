"""How a judgement is printed: who is bad and why, who is in doubt, everybody else in a line."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from muster.cli.judge import _print
from muster.cli.views.verdicts import print_answer, print_hosts
from muster.judging.document import (
    Condition,
    Drift,
    Evidence,
    Gate,
    JobEntry,
    Judged,
    Peers,
    Subject,
    Verdict,
)
from tests.golden.documents import Documents, anywhere, workplace

WORK = "facebook/opt-350m (sft), fb261aea, 8 ranks a host, batch 192"
HOSTS = [f"node{number:02d}" for number in range(1, 65)]
PEERS = [
    Peers(
        work=WORK,
        hosts=1,
        jobs=63,
        step_seconds=0.2,
        deviation=0.002,
        side_by_side=0.001,
        samples_per_second=960.0,
    ),
    Peers(work=WORK, hosts=2, jobs=31, step_seconds=0.2, deviation=0.003, samples_per_second=1920.0),
]


def job(name: str, hosts: Sequence[str], slower: float | None = 0.0, **more: Any) -> JobEntry:
    rate = 960.0 * len(hosts) / (1 + (slower or 0.0))
    fields = {"work": WORK, "samples_per_second": rate, "slower": slower, "judged": True, "hosts_from": "log"}
    entry = {"job": name, "outcome": "succeeded", "hosts": list(hosts), **fields, **more}
    return JobEntry(**entry)


def subjects(compute: float | None = 0.004, card: float | None = 0.006, links: int = 2) -> list[Subject]:
    return [
        Subject(name="compute", condition="fit", jobs=1, at_most=compute)
        if compute is not None
        else Subject(name="compute", condition="unknown"),
        Subject(name="card", condition="fit", jobs=2, at_most=card)
        if card is not None
        else Subject(name="card", condition="unknown"),
        Subject(name="links", condition="fit" if links else "unknown", jobs=links, at_most=0.007),
    ]


def changed(part: Any, **fields: Any) -> Any:
    """A part of a document with other values in some fields."""
    if isinstance(part, JobEntry):
        return replace(part, **fields)
    return type(part).model_validate({**part.model_dump(), **fields})


def evidence(name: str, slower: float | None, peers: Sequence[str] = (), **more: Any) -> Evidence:
    return Evidence(job=name, peers=tuple(peers), slower=slower, **more)


def host(name: str, condition: Condition = "fit", **more: Any) -> Verdict:
    fields = {"confidence": 0.999, "reason": f"why {name}", "subjects": subjects(), "at_most": 0.006}
    return Verdict(hosts=[name], condition=condition, **{**fields, **more})


SLOW = host(
    HOSTS[4], "slow", kind="compute", slower=0.051, within=0.002,
    evidence=[
        evidence("alone5", 0.0512), evidence("pair5", 0.0498, HOSTS[5:6]),
        evidence("pair5", 0.0871, HOSTS[5:6], what="computing"),
    ],
)  # fmt: skip


def fleet(*given: Verdict, jobs: Sequence[JobEntry] = (), **more: Any) -> Judged:
    """64 hosts that are fit, but for these."""
    named = {each.hosts[0]: each for each in given}
    hosts = [named.get(name) or host(name) for name in HOSTS]
    alone = [job(f"alone{number}", [name], 0.001) for number, name in enumerate(HOSTS, 1)]
    entries = {each.job: each for each in [*alone, *jobs]}
    fields = {
        "source": "x",
        "slow": 0.01,
        "hosts": hosts,
        "links": [],
        "peers": PEERS,
        "jobs": [*entries.values()],
    }
    return Judged(**{**fields, **more})


def one_slow() -> Judged:
    return fleet(SLOW, jobs=[job("alone5", HOSTS[4:5], 0.0512), job("pair5", HOSTS[4:6], 0.0498)])


def with_evidence(*told: Evidence, reason: str = "why") -> Verdict:
    return changed(SLOW, evidence=list(told), reason=reason)


def doubts() -> Judged:
    doubt = [
        host(
            name, "unknown", reason="only with a bad partner", settle="a job with a fit host", confidence=0.02
        )
        for name in HOSTS[5:7]
    ]
    return fleet(SLOW, *doubt, host(HOSTS[9], "probably fit", settle="two jobs in a pair", confidence=0.07))


def suspects() -> Judged:
    pair = [
        host(name, "unknown", reason="p 0.5", confidence=0.5, evidence=[evidence("pair5", 0.05)])
        for name in HOSTS[:2]
    ]
    probably = [
        host(name, "probably fit", reason=f"p {number}", settle=f"a job of {name}", confidence=0.07)
        for number, name in enumerate(HOSTS[10:20])
    ]
    return fleet(*pair, *probably)


def several_works() -> Judged:
    heavy = Peers(
        work="opt-13b, x", hosts=1, jobs=64, step_seconds=2.0, deviation=0.01, samples_per_second=72.0
    )
    entry = job("heavy5", HOSTS[4:5], 0.25, work="opt-13b, x", samples_per_second=57.6)
    slow = with_evidence(*SLOW.evidence, evidence("heavy5", 0.25))
    return fleet(slow, jobs=[*one_slow().jobs, entry], peers=[*PEERS, heavy])


def links_and_switches() -> Judged:
    link = Verdict(
        hosts=HOSTS[:2], condition="slow", slower=0.05, confidence=0.99, reason="5% slower between the two",
        evidence=[evidence("pair1", 0.05), evidence("four", 0.05, HOSTS[2:4])],
    )  # fmt: skip
    switch = changed(link, hosts=HOSTS[:8], switch="leaf0")
    return fleet(links=[link], switches=[switch], jobs=[job("pair1", HOSTS[:2], 0.05)])


def one_of_two() -> Judged:
    pair = [
        host(name, "unknown", reason="p 0.39", confidence=0.39, evidence=[evidence("pair39", 19.0)])
        for name in HOSTS[:2]
    ]
    return fleet(*pair, one_of=[HOSTS[:2]])


def jobs_alone() -> Judged:
    alone = changed(job("one.log", HOSTS[:1]), slower=None, tokens_per_second=5e4)
    failed = changed(alone, job="two.log", outcome="failed", reason="out of memory", failure="cuda_oom")
    found = fleet(hosts=[host(HOSTS[0], "unknown", confidence=0.0)], peers=[])
    return changed(found, jobs=[alone, failed])


def nowhere() -> Judged:
    entry = job("x.out", [], None, samples_per_second=941.5, judged=False)
    return changed(fleet(hosts=[], peers=[]), jobs=[entry])


def other_unit(**speed: float) -> Judged:
    """nanoGPT tells tokens or milliseconds."""
    peers = changed(PEERS[0], samples_per_second=None, **speed)
    own = {name: value / 1.0512 for name, value in speed.items()}
    return fleet(
        SLOW, jobs=[job("alone5", HOSTS[4:5], 0.0512, samples_per_second=None, **own)], peers=[peers]
    )


def by_the_moment() -> Judged:
    later = [job(f"late{number}", [name], 0.03) for number, name in enumerate(HOSTS)]
    hosts = [
        host(name, evidence=[evidence(f"late{number}", number / 20_000)]) for number, name in enumerate(HOSTS)
    ]
    return changed(fleet(*hosts), jobs=later)


def timed_out() -> Judged:
    cut = changed(job("cut", HOSTS[:1], None), outcome="timeout")
    failed = evidence("cut", None, what="failed")
    return fleet(host(HOSTS[0], "unknown", confidence=0.5, evidence=[failed]), jobs=[cut])


def with_subjects(count: int = len(HOSTS), **looked: Any) -> Judged:
    return fleet(*(host(name, subjects=subjects(**looked)) for name in HOSTS[:count]))


CASES: dict[str, Callable[[], Judged]] = {
    "one is slow": one_slow,
    "doubts stand after the bad ones, alike ones together": doubts,
    "suspects are never folded, those that are probably fit are": suspects,
    "one is suspected, four times as slow": lambda: fleet(
        host(HOSTS[2], "unknown", confidence=0.6, evidence=[evidence("alone3", 3.0)]),
        jobs=[job("alone3", HOSTS[2:3], 3.0)],
    ),
    "the network was not judged": lambda: with_subjects(card=None, links=0),
    "computing was not judged": lambda: with_subjects(compute=None),
    "of four hosts the network was not judged": lambda: with_subjects(4, card=None, links=0),
    "one differs, and is fit": lambda: fleet(
        host(HOSTS[0], "differs", slower=0.009, reason="0.9% slower, as this fleet's hosts differ")
    ),
    "hosts that were guessed are marked": lambda: fleet(
        SLOW, jobs=[job(f"alone{n}", [HOSTS[n - 1]], hosts_from="guess: name of the file") for n in (5, 8)]
    ),
    "compared with its own moment, no other peers": lambda: fleet(with_evidence(evidence("alone5", 0.02))),
    "several works": several_works,
    "drift comes first": lambda: fleet(
        drifted=[Drift(slower=0.2, within=0.001, now=PEERS[0], baseline=changed(PEERS[0], stored=True))]
    ),
    "a link and a switch, with whose jobs": links_and_switches,
    "no host at all": lambda: fleet(hosts=[], jobs=[]),
    "long words and paths": lambda: fleet(
        with_evidence(evidence("a/long/path/to/the/log/of/alone5.log", 0.05), reason="many words " * 20),
        jobs=[job("a/long/path/to/the/log/of/alone5.log", HOSTS[4:5], 0.05)],
    ),
    "a single log has a speed, a failed one a reason": jobs_alone,
    "no line contradicts the bound of those that are fit": lambda: fleet(
        SLOW, jobs=[job("pair5", HOSTS[4:6], 0.1089), job("chance", HOSTS[10:12], 0.09)]
    ),
    "jobs on unknown hosts have a speed": nowhere,
    "speeds in tokens": lambda: other_unit(tokens_per_second=5e4),
    "speeds in steps": other_unit,
    "all are below what was asked": lambda: fleet(
        *(host(name, "below", reason=f"{name}: 780 samples/s") for name in HOSTS), at_least="900 samples/s"
    ),
    "who differs most is the slowest alone, not a partner": lambda: fleet(
        host(HOSTS[38], subjects=subjects(card=0.012), at_most=0.012),
        host(HOSTS[39], subjects=subjects(card=0.011), at_most=0.011),
        jobs=[job("alone39", HOSTS[38:39], 0.0023), job("alone40", HOSTS[39:40], 0.0074)],
    ),
    "who differs most, of jobs of the same moment": by_the_moment,
    "one of two is bad": one_of_two,
    "a job that timed out did not fail": timed_out,
    "a fleet's bound is that of its worst host": lambda: fleet(
        host(HOSTS[4], subjects=subjects(0.009, 0.006))
    ),
    "every host that failed by itself": lambda: fleet(
        jobs=[
            changed(
                job("j", ["n1", "n2"]), outcome="failed", reason="boo", failed_hosts=["n1", "n2"], slower=None
            )
        ]
    ),
    "none is known to be fit": lambda: fleet(
        *(host(name, "unknown", reason="why", confidence=0.0) for name in HOSTS)
    ),
}


def terminal(judged: Judged, width: int, *, every: bool = False) -> str:
    """The answer and the hosts as a terminal of that width shows them."""
    file = io.StringIO()
    console = Console(
        file=file, width=width, force_terminal=True, soft_wrap=True, no_color=True, highlight=False
    )
    print_answer(console, judged)
    print_hosts(console, judged, every=every)
    return re.sub(r"\x1b\[[0-9;]*m", "", file.getvalue())


def printed(case: str) -> str:
    """Into a pipe."""
    out = io.StringIO()
    with anywhere(workplace()), redirect_stdout(out), redirect_stderr(out):
        _print(CASES[case](), every=False)
    assert "\x1b" not in out.getvalue()
    return out.getvalue()


DOCUMENTS = [Documents("verdicts", tuple(CASES), printed)]


@pytest.mark.parametrize("case", CASES)
def test_a_judgement(case: str) -> None:
    DOCUMENTS[0].check(case)


@pytest.mark.parametrize("every", [False, True])
@pytest.mark.parametrize("case", ["long words and paths", "several works", "one is slow"])
def test_a_narrow_terminal_cuts_nothing(case: str, every: bool) -> None:
    judged = CASES[case]()
    narrow, wide = terminal(judged, 80, every=every), terminal(judged, 1000, every=every)
    assert max(map(len, narrow.splitlines())) <= 80 and "…" not in narrow
    assert "".join(narrow.split()) == "".join(wide.split())


@pytest.mark.parametrize("case", ["all are below what was asked", "one is slow"])
def test_every_host_where_all_are_asked_for(case: str) -> None:
    lines = terminal(CASES[case](), 1000, every=True).splitlines()
    assert all(any(name in line.split()[:2] for line in lines) for name in HOSTS)


def test_of_very_many_it_says_how_many_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster.cli.views.verdicts.SHOWN", 3)
    bad = [host(name, "slow", slower=0.05) for name in HOSTS[:5]]
    doubt = [host(name, "unknown", confidence=0.0) for name in HOSTS[5:10]]
    some, every = (terminal(fleet(*bad, *doubt), 1000, every=each) for each in (False, True))
    assert "4 hosts more" in some and f"slow: {HOSTS[4]}" not in some
    assert f"slow: {HOSTS[4]}" in every


def test_that_one_of_two_is_bad_shuts_the_gate() -> None:
    assert one_of_two().gate is Gate.BAD
