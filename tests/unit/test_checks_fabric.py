"""The judges of the group checks: from figures to the host that is to blame, on made-up groups."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from muster.checks.base import Finding, Level
from muster.checks.families.fabric import judge_group
from muster.checks.group import Collector, mpi_hello, mpi_hello_argv, read_hello
from muster.core.fabric import GroupFabric
from muster.core.inventory import Host, parse_hosts
from muster.core.job import place
from muster.core.launch import Launch
from muster.fleet.supervisor import Outcome
from muster.workloads.fabric.request import FabricRequest
from tests.shell import FakeShell
from tests.unit.judging import context

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


def links(count: int, gbit: float) -> list[dict[str, Any]]:
    """A ring in both directions."""
    rate, size = gbit * 1e9 / 8, 1 << 20
    time = {"seconds": [size / rate], "median": size / rate, "best": size / rate, "variation": None}
    ring = [(i, (i + 1) % count) for i in range(count)]
    return [
        {
            "source": a, "target": b, "source_host": f"n{a}", "target_host": f"n{b}", "bytes": size,
            "time": time, "bandwidth": rate, "bandwidth_best": rate, "latency_median": None,
            "latency_best": None,
        }
        for a, b in [*ring, *((b, a) for a, b in ring)]
    ]  # fmt: skip


def judged(found: GroupFabric, check: str) -> dict[str, Finding]:
    return {f.host: f for f in judge_group(found.model_dump(mode="json"), context()) if f.check == check}


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
            pairs = links(count, 10)
            for each in pairs:
                each["bandwidth_best"] = dice.uniform(4, 10) * 1e9 / 8
                each["latency_best"] = dice.uniform(5e-5, 1e-3)
            found = group(count, pairs=pairs)
            assert level(judged(found, "fabric.bandwidth")) == {}
            assert level(judged(found, "fabric.latency")) == {}


def test_what_was_not_asked_is_not_judged() -> None:
    found = group(3, asked=["points"], pairs=links(3, 10))
    checks = {f.check for f in judge_group(found, context(world_size=3))}
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
ALL_DONE = [(rank, DONE) for rank in range(3)]
NO_SPACE = {"kind": "failed", "question": "disk", "what": "OSError: no space left"}
NO_MEMORY = {"kind": "failed", "question": "broadcast", "what": "RuntimeError: out of memory"}


def blamed(found: GroupFabric) -> dict[str, str]:
    return {each.host: each.what for each in found.failures if each.blamed}


def test_a_killed_rank_is_blamed_and_its_victims_are_not() -> None:
    reset = {"kind": "failed", "question": "all-reduce", "what": "RuntimeError: Connection reset by peer"}
    ends = [(1, {"kind": "ended", "code": -9}), (0, reset), (2, reset), (0, missing("all-reduce", 1))]
    found = collected([*((rank, begin("all-reduce")) for rank in range(3)), *ends, (0, DONE), (2, DONE)])
    assert blamed(found) == {"n1": "rank 1 was killed by SIGKILL"}
    assert {each.host for each in found.failures if not each.blamed} == {"n0", "n2"}
    ranks = judged(found, "fabric.ranks")
    assert level(ranks) == {"n1": "fail"}
    assert ranks["n1"].remedy is not None and "out-of-memory" in ranks["n1"].remedy
    assert ranks["n0"].evidence.startswith("its ranks failed only because another host failed")


@pytest.mark.parametrize(
    ("said", "outcome", "whats"),
    [
        pytest.param(
            [(0, missing("values", 2)), (1, missing("values", 2)), (2, missing("values", 0)), *ALL_DONE],
            Outcome(), {"n2": ""}, id="cut off from the first, and outvoted",
        ),
        pytest.param(
            [(1, begin("disk")), (0, DONE), (2, DONE)],
            Outcome(stopped="timeout: nothing more was heard of n1"),
            {"n1": "rank 1 did not finish, last at disk"}, id="a rank that never ends",
        ),
        pytest.param(
            [(2, begin("points")), (0, DONE), (1, DONE)], Outcome(lost={"n2": "silent for 15 s"}),
            {"n2": "the host was lost: silent for 15 s"}, id="a lost host",
        ),
        pytest.param(
            [(0, NO_SPACE), (2, begin("disk")), (0, DONE), (1, DONE)], Outcome(lost={"n2": "silent"}),
            {"n0": "no space left", "n2": "the host was lost"}, id="a failure of its own beside a lost host",
        ),
        pytest.param(
            [*((rank, NO_MEMORY) for rank in range(3)), *ALL_DONE], Outcome(),
            {f"n{rank}": "RuntimeError: out of memory" for rank in range(3)}, id="all fail: no echo",
        ),
    ],
)  # fmt: skip
def test_who_is_blamed(said: list[Any], outcome: Outcome, whats: dict[str, str]) -> None:
    found = blamed(collected(said, outcome))
    assert found.keys() == whats.keys() and all(whats[host] in what for host, what in found.items())


def test_lines_that_are_no_events_are_noted() -> None:
    collector = Collector(place([(Host("n0"), 1)]), FabricRequest(), "cpu", lambda host, event: None)
    torn = ['{"kind": "sweep", "rank', "[1]", '{"kind": "disk", "rank": 0}']
    for line in ("", *torn, '{"rank": 0}', '{"kind": 1, "rank": 0}'):
        collector.event("n0", line)
    assert collector.in_vain() is None
    notes = collector.result(Outcome(), **ABOUT).notes
    assert len(notes) == 5 and all(note.startswith("n0: ") for note in notes)


# MPI.


def test_the_mpirun_command() -> None:
    hosts = parse_hosts("alice@node1:8,node2").hosts
    argv = mpi_hello_argv(hosts, Launch(ssh_options=["-F", "config"], options=["--tag-output"]), "python3")
    assert argv[0] == "mpirun" and argv[argv.index("--host") + 1] == "alice@node1:1,node2:1"
    assert argv[argv.index("-np") + 1] == "2" and "--tag-output" in argv
    assert argv[argv.index("plm_rsh_args") + 1].endswith("-F config")
    assert argv[-3:-1] == ["python3", "-c"]


def hello(out: str, code: int = 0, err: str = "") -> Any:
    FakeShell(answer_run=lambda argv: (code, out.encode(), err.encode())).use()
    return mpi_hello(parse_hosts("a,b").hosts, Launch(), "python3", 5)


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
