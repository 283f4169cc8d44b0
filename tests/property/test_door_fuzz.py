"""Any bytes at the door, any JSON behind it: let in by a proof alone, and never an error of another kind."""

from __future__ import annotations

import json
import re
import socket
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from muster.agent import member
from muster.agent.member import MAX_LINE
from muster.agent.member import proof as prove
from muster.core.inventory import format_hostfile, parse_hostfile
from muster.fleet.handshake import Refusal, answer, greeting, new_nonce, read_claim, refusal
from muster.fleet.listener import SecretListener
from muster.gather.gather import read_member
from tests.support import wait_until

SECRET = "a secret of the fuzzer"
NONCE = "0123456789abcdef" * 2
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
HEX = st.text("0123456789abcdef", min_size=32, max_size=32)


def claim_line(payload: dict[str, Any], nonce: str = NONCE) -> bytes:
    """What a member sends, by the member's own code."""
    said = json.dumps(payload, separators=(",", ":")).encode()
    return member.proof(SECRET, "client", nonce, said) + b" " + said


@given(st.text(max_size=30), HEX, JSON)
def test_head_and_member_understand_each_other(name: str, nonce: str, more: object) -> None:
    """Two implementations of the same lines."""
    payload = {"name": name, "more": json.dumps(more), "nonce": nonce}
    assert read_claim(claim_line(payload), SECRET, NONCE) == payload
    line = answer({"op": "wait", "more": payload["more"]}, SECRET, nonce).rstrip(b"\n")
    given_proof, _, said = line.partition(b" ")
    assert given_proof == member.proof(SECRET, "server", nonce, said)


@given(st.binary(max_size=300))
@example(b"0" * 64 + b" {}")
@example(b"\xb2" * 64 + b" {}")
def test_bytes_without_a_proof(line: bytes) -> None:
    with pytest.raises(Refusal, match=r"garbage|wrong secret"):
        read_claim(line, SECRET, NONCE)


@given(st.data())
def test_a_line_that_was_touched(data: st.DataObject) -> None:
    line = claim_line({"name": "node1", "nonce": "f" * 32, "slots": 8})
    at = data.draw(st.integers(0, len(line) - 1))
    other = data.draw(st.integers(0, 255).filter(lambda value: value != line[at]))
    with pytest.raises(Refusal):
        read_claim(line[:at] + bytes([other]) + line[at + 1 :], SECRET, NONCE)
    with pytest.raises(Refusal):
        read_claim(line[:at], SECRET, NONCE)


@given(HEX.filter(lambda nonce: nonce != NONCE))
def test_a_line_for_another_greeting(nonce: str) -> None:
    with pytest.raises(Refusal, match="wrong secret"):
        read_claim(claim_line({"name": "node1", "nonce": "f" * 32}, nonce), SECRET, NONCE)


@given(HEX, JSON)
def test_what_the_head_says_proves_nothing_to_it(nonce: str, more: object) -> None:
    """Neither side's words can be thrown back at it."""
    said = answer({"name": "x", "nonce": nonce, "more": json.dumps(more)}, SECRET, NONCE).rstrip(b"\n")
    with pytest.raises(Refusal, match="wrong secret"):
        read_claim(said, SECRET, NONCE)


@given(st.binary(max_size=200))
def test_any_text_with_a_proof(said: bytes) -> None:
    try:
        claim = read_claim(prove(SECRET, "client", NONCE, said) + b" " + said, SECRET, NONCE)
    except Refusal as why:
        assert str(why) == "garbage"
    else:
        assert isinstance(claim["name"], str) and re.fullmatch("[0-9a-f]{32}", claim["nonce"])


@given(st.text(max_size=6000))
def test_a_refusal_is_one_line(reason: str) -> None:
    line = refusal(reason)
    assert line.startswith(b"refused ") and line.endswith(b"\n")
    assert line.count(b"\n") == 1 and len(line) <= MAX_LINE


def test_nonces_differ() -> None:
    assert len({new_nonce() for _ in range(1000)}) == 1000
    assert len(greeting(new_nonce())) == 41


@settings(max_examples=60)
@given(st.lists(st.lists(st.binary(min_size=1, max_size=1500), max_size=5), min_size=1, max_size=5))
def test_any_bytes_in_any_pieces(conversations: list[list[bytes]]) -> None:
    """At a real door: nobody gets in, nothing is raised, every connection ends and is counted."""
    with SecretListener(SECRET, address="127.0.0.1") as door:
        sockets = []
        for pieces in conversations:
            sock = socket.create_connection(("127.0.0.1", door.port), 30)
            sockets.append(sock)
            for piece in pieces:
                try:
                    sock.sendall(piece)
                except OSError:  # it has been turned away already
                    break
                assert door.poll() == []
            try:
                sock.shutdown(socket.SHUT_WR)
            except OSError:
                pass
        assert wait_until(lambda: door.poll() or sum(door.refused.values()) == len(sockets), 30, every=0.002)
        assert sum(door.refused.values()) == len(sockets)
        assert set(door.refused) <= {"garbage", "wrong secret", "too long", "left"}
        for sock in sockets:
            sock.close()


ODD = st.text(st.sampled_from("ab1.-_ \n\t\"'%$*?[]:/\\\x00é"), max_size=12)
FIELDS = {
    "name": ODD | JSON,
    "wants": st.just("join") | JSON,
    "address": st.ip_addresses().map(str) | ODD | JSON,
    "slots": st.integers(-1, 2000) | JSON,
}


@given(st.fixed_dictionaries({}, optional=FIELDS))
def test_whatever_a_machine_says_it_is_one_line_of_a_hostfile(payload: dict[str, Any]) -> None:
    """Refused with a reason, or read back as it is."""
    plain = {"name": "m", "wants": "join", "address": "", "slots": 1}
    try:
        host = read_member(plain | payload, "10.0.0.2", "10.0.0.1").host
    except ValueError as why:
        assert len(str(why)) < 100
        return
    assert parse_hostfile(format_hostfile([host]), source="x").hosts == (host,)
