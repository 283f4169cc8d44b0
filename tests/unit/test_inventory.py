"""Host lists: every way to write one, and every mistake as one InventoryError that names the place."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.core.errors import InventoryError
from muster.core.inventory import Host, format_hostfile, parse_hostfile, parse_hosts, read_inventory
from muster.core.job import place

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
    assert (inventory.launcher, inventory.source) == ("ssh", str(path))


FOLDERS = ("hostfiles", "node_lists")
MISSING = ("hostfile", "hosts.txt", "fit.json", "machinefile", "my.hosts")


def test_a_file_by_its_bare_name_wins_over_a_host_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert read_inventory("hosts").names == ("hosts",)
    (tmp_path / "hosts").write_text("node1\r\nnode2 slots=2\r\n")
    assert read_inventory("hosts").names == ("node1", "node2")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        *((text, "no hosts given") for text in ("", "   ", "\n")),
        ("./nowhere", "no such host file"),
        *((name, "no such host file") for name in MISSING),
        (".", "is not a host name"),
        ("./", "is a folder"),
        *((name, "is a folder") for name in FOLDERS),
        *((text, "cannot be read") for text in ("./bytes", "./nul\0byte", "./" + "x" * 300)),
    ],
)
def test_a_file_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, what: str
) -> None:
    """A folder of host files is no host, nor is such a file that is missing."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bytes").write_bytes(b"node\xff\n")
    for name in (*FOLDERS, "node1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "first").write_text("n1 slots=2\n")
    with pytest.raises(InventoryError, match=what) as caught:
        read_inventory(text)
    if text in FOLDERS:
        assert f"{text}/first" in (caught.value.hint or "")
    if text in MISSING:
        assert caught.value.where == text
        (tmp_path / text).write_text("node1\n")
        assert text.endswith(".json") or read_inventory(text).names == ("node1",)
    assert read_inventory("node1").names == ("node1",)  # a folder of a host's name is not meant


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


LOCAL = ("localhost", "localhost:2", "127.0.0.1", "[::1]:2", "LOCALHOST", "head", "head.cluster.org")
REMOTE = (
    "localhost,node2", "node1", "me@localhost", "localhost.example.org", "10.0.0.5", "[fe80::1]:2",
    "head.other",
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "launcher"), [*((each, "local") for each in LOCAL), *((each, "ssh") for each in REMOTE)]
)
def test_this_machine_alone_needs_no_ssh(text: str, launcher: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "head.cluster.org")
    found = read_inventory(text)
    assert (found.launcher, found.hosts) == (launcher, parse_hosts(text).hosts)


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
