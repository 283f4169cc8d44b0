"""Hosts whose agents say what no agent says: given up by name, and nobody else suffers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from muster.core.errors import InventoryError
from muster.core.inventory import parse_hosts
from muster.core.job import Placement, place
from muster.core.recipes import load_recipe
from muster.fleet import supervisor as module
from muster.fleet.cause import judge_outcome
from muster.fleet.connection import LONGEST, Connection, LineSplitter
from muster.fleet.launchers import local
from muster.fleet.messages import of_job
from muster.fleet.supervisor import Listener, Outcome, Supervisor

FACTS = {
    "hostname": "h", "system": "Linux", "cores": 2, "memory_total": 1 << 30, "disk_free": 1 << 30, "gpus": [],
    "shared": True, "base": "/tmp/run", "python": "/usr/bin/python3", "versions": {"torch": "2.13.0"},
    "checkpoints": [], "port": 29500,
}  # fmt: skip
# A host of two: the second says WORDS when it is started, the first goes on until it is told to stop.
AGENT = """
import json, os, select, sys, time
def say(**message):
    sys.stdout.write(json.dumps(message) + "\\n"); sys.stdout.flush()
first, beaten, left = None, 0.0, b""
heard = time.monotonic()
while True:
    if select.select([0], [], [], 0.1)[0]:
        data = os.read(0, 1 << 20)
        if not data:
            break
        left, heard = left + data, time.monotonic()
        *lines, left = left.split(b"\\n")
        for line in lines:
            message = json.loads(line)
            if message["op"] == "spec":
                first = message["node_rank"] == 0
                say(m="beat")
                HELLO
            elif message["op"] == "start" and not first:
                WORDS
            elif message["op"] == "stop":
                say(m="exit", code=None, why="stopped")
                sys.exit(1)
    if time.monotonic() - heard > 4:
        say(m="exit", code=None, why="controller silent")
        sys.exit(1)
    if first is not None and time.monotonic() - beaten > 0.5:
        beaten = time.monotonic()
        say(m="beat")
"""
HELLO = f'say(m="hello", facts={FACTS!r})'


@pytest.fixture
def hold(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Outcome]:
    """Greet two hosts whose agents are this one, and run them."""

    def run(words: str = "pass", hello: str = HELLO) -> Outcome:
        source = AGENT.replace("HELLO", hello).replace("WORDS", words).encode()
        monkeypatch.setattr(module, "agent_source", lambda: b"%010d" % len(source) + source)
        recipe = load_recipe("demo", ["launch.lease=4"])
        places = place([(host, 1) for host in parse_hosts("local:2x1").hosts])
        specs: dict[str, dict[str, Any]] = {p.host: {"node_rank": p.first_rank} for p in places}
        nothing = Listener(lambda *a: None, lambda *a: None, lambda *a: None)
        with Supervisor(places, local, recipe.launch, "job-1") as supervisor:
            supervisor.greet(specs)
            return supervisor.run({p.host: {} for p in places}, nothing)

    return run


@pytest.mark.parametrize(
    "words",
    [
        'say(m="log", rank=1)',
        'say(m="log", rank=1, lines="text")',
        'say(m="log", rank=0, lines=[])',  # another host's rank
        'say(m="event", rank=1, lines=[5])',
        'say(m="hardware", sample={"time": "noon"})',
        'say(m="exit", code="x", why=None)',
        'say(m="error")',
        'say(m="verified")',
        'say(m="surprise")',
    ],
)
def test_a_malformed_message_costs_its_host_alone(hold: Callable[..., Outcome], words: str) -> None:
    outcome = hold(words)
    assert list(outcome.lost) == ["local1"] and "no agent of Muster sends" in outcome.lost["local1"]
    assert outcome.exits["local0"] == (None, "stopped")
    status, failure = judge_outcome(outcome, [], {}, 2, {})
    assert status == "failed" and failure is not None and failure.host == "local1"


def test_what_a_kernel_says_is_of_its_host(hold: Callable[..., Outcome]) -> None:
    outcome = hold('say(m="exit", code=1, why=None, kernel={"group": 2, "log": []}); sys.exit(1)')
    assert {host: said.group for host, said in outcome.kernel.items()} == {"local0": None, "local1": 2}
    assert outcome.first_failed == "local1"


def test_a_line_without_end_does_not_make_the_controller_deaf(hold: Callable[..., Outcome]) -> None:
    """75 MB: the other host's lease of 4 s does not run out meanwhile."""
    outcome = hold('sys.stdout.write(\'{"m": "log", "lines": ["\' + "x" * 75_000_000); sys.stdout.flush()')
    assert "16.8 MB" in outcome.lost["local1"]
    assert outcome.exits["local0"] == (None, "stopped")


@pytest.mark.parametrize("facts", [{}, {**FACTS, "versions": None}, {**FACTS, "checkpoints": ["a"]}, []])
def test_facts_that_are_none(hold: Callable[..., Outcome], facts: Any) -> None:
    with pytest.raises(InventoryError, match="hello") as caught:
        hold(hello=f'say(m="hello", facts={facts!r} if not first else {FACTS!r})')
    assert caught.value.host == "local1"


def test_signs_of_life_alone_are_no_greeting(
    hold: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LOOKING", 1.5)
    with pytest.raises(InventoryError, match="did not say what it has") as caught:
        hold(hello=f'say(m="hello", facts={FACTS!r}) if first else None')
    assert caught.value.host == "local1"


def test_all_that_agents_say_is_taken() -> None:
    there = Placement("n1", "n1", 2, 0)
    for message in (
        {"m": "beat"},
        {"m": "hello", "facts": FACTS},
        {"m": "hello", "facts": {**FACTS, "gpus": [{"name": None, "memory_total": 1, "capability": [9, 0]}],
                                 "network": {"interface": None, "megabits": 1e3}}},
        {"m": "error", "what": "x", "hint": None},
        {"m": "exit", "code": -9, "why": None},
        {"m": "log", "rank": None, "lines": [""]},
        {"m": "event", "rank": 1, "lines": ["{}"]},
        {"m": "hardware", "sample": {"time": 1.5, "cpu_percent": None, "memory_used": 1, "memory_total": 2,
                                     "gpus": [{"percent": 5, "memory_used": None}]}},
        {"m": "verified", "step": 5, "wrong": None, "bytes": 1, "seconds": 0.1},
    ):  # fmt: skip
        of_job(there, json.loads(json.dumps(message)))


def test_what_no_agent_says_is_refused() -> None:
    """Of a host with ranks 2 and 3; the first host of a job holds the port, and no other needs to."""
    there, facts = Placement("n2", "n2", 2, 2), {key: FACTS[key] for key in FACTS if key != "port"}
    of_job(there, {"m": "hello", "facts": facts})
    of_job(there, {"m": "log", "rank": 2, "lines": []})
    for message in (
        *({"m": "log", "rank": rank, "lines": []} for rank in (0, 1, 4, True, "2")),
        *({"m": "event", "rank": rank, "lines": []} for rank in (None, 0, 4)),
        {"m": "exit", "code": 1, "why": "x" * 4001},
        {"m": "exit", "code": 1, "why": None, "kernel": {"group": -1}},
        {"m": "hello", "facts": {**facts, "gpus": [{"capability": [9]}]}},
        {"m": "hello", "facts": {**facts, "damaged_checkpoints": {"../5": "x"}}},
        {"m": "hello", "facts": {**facts, "port": 0}},
    ):
        with pytest.raises(ValueError):
            of_job(there, message)
    with pytest.raises(ValueError, match="port"):
        of_job(Placement("n1", "n1", 2, 0), {"m": "hello", "facts": facts})


def test_a_host_that_has_greeted_is_given_up_for_what_is_no_message() -> None:
    link = Connection(Placement("n1", "n1", 1, 0), of_job)
    assert link._is_ours({"m": "beat"})
    link.greeted_at = 1.0
    assert not link._is_ours({"m": "log", "rank": 0}) and link.lost is not None


def test_what_a_login_prints_may_look_like_a_message() -> None:
    link = Connection(Placement("n1", "n1", 1, 0), of_job)
    assert not link._is_ours({"m": "motd"}) and link.lost is None
    assert link._is_ours({"m": "beat"})


def test_lines_without_end_are_cut() -> None:
    lines = LineSplitter(LONGEST)
    for _ in range(4000):
        assert lines.feed(b"x" * 65536) == []
    assert lines.overlong and len(lines.rest()) == LONGEST
    assert lines.feed(b"\nabc\nd") == [b"x" * LONGEST, b"abc"] and lines.rest() == b"d"
