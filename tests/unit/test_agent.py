"""The agent's parts that need no job: old interpreters, growing files, families of processes, sockets."""

from __future__ import annotations

import ast
import binascii
import errno
import hashlib
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from muster import progress
from muster.agent import agent, ending, files, gpu, host, proc, talk
from muster.agent.agent import Agent
from muster.agent.ending import family
from muster.agent.files import Brought, Tail
from muster.agent.host import PACKAGES, find_python, hold_port, interface_of, source_address
from muster.agent.proc import proc_table
from muster.agent.ranks import Ranks
from muster.agent.talk import Channel, Problem
from muster.fleet.launchers.base import agent_argv, agent_source
from tests.support import wait_until
from tests.unit.test_checks_probes import old_pythons

PARTS = [path for path in sorted(Path(agent.__file__).parent.glob("*.py")) if path.stem != "__init__"]
LATER = {"removeprefix", "removesuffix", "pairwise", "is_relative_to", "hardlink_to"}  # than Python 3.8
NO_ADDRESS = "203.0.113.7"  # TEST-NET-3: nobody has it


# --- the text --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.stem)
def test_the_text_is_python_38(part: Path) -> None:
    """Parsed with 3.8's grammar; nothing that its library has not, as far as names tell."""
    tree = ast.parse(part.read_text(encoding="utf-8"), feature_version=(3, 8))
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not used & LATER
    keywords = {
        (ast.unparse(node.func), keyword.arg)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        for keyword in node.keywords
    }
    assert ("zip", "strict") not in keywords


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.stem)
def test_the_text_imports_the_standard_library_alone(part: Path) -> None:
    """And the package's own modules, by names that hold wherever it is."""
    imported = set()
    for node in ast.walk(ast.parse(part.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                assert (node.level, node.module) in {(1, each.stem) for each in PARTS}
                continue
            imported.add((node.module or "").partition(".")[0])
    assert "os" in imported
    of_the_rank = {"torch"} if part.stem == "inside" else set()  # that runs in it
    assert imported - of_the_rank <= sys.stdlib_module_names


@pytest.mark.parametrize("python", [sys.executable, *old_pythons()])
def test_what_is_sent_runs_on_old_pythons(python: str) -> None:
    """As text where they are not of this one's version; the agent ends when its input closes."""
    done = subprocess.run(agent_argv(python, "job"), input=agent_source(), capture_output=True, timeout=60)
    said = [json.loads(line) for line in done.stdout.splitlines() if line]
    assert [(each["m"], each.get("why")) for each in said if each["m"] != "beat"] == [
        ("exit", "input closed")
    ]
    assert (done.returncode, done.stderr) == (1, b"")


# --- Tail ------------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "growing"


def append(file: Path, data: bytes) -> None:
    with file.open("ab") as opened:
        opened.write(data)


@pytest.mark.parametrize("kind", ["event", "log"])
def test_tail_gives_whole_lines_once(file: Path, kind: str) -> None:
    tail = Tail(str(file), kind, 0)
    assert tail.read() == []  # not there yet
    append(file, b'{"a": 1}\n{"b"')
    assert tail.read() == ['{"a": 1}']
    assert tail.read() == []
    append(file, b": 2}\n")
    assert tail.read() == ['{"b": 2}']
    assert tail.read(final=True) == []


def test_tail_takes_an_unfinished_log_line_at_the_end_only(file: Path) -> None:
    append(file, b"done\nTraceb")
    tail = Tail(str(file), "log", 0)
    assert tail.read() == ["done"]
    assert tail.read() == []
    assert tail.read(final=True) == ["Traceb"]


def test_tail_gives_a_progress_bar_as_it_grows(file: Path) -> None:
    """A bar ends its lines with CR alone; CRLF is one end, wherever a read stops."""
    tail = Tail(str(file), "log", 0)
    append(file, b"\r 10%\r 20%\r")
    assert tail.read() == ["", " 10%"]
    append(file, b" 30%")
    assert tail.read() == [" 20%"]
    append(file, b"\rdone\r")
    assert tail.read() == [" 30%"]
    append(file, b"\nnext\r\n")
    assert tail.read() == ["done", "next"]


def test_tail_never_gives_half_an_event(file: Path) -> None:
    append(file, b'{"kind": "don')
    assert Tail(str(file), "event", 0).read(final=True) == []


def test_tail_splits_events_at_newlines_alone(file: Path) -> None:
    line = '{"a": "x\u2028y\u0085z\x0c"}'
    append(file, (line + "\n" + line + "\n").encode())
    assert Tail(str(file), "event", 0).read() == [line, line]


def test_tail_keeps_a_character_that_is_written_in_two_parts(file: Path) -> None:
    tail = Tail(str(file), "event", 0)
    whole = '"é"\n'.encode()
    append(file, whole[:2])
    assert tail.read() == []
    append(file, whole[2:])
    assert tail.read() == ['"é"']


def test_tail_reads_a_long_event_whole_and_a_long_log_line_in_parts(file: Path) -> None:
    text = "x" * 1000
    append(file, text.encode() + b"\nnext\n")
    event, log = Tail(str(file), "event", 0), Tail(str(file), "log", 0)
    lines = []
    while more := event.read(limit=100):
        lines += more
    assert lines == [text, "next"]
    parts = []
    while more := log.read(limit=100):
        parts += more
    assert "".join(parts) == text + "next"
    assert parts[-1] == "next"


# --- families of processes -------------------------------------------------------------------------------

# A child that starts a grandchild in a session of its own and leaves: an orphan that is nobody's descendant.
ORPHAN = (
    "import subprocess, sys\n"
    "argv = [sys.executable, '-c', 'import time; time.sleep(120)']\n"
    "none = subprocess.DEVNULL\n"
    "child = subprocess.Popen(argv, start_new_session=True, stdout=none, stderr=none)\n"
    "print(child.pid, flush=True)\n"
)


@pytest.fixture
def orphans() -> Iterator[dict[str, int]]:
    """Orphaned grandchildren by their tokens; ended afterwards, by their ids."""
    pids = {}
    for token in ("job-1", "job-10"):  # one is the other's beginning
        done = subprocess.run(
            [sys.executable, "-c", ORPHAN],
            env={**os.environ, "MUSTER_TOKEN": token},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        pids[token] = int(done.stdout)
    yield pids
    for pid in pids.values():
        os.kill(pid, signal.SIGKILL)


def test_family_finds_an_orphan_by_its_token_and_no_other_jobs(orphans: dict[str, int]) -> None:
    assert wait_until(lambda: all(proc_table().get(pid) != os.getpid() for pid in orphans.values()), 5)
    for token, pid in orphans.items():  # exec may still be on its way
        assert wait_until(lambda token=token, pid=pid: pid in family(token), 10)
    found = family("job-1")
    assert orphans["job-10"] not in found
    assert os.getpid() not in found
    assert os.getppid() not in found
    assert family("job-10") & set(orphans.values()) == {orphans["job-10"]}


@pytest.mark.parametrize(
    ("then", "now", "found"),
    [
        ((500, 1000), (900, 1400), {600, 900, 30001}),
        ((30000, 1000), (600, 3400), {20, 500, 600, 30001}),  # the numbers began anew
        ((500, 1000), (900, 17400), {20, 500, 600, 900, 30001}),  # they may have gone round
        ((0, 1000), (0, 1400), {20, 500, 600, 900, 30001}),  # this kernel does not say
        ((500, 0), (900, 0), {20, 500, 600, 900, 30001}),
    ],
)
def test_what_has_begun_since(
    then: tuple[int, int], now: tuple[int, int], found: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def tell(last: int, forks: int) -> None:
        told = {"stat": b"cpu 1 2\nprocesses %d\n" % forks, "sys/kernel/pid_max": b"32768\n"}
        told["sys/kernel/ns_last_pid"] = b"%d\n" % last if last else b""
        monkeypatch.setattr(ending, "from_proc", told.__getitem__)

    monkeypatch.setattr(ending, "process_ids", lambda: {20, 500, 600, 900, 30001})
    tell(*then)
    births = ending.Births()
    tell(*now)
    assert births.since() == found


# An agent whose rank ignores SIGTERM, as one does that hangs in a driver's call; it ends its descendants.
DEAF = """
import json, os, signal, subprocess, sys, time
from muster.agent import ending, ranks, talk
ending.GRACE = 0.3
code = "import signal as s, time; s.signal(s.SIGTERM, s.SIG_IGN); print(flush=True); time.sleep(120)"
rank = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
rank.stdout.readline()
host = ranks.Ranks(talk.Channel(), {"token": "a job of this test's own"})
host.processes, host.channel.mute = {0: rank}, True
began = time.monotonic()
try:
    host.end()
    print(json.dumps([rank.poll(), time.monotonic() - began]))
finally:
    rank.kill()
"""


def test_a_rank_that_ignores_sigterm_is_killed_and_not_before_its_time() -> None:
    done = subprocess.run([sys.executable, "-c", DEAF], stdout=subprocess.PIPE, text=True, timeout=60)
    code, seconds = json.loads(done.stdout)
    assert code == -signal.SIGKILL and seconds >= 0.3


def test_family_holds_descendants_without_the_token() -> None:
    """Also a child that cleared its environment belongs to it, and so does that child's child."""
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(120)'])"
    with subprocess.Popen([sys.executable, "-c", code], env={}) as child:
        try:
            assert wait_until(lambda: child.pid in proc_table().values(), 10)
            grandchild = next(pid for pid, parent in proc_table().items() if parent == child.pid)
            assert {child.pid, grandchild} <= family("a token that nobody carries")
            os.kill(grandchild, signal.SIGKILL)
        finally:
            child.kill()
    assert child.pid not in family("a token that nobody carries")


# --- addresses and ports ---------------------------------------------------------------------------------


def test_loopback() -> None:
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of(NO_ADDRESS) is None
    assert source_address("127.0.0.1", 29500) == "127.0.0.1"


def test_a_rendezvous_that_no_name_server_knows_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def answers(name: str, *rest: object, **named: object) -> list[object]:
        asked.append(name)
        if name == "slow.example" and len(asked) > 1:
            return [(socket.AF_INET, socket.SOCK_DGRAM, 0, "", ("10.0.0.1", 1))]
        raise socket.gaierror("unknown")

    monkeypatch.setattr(socket, "getaddrinfo", answers)
    monkeypatch.setattr(host.time, "sleep", lambda seconds: None)
    host.check_address("slow.example", 1)
    with pytest.raises(Problem) as error:
        host.check_address("nosuch.invalid", 1)
    assert "nosuch.invalid" in str(error.value) and "launch.address" in str(error.value)


def test_a_name_that_does_not_resolve_has_no_source_address(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror("unknown")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert source_address("nowhere.invalid", 29500) is None


def test_a_taken_port_is_refused() -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen(1)
        port = taken.getsockname()[1]
        with pytest.raises(Problem, match=f"port {port} cannot be used: Address already in use") as caught:
            hold_port(port)
    assert caught.value.hint == "leave launch.port out: a free one is found"
    assert caught.value.failure == "port_in_use"


def test_a_held_port_is_nobody_elses() -> None:
    with hold_port(0) as first:
        port = first.getsockname()[1]
        assert 0 < port < 65536
        with pytest.raises(Problem, match=f"port {port} cannot be used"):
            hold_port(port)
        with hold_port(0) as second:
            assert second.getsockname()[1] != port


def test_a_kernel_without_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused by the kernel, though Python says that there is IPv6: the port is held over IPv4."""
    real = socket.socket

    def refuse(family: int = socket.AF_INET, *rest: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        return real(family, *rest)

    monkeypatch.setattr(host.socket, "socket", refuse)
    with hold_port(0) as holder:
        assert holder.getsockname()[1] > 0 and holder.family == socket.AF_INET


# --- what is forwarded, and what ranks see ---------------------------------------------------------------


def test_a_chatty_rank_starves_nobody(tmp_path: Path) -> None:
    """However much one log holds, every rank's events go out at once, and every log gets its turn."""
    channel = Channel()
    host = Ranks(channel, {})
    for rank in (0, 1):
        (tmp_path / f"{rank}.events").write_text('{"kind": "done"}\n')
        (tmp_path / f"{rank}.log").write_text("x" * 1000 + "\n")
        host.tails.append(Tail(str(tmp_path / f"{rank}.events"), "event", rank))
        host.logs.append(Tail(str(tmp_path / f"{rank}.log"), "log", rank))
    (tmp_path / "0.log").write_text(("y" * 99 + "\n") * 100_000)  # far more than may wait to be sent
    assert host.read_tails()
    messages = [json.loads(line) for line in channel.outbox]
    assert [(m["m"], m["rank"]) for m in messages[:2]] == [("event", 0), ("event", 1)]
    assert {m["rank"] for m in messages if m["m"] == "log"} == {0, 1}
    while (
        channel.out_bytes
    ):  # the other side takes it slowly; the next events still come before the rest of the log
        channel.outbox.clear()
        channel.out_bytes = 0
    (tmp_path / "1.events").open("a").write('{"kind": "late"}\n')
    host.read_tails()
    assert json.loads(channel.outbox[0])["lines"] == ['{"kind": "late"}']


def test_nobodys_variables_replace_the_jobs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shipped code stays first and the token stays the job's, whatever recipe and host say."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,7")
    mine = {"PYTHONPATH": "/home/me/src", "MUSTER_TOKEN": "other", "NCCL_DEBUG": "INFO"}
    spec: dict[str, object] = {"threads": 3, "device": "cuda", "token": "job.1", "env": mine}
    spec["visible_gpus"] = [1]
    host = Ranks(Channel(), spec)
    env = host.environment("/place", "/place/code.zip", {"address": "127.0.0.1", "port": 1})
    assert env["PYTHONPATH"] == "/place/code.zip:/home/me/src"
    assert (env["MUSTER_TOKEN"], env["MUSTER_SPEC"]) == ("job.1", "/place/spec.json")
    assert (env["NCCL_DEBUG"], env["OMP_NUM_THREADS"]) == ("INFO", "3")
    assert env["CUDA_VISIBLE_DEVICES"] == "7"  # the second of those that are ours to use
    spec |= {"device": "cpu", "visible_gpus": None}
    env = host.environment("/place", "/place/code.zip", {"address": "127.0.0.1", "port": 1})
    hidden = [env[f"{maker}_VISIBLE_DEVICES"] for maker in ("CUDA", "HIP", "ROCR")]
    assert hidden == [""] * 3 and env["DS_ACCELERATOR"] == "cpu"
    assert gpu.gpu_mask() == ["6", "7"]  # the agent itself samples them as before
    spec |= {"env": {"CUDA_VISIBLE_DEVICES": "6"}}
    env = host.environment("/place", "/place/code.zip", {"address": "127.0.0.1", "port": 1})
    assert (env["CUDA_VISIBLE_DEVICES"], env["HIP_VISIBLE_DEVICES"]) == ("6", "")


@pytest.mark.parametrize(
    ("code", "why", "free", "told"),
    [
        (1, None, 4096, True),
        (None, "stopped", 4096, True),
        (1, None, 1 << 30, False),
        (0, None, 4096, False),
        (None, "parent gone", 4096, False),
    ],
)
def test_a_full_disk_is_told_by_the_agent(
    code: int | None, why: str | None, free: int, told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ranks had no room for their last words, and the agent's need none."""
    monkeypatch.setattr(talk.os, "set_blocking", lambda *_: None)
    monkeypatch.setattr(agent.signal, "signal", lambda *_: None)
    monkeypatch.setattr(agent.signal, "set_wakeup_fd", lambda *_, **__: None)
    monkeypatch.setattr(agent, "adopt_orphans", lambda: None)
    monkeypatch.setattr(agent, "free_bytes", lambda folder: free)
    host = Agent()
    host.base = str(tmp_path)
    host.ranks.processes = {3: Mock(**{"poll.return_value": code, "pid": 4711})}
    monkeypatch.setattr(host, "turn", lambda: setattr(host, "why", why))
    monkeypatch.setattr(host.ranks, "end", lambda: None)
    monkeypatch.setattr(host.channel, "send_all", lambda seconds: None)
    host.run()
    said = [json.loads(line) for line in host.channel.outbox if line.strip()]
    assert said[-1].pop("kernel").keys() == {"group", "machine", "log"}
    first = {"rank": 3, "pid": 4711} if code else {"rank": None, "pid": None}
    assert said[-1] == {"m": "exit", "code": code, "why": why, **first}
    assert [each["what"] for each in said[:-1]] == (
        [f"the disk is full: {free} bytes are free for {tmp_path}"] if told else []
    )


def test_files_that_came_in_part_do_not_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that ends while its files are brought leaves whole contents alone, for the next one."""
    for name in ("set_blocking", "write"):
        monkeypatch.setattr(agent.os, name, lambda *_: 0)
    monkeypatch.setattr(agent.signal, "signal", lambda *_: None)
    monkeypatch.setattr(agent.signal, "set_wakeup_fd", lambda *_, **__: None)
    monkeypatch.setattr(agent, "adopt_orphans", lambda: None)
    host = Agent()
    base, kept = tmp_path / "job", tmp_path / "code"
    host.base, host.spec = str(base), {"scratch": True, "token": "t"}
    host.ranks = Ranks(host.channel, host.spec, host.base)
    host.brought = Brought(host.channel, str(base), "t", str(kept))
    host.brought.tree = {"files": [["one", 0o644, "d1", 4], ["two", 0o644, "d2", 4]]}
    host.brought.lacks = {"d1", "d2"}
    for place in (kept, base / "code"):
        place.mkdir(parents=True)
    host.brought.blob({"digest": "d1", "data": "b25l", "last": True})
    host.brought.blob({"digest": "d2", "data": "b25l", "last": False})
    assert {each.name for each in kept.iterdir()} == {"d1", "d1.t", "d2.t"}
    monkeypatch.setattr(host, "turn", lambda: setattr(host, "why", "stopped"))
    monkeypatch.setattr(host.channel, "send_all", lambda seconds: None)
    host.run()
    assert [*kept.iterdir()] == [kept / "d1"] and not base.exists()


@pytest.mark.parametrize("links", [True, False])
def test_a_content_that_another_command_has_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    """As the end of one `muster prepare` does while another's files are on their way: those that were there,
    and those that came, are this job's own until they are written."""
    if not links:
        monkeypatch.setattr(os, "link", Mock(side_effect=PermissionError))
    kept, digest = tmp_path / "code", hashlib.sha256(b"here").hexdigest()
    other = hashlib.sha256(b"sent").hexdigest()
    kept.mkdir()
    (kept / digest).write_bytes(b"here")
    channel = Mock()
    brought = Brought(channel, str(tmp_path / "job"), "t", str(kept))
    brought.in_thread = lambda work: None  # type: ignore[method-assign]
    brought.tree = {"files": [["a/one", 0o644, digest, 4], ["two", 0o644, digest, 4], ["b", 0o644, other, 4]]}
    assert brought.has(digest) and not brought.has(other)
    brought.lacks = {other}
    brought.blob({"digest": other, "data": binascii.b2a_base64(b"sent").decode(), "last": True})
    assert (kept / other).read_bytes() == b"sent"
    (kept / digest).unlink()
    (kept / other).unlink()
    if not links:
        with pytest.raises(Problem, match="another command") as gone:
            brought.assemble()
        assert gone.value.hint
        return
    brought.assemble()
    channel.post.assert_called_once_with("brought")
    code = tmp_path / "job" / "code"
    assert [(code / name).read_bytes() for name in ("a/one", "two", "b")] == [b"here", b"here", b"sent"]
    assert [*kept.iterdir()] == []


@pytest.mark.parametrize(
    ("codes", "code", "first"),
    [
        ({0: None, 1: None}, None, None),
        ({0: 0, 1: None}, None, None),
        ({0: 0, 1: 0}, 0, None),
        ({0: None, 1: 3}, 3, 1),
        ({0: 1, 1: -9}, -9, 1),  # the first one ended because it missed the other
        ({0: -15, 1: 1}, 1, 1),  # told to end, as a scheduler tells all
        ({0: -15, 1: -6}, -6, 1),
        ({0: 2, 1: 1}, 2, 0),
    ],
)
def test_which_rank_ended_first(codes: dict[int, int | None], code: int | None, first: int | None) -> None:
    host = Ranks(Channel(), {})
    host.processes = {rank: Mock(**{"poll.return_value": each}) for rank, each in codes.items()}
    assert host.result() == code
    bad = {rank: each for rank, each in host.ended.items() if each}
    assert (host.first_of(bad) if bad else None) == first


def test_ranks_that_end_each_by_itself(tmp_path: Path) -> None:
    """None of them ends the others; how it ended stands after its own last words."""
    host = Ranks(Channel(), {"apart": True})
    host.place = str(tmp_path)
    (tmp_path / "rank1.events.jsonl").write_text('{"kind": "begin"}\n{"kind": "en')
    codes: dict[int, int | None] = {0: None, 1: -9}
    host.processes = {rank: Mock(**{"poll.side_effect": lambda rank=rank: codes[rank]}) for rank in codes}
    assert host.result() is None and host.result() is None
    *_, torn, last = (tmp_path / "rank1.events.jsonl").read_text().splitlines()
    told = json.loads(last)
    assert torn == '{"kind": "en' and (told["kind"], told["rank"], told["code"]) == ("ended", 1, -9)
    codes[0] = 0
    assert host.result() == 0 and not (tmp_path / "rank0.events.jsonl").exists()


def test_ranks_get_torchruns_variables_and_the_first_one_the_port() -> None:
    host = Ranks(Channel(), {"world_size": 5, "node_rank": 0, "ranks": [0, 1]})
    with hold_port(0) as held:
        host.port_holder, port = held, held.getsockname()[1]
        order = {"address": "10.0.0.1", "port": port}
        first, files = host.one_of({"A": "b"}, 0, 0, order)
        second, none = host.one_of({"A": "b"}, 1, 1, order)
        assert files == [held.fileno()] and none == []
        assert first.pop("MUSTER_RENDEZVOUS") == str(held.fileno()) and "MUSTER_RENDEZVOUS" not in second
    shared = {"A": "b", "WORLD_SIZE": "5", "LOCAL_WORLD_SIZE": "2", "NODE_RANK": "0"}
    shared |= {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": str(port)}
    assert first == {**shared, "RANK": "0", "LOCAL_RANK": "0"}
    assert second == {**shared, "RANK": "1", "LOCAL_RANK": "1"}


def test_what_is_left_from_before_is_not_this_jobs(tmp_path: Path) -> None:
    """An attempt's place is made anew: events and logs that lie there are those of another job."""
    place = tmp_path / "hosts" / "n1.attempt1"
    (place / "old").mkdir(parents=True)
    (place / "rank0.events.jsonl").write_text('{"kind": "failed"}\n')
    (place / "rank0.log").write_text("of another job\n")
    spec = {"folder": "n1", "attempt": 1, "shared": False, "token": "job.1", "node_rank": 0}
    host = Ranks(Channel(), spec, str(tmp_path))
    told = {"argv": [sys.executable, "-c", "pass"], "ranks": [0], "threads": 1, "device": "cpu", "env": {}}
    told |= {"hardware_seconds": 60.0, "code": "", "world_size": 1}
    host.start({"host": told, "job": {}, "address": "127.0.0.1", "port": 1})
    assert host.processes[0].wait(30) == 0
    host.read_tails(final=True)
    assert list(host.channel.outbox) == []
    assert sorted(each.name for each in place.iterdir()) == ["code.zip", "rank0.log", "spec.json"]


def test_a_place_that_cannot_be_made_anew_is_told(tmp_path: Path) -> None:
    (tmp_path / "place").touch()
    with pytest.raises(Problem, match="place cannot be made anew: File exists"):
        files.new_folder(str(tmp_path / "place"))


def test_gpus_that_are_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert gpu.gpu_mask() is None
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert gpu.gpu_mask() == []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2, GPU-4f1a")
    assert gpu.gpu_mask() == ["2", "GPU-4f1a"]


@pytest.mark.parametrize(
    ("own", "files", "limit"),
    [
        ("0::/a/b\n", {"a/memory.max": "4096\n", "a/b/memory.max": "max\n"}, 4096),
        ("0::/a/b\n", {"memory.max": "1000\n", "a/b/memory.max": "2000\n"}, 1000),
        ("0::/\n", {}, None),
        ("5:cpu:/x\n4:memory,hugetlb:/job\n", {"memory/job/memory.limit_in_bytes": "8192\n"}, 8192),
        ("4:memory:/\n", {"memory/memory.limit_in_bytes": f"{(1 << 63) - 4096}\n"}, None),
        ("5:cpu:/x\n", {"x/memory.max": "7\n"}, None),
        ("nonsense\n", {}, None),
    ],
)
def test_the_memory_that_control_groups_allow(
    own: str, files: dict[str, str], limit: int | None, tmp_path: Path
) -> None:
    (tmp_path / "own").write_text(own)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert proc.memory_limit(str(tmp_path), str(tmp_path / "own")) == limit
    assert proc.memory_limit(str(tmp_path), str(tmp_path / "nowhere")) is None


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("processor\t: 0\nmodel\t\t: 1\nmodel name\t: An EPYC  7B13 \nmodel name\t: b\n", "An EPYC 7B13"),
        ("processor\t: 0\nCPU implementer\t: 0x41\n", None), ("model name", None), ("", None),
    ],
)  # fmt: skip
def test_the_processors_model(text: str, model: str | None, tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(text)
    assert host.processor(str(tmp_path / "cpuinfo")) == model
    assert host.processor(str(tmp_path / "nowhere")) is None


# --- launch.setup ----------------------------------------------------------------------------------------


def test_a_setup_line_stands_in_no_list_of_processes(tmp_path: Path) -> None:
    """It may set a secret; what a process is started with is read by every user."""
    words = tmp_path / "words"
    setup = f"KEY=hunter2-of-mine; tr '\\0' ' ' < /proc/$$/cmdline > {words}; export KEY"
    environment = host.environment_after(setup)
    assert environment["KEY"] == "hunter2-of-mine" and "MUSTER_SETUP" not in environment
    assert words.read_text().startswith("bash -c") and "hunter2" not in words.read_text()


def test_a_setup_line_changes_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the ranks: what it exports, in one line or in a file that it sources; what it prints is no part."""
    monkeypatch.setenv("KEPT", "a=b\nc")
    found = host.environment_after("echo noise; export GIVEN='x y'; LOST=1; unset HOME")
    assert (found["GIVEN"], found["KEPT"]) == ("x y", "a=b\nc")
    assert "LOST" not in found and "HOME" not in found
    file = tmp_path / "set up.sh"
    file.write_text("module() { export MODULE=$2; }\nmodule load cuda\n")
    assert host.environment_after(str(file))["MODULE"] == "cuda"
    assert host.environment_after(f". '{file}'")["MODULE"] == "cuda"
    monkeypatch.setenv("PWD", str(tmp_path))
    moved = host.environment_after("cd /")  # ranks start where the agent is
    assert moved["PWD"] == str(tmp_path) and "OLDPWD" not in moved


@pytest.mark.parametrize(
    ("setup", "what"),
    [
        ("echo one; echo two >&2; (exit 3); export NEVER=1", "failed with exit code 3: one; two"),
        ("printf '%s\\n' a b c d e f; false", "failed with exit code 1: b; c; d; e; f"),
        ("no_such_command_at_all", "failed with exit code 127"),
        ("if", "syntax error"),
        ("exit 0", "left the shell: it printed nothing"),
        ("/no/such/file.sh", "no such file: /no/such/file.sh"),
        ("sleep 30", "did not end within 0.5 s"),
    ],
)
def test_a_setup_that_fails_says_what_it_printed(
    setup: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "SETUP_SECONDS", 0.5 if "sleep" in setup else 60.0)
    with pytest.raises(Problem) as caught:
        host.environment_after(setup)
    assert "launch.setup" in str(caught.value) and what in str(caught.value)


def test_a_setup_may_bring_the_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an activated environment does; one that was asked for by name is looked for there too."""
    brought = tmp_path / "python3"
    brought.symlink_to(sys.executable)
    usual = shutil.which("python3")
    spec = {"python": None, "controller_python": sys.executable}
    assert find_python(spec, usual) == sys.executable
    for name, value in host.environment_after(f"export PATH={tmp_path}:$PATH").items():
        monkeypatch.setenv(name, value)
    assert find_python(spec, usual) == str(brought)
    spec["python"] = "python3"
    assert find_python(spec, usual) == str(brought)


@pytest.mark.parametrize(
    ("groups", "file"),
    [
        ("0::/user.slice/me\n", "user.slice/me/memory.events"),
        ("0::/../outside\n", "memory.events"),  # a container that sees its own group as the top
        ("4:cpu,memory:/job\n0::/\n", "memory/job/memory.oom_control"),
    ],
)
def test_whom_the_out_of_memory_killer_ended(tmp_path: Path, groups: str, file: str) -> None:
    root, kernel = tmp_path / "cgroup", tmp_path / "proc"
    (kernel / "self").mkdir(parents=True)
    (kernel / "self/cgroup").write_text(groups)
    (root / file).parent.mkdir(parents=True)
    (root / file).write_text("low 0\noom 4\noom_kill 2\n")
    (kernel / "vmstat").write_text("nr_free_pages 5\noom_kill 7\n")
    (log := tmp_path / "kmsg").write_text("")
    watch = proc.KernelWatch(str(root), str(kernel), str(log))
    assert watch.look() == {"group": 0, "machine": 0, "log": []}
    (root / file).write_text("oom 5\noom_kill 3\n")
    (kernel / "vmstat").write_text("oom_kill 9\n")
    log.write_text("4,1,2,-;Memory cgroup out of memory: Killed process 471 (pt)\n")
    seen = watch.look()
    assert (seen["group"], seen["machine"]) == (1, 2) and "Killed process 471" in seen["log"][0]


def test_a_kernel_that_tells_nothing(tmp_path: Path) -> None:
    watch = proc.KernelWatch(str(tmp_path), str(tmp_path), str(tmp_path / "none"))
    assert watch.look() == {"group": None, "machine": None, "log": None}


def test_versions_are_those_that_the_library_tells(tmp_path: Path) -> None:
    """By the names of folders: of a wheel, of what an older installer left, and of what is not there."""
    (tmp_path / "a_plain.name-1.2+cpu.dist-info").mkdir()
    (tmp_path / "older-3.4-py3.9.egg-info").write_text("Metadata-Version: 1.0\nName: older\nVersion: 3.4\n")
    told: dict[str, str | None] = dict.fromkeys(PACKAGES)
    for name in told:
        with suppress(metadata.PackageNotFoundError):
            told[name] = metadata.version(name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path))
        found = host.versions(sys.executable, ["a-plain_name", "older", "olde"])
    assert found.pop("python") == platform.python_version()
    assert found == {**told, "a-plain_name": "1.2+cpu", "older": "3.4", "olde": None}


def test_a_sign_of_life_is_told_once_and_each_time(tmp_path: Path) -> None:
    """Without a step, too; a phase that is left leads back to the one around it."""
    about = SimpleNamespace(spec={"ranks": [0, 1]}, place=str(tmp_path), beats={})
    pulse = progress.Pulse(str(tmp_path / "rank1.pulse"))
    pulse.beat(3)
    assert [Ranks.pulses(about) for _ in range(2)] == [[[1, 3, 1, ""]], []]  # type: ignore[arg-type]
    pulse.beat()
    assert Ranks.pulses(about) == [[1, 3, 2, ""]]  # type: ignore[arg-type]
    told = SimpleNamespace(pulse=pulse, phases={})
    with progress._Phase(told, "evaluate"):  # type: ignore[arg-type]
        with progress._Phase(told, "data"):  # type: ignore[arg-type]
            assert Ranks.pulses(about)[0][3] == "data"  # type: ignore[arg-type]
        assert Ranks.pulses(about)[0][3] == "evaluate"  # type: ignore[arg-type]
    assert Ranks.pulses(about) == [[1, 3, 6, ""]]  # type: ignore[arg-type]
