"""What machines say about themselves, and the files that come of it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from muster.agent import member
from muster.core.errors import JobError, UsageError
from muster.gather.gathered import Gathered, check_outputs, save
from muster.gather.members import (
    Applicant,
    Member,
    candidates,
    known_hosts,
    name_members,
    read_applicant,
    ssh_config,
)
from muster.gather.token import head_token, member_token

TOKEN = "0123456789abcdef-of-the-tests"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIPywYHC6xd"
SOUND = {
    "name": "m", "wants": "join", "addresses": ["10.0.0.1", "fe80::1%eth0"], "by_hand": False, "port": 22,
    "user": "root", "slots": 8, "keys": [KEY],
}  # fmt: skip


def one(name: str = "m1", address: str = "10.0.0.1", port: int = 22, **more: Any) -> Member:
    known = {"user": "root", "slots": 1, "keys": (KEY,), "verified": True} | more
    return Member(name="", hostname=name, address=address, port=port, **known)


def test_which_addresses_are_tried() -> None:
    def waves(came_from: str, *addresses: str, by_hand: bool = False) -> list[list[str]]:
        applicant = Applicant("m", addresses, by_hand, 22, "root", 1, ())
        return candidates(applicant, came_from, ["10.0.0.1", "172.17.0.1"])

    assert waves("10.0.0.2", "192.168.0.2", "10.0.0.2") == [["10.0.0.2"], ["192.168.0.2"]]
    assert waves("10.0.0.2") == [["10.0.0.2"]]
    # docker0 is everybody's: reaching our own is not reaching theirs
    assert waves("10.0.0.2", "172.17.0.1", "127.0.0.1", "0.0.0.0", "::1") == [["10.0.0.2"]]
    # the head is one of the members: others reach it by anything but loopback
    assert waves("127.0.0.1", "10.0.0.1") == [["10.0.0.1", "127.0.0.1"]]
    assert waves("10.0.0.1", "10.0.0.1") == [["10.0.0.1"]]
    assert waves("10.0.0.2", "203.0.113.7", by_hand=True) == [["203.0.113.7"]]
    assert waves("10.0.0.2", by_hand=True) == [["10.0.0.2"]]


def test_machines_behind_one_address_are_named_by_their_host_names() -> None:
    named = name_members(
        [one("a"), one("pod", "10.0.0.9", 2201), one("pod", "10.0.0.9", 2202), one("c", "fd00::3")]
    )
    assert [member.name for member in named] == ["10.0.0.1", "pod", "pod-2", "[fd00::3]"]
    config = ssh_config(named, "/x/50%/known hosts")
    assert "Host pod-2\n    HostName 10.0.0.9\n    Port 2202\n" in config
    assert "Host fd00::3 c\n    HostName fd00::3\n" in config
    assert 'UserKnownHostsFile "/x/50%%/known hosts"' in config
    assert known_hosts(named).splitlines() == [
        f"10.0.0.1 {KEY}", f"[10.0.0.9]:2201 {KEY}", f"[10.0.0.9]:2202 {KEY}", f"fd00::3 {KEY}",
    ]  # fmt: skip


def test_a_host_name_cannot_stand_for_another_s_address() -> None:
    named = name_members([one("10.0.0.2", "10.0.0.1"), one("b", "10.0.0.2")])
    hosts = [line for line in ssh_config(named, "/k").splitlines() if line.startswith("Host ")]
    assert hosts == ["Host 10.0.0.1", "Host 10.0.0.2 b"]


def test_what_ssh_makes_of_the_config(tmp_path: Path) -> None:
    """OpenSSH itself resolves it, a member without keys and an unknown host included."""
    file = tmp_path / "config"
    members = name_members([one("a", port=2222, user="ubuntu"), one("b", "10.0.0.2", keys=())])
    file.write_text(ssh_config(members, "/k n"))

    def resolved(host: str) -> dict[str, str]:
        text = subprocess.check_output(["ssh", "-G", "-F", str(file), host], text=True, timeout=60)
        return dict(line.split(" ", 1) for line in text.splitlines() if " " in line)

    a = resolved("a")
    assert (a["hostname"], a["port"], a["user"]) == ("10.0.0.1", "2222", "ubuntu")
    assert (a["userknownhostsfile"], a["stricthostkeychecking"]) == ("/k n", "true")
    assert resolved("b")["userknownhostsfile"] != "/k n"
    assert resolved("elsewhere")["hostname"] == "elsewhere"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "a b"}, "host name"), ({"name": "-x"}, "host name"), ({"name": "a\nHost *"}, "host name"),
        ({"name": "x" * 300}, "host name"), ({"user": "x y"}, "user"), ({"user": "-l"}, "user"),
        ({"user": None}, "user"), ({"port": 0}, "port"), ({"port": "22"}, "port"), ({"port": True}, "port"),
        ({"slots": 0}, "slots"), ({"slots": 1025}, "slots"), ({"slots": 1.5}, "slots"),
        ({"addresses": ["10.0.0.1"] * 17}, "addresses"), ({"addresses": ["node1"]}, "addresses"),
        ({"addresses": ["fe80::1%x y"]}, "addresses"), ({"addresses": None}, "addresses"),
        ({"addresses": [["10.0.0.1"]]}, "addresses"), ({"keys": ["ssh-ed25519 AAAA\nHost *"]}, "keys"),
        ({"keys": [5]}, "keys"), ({"keys": None}, "keys"), ({"wants": "agent"}, "gather"),
    ],
)  # fmt: skip
def test_what_a_machine_may_say(change: dict[str, Any], words: str) -> None:
    assert read_applicant(SOUND).addresses == ("10.0.0.1", "fe80::1%eth0")
    with pytest.raises(ValueError, match=words):
        read_applicant(SOUND | change)


def test_what_this_machine_says_is_understood() -> None:
    told = member.about(None, 22, None, [])
    assert len(json.dumps(told)) < 4000
    applicant = read_applicant(told)
    assert applicant.slots >= 1
    assert not any(
        address.startswith(("127.", "fe80:")) or address == "::1" for address in applicant.addresses
    )


def test_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MUSTER_JOIN_TOKEN", raising=False)
    made = head_token(tmp_path / "t")
    assert made.text not in made.before + made.after
    assert (tmp_path / "t").stat().st_mode & 0o777 == 0o600
    assert head_token(tmp_path / "t").text == made.text == member_token(None, tmp_path / "t")
    assert head_token(None).text != head_token(None).text
    with pytest.raises(UsageError, match="no token"):
        member_token(None, None)
    monkeypatch.setenv("MUSTER_JOIN_TOKEN", TOKEN)
    known = head_token(None)
    assert known.text == TOKEN == member_token(None, None)
    assert TOKEN not in known.before + known.after
    monkeypatch.setenv("MUSTER_JOIN_TOKEN", "short")
    with pytest.raises(UsageError, match="at least 16"):
        head_token(None)


def test_an_output_that_cannot_be_written_is_found_before_anybody_waits(tmp_path: Path) -> None:
    check_outputs([tmp_path / "hosts.json"])
    odd = tmp_path / 'a"b'
    odd.mkdir()
    for path in (odd / "hosts", tmp_path / "hosts.ssh_config", tmp_path):
        with pytest.raises(UsageError):
            check_outputs([path])


def test_the_inventory_is_written_last(tmp_path: Path) -> None:
    """Where the second file cannot be written, there is no inventory that relies on it."""
    (tmp_path / "hosts.ssh_config").mkdir()
    with pytest.raises(JobError, match="cannot be written"):
        save(Gathered(1, name_members([one()]), {}, {}), [tmp_path / "hosts.json"])
    assert not (tmp_path / "hosts.json").exists()


@pytest.mark.parametrize("seconds", ["nan", "-1", "0", "inf"])
def test_the_script_s_time_is_finite(
    seconds: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MUSTER_JOIN_TOKEN", TOKEN)
    with pytest.raises(SystemExit) as stopped:
        member.main(["127.0.0.1:1", f"--timeout={seconds}"])
    assert stopped.value.code == 2
    assert "--timeout must be above 0 and finite" in capsys.readouterr().err
