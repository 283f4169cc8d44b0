"""What `muster judge` prints: the answer, who is bad and why, who is in doubt, everybody else in a line."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, get_args

import pytest
from rich.console import Console

from muster.benches.document import BAD
from muster.benches.fold import fold_bench
from muster.benches.schedule import Task
from muster.cli.judge import _print
from muster.cli.views.benches import print_bench
from muster.cli.views.verdicts import print_answer, print_hosts
from muster.core.result import Failure, Result
from muster.core.state import State
from muster.judging import Settings
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
from muster.judging.joblogs import judged
from muster.readers.base import JobLog, MeasuredWindows
from tests.unit.benches import ended, made, suite_of

WORK = "facebook/opt-350m (sft), fb261aea, 8 ranks a host, batch 192"
HOSTS = [f"node{number:02d}" for number in range(1, 65)]
PEERS = [
    Peers(work=WORK, hosts=1, jobs=63, step_seconds=0.2, deviation=0.002, samples_per_second=960.0),
    Peers(work=WORK, hosts=2, jobs=31, step_seconds=0.2, deviation=0.003, samples_per_second=1920.0),
]


def job(name: str, hosts: Sequence[str], slower: float = 0.0, **more: Any) -> JobEntry:
    rate = 960.0 * len(hosts) / (1 + slower)
    fields = {"work": WORK, "samples_per_second": rate, "slower": slower, "judged": True, "hosts_from": "log"}
    return JobEntry(job=name, outcome=State.SUCCEEDED, hosts=list(hosts), **{**fields, **more})


def looked(compute: float | None = 0.004, card: float | None = 0.006, links: int = 2) -> list[Subject]:
    return [
        Subject(name="compute", condition="unknown" if compute is None else "fit", jobs=1, at_most=compute),
        Subject(name="card", condition="unknown" if card is None else "fit", jobs=2, at_most=card),
        Subject(name="links", condition="fit" if links else "unknown", jobs=links, at_most=0.007),
    ]


def host(name: str, condition: Condition = "fit", **more: Any) -> Verdict:
    fields = {"confidence": 0.999, "reason": f"why {name}", "subjects": looked(), "at_most": 0.006}
    return Verdict(hosts=[name], condition=condition, **{**fields, **more})


SLOW = host(
    HOSTS[4], "slow", kind="compute", slower=0.051, within=0.002,
    evidence=[
        Evidence(job="alone5", peers=[], slower=0.0512),
        Evidence(job="pair5", peers=[HOSTS[5]], slower=0.0498),
        Evidence(job="pair5", peers=[HOSTS[5]], slower=0.0871, what="computing"),
    ],
)  # fmt: skip


def found(*given: Verdict, jobs: Sequence[JobEntry] = (), **more: Any) -> Judged:
    """64 hosts that are fit, but for these."""
    named = {each.hosts[0]: each for each in given}
    hosts = [named.get(name) or host(name) for name in HOSTS]
    alone = [job(f"alone{number}", [name], 0.001) for number, name in enumerate(HOSTS, 1)]
    told = {each.job: each for each in [*alone, *jobs]}
    counts = Counter(each.condition for each in hosts)
    fields = {
        "source": "x", "slow": 0.01, "summary": {name: counts[name] for name in get_args(Condition)},
        "outcomes": {"succeeded": len(told), "failed": 0, "timeout": 0, "unreadable": 0}, "hosts": hosts,
        "links": [], "peers": PEERS, "jobs": list(told.values()),
    }  # fmt: skip
    return Judged(**{**fields, **more})


ONE_BAD = found(SLOW, jobs=[job("alone5", HOSTS[4:5], 0.0512), job("pair5", HOSTS[4:6], 0.0498)])


def shown(what: Judged, *, every: bool = False, width: int | None = None) -> list[str]:
    """The lines for a pipe, or a terminal of that width."""
    file = io.StringIO()
    console = Console(
        file=file,
        width=width,
        force_terminal=width is not None,
        soft_wrap=True,
        no_color=True,
        highlight=False,
    )
    print_answer(console, what)
    print_hosts(console, what, every=every)
    return re.sub(r"\x1b\[[0-9;]*m", "", file.getvalue()).splitlines()


def at(lines: Sequence[str], *words: str) -> int:
    """The first line with all of these."""
    return next(number for number, line in enumerate(lines) if number and all(word in line for word in words))


def test_the_answer_then_the_bad_one_with_its_evidence_then_the_others_in_a_line() -> None:
    lines = shown(ONE_BAD)
    assert all(words in lines[0] for words in ("1 of 64 hosts", "slow", HOSTS[4], "5.1%"))
    start = at(lines, f"slow: {HOSTS[4]}")
    alone, pair, own = (at(lines, *words) for words in (("alone5",), ("4.98%", "pair5"), ("8.71%", "pair5")))
    assert [alone, pair, own] == [start + 2, start + 3, start + 4]
    assert "913.2 samples/s" in lines[alone] and "960.0" in lines[alone] and "0.20%" in lines[alone]
    assert HOSTS[5] in lines[pair] and "1,829 samples/s" in lines[pair] and "forward passes" in lines[own]
    folded = at(lines, "fit: node[01-04,06-64]", "63")
    assert folded > own and sum(HOSTS[20] in line for line in lines) == 0
    assert "compute at most 0.4% slower, card at most 0.6% slower, links" in lines[folded + 1]


def test_every_host_where_all_are_asked_for() -> None:
    lines = shown(ONE_BAD, every=True)
    assert all(any(line.split()[:1] == [name] for line in lines) for name in HOSTS)


def test_doubts_stand_after_the_bad_ones_alike_ones_together_with_what_would_settle_them() -> None:
    doubt = [
        host(
            name, "unknown", reason="only with a bad partner", settle="a job with a fit host", confidence=0.02
        )
        for name in (HOSTS[5], HOSTS[6])
    ]
    probably = host(HOSTS[9], "probably fit", settle="two jobs in a pair", confidence=0.07)
    lines = shown(found(SLOW, *doubt, probably))
    order = [
        at(lines, f"slow: {HOSTS[4]}"),
        at(lines, "unknown: node[06-07]"),
        at(lines, "probably fit: node10"),
    ]
    assert order == sorted(order) and at(lines, "fit: node[01-04,08-09,11-64]") > order[-1]
    assert at(lines, "settle", "a job with a fit host") > order[1]
    assert at(lines, "settle", "two jobs in a pair") > order[2]


def test_who_is_suspected_is_in_the_answer() -> None:
    jobs = [job("alone3", HOSTS[2:3], 3.0)]
    evidence = [Evidence(job="alone3", peers=[], slower=3.0)]
    lines = shown(found(host(HOSTS[2], "unknown", confidence=0.6, evidence=evidence), jobs=jobs))
    assert HOSTS[2] in lines[0] and "suspected" in lines[0] and "4.0 times" in lines[0]


def test_what_was_not_judged_is_said() -> None:
    alone = [host(name, subjects=looked(card=None, links=0)) for name in HOSTS]
    lines = shown(found(*alone))
    assert "network was not judged" in lines[0] and "card" not in "".join(lines)
    assert "".join(lines).count("not judged") == 1
    pairs = [host(name, subjects=looked(compute=None)) for name in HOSTS]
    assert "computing was not judged" in shown(found(*pairs))[0]
    some = [host(name, subjects=looked(card=None, links=0)) for name in HOSTS[:4]]
    assert any(
        "card at most 0.6% slower (60 of 64; not judged: node[01-04])" in line for line in shown(found(*some))
    )
    assert not any("not judged" in line for line in shown(ONE_BAD))


def test_hosts_that_differ_are_neither_bad_nor_hidden() -> None:
    lines = shown(
        found(host(HOSTS[0], "differs", slower=0.009, reason="0.9% slower, as this fleet's hosts differ"))
    )
    assert "fit" in lines[0] and "1 of them" in lines[0]
    assert at(lines, f"differs: {HOSTS[0]}") < at(lines, "fit: node[02-64]")
    assert any("as this fleet's hosts differ" in line for line in lines)


def test_guesses_are_marked() -> None:
    """Names of files where no log names its host."""
    guessed = [
        job(f"alone{number}", [HOSTS[number - 1]], hosts_from="guess: name of the file") for number in (5, 8)
    ]
    lines = shown(found(SLOW, jobs=guessed))
    assert "guess" in lines[at(lines, f"slow: {HOSTS[4]}")]
    folded = lines[at(lines, "fit: node[01-04,06-64]")]
    assert "guess" in folded and "node08" in folded
    assert not any("guess" in line for line in shown(ONE_BAD))


def test_a_job_that_was_compared_with_its_own_moment_shows_no_other_peers() -> None:
    """2 % slower than jobs at the same time, though as fast as the fleet's usual ones."""
    slow = SLOW.model_copy(update={"evidence": [Evidence(job="alone5", peers=[], slower=0.02)]})
    lines = shown(found(slow))
    assert "960" not in lines[at(lines, "2.00% slower")].replace("959.0", "")


def test_works_are_told_apart_where_there_are_several() -> None:
    heavy = Peers(
        work="opt-13b, x", hosts=1, jobs=64, step_seconds=2.0, deviation=0.01, samples_per_second=72.0
    )
    entry = job("heavy5", HOSTS[4:5], 0.25, work="opt-13b, x", samples_per_second=57.6)
    slow = SLOW.model_copy(
        update={"evidence": [*SLOW.evidence, Evidence(job="heavy5", peers=[], slower=0.25)]}
    )
    lines = shown(found(slow, jobs=[*ONE_BAD.jobs, entry], peers=[*PEERS, heavy]))
    assert "opt-13b" in lines[at(lines, "heavy5")] and "opt-350m" in lines[at(lines, "alone5")]
    assert "opt-350m" not in shown(ONE_BAD)[at(shown(ONE_BAD), "alone5")]


def test_drift_links_and_switches_come_first() -> None:
    drifted = Drift(
        slower=0.2, within=0.001, now=PEERS[0], baseline=PEERS[0].model_copy(update={"stored": True})
    )
    assert "20.0%" in shown(found(drifted=[drifted]))[0]
    link = Verdict(
        hosts=HOSTS[:2], condition="slow", slower=0.05, confidence=0.99, reason="5% between the two"
    )
    switch = link.model_copy(update={"hosts": HOSTS[:8], "switch": "leaf0"})
    lines = shown(found(links=[link], switches=[switch]))
    assert HOSTS[0] in lines[0] and HOSTS[1] in lines[0] and "leaf0" in lines[1]


def test_no_host_at_all() -> None:
    assert "no host" in shown(found(hosts=[], jobs=[]))[0].lower()


@pytest.mark.parametrize("every", [False, True])
def test_a_narrow_terminal_and_a_pipe_cut_nothing(every: bool) -> None:
    long = [job("a/long/path/to/the/log/of/alone5.log", HOSTS[4:5], 0.05)]
    evidence = [Evidence(job=long[0].job, peers=[], slower=0.05)]
    what = found(SLOW.model_copy(update={"evidence": evidence, "reason": "many words " * 20}), jobs=long)
    narrow, pipe = shown(what, every=every, width=80), shown(what, every=every)
    assert max(map(len, narrow)) <= 80 and "…" not in "".join(narrow + pipe)
    assert "".join("".join(narrow).split()).count("manywords" * 20) == "".join("".join(pipe).split()).count(
        "manywords" * 20
    )
    assert any(long[0].job in line for line in pipe)
    assert sum("many words " * 19 in line for line in pipe) == 1 + every  # one line


def test_the_whole_output_has_no_colours_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    _print(ONE_BAD, every=True)
    told = capsys.readouterr()
    assert "\x1b" not in told.out + told.err and "64 hosts: 63 fit, 1 slow; 65 jobs: 65 succeeded" in told.out


def test_a_single_log_shows_its_speed_and_a_failed_one_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing to compare it with is no reason to hide it."""
    alone = job("one.log", HOSTS[:1], slower=0.0).model_copy(
        update={"slower": None, "tokens_per_second": 5e4}
    )
    failed = alone.model_copy(
        update={"job": "two.log", "outcome": State.FAILED, "reason": "out of memory", "failure": "cuda_oom"}
    )
    _print(
        found(hosts=[host(HOSTS[0], "unknown", confidence=0.0)], jobs=[alone, failed], peers=[]), every=False
    )
    out = capsys.readouterr().out
    assert "960.0 samples/s, 50,000 tokens/s" in out and "one.log" in out
    assert "two.log\n  out of memory\n  known as cuda_oom" in out


def test_no_line_contradicts_the_bound_of_hosts_that_are_fit() -> None:
    """A good host's pair with the slow one, and a job that was slow by chance, say nothing of it."""
    pair = job("pair5", HOSTS[4:6], 0.1089)
    chance = [job("chance", HOSTS[10:12], 0.09)]
    lines = shown(found(SLOW, jobs=[pair, *chance]))
    after = lines[at(lines, "fit: node[01-04,06-64]") :]
    assert not any("10.89%" in line or "9.00%" in line for line in after)
    assert any("differs most: node01" in line for line in after)


def test_a_link_shows_whose_jobs() -> None:
    link = Verdict(
        hosts=HOSTS[:2], condition="slow", slower=0.05, confidence=0.99, reason="5% slower between the two",
        evidence=[
            Evidence(job="pair1", peers=[], slower=0.05), Evidence(job="four", peers=HOSTS[2:4], slower=0.05),
        ],
    )  # fmt: skip
    lines = shown(found(links=[link], jobs=[job("pair1", HOSTS[:2], 0.05)]))
    first, second = lines[at(lines, "pair1")], lines[at(lines, "four")]
    assert "node01, node02" in first and "1,829 samples/s" in first and "alone" not in first
    assert "node01, node02, node03, node04" in second


def test_of_very_many_it_says_how_many_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster.cli.views.verdicts.SHOWN", 3)
    bad = [host(name, "slow", slower=0.05) for name in HOSTS[:5]]
    doubt = [host(name, "unknown", confidence=0.0) for name in HOSTS[5:10]]
    lines = shown(found(*bad, *doubt))
    assert "4 hosts more" in lines[at(lines, "--all")] and f"slow: {HOSTS[4]}" not in lines
    assert f"slow: {HOSTS[4]}" in shown(found(*bad, *doubt), every=True)


def test_suspects_are_never_folded_and_those_that_are_probably_fit_are() -> None:
    evidence = [Evidence(job="pair5", peers=[], slower=0.05)]
    pair = [host(name, "unknown", reason="p 0.5", confidence=0.5, evidence=evidence) for name in HOSTS[:2]]
    probably = [
        host(name, "probably fit", reason=f"p {number}", settle=f"a job of {name}", confidence=0.07)
        for number, name in enumerate(HOSTS[10:20])
    ]
    lines = shown(found(*pair, *probably))
    assert sum("pair5" in line for line in lines) == 2 and HOSTS[0] in lines[0] and HOSTS[1] in lines[0]
    start = at(lines, "probably fit: node[11-20]")
    assert at(lines, "settle", "a job of node11") > start and at(lines, "fit: node[03-10") - start <= 8


def test_a_bench_whose_jobs_failed_is_not_fit() -> None:
    """Its gate is shut, so its first line does not say that all is well."""

    def result(task: Task) -> Result:
        oom = Failure(what="CUDA out of memory")
        return made(task.hosts, status=State.FAILED, failure=oom) if task.repeat == 2 else made(task.hosts)

    bench = fold_bench(ended(suite_of({"groups": [1], "repeats": 3}), "local:8x1", result))
    assert bench.gate is Gate.BAD and not any(each.verdict in BAD for each in bench.hosts)
    file = io.StringIO()
    print_answer(Console(file=file, soft_wrap=True), bench)
    assert "8 jobs failed" in file.getvalue()


def test_jobs_on_unknown_hosts_show_their_speed(capsys: pytest.CaptureFixture[str]) -> None:
    nowhere = job("x.out", [], samples_per_second=941.5).model_copy(update={"slower": None, "judged": False})
    _print(found(hosts=[], jobs=[], peers=[]).model_copy(update={"jobs": [nowhere]}), every=False)
    assert "941.5 samples/s  x.out" in capsys.readouterr().out


def test_a_benchs_table_of_jobs_cuts_no_figure_in_a_narrow_terminal() -> None:
    hosts = "cluster-node[1-9]:1"
    bench = fold_bench(ended(suite_of({"groups": [1, 2]}), hosts, lambda task: made(task.hosts, 123.4)))
    file = io.StringIO()
    print_bench(bench, every=True, console=Console(file=file, width=80, force_terminal=True, no_color=True))
    assert file.getvalue().count("500.0 MB") == len(bench.jobs) and "…" not in file.getvalue()


@pytest.mark.parametrize("unit", ["tokens/s", "a step"])
def test_other_units_than_samples(unit: str, capsys: pytest.CaptureFixture[str]) -> None:
    """nanoGPT tells tokens or milliseconds."""
    speed = {"tokens_per_second": 5e4} if unit == "tokens/s" else {}
    peers = PEERS[0].model_copy(update={"samples_per_second": None, **speed})
    own = {name: value / 1.0512 for name, value in speed.items()}
    entry = job("alone5", HOSTS[4:5], 0.0512, samples_per_second=None, **own)
    _print(found(SLOW, jobs=[entry], peers=[peers]), every=False)
    lines = capsys.readouterr().out.splitlines()
    told = ("47,565 tokens/s", "50,000") if speed else ("210 ms", "200 ms")
    assert all(words in lines[at(lines, "alone5")] for words in told)
    assert ("50,000 tokens/s" if speed else "200 ms a step") in lines[at(lines, "normal on 1 host")]
    assert "samples/s" not in "".join(lines)


def test_what_is_normal_is_told_in_tokens_where_steps_are_counted_so() -> None:
    logs = [
        JobLog(
            name, State.SUCCEEDED, hosts=(name,), workload="gpt2", recipe="a", unit="tokens",
            measured=MeasuredWindows(1e6 * (1 + 0.001 * number), 20.0, 10, 5, None, None, unit="tokens"),
        )
        for number, name in enumerate(HOSTS[:6])
    ]  # fmt: skip
    (peers,) = judged("x", logs, Settings(), {}).peers
    assert peers.samples_per_second is None and peers.tokens_per_second == pytest.approx(5e4, rel=0.01)


def test_a_fleet_below_what_was_asked_is_one_block() -> None:
    below = [host(name, "below", reason=f"{name}: 780 samples/s") for name in HOSTS]
    lines = shown(found(*below, at_least="900 samples/s"))
    assert "900 samples/s" in lines[0] and "node[01-64]" in lines[0]
    assert sum(line.startswith("below:") for line in lines) == 1 and len(lines) < 12
    assert "--all" in "".join(lines) and any(HOSTS[63] in line for line in shown(found(*below), every=True))


def test_who_differs_most_is_who_is_slowest_alone() -> None:
    """Not the partner of a slower one, whose bound is as wide."""
    jobs = [job("alone39", HOSTS[38:39], 0.0023), job("alone40", HOSTS[39:40], 0.0074)]
    partner = host(HOSTS[38], subjects=looked(card=0.012), at_most=0.012)
    slower = host(HOSTS[39], subjects=looked(card=0.011), at_most=0.011)
    lines = shown(found(partner, slower, jobs=jobs))
    most = lines[at(lines, "differs most")]
    assert HOSTS[39] in most and "0.74%" in most


def test_who_differs_most_beside_jobs_of_the_same_moment() -> None:
    later = [job(f"late{number}", [name], 0.03) for number, name in enumerate(HOSTS)]
    hosts = [
        host(name, evidence=[Evidence(job=f"late{number}", peers=[], slower=number / 20_000)])
        for number, name in enumerate(HOSTS)
    ]
    what = found(*hosts).model_copy(update={"jobs": later})
    lines = shown(what)
    assert HOSTS[63] in lines[at(lines, "differs most")] and "0.32%" in lines[at(lines, "differs most")]


def test_that_one_of_two_is_bad_is_the_answer() -> None:
    evidence = [Evidence(job="pair39", peers=[], slower=19.0)]
    pair = [host(name, "unknown", reason="p 0.39", confidence=0.39, evidence=evidence) for name in HOSTS[:2]]
    what = found(*pair, one_of=[HOSTS[:2]])
    first = shown(what)[0]
    assert all(
        words in first for words in (f"one of {HOSTS[0]}, {HOSTS[1]}", "link between them", "20.0 times")
    )
    assert what.gate is Gate.BAD and "suspected" not in "".join(shown(what)[:2])


def test_a_job_that_timed_out_did_not_fail() -> None:
    cut = job("cut", HOSTS[:1]).model_copy(update={"outcome": State.TIMEOUT, "slower": None})
    evidence = [Evidence(job="cut", peers=[], slower=None, what="failed")]
    lines = shown(found(host(HOSTS[0], "unknown", confidence=0.5, evidence=evidence), jobs=[cut]))
    assert "timed out" in lines[0] and not any("failed" in line for line in lines)


def test_that_no_host_is_known_to_be_fit_is_said_of_all() -> None:
    doubt = [host(name, "unknown", reason="why", confidence=0.0) for name in HOSTS]
    assert "none of the 64" in shown(found(*doubt))[0]
