"""The judges of the group checks: from figures to the host that is to blame, on made-up groups."""

from __future__ import annotations

import json
import random
from typing import Any

from muster.checks.base import Context, Finding, Level
from muster.checks.families.fabric import CHECKS, judge_group
from muster.checks.group import Collector, mpi_hello, mpi_hello_argv, read_hello
from muster.core.fabric import GroupFabric
from muster.core.inventory import Host, parse_hosts
from muster.core.job import place
from muster.core.launch import Launch
from muster.fleet.supervisor import Outcome
from muster.workloads.fabric.request import FabricRequest
from tests.shell import FakeShell

GBIT = 1e9 / 8
ABOUT: dict[str, Any] = {"address": "10.0.0.1", "port": 1, "launcher": "ssh", "seconds": 1.0, "mpi": None}


def group(hosts: int, **parts: Any) -> GroupFabric:
    """A group that met and came to its end."""
    names = [f"n{number}" for number in range(hosts)]
    base: dict[str, Any] = {
        "hosts": [{"host": name, "ranks": [number]} for number, name in enumerate(names)],
        "world_size": hosts,
        "device": "cpu",
        "backend": "gloo",
        "launcher": "ssh",
        "seconds": 1.0,
        "asked": ["values", "points", "all-reduce", "matmul", "copy", "disk", "mpi"],
        "rendezvous": {"address": "10.0.0.1", "port": 29500, "connect": dict.fromkeys(names, 0.01)},
    }
    return GroupFabric.model_validate({**base, **parts})


def seconds(value: float) -> dict[str, Any]:
    return {"seconds": [value], "median": value, "best": value, "variation": None}


def pair(source: int, target: int, gbit: float, latency: float | None = None) -> dict[str, Any]:
    rate = gbit * GBIT
    return {
        "source": source, "target": target, "source_host": f"n{source}", "target_host": f"n{target}",
        "bytes": 1 << 20, "time": seconds((1 << 20) / rate), "bandwidth": rate, "bandwidth_best": rate,
        "latency_median": latency, "latency_best": latency,
    }  # fmt: skip


def links(count: int, gbit: float, special: dict[tuple[int, int], float]) -> list[dict[str, Any]]:
    """A ring in both directions, with other rates for some directions."""
    ring = [(i, (i + 1) % count) for i in range(count)] if count > 2 else [(0, 1)]
    both = [*ring, *((b, a) for a, b in ring)]
    return [pair(a, b, special.get((a, b), gbit)) for a, b in both]


def judged(found: GroupFabric, check: str, **expects: Any) -> dict[str, Finding]:
    known = {each.name: dict(each.expects) for each in CHECKS}
    known[check].update(expects)
    context = Context(
        expects=known, slots={}, world_size=None, gpus_expected=None, transport={}, recipe={}, launcher="ssh"
    )
    return {f.host: f for f in judge_group(found.model_dump(mode="json"), context) if f.check == check}


def level(findings: dict[str, Finding]) -> dict[str, str]:
    return {host: f.level.value for host, f in findings.items() if f.level is not Level.PASS}


def test_one_rank_has_no_peer() -> None:
    """What needs others is not applicable; the rest is judged."""
    for check in ("rendezvous", "values", "bandwidth", "latency", "all_reduce"):
        assert level(judged(group(1), f"fabric.{check}")) == {"n0": "not applicable"}
    assert level(judged(group(1), "fabric.ranks")) == {}


def test_noise_is_no_finding() -> None:
    """Best rates and latencies of a loaded machine, scattered over a factor of 2.5: nobody is named."""
    dice = random.Random(7)
    for count in (3, 4, 8):
        for _ in range(50):
            pairs = [
                {
                    **each,
                    "bandwidth_best": dice.uniform(4, 10) * GBIT,
                    "latency_best": dice.uniform(5e-5, 1e-3),
                }
                for each in links(count, 10, {})
            ]
            found = group(count, pairs=pairs)
            assert level(judged(found, "fabric.bandwidth")) == {}
            assert level(judged(found, "fabric.latency")) == {}


def test_what_was_not_asked_is_not_judged() -> None:
    found = group(3, asked=["points"], pairs=links(3, 10, {}))
    context = Context(
        expects={each.name: each.expects for each in CHECKS}, slots={}, world_size=3, gpus_expected=None,
        transport={}, recipe={}, launcher="ssh",
    )  # fmt: skip
    checks = {f.check for f in judge_group(found, context)}
    assert checks == {"fabric.rendezvous", "fabric.ranks", "fabric.bandwidth", "fabric.latency"}


# Who is to blame, from what ranks said.


def collected(events: list[tuple[int, dict[str, Any]]], outcome: Outcome | None = None) -> GroupFabric:
    """Three hosts of one rank each, of which each event's first number is the speaker."""
    places = place([(Host(f"n{number}"), 1) for number in range(3)])
    collector = Collector(places, FabricRequest(), "cpu", lambda host, event: None)
    for rank in range(3):
        collector.event(f"n{rank}", json.dumps({"kind": "ready", "rank": rank, "device": "cpu"}))
        collector.event(f"n{rank}", json.dumps({"kind": "met", "rank": rank, "connect": 0.1}))
    for rank, event in events:
        collector.event(f"n{rank}", json.dumps({"rank": rank, **event}))
    return collector.result(outcome or Outcome(), **ABOUT)


def begin(question: str) -> dict[str, Any]:
    return {"kind": "begin", "question": question}


def missing(question: str, *ranks: int) -> dict[str, Any]:
    return {"kind": "missing", "question": question, "ranks": list(ranks)}


DONE = {"kind": "done"}


def blamed(found: GroupFabric) -> dict[str, str]:
    return {each.host: each.what for each in found.failures if each.blamed}


def test_a_killed_rank_is_blamed_and_its_victims_are_not() -> None:
    reset = {"kind": "failed", "question": "all-reduce", "what": "RuntimeError: Connection reset by peer"}
    found = collected(
        [
            *((rank, begin("all-reduce")) for rank in range(3)),
            (1, {"kind": "ended", "code": -9}),
            (0, reset),
            (2, reset),
            (0, missing("all-reduce", 1)),
            (0, DONE),
            (2, DONE),
        ]
    )
    assert blamed(found) == {"n1": "rank 1 was killed by SIGKILL"}
    assert {each.host for each in found.failures if not each.blamed} == {"n0", "n2"}
    ranks = judged(found, "fabric.ranks")
    assert level(ranks) == {"n1": "fail"}
    assert ranks["n1"].remedy is not None and "out-of-memory" in ranks["n1"].remedy
    assert ranks["n0"].evidence.startswith("its ranks failed only because another host failed")


def test_a_host_cut_off_from_the_others_is_outvoted() -> None:
    """It misses the first host, which holds the store; both others miss it."""
    found = collected(
        [(0, missing("values", 2)), (1, missing("values", 2)), (2, missing("values", 0)), *_done(3)]
    )
    assert set(blamed(found)) == {"n2"}


def test_a_rank_that_never_ends() -> None:
    found = collected(
        [(1, begin("disk")), (0, DONE), (2, DONE)], Outcome(stopped="timeout: nothing more was heard of n1")
    )
    assert blamed(found) == {"n1": "rank 1 did not finish, last at disk"}


def test_a_lost_host() -> None:
    found = collected([(2, begin("points")), (0, DONE), (1, DONE)], Outcome(lost={"n2": "silent for 15 s"}))
    assert blamed(found) == {"n2": "the host was lost: silent for 15 s"}


def test_what_all_report_is_told_of_all() -> None:
    """A question that fails everywhere, with everyone there: nobody is an echo of somebody."""
    failed = {"kind": "failed", "question": "broadcast", "what": "RuntimeError: out of memory"}
    found = collected([*((rank, failed) for rank in range(3)), *_done(3)])
    assert set(blamed(found)) == {"n0", "n1", "n2"}


def test_lines_that_are_no_events_are_noted() -> None:
    places = place([(Host("n0"), 1)])
    collector = Collector(places, FabricRequest(), "cpu", lambda host, event: None)
    lines = (
        '{"kind": "sweep", "rank',
        "[1]",
        '{"kind": "disk", "rank": 0}',
        '{"rank": 0}',
        '{"kind": 1, "rank": 0}',
    )
    for line in ("", *lines):
        collector.event("n0", line)
    assert collector.in_vain() is None
    notes = collector.result(Outcome(), **ABOUT).notes
    assert len(notes) == 5 and all(note.startswith("n0: ") for note in notes)


def _done(count: int) -> list[tuple[int, dict[str, Any]]]:
    return [(rank, DONE) for rank in range(count)]


# MPI.


def test_the_mpirun_command() -> None:
    hosts = parse_hosts("alice@node1:8,node2").hosts
    argv = mpi_hello_argv(hosts, Launch(ssh_options=["-F", "config"], options=["--tag-output"]), "python3")
    assert argv[0] == "mpirun" and argv[argv.index("--host") + 1] == "alice@node1:1,node2:1"
    assert argv[argv.index("-np") + 1] == "2" and "--tag-output" in argv
    assert argv[argv.index("plm_rsh_args") + 1].endswith("-F config")
    assert argv[-3:-1] == ["python3", "-c"]


def hello(out: str, code: int = 0, err: str = "") -> Any:
    shell = FakeShell(answer_run=lambda argv: (code, out.encode(), err.encode()))
    return mpi_hello(parse_hosts("a,b").hosts, Launch(), "python3", 5, shell)


def test_what_mpi_ranks_say() -> None:
    lines = [
        json.dumps({"rank": rank, "size": 2, "host": name, "sum": 3}) for rank, name in ((1, "b"), (0, "a"))
    ]
    text = "".join(f"muster-mpi {line}\n" for line in lines)
    assert [each["host"] for each in read_hello("Welcome!\n" + text + "muster-mpi {torn\n")] == ["a", "b"]
    assert (hello(text).problem, hello(text).summed, hello(text).hosts) == (None, True, ["a", "b"])
    assert hello(text.replace('"sum": 3', '"sum": 2')).summed is False
    assert hello(text.replace('"sum": 3', '"sum": null')).summed is None
    assert hello(text.splitlines()[0]).problem == "1 of 2 ranks answered"
    assert hello("", 1, "-----\nORTE was unable to start\n").problem == (
        "mpirun ended with exit code 1: ORTE was unable to start"
    )
