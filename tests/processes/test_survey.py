"""Asking many hosts at once: real processes here, the real ssh client towards loopback, real old Pythons
where there are any."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.checks.questions import OPENING, HostAnswers, Patience, Questions, clock, failed, well_formed
from muster.checks.survey import STAY, Inquiry, sample, starter, survey
from muster.checks.unreachable import ConnectionEnd, Stage, UnreachableHost, explain, remedy_for
from muster.core.errors import JobError
from muster.core.job import Placement
from muster.core.launch import Launch
from muster.fleet.launchers import local
from muster.fleet.launchers.base import BOOTSTRAP
from muster.fleet.shell import Process, start
from tests.support import wait_until

QUICK = Patience(connect=60, probe=60, fanout=8)  # nobody is expected to need it
FUTURE = "from __future__ import annotations\n"
ECHO = FUTURE + "def probe(ask):\n    return {'host': ask['host'], 'six': 6}\n"


def places(*names: str) -> list[Placement]:
    return [Placement(name, name, 1, 0) for name in names]


def questions(first: dict[str, str], second: tuple[str, ...] = (), **ask: Any) -> Questions:
    return Questions(
        sources=first,
        first=tuple(first),
        second=second,
        ask=lambda place: {"host": place.host, "token": "ab12", **ask},
    )


class Hosts:
    """Pretend hosts: each name starts a command of its own. Remembers what was started."""

    def __init__(self, **commands: list[str]) -> None:
        self.commands = commands
        self.started: list[Process] = []
        self.most = 0

    def __call__(self, place: Placement) -> Process:
        usual = [sys.executable, "-I", "-S", "-c", BOOTSTRAP, "muster-probe"]
        process = start(self.commands.get(place.host, usual))
        self.started.append(process)
        self.most = max(self.most, sum(each.poll() is None for each in self.started))
        return process

    def none_left(self) -> bool:
        return all(each.poll() is not None for each in self.started)


def shell(script: str) -> list[str]:
    """A login shell that does something of its own around the command that it was given."""
    return ["sh", "-c", script, "sh", sys.executable, "-I", "-S", "-c", BOOTSTRAP, "muster-probe"]


# ---- what hosts answer -------------------------------------------------------------------------------------


def test_every_host_gets_an_answer_in_the_order_given() -> None:
    hosts = Hosts(
        noisy=shell('echo hello; echo "and more" >&2; printf unfinished; exec "$@"'),
        missing=shell("exec muster-no-such-python"),
        closed=shell("echo 'This account is currently not available.'; exit 1"),
        hanging=["sleep", "1000"],
    )
    names = ("a", "noisy", "missing", "hanging", "closed", "z")
    patience = Patience(connect=4, probe=60, fanout=8)
    found = survey(places(*names), hosts, questions({"echo": ECHO}), patience)
    assert list(found) == list(names)
    for name in ("a", "noisy", "z"):
        one = found[name]
        assert isinstance(one, HostAnswers), one
        assert one.answers == {"echo": {"host": name, "six": 6}}
        assert one.transport.python is not None
        assert abs(one.transport.clock_offset or 9) <= (one.transport.clock_error or 0) + 0.05
    noisy = found["noisy"]
    assert isinstance(noisy, HostAnswers) and noisy.transport.noise == ("hello", "unfinished")
    a = found["a"]
    assert isinstance(a, HostAnswers) and a.transport.noise == () and a.peers is None
    stages = {name: one.stage for name, one in found.items() if isinstance(one, UnreachableHost)}
    assert stages == {"missing": Stage.PYTHON, "hanging": Stage.LOGIN, "closed": Stage.LOGIN}
    assert hosts.none_left()


def test_a_family_that_hangs_or_breaks_is_answered_for_and_the_others_are_not_delayed() -> None:
    sources = {
        "echo": ECHO,
        "hangs": "def probe(ask):\n    import threading\n    threading.Event().wait()\n",
        "breaks": "def probe(ask):\n    return {}['no such key']\n",
        "odd": "def probe(ask):\n    return {'set': {1}}\n",
        "words": "def probe(ask):\n    return ask['host']\n",
        "leaves": "def probe(ask):\n    raise SystemExit(1)\n",
    }
    found = survey(places("a"), Hosts(), questions(sources), Patience(connect=60, probe=4, fanout=1))["a"]
    assert isinstance(found, HostAnswers)
    assert found.answers["echo"] == {"host": "a", "six": 6}
    assert found.answers["hangs"] == {"error": "no answer within 4 s"}
    assert found.answers["breaks"] == {"error": "KeyError: 'no such key'"}
    assert "not JSON serializable" in found.answers["odd"]["error"]
    assert found.answers["words"] == {"error": "not an answer"}
    assert found.answers["leaves"] == {"error": "SystemExit: 1"}
    assert all(failed(answer) for name, answer in found.answers.items() if name != "echo")


def test_a_sample_stays_and_its_hosts_see_each_other(tmp_path: Path) -> None:
    """Nobody leaves before all have looked: the files are there until the end, and gone after it."""
    source = (
        "def probe(ask):\n"
        "    import os\n"
        f"    path = os.path.join({str(tmp_path)!r}, ask['host'])\n"
        "    open(path, 'w').close()\n"
        "    at_end(lambda: os.remove(path))\n"
        "    return {'path': path}\n"
        "def probe_peers(ask):\n"
        "    import os\n"
        "    return {peer: os.path.exists(one['path']) for peer, one in ask['peers'].items()}\n"
    )
    names = [f"n{number:02d}" for number in range(40)]
    asked = questions({"files": source, "echo": ECHO}, second=("files",))
    found = survey(places(*names), Hosts(), asked, QUICK)
    stayed = sample(names)
    assert len(stayed) == STAY
    for name, one in found.items():
        assert isinstance(one, HostAnswers)
        assert one.answers["echo"]["host"] == name
        assert one.peers == ({"files": dict.fromkeys(stayed, True)} if name in stayed else None)
    assert not list(tmp_path.iterdir())


def test_no_more_are_made_at_once_than_the_fanout() -> None:
    hosts = Hosts()
    names = [f"n{number}" for number in range(12)]
    found = survey(places(*names), hosts, questions({"echo": ECHO}), Patience(60, 60, fanout=2))
    assert all(isinstance(one, HostAnswers) for one in found.values())
    assert hosts.most <= 2 + 2  # those that are leaving are no longer being made
    assert hosts.none_left()


def test_few_file_descriptors_are_enough() -> None:
    """Fewer can be open than hosts would stay: fewer stay, and all are asked."""
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))\n"
        "from tests.processes.test_survey import *\n"
        "source = ECHO + 'def probe_peers(ask):\\n    return {}\\n'\n"
        "names = [f'n{number}' for number in range(40)]\n"
        "found = survey(places(*names), Hosts(), questions({'echo': source}, second=('echo',)), QUICK)\n"
        "assert all(isinstance(one, HostAnswers) for one in found.values())\n"
        "print(sum(one.peers is not None for one in found.values()))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert 0 < int(done.stdout) < STAY


def test_hosts_that_hang_lend_their_places() -> None:
    """Two dead hosts have all places there are, and the third need not wait until they are given up."""
    hosts = Hosts(dead1=["sleep", "1000"], dead2=["sleep", "1000"])
    counts: list[tuple[int, int, int]] = []
    waiting: list[bool] = []

    def start(place: Placement) -> Process:
        waiting.append(all(each.poll() is None for each in hosts.started))
        return hosts(place)

    found = survey(
        places("dead1", "dead2", "alive"),
        start,
        questions({"echo": ECHO}),
        Patience(connect=4, probe=60, fanout=2),
        lambda *each: counts.append(each),
    )
    assert isinstance(found["alive"], HostAnswers)
    assert waiting == [True, True, True]  # both were still there when the third was started
    assert counts[-1] == (3, 3, 2)
    assert hosts.none_left()


def test_dead_hosts_in_front_delay_nobody() -> None:
    """All places are taken by hosts of which nothing is known yet."""
    hosts = Hosts(**{f"dead{number}": ["sleep", "1000"] for number in range(4)})
    names = [*hosts.commands, "alive"]
    inquiry = Inquiry(places(*names), frozenset(), hosts, questions({"echo": ECHO}), Patience(1000, 60, 4))
    try:
        assert wait_until(lambda: not inquiry.turn() or "alive" in inquiry.results, 60, every=0)
        assert set(inquiry.results) == {"alive"}
    finally:
        inquiry.close()
    assert hosts.none_left()


def test_a_family_that_needs_longer_has_longer() -> None:
    tells = "def probe(ask):\n    return {'timeout': ask['timeout']}\n"
    hangs = "def probe(ask):\n    import threading\n    threading.Event().wait()\n"
    asked = replace(
        questions({"slow": tells, "usual": tells, "hangs": hangs}, timeout=2.0), longer={"slow": 400.0}
    )
    one = survey(places("a"), Hosts(), asked, Patience(connect=60, probe=2, fanout=1))["a"]
    assert isinstance(one, HostAnswers)
    assert one.answers["slow"] == {"timeout": 400.0} and one.answers["usual"] == {"timeout": 2.0}
    assert one.answers["hangs"] == {"error": "no answer within 2 s"}  # and the others' time is not added
    waits = "def probe(ask):\n    import time\n    time.sleep(4)\n    return {}\n"
    later = replace(questions({"slow": waits}), longer={"slow": 60.0})
    one = survey(places("a"), Hosts(), later, Patience(connect=60, probe=1, fanout=1))["a"]
    assert isinstance(one, HostAnswers) and one.answers == {"slow": {}}


# ---- what is left behind -----------------------------------------------------------------------------------


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


STARTS = (
    "def probe(ask):\n"
    "    import os\n"
    "    if os.fork() == 0:\n"
    "        os._exit(0)\n"
    "    run(['sh', '-c', 'echo $$ > {path}; sleep 1000 & echo $! >> {path}; wait'], 1000)\n"
)


def test_programs_that_a_probe_started_end_with_it(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    asked = questions({"starts": STARTS.replace("{path}", str(pids)), "echo": ECHO})
    found = survey(places("a"), Hosts(), asked, Patience(connect=60, probe=4, fanout=1))["a"]
    assert isinstance(found, HostAnswers)
    assert found.answers["starts"] == {"error": "no answer within 4 s"}
    started = [int(word) for word in pids.read_text().split()]
    assert len(started) == 2
    assert wait_until(lambda: not any(alive(pid) for pid in started), 10)


def test_a_probe_whose_connection_breaks_cleans_up(tmp_path: Path) -> None:
    """The controller is gone without a word: the probe's input closes."""
    mark = tmp_path / "mark"
    source = (
        "def probe(ask):\n"
        "    import os, threading\n"
        f"    open({str(mark)!r}, 'w').close()\n"
        f"    at_end(lambda: os.remove({str(mark)!r}))\n"
        "    threading.Event().wait()\n"
    )
    process = Hosts()(places("a")[0])
    assert process.stdin is not None
    asked = questions({"marks": source})
    process.stdin.write(OPENING + asked.program(""))
    process.stdin.write(
        b'{"op": "probe", "families": ["marks"], "ask": {"host": "a"}, "seconds": 900, "stay": true}\n'
    )
    process.stdin.flush()
    assert wait_until(mark.exists, 20)
    process.stdin.close()
    assert process.wait(20) == 0
    assert not mark.exists()


MARKS = (
    "def probe(ask):\n"
    "    import os, threading\n"
    "    path = {path} + ask['host']\n"
    "    open(path, 'w').close()\n"
    "    at_end(lambda: os.remove(path))\n"
    "    threading.Event().wait()\n"
)


def test_an_interrupted_survey_leaves_no_files(tmp_path: Path) -> None:
    """The probes are let go before anything is killed."""
    hosts = Hosts()
    asked = questions({"marks": MARKS.replace("{path}", repr(f"{tmp_path}/"))})
    inquiry = Inquiry(places("a", "b"), frozenset(), hosts, asked, Patience(60, 900, 4))
    try:
        assert wait_until(lambda: inquiry.turn() and len(list(tmp_path.iterdir())) == 2, 60, every=0)
    finally:
        inquiry.close()
    assert list(tmp_path.iterdir()) == []
    assert hosts.none_left()


def test_a_probe_that_is_given_up_leaves_no_file(tmp_path: Path) -> None:
    """Its time is over: the controller hangs up, and the probe has time to clean up."""
    hosts = Hosts()
    asked = questions({"marks": MARKS.replace("{path}", repr(f"{tmp_path}/"))})
    inquiry = Inquiry(places("a"), frozenset(), hosts, asked, Patience(60, 900, 4))
    try:
        assert wait_until(lambda: inquiry.turn() and (tmp_path / "a").exists(), 60, every=0)
        inquiry.sessions[0].limit = 0.0
        assert wait_until(lambda: not inquiry.turn(), 60, every=0)
    finally:
        inquiry.close()
    assert list(tmp_path.iterdir()) == []
    one = inquiry.results["a"]
    assert isinstance(one, UnreachableHost) and one.stage is Stage.PYTHON
    assert hosts.none_left()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_probe_that_is_told_to_end_cleans_up(tmp_path: Path, number: signal.Signals) -> None:
    process = Hosts()(places("a")[0])
    assert process.stdin is not None
    asked = questions({"marks": MARKS.replace("{path}", repr(f"{tmp_path}/"))})
    process.stdin.write(OPENING + asked.program(""))
    process.stdin.write(
        b'{"op": "probe", "families": ["marks"], "ask": {"host": "a"}, "seconds": 900, "stay": true}\n'
    )
    process.stdin.flush()
    try:
        assert wait_until((tmp_path / "a").exists, 20)
        os.kill(process.pid, number)
        assert process.wait(20) == 1
    finally:
        process.kill()
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_survey_leaves_nobody(tmp_path: Path) -> None:
    """Ctrl-C in the middle: an error, and every client with its helpers is gone."""
    helper = tmp_path / "helper"
    hosts = Hosts(a=["sh", "-c", f"sleep 1000 & echo $! > {helper}; wait"])

    def interrupt() -> None:
        wait_until(lambda: helper.exists() and helper.read_text().strip() != "", 20)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(JobError, match="Ctrl-C"):
        survey(places("a"), hosts, questions({"echo": ECHO}), Patience(connect=60, probe=10, fanout=1))
    thread.join()
    assert hosts.none_left()
    pid = int(helper.read_text())
    assert wait_until(lambda: not alive(pid), 10)


# ---- other Pythons -----------------------------------------------------------------------------------------


def other_python(version: str) -> str | None:
    """An interpreter of that version, from PATH or pyenv."""
    found = shutil.which(f"python{version}")
    roots = sorted(Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin/python"))
    for candidate in [*([found] if found else []), *map(str, roots)]:
        done = subprocess.run([candidate, "-V"], capture_output=True, text=True, check=False)
        if f"Python {version}." in done.stdout + done.stderr:
            return candidate
    return None


@pytest.mark.parametrize("version", ["3.8", "3.9", "3.10", "3.12", "3.13"])
def test_a_python_of_another_version_answers(version: str) -> None:
    """Compiled code of ours is none of theirs: it gets the text."""
    python = other_python(version)
    if python is None:
        pytest.skip(f"no Python {version} here")
    start = starter(local, Launch(), python)
    one = survey(places("a"), start, questions({"echo": ECHO}), QUICK)["a"]
    assert isinstance(one, HostAnswers)
    assert one.answers == {"echo": {"host": "a", "six": 6}}
    assert (one.transport.python or "").startswith(f"{version}.")


def test_a_family_that_an_older_python_cannot_read_does_not_take_the_others_along() -> None:
    python = other_python("3.8")
    if python is None:
        pytest.skip("no Python 3.8 here")
    newer = "def probe(ask):\n    match ask:\n        case _:\n            return {}\n"
    start = starter(local, Launch(), python)
    one = survey(places("a"), start, questions({"newer": newer, "echo": ECHO}), QUICK)["a"]
    assert isinstance(one, HostAnswers)
    assert one.answers["newer"]["error"].startswith("SyntaxError")
    assert one.answers["echo"] == {"host": "a", "six": 6}


@pytest.mark.parametrize("version", ["2.7", "3.6", "3.7"])
def test_a_python_that_is_too_old_is_named(version: str) -> None:
    python = other_python(version)
    if python is None:
        pytest.skip(f"no Python {version} here")
    hosts = Hosts(a=[python, "-c", BOOTSTRAP, "muster-probe"])
    one = survey(places("a"), hosts, questions({"echo": ECHO}), QUICK)["a"]
    assert isinstance(one, UnreachableHost)
    assert (one.stage, one.problem) == (Stage.PYTHON, "its python is older than 3.8")
    assert f"Python {version}." in one.evidence


# ---- why a host is unreachable -----------------------------------------------------------------------------

CHANGED = """\
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
IT IS POSSIBLE THAT SOMEONE IS DOING SOMETHING NASTY!
Host key verification failed."""
SSH: list[tuple[str, Stage, str]] = [
    ("ssh: Could not resolve hostname n1: Name or service not known", Stage.NAME, "name is not known"),
    ("ssh: Could not resolve hostname n1: Temporary failure in name resolution", Stage.NAME, "name"),
    ("ssh: connect to host n1 port 22: Connection refused", Stage.TCP, "port is closed"),
    ("ssh: connect to host n1 port 22: Connection timed out", Stage.TCP, "nothing answers"),
    ("ssh: connect to host n1 port 22: Operation timed out", Stage.TCP, "nothing answers"),
    ("ssh: connect to host n1 port 22: No route to host", Stage.TCP, "no way"),
    ("ssh: connect to host n1 port 22: Network is unreachable", Stage.TCP, "no way"),
    ("Connection timed out during banner exchange", Stage.TCP, "nothing is said"),
    ("Connection to 10.0.0.1 port 22 timed out", Stage.TCP, "nothing is said"),
    ("kex_exchange_identification: Connection closed by remote host\nConnection closed by 10.0.0.1 port 22",
     Stage.TCP, "hangs up at once"),
    ("kex_exchange_identification: read: Connection reset by peer", Stage.TCP, "hangs up at once"),
    ("kex_exchange_identification: banner line contains invalid characters", Stage.TCP, "hangs up"),
    ("banner exchange: Connection to 10.0.0.1 port 80: invalid format", Stage.TCP, "not an sshd"),
    ("channel 0: open failed: connect failed: refused\nstdio forwarding failed", Stage.TCP, "jump"),
    (CHANGED, Stage.HOST_KEY, "has changed"),
    ("No ED25519 host key is known for n1 and you have requested strict checking.\n"
     "Host key verification failed.", Stage.HOST_KEY, "not known"),
    ("Host key verification failed.", Stage.HOST_KEY, "not known"),
    ("Unable to negotiate with 10.0.0.1 port 22: no matching host key type found. Their offer: ssh-rsa",
     Stage.HOST_KEY, "no method"),
    ("root@n1: Permission denied (publickey,password).", Stage.LOGIN, "refused"),
    ("Permission denied, please try again.\nroot@n1: Permission denied (publickey).", Stage.LOGIN, "refused"),
    ("Received disconnect from 10.0.0.1 port 22:2: Too many authentication failures\n"
     "Disconnected from 10.0.0.1 port 22", Stage.LOGIN, "refused"),
    ("Connection closed by 10.0.0.1 port 22", Stage.LOGIN, "hangs up at the login"),
    ("/root/.ssh/config: line 3: Bad configuration option: hostnam\n"
     "/root/.ssh/config: terminating, 1 bad configuration options", Stage.LOGIN, "settings"),
    ("Bad owner or permissions on /root/.ssh/config", Stage.LOGIN, "settings"),
    ("Authorized users only. Permission denied to everybody else.\n"
     "ssh: connect to host n1 port 22: Connection refused", Stage.TCP, "closed"),
    ("", Stage.LOGIN, "broke"),
]  # fmt: skip


@pytest.mark.parametrize(("said", "stage", "words"), SSH, ids=[said[-60:] for said, _, _ in SSH])
def test_what_ssh_says_names_the_stage(said: str, stage: Stage, words: str) -> None:
    noise = ["Warning: Permanently added 'n1' (ED25519) to the list of known hosts."]
    found = explain(ConnectionEnd(code=255, errors=[*noise, *said.splitlines()]))
    assert found.stage is stage
    assert words in found.problem
    assert found.remedy
    assert not said or found.evidence in said


SHELLS: list[tuple[int, str, Stage]] = [
    (127, "bash: line 1: python3: command not found", Stage.PYTHON),
    (127, "sh: 1: python3: not found", Stage.PYTHON),
    (127, "zsh:1: command not found: python3", Stage.PYTHON),
    (127, "fish: Unknown command: python3", Stage.PYTHON),
    (1, "python3: Command not found.", Stage.PYTHON),
    (126, "bash: /usr/bin/python3: Permission denied", Stage.PYTHON),
    (1, "ModuleNotFoundError: No module named 'encodings'", Stage.PYTHON),
    (1, "Fatal Python error: init_fs_encoding: failed to get the Python codec", Stage.PYTHON),
    (2, "Unknown option: -I", Stage.PYTHON),
    (1, "This account is currently not available.", Stage.LOGIN),
    (1, "", Stage.LOGIN),
    (0, "", Stage.LOGIN),
]


@pytest.mark.parametrize(("code", "said", "stage"), SHELLS)
def test_what_a_login_shell_says_names_the_stage(code: int, said: str, stage: Stage) -> None:
    assert explain(ConnectionEnd(code=code, errors=said.splitlines())).stage is stage


def test_what_happened_after_python_came_is_not_blamed_on_the_way_there() -> None:
    broken = explain(
        ConnectionEnd(code=255, errors=["Connection to n1 closed by remote host."], python="3.11.2")
    )
    assert (broken.stage, broken.problem) == (Stage.PYTHON, "the connection broke while the probe ran")
    slow = explain(ConnectionEnd(code=None, python="3.11.2", seconds=42.0))
    assert "42 s" in slow.evidence


def test_a_remedy_names_its_hosts() -> None:
    assert remedy_for("ssh-copy-id {host}", ["me@n1"]) == "ssh-copy-id me@n1"
    assert remedy_for("ssh-copy-id {host}", ["n1", "n2"]) == "for host in n1 n2; do ssh-copy-id $host; done"
    assert remedy_for("ping {host}", ["n1", "n2"]) == "ping HOST"
    assert remedy_for("reboot", ["n1", "n2"]) == "reboot"


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Connections are taken by the kernel, and nobody says anything."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def ssh_to(address: str, *options: str) -> Callable[[Placement], Process]:
    words = [
        "-F",
        "none",
        "-o",
        "BatchMode=yes",
        "-o",
        "ConnectTimeout=2",
        "-o",
        "ControlPath=none",
        *options,
    ]
    return lambda place: start(["ssh", "-T", *words, address, "true"])


@pytest.mark.skipif(shutil.which("ssh") is None, reason="needs the ssh client")
def test_the_real_ssh_says_what_the_table_expects(silent_port: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        closed = server.getsockname()[1]
    ways = {
        "name": ("muster.invalid", []),
        "refused": ("127.0.0.1", ["-p", str(closed)]),
        "silent": ("127.0.0.1", ["-p", str(silent_port)]),
        "settings": ("127.0.0.1", ["-o", "NoSuchOption=1"]),
    }
    starts = {name: ssh_to(address, *options) for name, (address, options) in ways.items()}
    patience = Patience(connect=60, probe=60, fanout=4)
    found = survey(places(*ways), lambda place: starts[place.host](place), questions({}), patience)
    got = {name: (one.stage, one.problem) for name, one in found.items() if isinstance(one, UnreachableHost)}
    assert got == {
        "name": (Stage.NAME, "the name is not known here"),
        "refused": (Stage.TCP, "the ssh port is closed"),
        "silent": (Stage.TCP, "the connection is taken, and nothing is said"),
        "settings": (Stage.LOGIN, "the ssh client refuses its settings"),
    }


# ---- arithmetic --------------------------------------------------------------------------------------------


@given(
    st.floats(-1e6, 1e6),
    st.floats(0, 100),
    st.floats(0, 100),
    st.floats(1e9, 2e9),
)
def test_the_clock_is_within_its_error(offset: float, there: float, back: float, now: float) -> None:
    """Whatever the two ways take."""
    said, came = now + offset, now + back
    sent, heard = came, came + there + offset
    found, error = clock(said, came, sent, heard)
    assert abs(found - offset) <= error + 1e-3
    assert error == pytest.approx((there + back) / 2, abs=1e-3)


@given(st.integers(0, 300), st.integers(1, 64))
def test_a_sample_is_spread_evenly(count: int, most: int) -> None:
    names = [f"n{number}" for number in range(count)]
    chosen = [names.index(name) for name in sample(names, most)]
    assert len(chosen) == min(count, most)
    gaps = [later - earlier for earlier, later in pairwise(chosen)]
    assert not gaps or (min(gaps) >= 1 and max(gaps) - min(gaps) <= 1)


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    )
)
def test_any_answer_is_made_well_formed(answers: Any) -> None:
    found = well_formed(answers, ("a", "b"))
    assert set(found) == {"a", "b"} and all(isinstance(one, dict) for one in found.values())
