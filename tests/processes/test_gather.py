"""`muster gather` and `muster join` over loopback: the real commands."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.agent import member
from muster.core.inventory import read_inventory
from tests.ports import free_port
from tests.support import wait_until

TOKEN = "0123456789abcdef-of-the-tests"
HERE = "127.0.0.1"
WITH_TOKEN = {**os.environ, "MUSTER_JOIN_TOKEN": TOKEN}


class Head:
    """`muster gather` in a process of its own. A context manager: what is left of it is ended by id."""

    def __init__(self, folder: Path, *arguments: str, port: int = 0) -> None:
        self.port = port or free_port()
        argv = [sys.executable, "-m", "muster", "gather", *arguments]
        self.process = subprocess.Popen(
            [*argv, "--port", str(self.port), "--address", HERE],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
            env=WITH_TOKEN,
        )

    def __enter__(self) -> Head:
        self.until("join.py:")
        return self

    def until(self, words: str) -> None:
        """Read its messages until one has these words."""
        assert self.process.stderr is not None
        while words not in (line := self.process.stderr.readline()):
            assert line, self.process.wait(30)

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def finish(self, seconds: float = 90) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=seconds)
        return self.process.returncode, out, err


class Machine:
    """A member in a thread, called `name`, which is reached at an address of its own."""

    def __init__(
        self,
        head: Head | int,
        name: str,
        address: str = "",
        *,
        token: str = TOKEN,
        timeout: float = 90,
        slots: int = 1,
    ) -> None:
        self.messages: list[str] = []
        self.end: dict[str, Any] | Exception | None = None
        port = head if isinstance(head, int) else head.port
        facts = {"name": name, "wants": "join", "address": address or f"{name}.example", "slots": slots}

        def run() -> None:
            try:
                self.end = member.join([HERE], port, token, facts, timeout, self.messages.append)
            except Exception as error:
                self.end = error

        self.thread = threading.Thread(target=run)
        self.thread.start()

    def finish(self, seconds: float = 120) -> dict[str, Any] | Exception | None:
        self.thread.join(seconds)
        assert not self.thread.is_alive()
        return self.end


def test_three_machines_become_a_hostfile(tmp_path: Path) -> None:
    with Head(tmp_path, "3", "--output", "hostfile", "--json") as head:
        machines = [Machine(head, f"m{last}", f"10.0.0.{last}", slots=last) for last in (10, 2, 3)]
        assert [each.finish() for each in machines] == [
            {"name": f"10.0.0.{last}", "members": 3} for last in (10, 2, 3)
        ]
        code, out, err = head.finish()
    assert code == 0, err
    assert TOKEN not in err
    expected = [("10.0.0.2", 2), ("10.0.0.3", 3), ("10.0.0.10", 10)]  # m2 before m10
    (tmp_path / "hosts.json").write_text(out)
    for name in ("hosts.json", "hostfile"):
        hosts = read_inventory(str(tmp_path / name)).hosts
        assert [(host.name, host.slots) for host in hosts] == expected
    assert json.loads(out)["gathered"] == {"wanted": 3, "refused": {}, "lost": 0}


def test_the_commands_as_one_types_them(tmp_path: Path) -> None:
    """`muster join`, and the script under the oldest Python that is here, with nothing of Muster around."""
    script = subprocess.check_output([sys.executable, "-m", "muster", "join", "--script"], text=True)
    (tmp_path / "join.py").write_text(script)
    old = Path("~/.pyenv/versions/3.8.18/bin/python3.8").expanduser()
    python = str(old) if old.exists() else sys.executable
    (tmp_path / "token").write_text(TOKEN + "\n")
    common = ["--slots", "2", "--timeout", "90", "--token-file", str(tmp_path / "token")]
    with Head(tmp_path, "2") as head:
        at = f"{HERE}:{head.port}"
        commands = [
            [sys.executable, "-m", "muster", "join", at, *common, "--json", "--address", "10.0.0.2"],
            [python, "-I", str(tmp_path / "join.py"), at, *common, "--address", "10.0.0.3"],
        ]
        pipe = subprocess.PIPE
        members = [subprocess.Popen(each, stdout=pipe, stderr=pipe, text=True) for each in commands]
        first, second = [each.communicate(timeout=120) for each in members]
        code, out, err = head.finish()
    assert [each.returncode for each in members] == [0, 0], (first, second)
    assert json.loads(first[0]) == {"name": "10.0.0.2", "members": 2}
    assert second[1].splitlines()[-1] == "registered as 10.0.0.3, one of 2"
    assert (code, out) == (0, "10.0.0.2 slots=2\n10.0.0.3 slots=2\n"), err


def test_a_machine_may_be_there_before_the_head(tmp_path: Path) -> None:
    port = free_port()
    early = Machine(port, "m2")
    assert wait_until(lambda: early.messages, 60)
    with Head(tmp_path, "1", port=port) as head:
        assert early.finish() == {"name": "m2.example", "members": 1}
        assert head.finish()[0] == 0


def test_the_later_of_two_joins_of_one_machine_counts(tmp_path: Path) -> None:
    with Head(tmp_path, "2", "--json") as head:
        first = Machine(head, "m2")
        head.until("1 of 2")
        second = Machine(head, "M2", slots=7)  # case means nothing in a name
        assert isinstance(first.finish(), member.Rejected)
        other = Machine(head, "m3")
        assert isinstance(second.finish(), dict) and isinstance(other.finish(), dict)
        code, out, _ = head.finish()
    data = json.loads(out)
    assert code == 0
    assert [(host["name"], host["slots"]) for host in data["hosts"]] == [("M2.example", 7), ("m3.example", 1)]
    assert data["gathered"] == {"wanted": 2, "refused": {"again": 1}, "lost": 0}


def test_wrong_tokens_and_garbage_are_counted(tmp_path: Path) -> None:
    with Head(tmp_path, "1", "--json") as head:
        wrong = Machine(head, "m2", token="another token, as long")
        assert isinstance(wrong.finish(), member.Rejected) and wrong.end.wrong_token  # type: ignore[union-attr]
        with socket.create_connection((HERE, head.port), 30) as noise:
            noise.sendall(b"GET / HTTP/1.0\r\n\r\n")
            while noise.recv(100):
                pass
        odd = Machine(head, "-oProxyCommand=x", "m")
        assert isinstance(odd.finish(), member.Rejected) and "not a host name" in str(odd.end)
        good = Machine(head, "m2")
        assert isinstance(good.finish(), dict)
        code, out, _ = head.finish()
        late = Machine(head, "m3", timeout=0.5)
        assert isinstance(late.finish(), member.Unreachable)
    assert code == 0
    refused = {"wrong secret": 1, "garbage": 1, "not understood": 1}
    assert json.loads(out)["gathered"]["refused"] == refused


def test_one_who_leaves_does_not_count(tmp_path: Path) -> None:
    with Head(tmp_path, "2", "--json") as head:
        facts = {"name": "gone", "wants": "join", "address": "", "slots": 1}
        connection, _ = member.claim(HERE, head.port, TOKEN, facts, 30)
        head.until("1 of 2")
        connection.close()
        machines = [Machine(head, f"m{last}") for last in (2, 3)]
        assert all(isinstance(each.finish(), dict) for each in machines)
        code, out, _ = head.finish()
    assert code == 0
    assert [host["name"] for host in json.loads(out)["hosts"]] == ["m2.example", "m3.example"]
    assert json.loads(out)["gathered"]["lost"] == 1


@pytest.mark.parametrize("how", ["timeout", "Ctrl-C", "SIGTERM"])
def test_too_few_leave_nothing_behind(tmp_path: Path, how: str) -> None:
    seconds = "3" if how == "timeout" else "600"
    with Head(tmp_path, "3", "--timeout", seconds, "--output", "hostfile", "--json") as head:
        early = Machine(head, "early")
        head.until("1 of 3")
        if how != "timeout":
            head.process.send_signal(signal.SIGINT if how == "Ctrl-C" else signal.SIGTERM)
        assert isinstance(early.finish(), member.Rejected)
        code, out, err = head.finish()
    assert code == 1
    assert "1 of 3 machines are there (early); nothing was written" in err
    assert json.loads(out)["error"]["message"] in err
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_a_head_that_is_killed_does_not_keep_its_members(tmp_path: Path) -> None:
    with Head(tmp_path, "2") as head:
        one = Machine(head, "m2", timeout=8)
        head.until("1 of 2")
        head.process.kill()
        assert isinstance(one.finish(), member.Unreachable)
        assert one.messages


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


@pytest.fixture
def many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 4096:
        pytest.skip("too few descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.timeout(1000)  # a thousand threads beside others' jobs once took more than 300 s
def test_a_thousand_machines_at_once(tmp_path: Path, many_files: None) -> None:
    """Every one gets in. On a busy machine a thread may be late with its proof: it tries again."""
    count, patience = 1000, 900.0
    with Head(tmp_path, str(count), "--output", "hostfile", "--timeout", str(patience)) as head:
        assert head.process.stderr is not None
        reader = threading.Thread(target=head.process.stderr.read)
        reader.start()
        machines = [Machine(head, f"m{n}", timeout=patience) for n in range(count)]
        ends = [each.finish(patience) for each in machines]
        assert head.process.wait(patience) == 0
        reader.join()
    assert all(isinstance(end, dict) for end in ends), [end for end in ends if not isinstance(end, dict)][:3]
    names = [line.split()[0] for line in (tmp_path / "hostfile").read_text().splitlines()]
    assert names == [f"m{n}.example" for n in range(count)]
