"""Fleet: agents that dial home, and processes that start several of them. Real processes, loopback."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.core.errors import BrokenPluginError
from muster.core.inventory import parse_hosts
from muster.core.job import Placement, place
from muster.core.launch import Launch
from muster.fleet.addresses import own_addresses
from muster.fleet.agents import Fleet
from muster.fleet.connection import Connection
from muster.fleet.launchers.base import ControllerAddress, Request, agent_argv, dialling_argv, dialling_env

# An agent for tests: says its name, then gives back each line; a closed input ends it.
ECHO = b"""
import json, os, sys
def say(**what):
    os.write(1, json.dumps(what).encode() + b"\\n")
say(m="here", secrets=[name for name in ("MUSTER_SECRET", "MUSTER_CODE") if name in os.environ])
rest = b""
while True:
    data = os.read(0, 65536)
    if not data:
        break
    *lines, rest = (rest + data).split(b"\\n")
    for line in lines:
        say(m="echo", line=json.loads(line))
"""
SOURCE = b"%010d" % len(ECHO) + ECHO
THREE = place([(host, 1) for host in parse_hosts("node1,node2,node3").hosts])


def launcher(make: Callable[[ControllerAddress, tuple[Placement, ...]], str], *, told: bool = False) -> Any:
    """A launcher whose one process is a shell script."""

    def requests(
        places: tuple[Placement, ...], launch: Launch, job_id: str, home: ControllerAddress | None
    ) -> list[Request]:
        assert home is not None
        hosts = tuple(each.host for each in places)
        env = {} if told else dialling_env(home)
        return [Request(hosts, ("sh", "-c", make(home, places)), env, dials=True)]

    return SimpleNamespace(ONE_MACHINE=False, DIALS=True, requests=requests)


def dial(name: str, home: ControllerAddress, *, with_secret: bool = False) -> str:
    argv = dialling_argv(
        sys.executable, "job-1", name, home, Launch(connect_timeout=5), with_secret=with_secret
    )
    return shlex.join(argv)


def all_of(home: ControllerAddress, places: tuple[Placement, ...]) -> str:
    return " & ".join(dial(each.host, home) for each in places) + " & wait"


@pytest.fixture
def opened() -> Iterator[Callable[..., Fleet]]:
    fleets: list[Fleet] = []

    def make(made: Any, places: tuple[Placement, ...] = THREE) -> Fleet:
        launch = Launch(connect_timeout=5, home="127.0.0.1")
        fleets.append(Fleet(places, made, launch, "job-1", SOURCE))
        return fleets[-1]

    yield make
    for fleet in fleets:
        fleet.close()


def turn_until(
    fleet: Fleet, done: Callable[[], bool], seconds: float = 30
) -> list[tuple[str, dict[str, Any]]]:
    """Everything that hosts said until `done`."""
    heard: list[tuple[str, dict[str, Any]]] = []
    limit = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < limit, [link.why_unreachable() for link in fleet.links]
        fleet.turn(lambda link, message: heard.append((link.place.host, message)))
    return heard


def everyone(fleet: Fleet, what: Callable[[Connection], bool]) -> Callable[[], bool]:
    return lambda: all(what(link) for link in fleet.links)


@pytest.mark.parametrize("told", [False, True], ids=["environment", "argument"])
def test_no_module_is_from_the_folder_where_an_agent_begins(
    opened: Callable[..., Fleet], tmp_path: Path, told: bool
) -> None:
    """A login's folder may hold anything, under any name."""
    for name in ("json", "base64", "zlib", "hashlib", "socket", "platform"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('not this one')\n")
    done = subprocess.run(
        agent_argv(sys.executable, "job-1"), input=SOURCE, cwd=tmp_path, capture_output=True, timeout=30
    )
    assert (done.returncode, b'"here"' in done.stdout) == (0, True), done.stderr

    def make(home: ControllerAddress, places: tuple[Placement, ...]) -> str:
        return f"cd {shlex.quote(str(tmp_path))} && {dial('node1', home, with_secret=told)}"

    fleet = opened(launcher(make, told=told), THREE[:1])
    heard = turn_until(fleet, everyone(fleet, lambda link: link.greeted))
    assert [(host, message["m"]) for host, message in heard] == [("node1", "here")]


@pytest.mark.parametrize("told", [False, True], ids=["environment", "argument"])
def test_agents_come_home_by_name(opened: Callable[..., Fleet], told: bool) -> None:
    def make(home: ControllerAddress, places: tuple[Placement, ...]) -> str:
        return " & ".join(dial(each.host, home, with_secret=told) for each in reversed(places)) + " & wait"

    fleet = opened(launcher(make, told=told))
    for link in fleet.links:
        link.tell("name", host=link.place.host)
    heard: list[tuple[str, dict[str, Any]]] = []

    def named() -> dict[str, str]:  # (pings are echoed as well)
        echoes = [(host, m["line"]) for host, m in heard if m["m"] == "echo"]
        return {host: line["host"] for host, line in echoes if "host" in line}

    limit = time.monotonic() + 60
    while len(named()) < 3 and time.monotonic() < limit:
        fleet.turn(lambda link, message: heard.append((link.place.host, message)))
    assert named() == {"node1": "node1", "node2": "node2", "node3": "node3"}
    here = [message for _, message in heard if message["m"] == "here"]
    assert len(here) == 3
    assert all(message["secrets"] == [] for message in here)  # ranks inherit the environment


def test_a_name_is_taken_from_the_hosts_environment(opened: Callable[..., Fleet]) -> None:
    def make(home: ControllerAddress, places: tuple[Placement, ...]) -> str:
        return " & ".join(f"NODE={each.host} {dial('$NODE', home)}" for each in places) + " & wait"

    fleet = opened(launcher(make))
    turn_until(fleet, everyone(fleet, lambda link: link.greeted))


def test_strangers_and_second_ones_are_refused(opened: Callable[..., Fleet]) -> None:
    def make(home: ControllerAddress, places: tuple[Placement, ...]) -> str:
        return f"{dial('node1', home)} & sleep 1; {dial('node9', home)}; {dial('node1', home)}; wait"

    fleet = opened(launcher(make), THREE[:1])
    (link,) = fleet.links
    turn_until(fleet, lambda: sum("refused" in line for line in link.complaints) >= 3)
    assert any("no host of that name" in line for line in link.complaints)
    assert any("here already" in line for line in link.complaints)
    assert link.greeted and not link.ended


def test_what_the_starter_says_goes_to_the_host_that_it_names(opened: Callable[..., Fleet]) -> None:
    def make(home: ControllerAddress, places: tuple[Placement, ...]) -> str:
        words = "echo 'node1: welcome to node1x'; echo 'pdsh@me: node2: ssh exited' >&2; echo all lost >&2"
        return f"{words}; exit 3"

    fleet = opened(launcher(make))
    turn_until(fleet, everyone(fleet, lambda link: link.ended))
    one, two, three = fleet.links
    assert list(one.noise) == ["welcome to node1x"] and not two.noise
    assert list(two.complaints) == ["pdsh@me: node2: ssh exited", "all lost"]
    assert list(three.complaints) == ["all lost"]
    assert three.why_unreachable() == "all lost"


def test_a_starter_that_ends_without_a_word(opened: Callable[..., Fleet]) -> None:
    fleet = opened(launcher(lambda home, places: "exit 3"))
    turn_until(fleet, everyone(fleet, lambda link: link.ended))
    assert {link.why_unreachable() for link in fleet.links} == {"sh ended with exit code 3"}


def test_close_ends_the_agents_and_a_starter_that_stays(opened: Callable[..., Fleet], tmp_path: Any) -> None:
    """A closed connection ends an agent; a process that ignores its agents' end is ended by its id."""
    note = tmp_path / "pid"

    def make(home: ControllerAddress, places: tuple[Placement, ...]) -> str:
        return f"{dial('node1', home)}; echo $$ > {note}; trap '' TERM; while :; do sleep 1; done"

    fleet = opened(launcher(make), THREE[:1])
    turn_until(fleet, everyone(fleet, lambda link: link.greeted))
    fleet.close()
    assert note.exists()  # the agent had left, so the shell went on
    with pytest.raises(ProcessLookupError):
        os.kill(int(note.read_text()), 0)


def test_an_agent_that_cannot_come_home_says_where_it_tried(opened: Callable[..., Fleet]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as dead:
        port = dead.getsockname()[1]

    def make(home: ControllerAddress, places: tuple[Placement, ...]) -> str:
        wrong = ControllerAddress(("127.0.0.1",), port, home.secret)
        argv = dialling_argv(
            sys.executable, "job-1", "node1", wrong, Launch(connect_timeout=0.5), with_secret=True
        )
        return shlex.join(argv)

    fleet = opened(launcher(make), THREE[:1])
    turn_until(fleet, everyone(fleet, lambda link: link.ended))
    assert "127.0.0.1: " in fleet.links[0].why_unreachable()


def test_at_most_fanout_connections_are_in_the_making() -> None:
    """Hosts that answer make room for the next; silent ones hold theirs until they are given up."""
    speaks = [
        sys.executable,
        "-c",
        'import json,time; print(json.dumps({"m": "here"}), flush=True); time.sleep(60)',
    ]
    silent = ["sleep", "60"]

    def requests(places: tuple[Placement, ...], *_: object) -> list[Request]:
        return [Request((p.host,), tuple(silent if p.host in ("h0", "h1") else speaks)) for p in places]

    places = place([(host, 1) for host in parse_hosts("h[0-7]").hosts])
    made: Any = SimpleNamespace(ONE_MACHINE=False, DIALS=False, requests=requests)
    fleet = Fleet(places, made, Launch(fanout=3), "job-1", b"")
    try:
        most = 0

        def done() -> bool:
            nonlocal most
            most = max(most, sum(link.begun is not None and not link.greeted for link in fleet.links))
            return sum(link.greeted for link in fleet.links) == 6

        turn_until(fleet, done)
        assert most <= 3
    finally:
        fleet.close()


def test_own_addresses() -> None:
    assert own_addresses(place([(host, 1) for host in parse_hosts("127.0.0.1").hosts]))
    json.dumps(own_addresses(THREE))


@pytest.mark.parametrize("hosts", [(), ("h0",), ("h0", "h1", "h1"), ("h0", "elsewhere")])
def test_a_launcher_starts_one_agent_on_each_host(hosts: tuple[str, ...]) -> None:
    """A host that nobody starts would be waited for."""
    places = place([(host, 1) for host in parse_hosts("h0,h1").hosts])
    made: Any = SimpleNamespace(
        ONE_MACHINE=False, DIALS=False, requests=lambda *_: [Request((host,), ("true",)) for host in hosts],
        __name__="theirs", __file__="theirs.py",
    )  # fmt: skip
    with pytest.raises(BrokenPluginError) as error:
        Fleet(places, made, Launch(), "job-1", b"")
    assert error.value.place == "theirs.py"


def test_hold_starts_nothing_more() -> None:
    """Stopping must not open the connections that are still to be made."""

    def requests(places: tuple[Placement, ...], *_: object) -> list[Request]:
        return [Request((p.host,), ("sleep", "60")) for p in places]

    places = place([(host, 1) for host in parse_hosts("h[0-7]").hosts])
    made: Any = SimpleNamespace(ONE_MACHINE=False, DIALS=False, requests=requests)
    fleet = Fleet(places, made, Launch(fanout=3), "job-1", b"")
    try:
        fleet.turn(lambda link, message: None)
        fleet.hold()
        for link in fleet.links[:3]:
            fleet.give_up(link, "stopped")
        fleet.turn(lambda link, message: None)
        assert [link.begun is not None for link in fleet.links] == [True] * 3 + [False] * 5
    finally:
        fleet.close()


def test_noise_accuses_nobody(opened: Callable[..., Fleet]) -> None:
    def make(home: ControllerAddress, places: tuple[Placement, ...]) -> str:
        return "echo \"Warning: Permanently added 'node1' to the list\" >&2; echo node2 is down >&2; exit 1"

    fleet = opened(launcher(make))
    turn_until(fleet, everyone(fleet, lambda link: link.ended))
    assert [link.accused for link in fleet.links] == [False, True, False]
