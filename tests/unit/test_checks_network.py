"""What hosts say about each other: names, ports, shared folders, interfaces."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from muster.checks.families.network import matching
from tests.unit.judging import FAIL, NA, NOTE, PASS, UNKNOWN, WARN, judged, probed

HOSTS = ("n1", "n2", "n3")


def known(**changes: Any) -> dict[str, Any]:
    healthy = {"name": "n1", "addresses": ["10.0.0.1"], "own": ["10.0.0.1"], "stays": True, "done": True}
    return {**healthy, "reverse": ["10.0.0.1", "n1", ["10.0.0.1"]], **changes}


@pytest.mark.parametrize(
    ("check", "changes", "level"),
    [
        ("own", {}, PASS),
        ("own", {"addresses": ["127.0.1.1"], "own": ["127.0.1.1"]}, PASS),  # plain Debian; Muster copes
        ("own", {"addresses": ["10.9.9.9"], "own": []}, WARN),
        ("own", {"addresses": [], "own": []}, WARN),
        ("own", {"addresses": None, "done": False}, WARN),
        ("reverse", {}, PASS),
        ("reverse", {"reverse": ["10.0.0.1", None, []]}, NA),
        ("reverse", {"reverse": ["10.0.0.1", "old", ["10.0.0.7"]]}, NOTE),
        ("reverse", {"done": False, "reverse": None}, UNKNOWN),
    ],
)
def test_own_names(check: str, changes: dict[str, Any], level: object) -> None:
    assert judged("names", {"n1": known(**changes)})[check, "n1"].level == level


def test_a_profile_may_forbid_loopback_names() -> None:
    loop = {"n1": known(addresses=["127.0.1.1"], own=["127.0.1.1"])}
    wanted = {"names.own": {"loopback": "forbidden"}}
    assert judged("names", loop, expects=wanted)["own", "n1"].level == WARN


def views(**odd: Any) -> dict[str, Any]:
    usual = {"n1": ["10.0.0.1"], "n2": ["10.0.0.2"], "n3": ["10.0.0.3"]}
    return {host: {"views": {**usual, **odd.get(host, {})}, "slow": False} for host in HOSTS}


def agreed(peers: Any) -> list[Any]:
    found = judged("names", dict.fromkeys(HOSTS, known()), peers=peers)
    return [found["peers", host] for host in HOSTS]


def test_hosts_that_agree_pass_though_each_calls_itself_loopback() -> None:
    assert [each.level for each in agreed(views())] == [PASS] * 3
    assert [each.level for each in agreed(views(n1={"n1": ["127.0.1.1"]}))] == [PASS] * 3


def test_the_host_that_sees_a_peer_elsewhere_is_named() -> None:
    found = agreed(views(n2={"n1": ["10.0.0.99"]}))
    # n2 and n3 look at n1: one each, so neither is right, and both are told.
    assert [each.level for each in found] == [PASS, WARN, WARN]
    answers = dict.fromkeys((*HOSTS, "n4"), known())
    four = {**views(n2={"n1": ["10.0.0.99"]}), "n4": {"views": {"n1": ["10.0.0.1"]}, "slow": False}}
    levels = {host: judged("names", answers, peers=four)["peers", host].level for host in answers}
    assert levels == {"n1": PASS, "n2": WARN, "n3": PASS, "n4": PASS}


def test_views_that_share_an_address_agree() -> None:
    """A host that also knows another address of a peer, such as one on a second network."""
    both = views(n2={"n1": ["10.0.0.1", "10.1.0.1"]}, n3={"n1": ["10.0.0.1", "fd00::1"]})
    assert [each.level for each in agreed(both)] == [PASS] * 3


def test_a_name_that_one_host_does_not_know_and_one_that_nobody_knows() -> None:
    found = agreed(views(n3={"n1": [], "n2": []}))
    assert [each.level for each in found] == [PASS, PASS, WARN]
    assert found[2].evidence == "n[1-2]"
    nobody = {host: {"views": {name: [] for name in HOSTS}, "slow": False} for host in HOSTS}
    assert [each.level for each in agreed(nobody)] == [NA] * 3  # aliases of the user's ssh alone


def test_names_that_mean_every_host_itself_are_wrong_on_all_that_have_them() -> None:
    """Cloned images: each host's /etc/hosts has the first one's name on 127.0.1.1."""
    loop = {"n1": ["127.0.1.1"]}
    found = agreed(views(n1=loop, n2=loop, n3=loop))
    assert [each.level for each in found] == [PASS, WARN, WARN]
    assert found[1].problem == "names of peers resolve to this host itself"
    assert found[1].evidence == "n1: 127.0.1.1" and "/etc/hosts" in (found[1].remedy or "")
    one = agreed(views(n2={"n1": ["127.0.1.1", "::1"]}))  # who sees the peer where it is, is not blamed
    assert [each.level for each in one] == [PASS, WARN, PASS]
    answers = dict.fromkeys(HOSTS, known())
    pretend = judged("names", answers, peers=views(n2=loop), one_machine=True)
    assert pretend["peers", "n2"].level == NA


def test_who_was_not_in_the_sample_is_not_blamed_and_who_vanished_is_unknown() -> None:
    answers = {"n1": known(), "n2": known(stays=False), "n3": known()}
    found = judged("names", answers, peers={"n1": views()["n1"]})
    assert [found["peers", host].level for host in HOSTS] == [PASS, NA, UNKNOWN]
    by_address = judged("names", answers, peers={"n1": {"views": {}, "slow": False}})
    assert by_address["peers", "n1"].level == NA


def test_names_are_looked_up_for_real() -> None:
    answer = probed("names")
    assert answer["name"] and answer["done"]
    seen = probed("names", True, hosts={"a": "localhost", "b": "user@127.0.0.1", "c": "no-such-host.invalid"})
    assert "127.0.0.1" in seen["views"]["a"] or "::1" in seen["views"]["a"]
    assert seen["views"]["c"] == [] and "b" not in seen["views"]


def reach(**wrong: str) -> dict[str, Any]:
    """All pairs reached but for those named as n1_n2='why'."""
    return {
        source: {"reached": {to: wrong.get(f"{source}_{to}") for to in HOSTS if to != source}}
        for source in HOSTS
    }


def ports(peers: Any, hosts: tuple[str, ...] = HOSTS, **changes: Any) -> list[Any]:
    answers = {host: {"port": 1, "addresses": [], "stays": True, **changes} for host in hosts}
    found = judged("firewall", answers, peers=peers)
    return [found["ports", host] for host in hosts]


@pytest.mark.parametrize(
    ("wrong", "levels", "words"),
    [
        ({}, [PASS, PASS, PASS], "2 of 2 peers reached"),
        ({"n1_n2": "timed out", "n3_n2": "timed out"}, [PASS, FAIL, PASS], "from n[1,3]: timed out"),
        ({"n2_n1": "refused", "n2_n3": "refused"}, [PASS, FAIL, PASS], "to n[1,3]: refused"),
        ({"n2_n3": "no route"}, [PASS, FAIL, PASS], "to n3: no route"),
        (
            {"n1_n2": "x", "n3_n2": "x", "n2_n1": "x", "n2_n3": "x"},
            [PASS, FAIL, PASS],
            "from n[1,3]: x",
        ),
    ],
)
def test_a_deaf_host_a_mute_one_and_a_bad_pair_are_told_apart(
    wrong: dict[str, str], levels: list[Any], words: str
) -> None:
    found = ports(reach(**wrong))
    assert [each.level for each in found] == levels
    assert found[1].evidence == words


def test_of_two_hosts_the_one_that_nobody_reaches_is_to_blame() -> None:
    peers = {"n1": {"reached": {"n2": "timed out"}}, "n2": {"reached": {"n1": None}}}
    found = ports(peers, ("n1", "n2"))
    assert [each.level for each in found] == [PASS, FAIL]
    assert found[1].problem == "peers cannot connect to the host"


def test_a_host_without_a_second_answer_and_a_host_alone() -> None:
    two = {"n1": {"reached": {"n2": None}}}
    assert [each.level for each in ports(two)] == [PASS, UNKNOWN, UNKNOWN]
    assert [each.level for each in ports(two, stays=False)][1] == NA
    assert ports({}, ("n1",))[0].level == NA


def test_real_ports_and_a_stranger_on_one_of_them() -> None:
    """Two hosts on this machine: they reach each other, and neither a dead port nor another host passes."""
    endings: list[Any] = []
    hosts = {"a": "127.0.0.1", "b": "127.0.0.1"}
    try:
        first = {name: probed("firewall", host=name, hosts=hosts, at_end=endings.append) for name in hosts}
        assert first["a"]["stays"] and first["a"]["port"] != first["b"]["port"]
        for name, peer in (("a", "b"), ("b", "a")):
            seen = probed("firewall", True, host=name, hosts=hosts, peers=first)
            assert seen == {"reached": {peer: None}}
        swapped = {"a": first["a"], "b": first["a"]}  # b's address leads to a
        wrong = probed("firewall", True, host="a", hosts=hosts, peers=swapped)["reached"]["b"]
        assert "another host" in wrong
    finally:
        for end in endings:
            end()
    closed = probed("firewall", True, host="a", hosts=hosts, peers={"b": {"port": 1, "addresses": []}})
    assert "127.0.0.1" in closed["reached"]["b"]


def test_a_peer_that_is_not_reached_is_told_for_each_address() -> None:
    peer = {"port": 1, "addresses": ["127.0.0.2", "127.0.0.3"]}
    wrong = probed("firewall", True, host="a", hosts={"a": "", "b": ""}, peers={"b": peer})["reached"]["b"]
    assert "127.0.0.2: " in wrong and "; 127.0.0.3: " in wrong


def test_a_folder_that_is_shared_and_one_that_is_not(tmp_path: Path) -> None:
    """Three hosts: two see one disk, the third has its own. Nothing stays behind."""
    endings: list[Any] = []
    places = {"n1": tmp_path / "common", "n2": tmp_path / "common", "n3": tmp_path / "own"}
    for place in set(places.values()):
        place.mkdir()
    first = {
        host: probed(
            "shared",
            host=host,
            folders={"work": str(place / "later")},
            hosts=dict.fromkeys(HOSTS, ""),
            at_end=endings.append,
        )
        for host, place in places.items()
    }
    assert first["n1"] == {"wrote": {str(tmp_path / "common"): True}, "stays": True}
    second = {host: probed("shared", True, host=host, peers=first) for host in HOSTS}
    assert second["n2"] == {"sees": {str(tmp_path / "common"): ["n1", 2]}}
    for end in endings:
        end()
    assert [*places["n1"].iterdir(), *places["n3"].iterdir()] == []


def test_only_hosts_that_stay_leave_a_file(tmp_path: Path) -> None:
    """One that leaves would take its file away while the others count."""
    gone = probed("shared", host="n9", folders={"work": str(tmp_path)}, hosts=dict.fromkeys(HOSTS, ""))
    assert gone == {"wrote": {}, "stays": False}
    assert list(tmp_path.iterdir()) == []
    stays = {"n1": {"wrote": {str(tmp_path): True}, "stays": True}}
    assert judged("shared", {**stays, "n9": gone}, peers={})["folders", "n9"].level == NA


def test_files_of_probes_that_were_killed_long_ago_are_removed(tmp_path: Path) -> None:
    old, other, fresh = (tmp_path / name for name in (".muster-check-00-n1", "mine", ".muster-check-11-n1"))
    for file in (old, other, fresh):
        file.touch()
    os.utime(old, (0, 0))
    os.utime(other, (0, 0))
    endings: list[Any] = []
    probed("shared", folders={"work": str(tmp_path)}, at_end=endings.append)
    for end in endings:
        end()
    assert {path.name for path in tmp_path.iterdir()} == {"mine", fresh.name}


def test_folders_for_kernels_and_temporary_files_need_not_be_shared(tmp_path: Path) -> None:
    folders = {"TMPDIR": str(tmp_path), "TRITON_CACHE_DIR": str(tmp_path)}
    assert probed("shared", folders=folders, at_end=lambda end: None)["wrote"] == {}


def shared(groups: dict[str, list[Any] | None], **changes: Any) -> list[Any]:
    answers = {host: {"wrote": {"/data": True}, "stays": True} for host in groups}
    peers = {host: {"sees": {} if seen is None else {"/data": seen}} for host, seen in groups.items()}
    found = judged("shared", answers, peers=peers, **changes)
    return [found["folders", host] for host in groups]


def test_all_or_none_share_and_a_lost_mount_is_named() -> None:
    assert {each.evidence for each in shared({host: ["n1", 3] for host in HOSTS})} == {"shared by all: /data"}
    apart: dict[str, Any] = {host: [host, 1] for host in HOSTS}
    assert {each.level for each in shared(apart)} == {PASS}
    fsdp = {"engine": {"name": "fsdp"}, "checkpoint": {"every": 10}}
    assert {each.level for each in shared(apart, recipe=fsdp)} == {WARN}
    required = {"shared.folders": {"required": True}}
    assert {each.level for each in shared(apart, expects=required)} == {FAIL}
    lost = shared({"n1": ["n1", 2], "n2": ["n1", 2], "n3": ["n3", 1]})
    assert [each.level for each in lost] == [PASS, PASS, WARN]
    assert "shared by n[1-2]" in lost[2].evidence
    assert shared({"n1": ["n1", 1], "n2": None})[1].level == UNKNOWN


def interface(**route: Any) -> dict[str, Any]:
    usual = {"interface": "eth0", "address": "10.0.0.1", "to": "10.0.0.2", "speed": 10000, "mtu": 1500}
    counts = {"rx_packets": 10**6, "tx_packets": 10**6, "rx_errors": 0, "tx_errors": 0, "duplex": "full"}
    names = {"eth0": {"addresses": ["10.0.0.1"], "up": True}, "ib0": {"addresses": [], "up": True}}
    return {"interfaces": names, "env": {}, "route": {**usual, **counts, **route}}


@pytest.mark.parametrize(
    ("check", "route", "level"),
    [
        ("route", {"interface": "docker0"}, WARN),
        ("route", {"interface": "virbr0"}, WARN),
        ("route", {"interface": "lo", "asked": "10.0.0.2", "to": "10.0.0.2"}, WARN),
        ("route", {"interface": "lo", "asked": "127.0.0.2", "to": "127.0.0.2"}, PASS),
        ("route", {"interface": "lo", "asked": "node1", "to": "127.0.1.1"}, WARN),
        ("route", {"interface": "lo", "asked": "node1", "to": "::1"}, WARN),
        ("speed", {"speed": 1000}, WARN),
        ("speed", {"speed": -1}, NA),
        ("mtu", {"mtu": 9000}, WARN),
        ("duplex", {"duplex": "half"}, NOTE),
        ("duplex", {"duplex": "unknown"}, NA),
        ("errors", {"rx_errors": 5000}, WARN),
        ("errors", {"rx_errors": None}, NA),
    ],
)
def test_the_way_to_the_peers(check: str, route: dict[str, Any], level: object) -> None:
    found = judged("network", {"n1": interface(), "n2": interface(**route), "n3": interface()})
    assert [found[check, host].level for host in HOSTS] == [PASS, level, PASS]


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


def test_a_slow_link_is_below_what_a_profile_asks_by_number() -> None:
    wanted = {"network.speed": {"at_least": 25000}}
    found = judged("network", {"n1": interface(speed=9800), "n2": interface(speed=100000)}, expects=wanted)
    assert (found["speed", "n1"].level, found["speed", "n2"].level) == (FAIL, PASS)


def test_no_route_is_unknown() -> None:
    answer = {**interface(), "route": None}
    assert judged("network", {"n1": answer})["route", "n1"].level == UNKNOWN


@pytest.mark.parametrize(
    ("variable", "value", "names"),
    [
        ("NCCL_SOCKET_IFNAME", "eth", ["eth0", "eth1"]),
        ("NCCL_SOCKET_IFNAME", "=eth0", ["eth0"]),
        ("NCCL_SOCKET_IFNAME", "^docker,lo", ["eth0", "eth1", "ib0"]),
        ("NCCL_SOCKET_IFNAME", "^=eth0", ["eth1", "ib0", "docker0", "lo"]),
        ("NCCL_SOCKET_IFNAME", "eno1,ib0", ["ib0"]),
        ("GLOO_SOCKET_IFNAME", "eth", []),
        ("GLOO_SOCKET_IFNAME", "eno1,eth1", ["eth1"]),
    ],
)
def test_what_a_variable_means(variable: str, value: str, names: list[str]) -> None:
    assert matching(variable, value, ["eth0", "eth1", "ib0", "docker0", "lo"]) == names


def test_a_variable_that_names_nothing_fails_and_a_recipes_goes_before_the_hosts() -> None:
    host = {**interface(), "env": {"NCCL_SOCKET_IFNAME": "eno1"}}
    assert judged("network", {"n1": host})["variables", "n1"].level == FAIL
    assert judged("network", {"n1": interface()})["variables", "n1"].level == NA
    better = {"env": {"NCCL_SOCKET_IFNAME": "^docker,lo"}}
    assert judged("network", {"n1": host}, recipe=better)["variables", "n1"].level == PASS
    unaddressed = {"env": {"GLOO_SOCKET_IFNAME": "ib0"}}
    assert judged("network", {"n1": interface()}, recipe=unaddressed)["variables", "n1"].level == FAIL


def port(number: int = 1, **changes: Any) -> dict[str, Any]:
    return {
        "port": f"mlx5_{number}:1",
        "state": "active",
        "physical": "linkup",
        "gbit": 400.0,
        "downed": 0,
        **changes,
    }


@pytest.mark.parametrize(
    ("check", "ports", "level"),
    [
        ("ports", [port(0)], FAIL),
        ("ports", [port(0), port(1, state="down", physical="polling")], FAIL),
        ("ports", [], FAIL),
        ("rate", [port(0), port(1, gbit=200.0)], WARN),
        ("errors", [port(0), port(1, downed=99)], WARN),
        ("errors", [port(0, downed=None)], UNKNOWN),
    ],
)
def test_infiniband(check: str, ports: list[Any], level: object) -> None:
    healthy = {"ports": [port(0), port(1)]}
    found = judged("infiniband", {"n1": healthy, "n2": {"ports": ports}, "n3": healthy})
    assert [found[check, host].level for host in HOSTS] == [PASS, level, PASS]


def test_without_infiniband_nothing_passes() -> None:
    found = judged("infiniband", {"n1": {"ports": []}, "n2": {"ports": []}})
    assert {each.level for each in found.values()} == {NA}
    wanted = {"infiniband.ports": {"at_least": 8}}
    assert judged("infiniband", {"n1": {"ports": []}}, expects=wanted)["ports", "n1"].level == FAIL
    slow = judged("infiniband", {"n1": {"ports": [port()]}}, expects={"infiniband.rate": {"at_least": 1000}})
    assert slow["rate", "n1"].level == FAIL
