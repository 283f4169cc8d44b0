"""What machines say about themselves, and the tokens of a gather."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from muster.agent import member
from muster.core.errors import UsageError
from muster.gather.gather import Gathered, Member, read_member
from muster.gather.token import head_token, member_token

TOKEN = "0123456789abcdef-of-the-tests"
SOUND = {"name": "m", "wants": "join", "address": "", "slots": 8}


@pytest.mark.parametrize(
    ("given", "peer", "name"),
    [
        ("", "10.0.0.2", "10.0.0.2"),
        ("", "fd00::3", "[fd00::3]"),
        ("", "127.0.0.1", "10.0.0.1"),  # the head is a member itself: others reach it by its own address
        ("203.0.113.7", "10.0.0.2", "203.0.113.7"),
        ("pod-1.example", "10.0.0.2", "pod-1.example"),
        ("fd00::4", "10.0.0.2", "[fd00::4]"),
    ],
)
def test_a_machine_is_reached_where_it_says_or_where_it_came_from(given: str, peer: str, name: str) -> None:
    assert read_member(SOUND | {"address": given}, peer, "10.0.0.1").host.name == name


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "a b"}, "host name"), ({"name": "-x"}, "host name"), ({"name": "a\nHost *"}, "host name"),
        ({"name": "x" * 300}, "host name"), ({"slots": 0}, "slots"), ({"slots": 1025}, "slots"),
        ({"slots": 1.5}, "slots"), ({"slots": True}, "slots"), ({"address": "a b"}, "address"),
        ({"address": "-oProxyCommand=x"}, "address"), ({"address": "fe80::1%x y"}, "address"),
        ({"address": None}, "address"), ({"address": ["10.0.0.1"]}, "address"),
        ({"wants": "agent"}, "gather"),
    ],
)  # fmt: skip
def test_what_a_machine_may_say(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read_member(SOUND | change, "10.0.0.2", "10.0.0.1")


def test_what_this_machine_says_is_understood() -> None:
    assert read_member(member.about(None, ""), "10.0.0.2", "10.0.0.1").slots >= 1
    assert not any(each.startswith(("127.", "fe80:")) or each == "::1" for each in member.own_addresses())


def test_what_is_gathered_is_an_inventory() -> None:
    data = Gathered(1, (Member("10.0.0.2", "m2", 4),), {"late": 1}, 2).as_dict()
    assert data["hosts"] == [{"name": "10.0.0.2", "slots": 4}]
    assert data["gathered"] == {"wanted": 1, "refused": {"late": 1}, "lost": 2}


def test_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MUSTER_JOIN_TOKEN", raising=False)
    made = head_token(tmp_path / "t")
    assert made.text not in made.before + made.after
    assert (tmp_path / "t").stat().st_mode & 0o777 == 0o600
    assert head_token(tmp_path / "t").text == made.text == member_token(tmp_path / "t")
    assert head_token(None).text != head_token(None).text
    with pytest.raises(UsageError, match="no token"):
        member_token(None)
    monkeypatch.setenv("MUSTER_JOIN_TOKEN", TOKEN)
    given = head_token(None)
    assert given.text == TOKEN == member_token(None)
    assert TOKEN not in given.before + given.after
    monkeypatch.setenv("MUSTER_JOIN_TOKEN", "short")
    with pytest.raises(UsageError, match="at least 16"):
        head_token(None)
    for token in (head_token, member_token):  # bytes that are no UTF-8, as Python has them
        monkeypatch.setenv("MUSTER_JOIN_TOKEN", "\udcff" * 16)
        with pytest.raises(UsageError, match="UTF-8"):
            token(None)


def test_the_script_refuses_a_token_that_it_cannot_send(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MUSTER_JOIN_TOKEN", "\udcff" * 16)
    with pytest.raises(SystemExit) as end:
        member.main(["127.0.0.1:1", "--timeout", "0.1"])
    assert end.value.code == 2 and "utf-8" in capsys.readouterr().err


@pytest.mark.parametrize("seconds", ["nan", "-1", "0", "inf"])
def test_the_script_s_time_is_finite(
    seconds: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MUSTER_JOIN_TOKEN", TOKEN)
    with pytest.raises(SystemExit) as stopped:
        member.main(["127.0.0.1:1", f"--timeout={seconds}"])
    assert stopped.value.code == 2
    assert "--timeout must be above 0 and finite" in capsys.readouterr().err


def test_a_crowded_head_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reason that passes is no end; any other one is."""
    answers = ["crowded", "slow", "closed: 2 have joined"]

    def refuse(*_: Any) -> dict[str, Any]:
        raise member.Rejected(answers.pop(0))

    monkeypatch.setattr(member, "claim", lambda *_: (Mock(), ""))
    monkeypatch.setattr(member, "keep_alive", lambda sock: None)
    monkeypatch.setattr(member, "read_answer", refuse)
    monkeypatch.setattr(member.time, "sleep", lambda seconds: None)
    with pytest.raises(member.Rejected, match="closed"):
        member.join(["h"], 1, TOKEN, SOUND, 60, lambda text: None)
    assert not answers


@pytest.mark.parametrize(("why", "code"), [("wrong secret", 2), ("closed: 2 have joined", 1)])
def test_how_the_script_ends_where_the_head_says_no(
    why: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSTER_JOIN_TOKEN", TOKEN)
    monkeypatch.setattr(member.signal, "signal", lambda *_: None)
    monkeypatch.setattr(member, "join", Mock(side_effect=member.Rejected(why)))
    assert member.main(["127.0.0.1:1", "--slots", "1"]) == code
