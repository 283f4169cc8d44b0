"""Machines of the test cluster register themselves: across a real network, with ssh servers of their own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.support import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(280)]

MUSTER = [sys.executable, "-m", "muster"]
PATIENCE = 120.0


class Started:
    """A command on this machine or on a host, with its lines as they come. A context manager."""

    def __init__(self, argv: list[str], **environment: str) -> None:
        self.process = subprocess.Popen(
            argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}
        )
        self.lines: list[str] = []
        self.reader = threading.Thread(target=self._read)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))

    def says(self, words: str) -> None:
        found = wait_until(lambda: any(words in line for line in self.lines) or self.ended(), PATIENCE)
        assert found and any(words in line for line in self.lines), self.lines

    def ended(self) -> bool:
        return self.process.poll() is not None

    def finish(self) -> tuple[int, str]:
        assert self.process.stdout is not None
        out = self.process.stdout.read()
        self.process.wait(PATIENCE)
        self.reader.join()
        return self.process.returncode, out

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.ended():
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.reader.join(20)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


def on(cluster: Cluster, node: str, *argv: str) -> list[str]:
    """`argv` on a host over ssh: it ends there with the connection."""
    return cluster.ssh_argv(node, ["env", f"PYTHONPATH={Path.cwd() / 'src'}", *argv])


def gathering(token: Path, *arguments: str) -> Started:
    """The head, on this machine, which the hosts reach at their bridge."""
    return Started([*MUSTER, "gather", *arguments, "--token-file", str(token)])


def address_of(head: Started, cluster: Cluster) -> str:
    """HEAD:PORT from the printed command, as a person would copy it: all of this machine's addresses."""
    head.says("join.py:")
    line = next(line for line in head.lines if "muster join" in line)
    at = line.split("muster join ")[1].split()[0].strip("'")
    assert cluster.hosts[0].address.rpartition(".")[0] + ".1" in at  # the bridge is among them
    return at


@contextmanager
def wire(link: str) -> Iterator[bytearray]:
    """Every byte of every frame that passes a link."""
    seen = bytearray()
    stop = threading.Event()
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as raw:
        raw.bind((link, 0))
        raw.settimeout(0.2)

        def listen() -> None:
            while not stop.is_set():
                try:
                    seen.extend(raw.recv(65536))
                except TimeoutError:
                    pass

        thread = threading.Thread(target=listen)
        thread.start()
        try:
            yield seen
        finally:
            stop.set()
            thread.join()


def test_three_hosts_become_a_hostfile(cluster: Cluster, tmp_path: Path) -> None:
    """By the command, by the script alone, and with another token; then a dry run over what came of it."""
    token, script = tmp_path / "token", tmp_path / "join.py"
    script.write_text(subprocess.check_output([*MUSTER, "join", "--script"], text=True))
    file = tmp_path / "hostfile"
    with (
        gathering(token, "3", "--output", str(file), "--json") as head,
        wire(cluster.node("node1").link) as seen,
    ):
        at = address_of(head, cluster)
        with_token = ["--token-file", str(token)]
        with (
            Started(on(cluster, "node1", *MUSTER, "join", at, *with_token, "--slots", "2")) as one,
            Started(on(cluster, "node2", sys.executable, "-I", str(script), at, *with_token)) as two,
        ):
            head.says("2 of 3")
            other = tmp_path / "other"
            other.write_text("not the token of this gather\n")
            with Started(on(cluster, "node3", *MUSTER, "join", at, "--token-file", str(other))) as wrong:
                assert wrong.finish()[0] == 2
                assert "error: " + at + ": the head has a different token" in wrong.lines
            with Started(on(cluster, "node3", *MUSTER, "join", at, *with_token, "--json")) as three:
                ended = [each.finish() for each in (one, two, three)]
        code, out = head.finish()
    assert [code for code, _ in ended] == [0, 0, 0], (one.lines, two.lines, three.lines)
    assert code == 0, head.lines
    expected = [node.address for node in cluster.hosts]
    assert json.loads(ended[2][1]) == {"name": expected[2], "members": 3}
    data = json.loads(out)
    assert [(host["name"], host["slots"]) for host in data["hosts"]] == list(
        zip(expected, (2, 1, 1), strict=True)
    )
    assert data["gathered"]["refused"] == {"wrong secret": 1}
    assert file.read_text() == f"{expected[0]} slots=2\n{expected[1]} slots=1\n{expected[2]} slots=1\n"

    secret = token.read_text().strip().encode()
    assert b"muster1 " in seen  # the handshake did pass here
    for form in (secret, secret.hex().encode(), bytes.fromhex(secret.decode())):
        assert form not in seen

    done = subprocess.run(
        [*MUSTER, "train", "demo", "--hosts", str(file), "--dry-run", "--json", "launch.device=cpu",
         f"launch.ssh_options=[-F, {cluster.ssh_config}]"],
        capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert all(address in done.stdout for address in expected)


def test_a_head_on_one_of_the_hosts(cluster: Cluster, tmp_path: Path) -> None:
    """It is a member itself: the others must be able to use its address, so loopback is not it."""
    token = tmp_path / "token"
    gather = ["gather", "2", "--port", "7077", "--token-file", str(token), "--json"]
    with Started(on(cluster, "node1", *MUSTER, *gather)) as head:
        head.says("join.py:")
        with (
            Started(
                on(cluster, "node1", *MUSTER, "join", "127.0.0.1:7077", "--token-file", str(token))
            ) as own,
            Started(on(cluster, "node2", *MUSTER, "join", "node1:7077", "--token-file", str(token))) as other,
        ):
            assert [own.finish()[0], other.finish()[0]] == [0, 0], (own.lines, other.lines)
        code, out = head.finish()
    assert code == 0
    assert [host["name"] for host in json.loads(out)["hosts"]] == [node.address for node in cluster.hosts[:2]]


def test_a_host_that_falls_silent_does_not_count_until_it_is_back(whole: Cluster, tmp_path: Path) -> None:
    with gathering(tmp_path / "token", "3", "--json") as head:
        at = address_of(head, whole)
        join = [*MUSTER, "join", at, "--token-file", str(tmp_path / "token")]
        # not over ssh, whose own connection would be cut
        entered = ["nsenter", f"--net=/proc/{whole.init_pid('node3')}/ns/net", *join]
        with Started(entered) as three:
            head.says("1 of 3")
            with Started(on(whole, "node1", *join)) as one:
                head.says("2 of 3")
                whole.cut("node3")
                assert wait_until(lambda: head.lines[-1].startswith("1 of 3"), PATIENCE)
                whole.mend("node3")
                with Started(on(whole, "node2", *join)) as two:
                    ended = [each.finish()[0] for each in (one, two, three)]
        code, out = head.finish()
    assert ended == [0, 0, 0], (one.lines, two.lines, three.lines)
    assert code == 0
    data = json.loads(out)
    assert {host["name"] for host in data["hosts"]} == {node.address for node in whole.hosts}
    assert data["gathered"]["lost"] >= 1
