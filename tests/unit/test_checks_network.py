"""What hosts say about each other: names, ports, shared folders, interfaces."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.judging import NA, judged, probed

HOSTS = ("n1", "n2", "n3")


def test_names_are_looked_up_for_real() -> None:
    answer = probed("names")
    assert answer["name"] and answer["done"]
    seen = probed("names", True, hosts={"a": "localhost", "b": "user@127.0.0.1", "c": "no-such-host.invalid"})
    assert "127.0.0.1" in seen["views"]["a"] or "::1" in seen["views"]["a"]
    assert seen["views"]["c"] == [] and "b" not in seen["views"]


@pytest.fixture
def endings() -> Iterator[list[Any]]:
    """What probes do at their end; the fixture does what a test has left."""
    made: list[Any] = []
    yield made
    end(made)


def end(endings: list[Any]) -> None:
    while endings:
        endings.pop()()


def test_real_ports_and_a_stranger_on_one_of_them(endings: list[Any]) -> None:
    """Two hosts on this machine: they reach each other, and neither a dead port nor another host passes."""
    hosts = {"a": "127.0.0.1", "b": "127.0.0.1"}
    first = {name: probed("firewall", host=name, hosts=hosts, at_end=endings.append) for name in hosts}
    assert first["a"]["stays"] and first["a"]["port"] != first["b"]["port"]
    for name, peer in (("a", "b"), ("b", "a")):
        seen = probed("firewall", True, host=name, hosts=hosts, peers=first)
        assert seen == {"reached": {peer: None}}

    def wrong(**peer: Any) -> str:
        reached = probed("firewall", True, host="a", hosts=hosts, peers={"a": first["a"], "b": peer})
        return str(reached["reached"]["b"])

    assert "another host" in wrong(**first["a"])  # b's address leads to a
    end(endings)
    assert "127.0.0.1" in wrong(port=1, addresses=[])
    told = wrong(port=1, addresses=["127.0.0.2", "127.0.0.3"])
    assert "127.0.0.2: " in told and "; 127.0.0.3: " in told


def test_a_folder_that_is_shared_and_one_that_is_not(tmp_path: Path, endings: list[Any]) -> None:
    """Three hosts: two see one disk, the third has its own. Nothing stays behind."""
    places = {"n1": tmp_path / "common", "n2": tmp_path / "common", "n3": tmp_path / "own"}
    for place in set(places.values()):
        place.mkdir()
    more = {"hosts": dict.fromkeys(HOSTS, ""), "at_end": endings.append}
    first = {
        host: probed("shared", host=host, folders={"work": str(place / "later")}, **more)
        for host, place in places.items()
    }
    assert first["n1"] == {"wrote": {str(tmp_path / "common"): True}, "stays": True}
    second = {host: probed("shared", True, host=host, peers=first) for host in HOSTS}
    assert second["n2"] == {"sees": {str(tmp_path / "common"): ["n1", 2]}}
    end(endings)
    assert [*places["n1"].iterdir(), *places["n3"].iterdir()] == []


def test_only_hosts_that_stay_leave_a_file(tmp_path: Path) -> None:
    """One that leaves would take its file away while the others count."""
    gone = probed("shared", host="n9", folders={"work": str(tmp_path)}, hosts=dict.fromkeys(HOSTS, ""))
    assert gone == {"wrote": {}, "stays": False}
    assert list(tmp_path.iterdir()) == []
    stays = {"n1": {"wrote": {str(tmp_path): True}, "stays": True}}
    assert judged("shared", {**stays, "n9": gone}, peers={})["folders", "n9"].level == NA


def test_files_of_probes_that_were_killed_long_ago_are_removed(tmp_path: Path, endings: list[Any]) -> None:
    """And folders for kernels and temporary files need not be shared."""
    old, other, fresh = (tmp_path / name for name in (".muster-check-00-n1", "mine", ".muster-check-11-n1"))
    for file in (old, other, fresh):
        file.touch()
    os.utime(old, (0, 0))
    os.utime(other, (0, 0))
    probed("shared", folders={"work": str(tmp_path)}, at_end=endings.append)
    end(endings)
    assert {path.name for path in tmp_path.iterdir()} == {"mine", fresh.name}
    folders = {"TMPDIR": str(tmp_path), "TRITON_CACHE_DIR": str(tmp_path)}
    assert probed("shared", folders=folders, at_end=endings.append)["wrote"] == {}


def test_the_way_is_not_told_by_a_name_that_means_this_host_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one is asked: who the connection comes from. A loopback address that is given is meant."""
    means = {"node1": "127.0.1.1", "10.0.0.9": "10.0.0.9", "127.0.0.2": "127.0.0.2"}
    sources = {"127.0.1.1": "127.0.0.1", "10.0.0.9": "10.0.0.1", "127.0.0.2": "127.0.0.1"}

    class Trial:
        """A socket of a host whose addresses are these."""

        def __init__(self, *kind: Any) -> None:
            self.real = REAL(*kind)

        def __enter__(self) -> Trial:
            return self

        def __exit__(self, *error: Any) -> None:
            self.real.close()

        def fileno(self) -> int:
            return self.real.fileno()

        def connect(self, to: tuple[str, int]) -> None:
            self.source = sources[to[0]]

        def getsockname(self) -> tuple[str, int]:
            return self.source, 1

    def look(name: bytes, *_: Any, **__: Any) -> Any:
        if name.decode() not in means:
            raise OSError("not known")
        return [(socket.AF_INET, 2, 17, "", (means[name.decode()], 9))]

    monkeypatch.setattr(socket, "socket", Trial)
    monkeypatch.setattr(socket, "getaddrinfo", look)

    def way(peer: str, client: str) -> Any:
        monkeypatch.setenv("SSH_CONNECTION", f"{client} 1 10.0.0.1 22")
        return probed("network", hosts={"a": "127.0.0.1", "b": peer})["route"]

    assert way("node1", "elsewhere")["asked"] == "node1"  # nobody else is known
    assert way("node1", "elsewhere")["to"] == "127.0.1.1"
    assert way("127.0.0.2", "10.0.0.9")["asked"] == "127.0.0.2"
    assert way("node1", "10.0.0.9") is None  # an address that no interface here has: not loopback's


REAL = socket.socket
