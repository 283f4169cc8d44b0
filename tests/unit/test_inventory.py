"""Host lists: every way to write one, and every mistake as one InventoryError that names the place."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.core.errors import InventoryError
from muster.core.inventory import Host, format_hostfile, parse_hostfile, parse_hosts, read_inventory
from muster.core.job import place


def given(text: str) -> list[tuple[str, int | None]]:
    return [(host.name, host.slots) for host in parse_hosts(text).hosts]


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("host1", [("host1", None)]),
        ("host1,host2:8", [("host1", None), ("host2", 8)]),
        (" host1 , me@host2.example.org:2 ", [("host1", None), ("me@host2.example.org", 2)]),
        ("localhost:2", [("localhost", 2)]),
        ("10.0.0.1,10.0.0.2:4", [("10.0.0.1", None), ("10.0.0.2", 4)]),
        ("[::1],me@[fe80::1%eth0]:2", [("[::1]", None), ("me@[fe80::1%eth0]", 2)]),
        ("node[1-3]:8", [("node1", 8), ("node2", 8), ("node3", 8)]),
        (
            "node[08-10,3],x",
            [("node08", None), ("node09", None), ("node10", None), ("node3", None), ("x", None)],
        ),
        ("r[1-2]n[1-2]", [("r1n1", None), ("r1n2", None), ("r2n1", None), ("r2n2", None)]),
        ("node[1-2].cluster:1", [("node1.cluster", 1), ("node2.cluster", 1)]),
    ],
)
def test_hosts_by_name(text: str, hosts: list[tuple[str, int | None]]) -> None:
    assert given(text) == hosts
    assert parse_hosts(text).launcher == "ssh"


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("local", [("local", None)]),
        ("local:2", [("local", 2)]),
        ("local:2x1", [("local0", 1), ("local1", 1)]),
        ("local:3x4", [("local0", 4), ("local1", 4), ("local2", 4)]),
    ],
)
def test_this_machine(text: str, hosts: list[tuple[str, int | None]]) -> None:
    assert given(text) == hosts
    assert parse_hosts(text).launcher == "local"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("host1,,host2", "an empty host name"),
        ("host1,", "an empty host name"),
        (":8", "an empty host name"),
        ("host1:", "slots must be a whole number"),
        ("host1:0", "slots must be a whole number"),
        ("host1:-1", "slots must be a whole number"),
        ("host1:2.5", "slots must be a whole number"),
        ("host1:1025", "from 1 to 1024, not '1025'"),
        ("host1:" + "9" * 5000, "slots must be a whole number"),
        ("host1:٣", "slots must be a whole number"),
        ("local:", "slots must be a whole number"),
        ("local:0", "slots must be a whole number"),
        ("local:2x", "slots must be a whole number"),
        ("local:x2", "slots must be a whole number"),
        ("local:2x1x1", "slots must be a whole number"),
        ("host1,host1", "host 'host1' is named twice"),
        ("a@host1,b@host1", "host 'host1' is named twice"),
        ("node[1-3],node2", "host 'node2' is named twice"),
        ("node[3-1]", "'3-1' is not a range of hosts"),
        ("node[0-100000]", "is not a range of hosts"),
        ("node[0-99999][0-99999]", "is more than 100000 hosts"),
        ("node[1-" + "9" * 5000 + "]", "is not a host name"),
        ("fe80::1", "is an IPv6 address without brackets"),
        ("node1:8;node2:8", "has a semicolon"),
        ("host 1", "is not a host name"),
        ("host1\n:8", "is not a host name"),
        ("host/1", "is not a host name"),
        ("-oProxyCommand", "is not a host name"),
        ("-Ffile@host1", "is not a host name"),
        ("höst", "is not a host name"),
        ("slurm:-p", "is not understood"),
        ("slurm:gpu/x", "is not understood"),
    ],
)
def test_mistakes_in_a_list(text: str, what: str) -> None:
    with pytest.raises(InventoryError) as caught:
        parse_hosts(text)
    assert what in caught.value.what
    assert caught.value.where == text


HOSTFILE = """\
# the lab
node1 slots=8
node2   slots=4 max_slots=8   # half of it

me@node3:2
node[4-5] slots=1
node6
"""


def test_a_host_file(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text(HOSTFILE)
    inventory = read_inventory(str(path))
    assert [(host.name, host.slots) for host in inventory.hosts] == [
        ("node1", 8), ("node2", 4), ("me@node3", 2), ("node4", 1), ("node5", 1), ("node6", None),
    ]  # fmt: skip
    assert inventory.names == ("node1", "node2", "node3", "node4", "node5", "node6")
    assert inventory.launcher == "ssh"
    assert inventory.source == str(path)


def test_a_file_by_its_bare_name_wins_over_a_host_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert read_inventory("hosts").names == ("hosts",)
    (tmp_path / "hosts").write_text("node1\r\nnode2 slots=2\r\n")
    assert read_inventory("hosts").names == ("node1", "node2")


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("node1 slots=x", "slots must be a whole number"),
        ("node1 slots=", "slots must be a whole number"),
        ("node1 slots=0", "slots must be a whole number"),
        ("node1 max_slots=x", "slots must be a whole number"),
        ("node1:2 slots=4", "slots are given twice"),
        ("node1 slots=2 slots=4", "slots are given twice"),
        ("node1 slot=4", "'slot=4' is not understood"),
        ("node1 slots", "'slots' is not understood"),
        ("node1 node2", "'node2' is not understood"),
        ("node0 slots=1", "host 'node0' is already in line 1"),
        ("no/de", "is not a host name"),
    ],
)
def test_mistakes_in_a_file_name_the_line(line: str, what: str) -> None:
    with pytest.raises(InventoryError) as caught:
        parse_hostfile(f"node0\n\n{line}\n", source="hosts")
    assert what in caught.value.what
    assert caught.value.where == "hosts:3"


@pytest.mark.parametrize("content", ["", "\n\n", "# only a comment\n"])
def test_an_empty_file(content: str) -> None:
    with pytest.raises(InventoryError, match="hosts: has no hosts"):
        parse_hostfile(content, source="hosts")


@pytest.mark.parametrize("text", ["", "   ", "\n"])
def test_nothing_given(text: str) -> None:
    with pytest.raises(InventoryError, match="no hosts given"):
        read_inventory(text)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("./nowhere", "no such host file"),
        (".", "is not a host name"),
        ("./", "is a folder"),
        ("./bytes", "cannot be read"),
        ("./nul\0byte", "cannot be read"),
        ("./" + "x" * 300, "cannot be read"),
    ],
)
def test_a_file_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, what: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bytes").write_bytes(b"node\xff\n")
    with pytest.raises(InventoryError, match=what):
        read_inventory(text)


def test_a_host_name_longer_than_a_file_name_is_still_a_host_name() -> None:
    assert read_inventory("n" * 300).names == ("n" * 300,)


def test_written_and_read_back() -> None:
    hosts = (Host("node1", 8), Host("me@[::1]", None), Host("10.0.0.1", 1))
    text = format_hostfile(hosts)
    assert text == "node1 slots=8\nme@[::1]\n10.0.0.1 slots=1\n"
    assert parse_hostfile(text, source="x").hosts == hosts


def test_placement() -> None:
    places = place([(Host("me@node1"), 2), (Host("[fe80::1%eth0]"), 3)])
    assert [(p.host, p.address, list(p.ranks)) for p in places] == [
        ("node1", "me@node1", [0, 1]),
        ("fe80::1%eth0", "fe80::1%eth0", [2, 3, 4]),  # OpenSSH takes no brackets
    ]


@pytest.mark.parametrize("text", ["localhost", "localhost:2", "127.0.0.1", "[::1]:2", "LOCALHOST"])
def test_this_machine_alone_needs_no_ssh(text: str) -> None:
    found = read_inventory(text)
    assert found.launcher == "local"
    assert found.hosts == parse_hosts(text).hosts


@pytest.mark.parametrize(
    "text", ["localhost,node2", "node1", "me@localhost", "localhost.example.org", "10.0.0.5", "[fe80::1]:2"]
)
def test_other_hosts_stay_with_ssh(text: str) -> None:
    assert read_inventory(text).launcher == "ssh"


def test_this_machines_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "head.cluster.org")
    launchers = {name: read_inventory(name).launcher for name in ("head", "head.cluster.org", "head.other")}
    assert launchers == {"head": "local", "head.cluster.org": "local", "head.other": "ssh"}


def test_a_hostfile_with_this_machine_alone(tmp_path: Path) -> None:
    file = tmp_path / "hostfile"
    file.write_text("localhost slots=1\n")
    found = read_inventory(str(file))
    assert (found.launcher, found.hosts) == ("local", (Host("localhost", 1),))
    file.write_text("localhost slots=1\nnode2 slots=1\n")
    assert read_inventory(str(file)).launcher == "ssh"


def test_a_mounted_host_file_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DeepSpeed's, where containers find their hosts; only where no hosts are given, and it is there."""
    mounted = tmp_path / "hostfile"
    monkeypatch.setattr("muster.core.inventory.MOUNTED", mounted)
    with pytest.raises(InventoryError):
        read_inventory("")
    mounted.write_text("node1 slots=2\nnode2 slots=2\n")
    assert read_inventory("").names == ("node1", "node2")
    assert read_inventory("").source == str(mounted)
    assert read_inventory("local:2").names == ("local",)


@pytest.mark.parametrize("text", ["bob:pw-4711@host1", "host0,bob:pw-4711@host1:2", "bob:8@host1"])
def test_a_password_in_a_hosts_name_is_not_repeated(text: str, tmp_path: Path) -> None:
    """In a list and in a file: it is refused, and its value is in neither message nor hint."""
    file = tmp_path / "hosts"
    file.write_text("host0\nbob:pw-4711@host1 slots=2\n")
    for source in (text, str(file)):
        with pytest.raises(InventoryError) as caught:
            parse_hosts(source) if source == text else read_inventory(source)
        assert "pw-4711" not in f"{caught.value} {caught.value.hint} {caught.value.where}"


@pytest.mark.parametrize("name", ["hostfiles", "node_lists"])
def test_a_folder_of_host_files_is_no_host(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "first").write_text("n1 slots=2\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InventoryError, match="is a folder") as caught:
        read_inventory(name)
    assert caught.value.hint and f"{name}/first" in caught.value.hint
    (tmp_path / "node1").mkdir()
    assert read_inventory("node1").names == ("node1",)  # a folder of a host's name is not meant


@pytest.mark.parametrize("name", ["hostfile", "hosts.txt", "fit.json", "machinefile", "my.hosts"])
def test_a_missing_host_file_is_no_host(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InventoryError, match="no such host file") as caught:
        read_inventory(name)
    assert caught.value.where == name
    (tmp_path / name).write_text("node1\n")
    if not name.endswith(".json"):
        assert read_inventory(name).names == ("node1",)


@pytest.mark.parametrize("text", ["locla:2", "loacl:2x1", "locl:2", "Local:2"])
def test_a_misspelt_local(text: str) -> None:
    with pytest.raises(InventoryError) as caught:
        parse_hosts(text)
    assert f"local:{text.partition(':')[2]}" in (caught.value.hint or "")


def test_names_that_are_near_to_local_are_hosts() -> None:
    assert given("localhost:2,local1:2,vocal:2,locla") == [
        ("localhost", 2), ("local1", 2), ("vocal", 2), ("locla", None),
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["fe80::1", "2001:db8::5:8", "me@fe80::1,node1"])
def test_an_address_without_brackets(text: str) -> None:
    """Its end is not slots."""
    with pytest.raises(InventoryError) as caught:
        parse_hosts(text)
    assert f"[{text.partition(',')[0].rpartition('@')[2]}]" in (caught.value.hint or "")


def test_case_makes_no_other_host() -> None:
    with pytest.raises(InventoryError, match="twice"):
        parse_hosts("node1,NODE1")
    with pytest.raises(InventoryError):
        parse_hostfile("node1\nNode1 slots=2\n", source="hosts")
