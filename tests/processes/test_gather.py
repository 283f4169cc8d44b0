"""`muster gather` and `muster join` over loopback: the real commands, real ssh servers."""

from __future__ import annotations

import getpass
import json
import os
import resource
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.agent import member
from muster.core.inventory import read_inventory
from muster.fleet.handshake import answer
from muster.gather import gather
from tests.ports import free_port
from tests.support import wait_until

USER = getpass.getuser()  # sshd that does not run as root lets nobody else in
TOKEN = "0123456789abcdef-of-the-tests"
HERE = "127.0.0.1"
WITH_TOKEN = {**os.environ, "MUSTER_JOIN_TOKEN": TOKEN}
PLAIN = {"name": "m", "wants": "join", "addresses": [HERE], "by_hand": True, "port": 22, "user": USER,
         "slots": 1, "keys": []}  # fmt: skip


class Sshd:
    """An ssh server on some loopback addresses, ended by id."""

    def __init__(self, folder: Path, port: int, *addresses: str) -> None:
        folder.mkdir()
        for name in ("host", "login"):
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)],
                check=True,
                timeout=60,
            )
        listen = "".join(f"ListenAddress {address}\n" for address in addresses)
        (folder / "config").write_text(
            f"Port {port}\n{listen}HostKey {folder}/host\n"
            f"AuthorizedKeysFile {folder}/login.pub\nStrictModes no\n"
            "UsePAM no\nPidFile none\nMaxStartups 200\nPasswordAuthentication no\n"
        )
        self.port, self.login = port, folder / "login"
        self.key = " ".join((folder / "host.pub").read_text().split()[:2])
        sshd = shutil.which("sshd", path="/usr/sbin:/usr/bin:/sbin:" + os.environ.get("PATH", "")) or ""
        # Where no service was ever started, nobody has made it.
        self.made = Path("/run/sshd") if os.geteuid() == 0 and not Path("/run/sshd").exists() else None
        if self.made:
            self.made.mkdir(mode=0o755)
        self.log = (folder / "log").open("wb")
        self.process = subprocess.Popen([sshd, "-D", "-e", "-f", str(folder / "config")], stderr=self.log)
        if not wait_until(lambda: all(self.answers(address) for address in addresses), 60):
            self.close()
            raise AssertionError((folder / "log").read_text())

    def answers(self, address: str) -> bool:
        try:
            with socket.create_connection((address, self.port), 5) as connection:
                return connection.recv(4) == b"SSH-"
        except OSError:
            return False

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(30)
        self.log.close()
        if self.made:
            self.made.rmdir()


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    if not shutil.which("ssh-keyscan") or not shutil.which("sshd", path="/usr/sbin:/usr/bin"):
        pytest.skip("needs OpenSSH")
    server = Sshd(
        tmp_path_factory.mktemp("sshd") / "one", free_port(), *(f"127.0.0.{last}" for last in range(1, 6))
    )
    yield server
    server.close()


class Head:
    """`muster gather` in a process of its own. A context manager: what is left of it is ended by id."""

    def __init__(self, folder: Path, *arguments: str, port: int = 0) -> None:
        self.folder, self.port = folder, port or free_port()
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "muster",
                "gather",
                *arguments,
                "--port",
                str(self.port),
                "--address",
                HERE,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
            env=WITH_TOKEN,
        )

    def __enter__(self) -> Head:
        assert self.process.stderr is not None
        while "join.py:" not in (line := self.process.stderr.readline()):
            assert line, self.process.wait(30)
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def finish(self, seconds: float = 90) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=seconds)
        return self.process.returncode, out, err


class Machine:
    """A member in a thread; `facts` override what it would say."""

    def __init__(self, head: int, token: str = TOKEN, timeout: float = 90, **facts: Any) -> None:
        self.said: list[str] = []
        self.end: dict[str, Any] | Exception | None = None
        told = PLAIN | facts

        def run() -> None:
            try:
                self.end = member.join([HERE], head, token, lambda: told, timeout, self.said.append)
            except Exception as error:
                self.end = error

        self.thread = threading.Thread(target=run)
        self.thread.start()

    def finish(self, seconds: float = 120) -> dict[str, Any] | Exception | None:
        self.thread.join(seconds)
        assert not self.thread.is_alive()
        return self.end


def machine(sshd: Sshd, head: Head, last: int, **facts: Any) -> Machine:
    """A machine that is reached at 127.0.0.LAST."""
    facts = {
        "name": f"m{last}",
        "addresses": [f"127.0.0.{last}"],
        "port": sshd.port,
        "keys": [sshd.key],
    } | facts
    return Machine(head.port, **facts)


def register(head: Head, **facts: Any) -> member.Line:
    """A member that says nothing after its handshake."""
    line, reply = member.knock(HERE, head.port, TOKEN, PLAIN | facts, 30)
    assert reply["op"] == "wait"
    return line


def hear(line: member.Line, op: str) -> dict[str, Any]:
    """Its next message of this kind; signs of life are sent meanwhile."""
    line.socket.settimeout(60)
    while True:
        message = line.read()
        if message["op"] == op:
            return message
        line.socket.sendall(b".")


# ---- all goes well -----------------------------------------------------------------------------------------


def test_three_machines_become_an_inventory_that_ssh_can_use(sshd: Sshd, tmp_path: Path) -> None:
    with Head(tmp_path, "3", "--output", "hosts.json", "--output", "hostfile", "--json") as head:
        machines = [machine(sshd, head, last, slots=last) for last in (4, 2, 3)]
        assert [each.finish() for each in machines] == [
            {"op": "done", "count": each.end["count"], "name": f"127.0.0.{last}", "members": 3}  # type: ignore[index,call-overload]
            for each, last in zip(machines, (4, 2, 3), strict=True)
        ]
        code, out, err = head.finish()
    assert code == 0, err
    data = json.loads(out)
    assert data == json.loads((tmp_path / "hosts.json").read_text())
    assert [(host["name"], host["slots"], host["verified"]) for host in data["hosts"]] == [
        ("127.0.0.2", 2, True), ("127.0.0.3", 3, True), ("127.0.0.4", 4, True),
    ]  # fmt: skip
    assert data["gathered"]["complete"] and not data["gathered"]["turned_away"]
    inventory = read_inventory(str(tmp_path / "hostfile"))
    assert [(host.name, host.slots) for host in inventory.hosts] == [(f"127.0.0.{n}", n) for n in (2, 3, 4)]
    assert str(tmp_path / "hosts.ssh_config") in err and TOKEN not in err
    options = ["-o", "BatchMode=yes", "-o", f"IdentityFile={sshd.login}", "-o", "IdentitiesOnly=yes"]
    for name in ("127.0.0.2", "m3"):  # by address and by host name; the keys are known, the port too
        done = subprocess.run(
            ["ssh", "-F", data["ssh_config"], *options, name, "echo $SSH_CONNECTION"],
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stdout.split()[2:] == [f"127.0.0.{name[-1]}", str(sshd.port)]


def test_the_commands_as_one_types_them(sshd: Sshd, tmp_path: Path) -> None:
    """`muster join`, and the script under the oldest Python that is here, with nothing of Muster around."""
    script = subprocess.check_output(
        [sys.executable, "-m", "muster", "join", "--script"], text=True, timeout=60
    )
    (tmp_path / "join.py").write_text(script)
    old = Path("~/.pyenv/versions/3.8.18/bin/python3.8").expanduser()
    python = str(old) if old.exists() else sys.executable
    (tmp_path / "token").write_text(TOKEN + "\n")
    common = [
        "--ssh-port",
        str(sshd.port),
        "--slots",
        "2",
        "--timeout",
        "90",
        "--token-file",
        str(tmp_path / "token"),
    ]
    with Head(tmp_path, "2") as head:
        at = f"{HERE}:{head.port}"
        commands = [
            [sys.executable, "-m", "muster", "join", at, *common, "--json", "--address", "127.0.0.2"],
            [python, "-I", str(tmp_path / "join.py"), at, *common, "--address", "127.0.0.3"],
        ]
        pipe = subprocess.PIPE
        members = [
            subprocess.Popen(each, stdout=pipe, stderr=pipe, text=True, cwd=tmp_path) for each in commands
        ]
        first, second = [each.communicate(timeout=120) for each in members]
        code, out, err = head.finish()
    assert [each.returncode for each in members] == [0, 0], (first, second)
    assert json.loads(first[0]) == {"name": "127.0.0.2", "members": 2}
    assert second[1].splitlines()[-1] == "registered as 127.0.0.3, one of 2"
    assert (code, out) == (0, "127.0.0.2 slots=2\n127.0.0.3 slots=2\n"), err
    assert "ssh ports other than 22" in err  # a hostfile cannot say them
    assert "not compared" not in err


def test_a_machine_may_be_there_before_the_head(sshd: Sshd, tmp_path: Path) -> None:
    port = free_port()
    early = Machine(port, addresses=["127.0.0.2"], port=sshd.port)
    assert wait_until(lambda: early.said, 60)
    assert "refused; trying again" in early.said[0]
    with Head(tmp_path, "1", port=port) as head:
        assert early.finish() == {"op": "done", "count": 2, "name": "127.0.0.2", "members": 1} or early.end
        assert head.finish()[0] == 0
    assert isinstance(early.end, dict) and early.end["op"] == "done"


# ---- which address -----------------------------------------------------------------------------------------


def test_another_machine_s_ssh_server_is_not_taken_for_it(sshd: Sshd, tmp_path: Path) -> None:
    """What a NAT gateway does: an ssh server answers at the first address, but with another key."""
    other = Sshd(tmp_path / "other", sshd.port, "127.0.0.9")
    try:
        with Head(tmp_path, "1", "--json") as head:
            lost = register(head, name="m2", addresses=["127.0.0.9"], port=sshd.port, keys=[sshd.key])
            assert "another machine's ssh server answers there" in hear(lost, "again")["why"]
            lost.close()
            found = machine(sshd, head, 9, addresses=["127.0.0.8", "127.0.0.9", "127.0.0.2"], name="m2")
            assert isinstance(found.finish(), dict)
            code, out, _ = head.finish()
    finally:
        other.close()
    assert code == 0
    assert [host["name"] for host in json.loads(out)["hosts"]] == ["127.0.0.2"]
    assert json.loads(out)["gathered"]["unusable"] == {}  # it was, and is no longer


def test_a_machine_that_cannot_be_reached_is_told_why(sshd: Sshd, tmp_path: Path) -> None:
    closed = free_port()
    with Head(tmp_path, "2", "--partial", "--timeout", "12", "--output", "hosts") as head:
        good = machine(sshd, head, 2)
        bad = register(head, name="shut", port=closed)
        assert hear(bad, "again")["why"] == (
            f"the head cannot reach this machine's ssh server: port {closed} of 127.0.0.1: Connection refused"
        )
        bad.close()
        assert isinstance(good.finish(), dict)
        code, _, err = head.finish()
    assert code == 0
    assert "1 of 2 machines" in err
    assert f"not usable: shut: port {closed} of 127.0.0.1: Connection refused" in err
    assert (tmp_path / "hosts").read_text() == "127.0.0.2 slots=1\n"


def test_what_answers_is_no_ssh_server(tmp_path: Path) -> None:
    with socket.create_server((HERE, 0)) as listener, Head(tmp_path, "1") as head:
        line = register(head, port=listener.getsockname()[1])
        connection, _ = listener.accept()
        with connection:
            connection.sendall(b"220 mail.example ESMTP\r\n")
        assert "is no ssh server" in hear(line, "again")["why"]
        line.close()


# ---- those who come too often, too late, or without the token ----------------------------------------------


def test_the_later_of_two_joins_of_one_machine_counts(sshd: Sshd, tmp_path: Path) -> None:
    with Head(tmp_path, "2", "--json") as head:
        first = register(head, name="m2", addresses=["127.0.0.2"], port=sshd.port)
        assert "in as 127.0.0.2; 1 of 2" in wait_for_say(first, "in as")
        second = machine(sshd, head, 2, slots=7)
        assert hear(first, "closed")["why"] == "replaced by another join from this machine"
        other = machine(sshd, head, 3)
        assert isinstance(second.finish(), dict) and isinstance(other.finish(), dict)
        code, out, _ = head.finish()
        first.close()
    data = json.loads(out)
    assert code == 0
    assert [(host["name"], host["slots"]) for host in data["hosts"]] == [("127.0.0.2", 7), ("127.0.0.3", 1)]
    assert data["gathered"]["turned_away"] == {"again": 1}
    assert data["gathered"]["lost"] == 0


def wait_for_say(line: member.Line, start: str) -> str:
    while True:
        message = hear(line, "wait")
        if str(message.get("say", "")).startswith(start):
            return str(message["say"])
        line.socket.sendall(b".")


def test_late_comers_wrong_tokens_and_garbage_are_counted(sshd: Sshd, tmp_path: Path) -> None:
    with Head(tmp_path, "1", "--json") as head:
        wrong = Machine(head.port, token="another token, as long")
        assert isinstance(wrong.finish(), member.Rejected) and wrong.end.wrong_token  # type: ignore[union-attr]
        with socket.create_connection((HERE, head.port), 30) as noise:
            noise.sendall(b"GET / HTTP/1.0\r\n\r\n")
            while noise.recv(100):
                pass
        with pytest.raises(member.Rejected, match="not understood: that is not a host name"):
            member.wait(
                *member.knock(HERE, head.port, TOKEN, {"name": "-oProxyCommand=x", "wants": "join"}, 30),
                0,
                print,
            )
        good = machine(sshd, head, 2)
        assert isinstance(good.finish(), dict)
        late = machine(sshd, head, 3)
        assert isinstance(late.finish(), member.Rejected)
        assert str(late.end) == "closed: 1 have joined"
        code, out, _ = head.finish()
        after = Machine(head.port, timeout=0.5)
        assert isinstance(after.finish(), member.Unreachable)
    assert code == 0
    assert json.loads(out)["gathered"]["turned_away"] == {
        "wrong secret": 1, "garbage": 1, "not understood": 1, "late": 1,
    }  # fmt: skip


def test_two_for_the_last_place(tmp_path: Path) -> None:
    """Both are reached in the same moment: the head is stopped while their ssh servers greet."""
    with socket.create_server(("", 0)) as listener, Head(tmp_path, "1", "--json") as head:
        port = listener.getsockname()[1]
        lines = [register(head, name=f"m{last}", addresses=[f"127.0.0.{last}"], port=port) for last in (2, 3)]
        servers = [listener.accept()[0] for _ in lines]
        head.process.send_signal(signal.SIGSTOP)
        for server in servers:
            server.sendall(b"SSH-2.0-test\r\n")
        head.process.send_signal(signal.SIGCONT)
        assert sorted(last_word(line)["op"] for line in lines) == ["closed", "done"]
        code, out, _ = head.finish()
        for each in (*lines, *servers):
            each.close()  # type: ignore[attr-defined]
    assert code == 0
    assert len(json.loads(out)["hosts"]) == 1
    assert json.loads(out)["gathered"]["turned_away"] == {"late": 1}


def last_word(line: member.Line) -> dict[str, Any]:
    line.socket.settimeout(60)
    while (message := line.read())["op"] == "wait":
        line.socket.sendall(b".")
    line.socket.sendall(member.HEARD)
    return message


def reset(line: member.Line) -> None:
    """The connection breaks: what was not read is lost, on both sides."""
    line.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    line.close()


def test_the_last_word_is_heard_though_the_connection_broke(sshd: Sshd, tmp_path: Path) -> None:
    """A member that has not confirmed the end may come again; the head stays until it has."""
    with Head(tmp_path, "2", "--json") as head:
        broken = register(head, name="m2", addresses=["127.0.0.2"], port=sshd.port)
        wait_for_say(broken, "in as")
        other = machine(sshd, head, 3)
        assert isinstance(other.finish(), dict)  # the head has said it to all
        reset(broken)
        assert not wait_until(lambda: head.process.poll() is not None, gather.LINGER + 2)
        again = machine(sshd, head, 2).finish()
        assert isinstance(again, dict) and (again["op"], again["name"]) == ("done", "127.0.0.2")
        code, out, _ = head.finish()
    data = json.loads(out)
    assert (code, data["gathered"]["unheard"], data["gathered"]["turned_away"]) == (0, [], {})
    assert [host["name"] for host in data["hosts"]] == ["127.0.0.2", "127.0.0.3"]


def test_the_last_word_is_read_though_the_head_has_hung_up() -> None:
    """It came, and so did the head's end, while the member was busy: nothing can be sent any more."""
    nonce = "0" * 32
    with socket.create_server((HERE, 0)) as listener:
        line = member.Line(socket.create_connection(listener.getsockname()), TOKEN, nonce)
        head, _ = listener.accept()
    line.socket.sendall(b".")
    select.select([head], [], [], 60)  # unread: so closing resets the connection
    head.sendall(answer({"op": "done", "count": 0, "name": "m"}, TOKEN, nonce))
    head.close()
    poll = select.poll()
    poll.register(line.socket, 0)
    assert poll.poll(60_000)  # the reset is here
    assert member.wait(line, {"op": "wait"}, time.monotonic() + 60, print)["name"] == "m"
    line.close()


def test_one_who_leaves_does_not_count(sshd: Sshd, tmp_path: Path) -> None:
    with Head(tmp_path, "2", "--json") as head:
        gone = register(head, name="gone", addresses=["127.0.0.5"], port=sshd.port)
        wait_for_say(gone, "in as")
        gone.close()
        machines = [machine(sshd, head, last) for last in (2, 3)]
        assert all(isinstance(each.finish(), dict) for each in machines)
        code, out, _ = head.finish()
    assert code == 0
    assert [host["hostname"] for host in json.loads(out)["hosts"]] == ["m2", "m3"]
    assert json.loads(out)["gathered"]["lost"] == 1


# ---- it comes to nothing -----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["timeout", "Ctrl-C", "SIGTERM"])
def test_too_few_leave_nothing_behind(sshd: Sshd, tmp_path: Path, how: str) -> None:
    seconds = "3" if how == "timeout" else "600"
    with Head(tmp_path, "3", "--timeout", seconds, "--output", "hosts.json", "--json") as head:
        line = register(head, name="early", addresses=["127.0.0.2"], port=sshd.port)
        if how != "timeout":
            wait_for_say(line, "in as")
            head.process.send_signal(signal.SIGINT if how == "Ctrl-C" else signal.SIGTERM)
        assert hear(line, "closed")["why"] == "closed: the head gave up with 1 of 3"
        code, out, err = head.finish()
        line.close()
    assert code == 1
    assert "1 of 3 machines are there (early); nothing was written" in err
    assert json.loads(out)["error"]["message"] in err
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_a_head_that_is_killed_does_not_keep_its_members(sshd: Sshd, tmp_path: Path) -> None:
    with Head(tmp_path, "2") as head:
        one = Machine(head.port, timeout=8, addresses=["127.0.0.2"], port=sshd.port)
        assert wait_until(lambda: any("1 of 2" in text for text in one.said), 60)
        head.process.kill()
        assert isinstance(one.finish(), member.Unreachable)
        assert any("closed the connection" in text or "reset" in text for text in one.said)


def test_ctrl_c_on_a_member(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "muster", "join", f"{HERE}:{free_port()}"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=WITH_TOKEN,
    )  # fmt: skip
    assert process.stderr is not None and "trying again" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (1, "")
    assert err.startswith("error: ") and err.endswith(": stopped by Ctrl-C\n") and len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["gather", "0"], "cannot wait for 0 machines"),
        (["gather", "2", "--output", "."], "is a folder"),
        (["gather", "2", "--output", "not/there/hosts"], "its folder is not there"),
        (["gather", "2", "--address", "192.0.2.77"], "this is not an address of this machine"),
        (["join", "nowhere"], "is not HEAD:PORT"),
        (["join"], "no head given"),
        (["join", "h:1", "--slots", "0"], "slots must be"),
        (["join", "h:1", "--address", "name"], "is not an IP address"),
        (["join", "h:1", "--token", "short"], "at least 16"),
        (["join", "h:1", "--token-file", "not-there"], "cannot be read"),
        *[
            ([*verb, f"--timeout={seconds}"], "--timeout: must be a finite number of seconds above 0")
            for verb in (["gather", "2"], ["join", "h:1"], ["prepare", "local:1", "no.yaml"])
            for seconds in ("nan", "-1", "inf")
        ],
    ],
)
def test_bad_input_is_one_line(arguments: list[str], words: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "muster", *arguments],
        capture_output=True, text=True, timeout=60, cwd=tmp_path, env=WITH_TOKEN,
    )  # fmt: skip
    assert done.returncode == 2
    assert words in done.stderr.splitlines()[0]
    assert "Traceback" not in done.stderr


# ---- many --------------------------------------------------------------------------------------------------


class Greeter:
    """Says what an ssh server says first, to everybody who connects."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("", 0), backlog=4096)
        self.port = int(self.listener.getsockname()[1])
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def serve(self) -> None:
        while True:
            connection, _ = self.listener.accept()
            with connection:
                connection.sendall(b"SSH-2.0-test\r\n")
                if connection.getsockname()[0] == "127.0.0.250":
                    return

    def close(self) -> None:
        socket.create_connection(("127.0.0.250", self.port), 30).close()
        self.thread.join()
        self.listener.close()


@pytest.fixture
def many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 4096:
        pytest.skip("too few descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.alone  # a thousand threads beside others' jobs once took more than 300 s
def test_a_thousand_machines_at_once(tmp_path: Path, many_files: None) -> None:
    """Every one gets in, under an address of its own.

    On a busy machine, a thousand threads may be late with a proof or a sign of life: they try again.
    """
    count, patience = 1000, 900.0
    greeter = Greeter()
    try:
        with Head(tmp_path, str(count), "--json", "--timeout", str(patience)) as head:
            machines = [
                Machine(
                    head.port,
                    timeout=patience,
                    name=f"m{n}",
                    addresses=[f"127.0.{1 + n // 200}.{1 + n % 200}"],
                    port=greeter.port,
                )
                for n in range(count)
            ]
            ends = [each.finish(patience) for each in machines]
            code, out, err = head.finish()
    finally:
        greeter.close()
    assert code == 0, err
    data = json.loads(out)
    assert [host["hostname"] for host in data["hosts"]] == [f"m{n}" for n in range(count)]  # m2 before m10
    assert {*data["gathered"]["turned_away"]} <= {"slow", "crowded", "again"}
    deaf = {host["name"] for host, end in zip(data["hosts"], ends, strict=True) if not isinstance(end, dict)}
    assert deaf <= {*data["gathered"]["unheard"]}, [end for end in ends if not isinstance(end, dict)][:3]
