"""The door over real sockets: who knows the secret comes in, and nothing else can hold it up."""

from __future__ import annotations

import json
import resource
import select
import selectors
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from muster.agent import member
from muster.agent.member import MAX_LINE
from muster.agent.member import proof as prove
from muster.core.errors import UsageError
from muster.fleet.listener import ProvenPeer, SecretListener
from tests.support import wait_until

SECRET = "a secret that no test sends"
HERE = "127.0.0.1"
PAYLOAD = {"name": "node1", "slots": 8}


@pytest.fixture
def door() -> Iterator[SecretListener]:
    with SecretListener(SECRET, address=HERE) as opened:
        yield opened


class Client:
    """A connection that says what a test wants."""

    def __init__(self, port: int, address: str = HERE) -> None:
        self.socket = socket.create_connection((address, port), 30)
        self.reader = self.socket.makefile("rb")

    def greeting(self) -> str:
        word, _, nonce = self.reader.readline().decode().strip().partition(" ")
        assert word == "muster1" and len(nonce) == 32
        return nonce

    def claim(self, secret: str, nonce: str) -> bytes:
        said = json.dumps({**PAYLOAD, "nonce": "0" * 32}).encode()
        return prove(secret, "client", nonce, said) + b" " + said + b"\n"

    def say(self, data: bytes) -> None:
        self.socket.sendall(data)

    def hear(self) -> bytes:
        """The next line, or nothing after the end; a reset is an end."""
        try:
            return self.reader.readline()
        except ConnectionResetError:
            return b""

    def close(self) -> None:
        self.reader.close()
        self.socket.close()


@pytest.fixture
def client(door: SecretListener) -> Iterator[Client]:
    one = Client(door.port)
    yield one
    one.close()


def poll_until(door: SecretListener, enough: Callable[[list[ProvenPeer]], bool]) -> list[ProvenPeer]:
    """Let people in until that is enough."""
    guests: list[ProvenPeer] = []

    def reached() -> bool:
        guests.extend(door.poll())
        return enough(guests)

    assert wait_until(reached, 60, every=0.005), door.refused
    return guests


def refused(door: SecretListener, reason: str, count: int = 1) -> None:
    assert poll_until(door, lambda guests: door.refused[reason] >= count) == []
    assert door.refused == {reason: count}


def in_background(work: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """Run a client while this thread polls; its result or exception."""
    results: list[object] = []

    def run() -> None:
        try:
            results.append(work())
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, results


def test_both_sides_prove_themselves(door: SecretListener) -> None:
    thread, results = in_background(lambda: member.knock(HERE, door.port, SECRET, PAYLOAD, 30))
    (guest,) = poll_until(door, bool)
    assert {key: guest.payload[key] for key in PAYLOAD} == PAYLOAD
    assert (guest.peer, guest.local) == (HERE, HERE)
    assert SECRET not in repr(guest)
    guest.welcome({"op": "wait"})
    thread.join()
    line, reply = results[0]  # type: ignore[misc]
    assert reply == {"op": "wait"}
    guest.socket.setblocking(True)
    line.sendall(b"from now on the stream is ours")
    assert guest.socket.recv(100) == b"from now on the stream is ours"
    guest.socket.close()
    line.close()
    assert not door.refused


def test_another_secret(door: SecretListener) -> None:
    thread, results = in_background(lambda: member.knock(HERE, door.port, "something else", PAYLOAD, 30))
    refused(door, "wrong secret")
    thread.join()
    assert isinstance(results[0], member.Rejected) and results[0].wrong_token


def test_a_recorded_handshake_opens_nothing(door: SecretListener, client: Client) -> None:
    poll_until(door, lambda guests: bool(select.select([client.socket], [], [], 0)[0]))
    recorded = client.claim(SECRET, client.greeting())
    client.say(recorded)
    poll_until(door, bool)[0].socket.close()
    again = Client(door.port)
    again.say(recorded)
    refused(door, "wrong secret")
    again.greeting()
    assert again.hear() == b"refused wrong secret\n"
    again.close()


@pytest.mark.parametrize(
    "said",
    [b"\n", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\n", b"0" * 64 + b"\n",
     b"0" * 64 + b" \n", b"{}\n", b"\xff" * 200 + b"\n"],
)  # fmt: skip
def test_garbage(door: SecretListener, client: Client, said: bytes) -> None:
    client.say(said)
    poll_until(door, lambda guests: bool(guests) or bool(door.refused))
    assert set(door.refused) <= {"garbage", "wrong secret"}
    client.greeting()
    assert client.hear().startswith(b"refused ")
    assert client.hear() == b""


@pytest.mark.parametrize(
    "payload",
    [[], "x", {"name": "x"}, {"name": 1, "nonce": "0" * 32}, {"name": "x", "nonce": "0" * 31 + "G"}, None],
)
def test_a_proof_of_something_else_than_a_claim(
    door: SecretListener, client: Client, payload: object
) -> None:
    poll_until(door, lambda guests: bool(select.select([client.socket], [], [], 0)[0]))
    nonce = client.greeting()
    for said in (json.dumps(payload).encode(),):
        client.say(prove(SECRET, "client", nonce, said) + b" " + said + b"\n")
    refused(door, "garbage")


def test_deep_json_with_a_proof(door: SecretListener, client: Client) -> None:
    poll_until(door, lambda guests: bool(select.select([client.socket], [], [], 0)[0]))
    nonce = client.greeting()
    said = b"[" * 4000
    client.say(prove(SECRET, "client", nonce, said) + b" " + said + b"\n")
    refused(door, "garbage")


def test_words_before_the_answer(door: SecretListener, client: Client) -> None:
    """Nobody's bytes may be lost between the handshake and the stream."""
    poll_until(door, lambda guests: bool(select.select([client.socket], [], [], 0)[0]))
    client.say(client.claim(SECRET, client.greeting()) + b"and more")
    refused(door, "garbage")


def test_a_line_that_never_ends(door: SecretListener, client: Client) -> None:
    thread, _ = in_background(lambda: client.say(b"x" * 10_000_000))
    refused(door, "too long")
    thread.join()


def test_the_longest_line(door: SecretListener, client: Client) -> None:
    client.say(b"x" * (MAX_LINE - 1) + b"\n")
    refused(door, "garbage")


def test_half_a_line_and_gone(door: SecretListener, client: Client) -> None:
    client.say(b"0123")
    client.close()
    refused(door, "left")


def test_slow_drips_run_out_of_time() -> None:
    with SecretListener(SECRET, address=HERE, patience=0.3) as door:
        client = Client(door.port)

        def drip(guests: list[ProvenPeer]) -> bool:
            try:
                client.say(b"a")
            except OSError:
                pass
            return bool(door.refused)

        assert poll_until(door, drip) == []
        assert door.refused == {"slow": 1}
        client.close()


def test_silence_makes_room_for_those_who_talk() -> None:
    """The places are all taken by people who say nothing and have all the time of the world."""
    with SecretListener(SECRET, address=HERE, patience=3600, waiting=4) as door:
        silent = [Client(door.port) for _ in range(4)]
        poll_until(door, lambda guests: all(select.select([each.socket], [], [], 0)[0] for each in silent))
        thread, results = in_background(lambda: member.knock(HERE, door.port, SECRET, PAYLOAD, 60))
        (guest,) = poll_until(door, bool)
        guest.welcome({})
        thread.join()
        line, _ = results[0]  # type: ignore[misc]
        assert door.refused == {"crowded": 1}
        for each in (*silent, line, guest.socket):
            each.close()


def test_a_thousand_at_once() -> None:
    """Seven hundred who know the secret, the others all that one meets: each gets its due."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 4096:
        pytest.skip("too few descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
    clients: list[Client] = []
    guests: list[ProvenPeer] = []
    try:
        with SecretListener(SECRET, address=HERE, patience=3600) as door:
            clients = [Client(door.port) for _ in range(1000)]  # none has been accepted yet
            nonces: dict[int, str] = {}

            def all_greeted(_: list[ProvenPeer]) -> bool:
                waiting = [number for number in range(1000) if number not in nonces]
                for number in waiting[:100]:
                    if select_one(clients[number].socket):
                        nonces[number] = clients[number].greeting()
                return len(nonces) == 1000

            poll_until(door, all_greeted)
            for number, client in enumerate(clients):
                kind = number % 10
                if kind < 7:
                    client.say(client.claim(SECRET, nonces[number]))
                elif kind == 7:
                    client.say(client.claim("something else", nonces[number]))
                elif kind == 8:
                    client.say(b"HELO there\n")
            guests = poll_until(door, lambda guests: len(guests) == 700 and sum(door.refused.values()) == 200)
            assert door.refused == {"wrong secret": 100, "garbage": 100}
            for guest in guests:
                guest.welcome({"op": "wait"})
            for number, client in enumerate(clients):
                if number % 10 < 7:
                    said = client.hear().partition(b" ")[2].strip()
                    assert json.loads(said) == {"op": "wait"}
    finally:
        for client in clients:
            client.close()
        for guest in guests:
            guest.socket.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def select_one(sock: socket.socket) -> bool:
    """Whether there is something to read; select() itself knows no descriptors above 1023."""
    poller = select.poll()
    poller.register(sock, select.POLLIN)
    return bool(poller.poll(0))


def test_without_descriptors_it_waits_and_does_not_spin(door: SecretListener, client: Client) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    selector = selectors.DefaultSelector()
    selector.register(door, selectors.EVENT_READ)
    assert selector.select(30)
    lowest = client.socket.dup()  # its number is the first that is free
    lowest.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, (client.socket.fileno(), hard))
    try:
        assert door.poll() == []
        assert not selector.select(0), "a caller would spin"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    client_greeted = lambda guests: select_one(client.socket)  # noqa: E731
    assert poll_until(door, client_greeted) == []
    selector.close()


def test_it_nests_in_another_selector(door: SecretListener) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(door, selectors.EVENT_READ)
        assert not selector.select(0)
        client = Client(door.port)
        assert selector.select(30)
        door.poll()
        nonce = client.greeting()
        assert not selector.select(0)
        client.say(client.claim(SECRET, nonce))
        assert selector.select(30)
        (guest,) = poll_until(door, bool)
        assert not selector.select(0)
        guest.refuse("not\nyou")
        assert client.hear() == b"refused not you\n"
        assert client.hear() == b""
        client.close()


def test_both_families_at_one_port() -> None:
    with SecretListener(SECRET) as door:
        for address in (HERE, "::1"):
            try:
                client = Client(door.port, address)
            except OSError:
                pytest.skip(f"no {address} here")
            poll_until(door, lambda guests, client=client: select_one(client.socket))  # type: ignore[misc]
            client.say(client.claim(SECRET, client.greeting()))
            (guest,) = poll_until(door, bool)
            assert (guest.peer, guest.local) == (address, address)
            guest.socket.close()
            client.close()


@pytest.mark.parametrize(
    ("address", "port", "words"),
    [("192.0.2.77", 0, "this is not an address of this machine"), ("no such name.invalid", 0, "not an "
    "address"),
     (HERE, 70000, "cannot listen"), ("", -1, "cannot listen")],
)  # fmt: skip
def test_a_place_where_one_cannot_listen(address: str, port: int, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        SecretListener(SECRET, address=address, port=port)
    assert caught.value.hint


def test_a_port_that_is_taken(door: SecretListener) -> None:
    with pytest.raises(UsageError, match="the port is taken") as caught:
        SecretListener(SECRET, address=HERE, port=door.port)
    assert "--port" in (caught.value.hint or "")


def test_a_closed_door(door: SecretListener) -> None:
    door.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((HERE, door.port), 30)


def test_an_answer_that_is_too_long(door: SecretListener, client: Client) -> None:
    poll_until(door, lambda guests: select_one(client.socket))
    client.say(client.claim(SECRET, client.greeting()))
    (guest,) = poll_until(door, bool)
    with pytest.raises(ValueError, match="does not fit"):
        guest.welcome({"op": "x" * MAX_LINE})
    guest.socket.close()


# ---- what answers is not the head --------------------------------------------------------------------------


def impostor(*lines: bytes) -> tuple[int, threading.Thread]:
    """Says these lines to whoever comes, the first at once and each other after a line of theirs."""
    listener = socket.create_server((HERE, 0))

    def serve() -> None:
        with listener, listener.accept()[0] as sock, sock.makefile("rb") as reader:
            sock.sendall(lines[0])
            for line in lines[1:]:
                said = reader.readline()
                sock.sendall(line.replace(b"SAID", said.strip()))

    thread = threading.Thread(target=serve)
    thread.start()
    return int(listener.getsockname()[1]), thread


GREETING = b"muster1 " + b"0" * 32 + b"\n"


@pytest.mark.parametrize(
    "lines",
    [
        [b"SSH-2.0-OpenSSH_9.2\r\n"],
        [b"muster1 " + b"Z" * 32 + b"\n"],
        [b"x" * 5000],
        [GREETING, b"0" * 64 + b' {"op":"done"}\n'],
        [GREETING, b"SAID\n"],  # the member's own words, thrown back
        [GREETING, b""],
        [GREETING, b"y" * 100_000],
    ],
)
def test_a_head_that_does_not_know_the_secret_is_not_believed(lines: list[bytes]) -> None:
    port, thread = impostor(*lines)
    with pytest.raises(OSError):
        member.knock(HERE, port, SECRET, PAYLOAD, 30)
    thread.join()


def test_a_refusal_cannot_write_to_the_terminal() -> None:
    port, thread = impostor(GREETING, b"refused \x1b[2Jgone\n")
    with pytest.raises(member.Rejected) as caught:
        member.knock(HERE, port, SECRET, PAYLOAD, 30)
    thread.join()
    assert str(caught.value) == "?[2Jgone"


def test_the_secret_is_on_no_wire(door: SecretListener) -> None:
    """Everything that passes in both directions, recorded by one in the middle."""
    recorded: list[bytes] = []
    listener = socket.create_server((HERE, 0))

    def pass_on() -> None:
        with listener, listener.accept()[0] as left, socket.create_connection((HERE, door.port)) as right:
            while True:
                ready, _, _ = select.select([left, right], [], [], 30)
                for sock in ready:
                    data = sock.recv(4096)
                    if not data:
                        return
                    recorded.append(data)
                    (right if sock is left else left).sendall(data)

    middle = threading.Thread(target=pass_on)
    middle.start()
    thread, results = in_background(
        lambda: member.knock(HERE, listener.getsockname()[1], SECRET, PAYLOAD, 30)
    )
    (guest,) = poll_until(door, bool)
    guest.welcome({"op": "wait"})
    thread.join()
    line, reply = results[0]  # type: ignore[misc]
    assert reply == {"op": "wait"}
    line.close()
    guest.socket.close()
    middle.join()
    wire = b"".join(recorded)
    assert b"node1" in wire  # it is the conversation
    for form in (SECRET.encode(), SECRET.encode().hex().encode(), SECRET[:8].encode(), SECRET[-8:].encode()):
        assert form not in wire
