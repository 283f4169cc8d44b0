"""What the agent sees of a rank from outside: real processes in each state, without and with py-spy."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.agent import inside, look
from tests.support import wait_until

TOKEN = f"look.{os.getpid()}"  # the same tests may run beside these
DOES: dict[str, str] = {
    "sleeps": "def stuck():\n    ready()\n    time.sleep(60)",
    "reads": "def stuck():\n    ready()\n    os.read(os.pipe()[0], 1)",
    "loops": "def stuck():\n    n = ready()\n    while True: n += 1",
}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """An agent's folder with the archive that ranks have in PYTHONPATH."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.write(inside.__file__, "sitecustomize.py")
    (tmp_path / "code.zip").write_bytes(buffer.getvalue())
    return tmp_path


class Ranks:
    """Real processes as the agent starts them."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.started: list[subprocess.Popen[str]] = []

    def start(self, rank: int, program: str, **more: str) -> subprocess.Popen[str]:
        env = {
            **os.environ, "PYTHONPATH": str(self.place / "code.zip"), "RANK": str(rank),
            "MUSTER_TOKEN": TOKEN, "MUSTER_WITNESS": str(self.place), **more,
        }  # fmt: skip
        ready = "def ready():\n    print('ready', flush=True)\n    return 0\n"
        lines = f"import os, time, sys\n{ready}{program}\nstuck()\n"
        path = self.place / f"program{rank}.py"
        path.write_text(lines)
        started = subprocess.Popen([sys.executable, str(path)], env=env, stdout=subprocess.PIPE, text=True)
        self.started.append(started)
        assert started.stdout and started.stdout.readline() == "ready\n"
        return started

    def look(self, *ranks: int) -> dict[int, dict[str, Any]]:
        found = look.look(str(self.place), TOKEN, list(ranks), sys.executable)
        return {each["rank"]: each for each in found["ranks"]}


@pytest.fixture
def ranks(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ranks]:
    monkeypatch.setattr(look, "EACH", 0.1)
    made = Ranks(place)
    yield made
    for each in made.started:
        each.kill()
        each.wait()
        assert each.stdout
        each.stdout.close()


@pytest.fixture(params=["py-spy", "faulthandler"])
def reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "faulthandler":
        monkeypatch.setattr(look.shutil, "which", lambda *_, **__: None)
    return str(request.param)


@pytest.mark.parametrize("does", DOES)
def test_where_a_rank_is(does: str, reader: str, ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look, "EACH", 0.3)  # an answer to a signal may cost a tick of processor time
    ranks.start(3, DOES[does])
    seen = ranks.look(3, 4)
    assert list(seen) == [3]
    mains = seen[3]["mains"]
    assert mains and all(each and "stuck" in (each[0][0], each[1][0]) for each in mains), seen[3]
    assert all(frame[1].endswith("program3.py") for frame in mains[0])
    assert (seen[3]["cpu"] > 0.02) == (does == "loops")  # a busy machine gives it little
    assert set(seen[3]["states"]) <= ({"R"} if does == "loops" else {"S", "R"})
    assert not seen[3]["library"]
    assert reader == "py-spy" or seen[3]["library"] is None
    if does != "loops":
        assert {"sleeps": "nanosleep", "reads": "pipe"}[does] in seen[3]["wchan"]


def test_a_library_that_computes(ranks: Ranks) -> None:
    """What runs in a library for long shows the same Python line all the time, and is no endless loop."""
    pytest.importorskip("numpy")
    multiply = (
        "import numpy\ndef stuck():\n    ready()\n    a = numpy.ones((700, 700))\n    while True: a @ a"
    )
    ranks.start(0, multiply, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
    assert wait_until(lambda: "blas" in (ranks.look(0)[0]["library"] or ""), 60)


@pytest.mark.parametrize(
    ("tracer", "state"), [("py-spy (process 7)", None), ("gdb (process 7)", "t"), (None, "S")]
)
def test_a_rank_that_an_earlier_look_still_reads(
    tracer: str | None, state: str | None, ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine py-spy takes long: it is no debugger. It may end while it is asked after."""
    states = iter(["t", "S", "S"])
    known = look.stat
    monkeypatch.setattr(look, "tracer", lambda pid: tracer)
    monkeypatch.setattr(
        look, "stat", lambda pid, task=None: {"state": next(states), "cpu": 0.0} if task else known(pid)
    )
    monkeypatch.setattr(look, "waited_for", lambda pids: {})
    rank = look.Rank(0, ranks.start(0, DOES["sleeps"]).pid, str(ranks.place))
    rank.sample(None)
    assert rank.samples[0]["state"] == state


def test_a_look_waits_until_an_earlier_one_is_done(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that py-spy holds answers nothing, and would not be seen to wait for others."""
    held = iter(["py-spy (process 7)"] * 3)
    monkeypatch.setattr(look, "tracer", lambda pid: next(held, None))
    ranks.start(0, DOES["sleeps"])
    assert None not in ranks.look(0)[0]["states"]


def test_how_many_functions_a_loop_has(ranks: Ranks) -> None:
    """The few looks would take one with many for an endless one."""
    calls = "".join(f"        f{n}()\n" for n in range(6))
    defined = "".join(f"def f{n}():\n    for _ in range(100000): pass\n" for n in range(6))
    ranks.start(0, DOES["loops"])
    ranks.start(1, f"{defined}def stuck():\n    ready()\n    while True:\n{calls}")
    assert wait_until(lambda: (ranks.look(0)[0]["functions"] or 9) <= 2, 30)
    assert wait_until(lambda: (ranks.look(1)[1]["functions"] or 0) >= 4, 30)


def test_a_stopped_rank(ranks: Ranks) -> None:
    """Its stack is read all the same, and nothing waits for it for long."""
    stopped = ranks.start(0, DOES["sleeps"])
    stopped.send_signal(signal.SIGSTOP)
    assert wait_until(lambda: (look.stat(stopped.pid) or {}).get("state") == "T", 20)
    began = time.monotonic()
    seen = ranks.look(0)
    assert set(seen[0]["states"]) == {"T"}
    assert "stuck" in [frame[0] for frame in seen[0]["mains"][0]]
    assert time.monotonic() - began < 60


def test_the_uppermost_of_a_ranks_processes_is_the_rank(ranks: Ranks) -> None:
    """Loader workers inherit the variables; one of them that is stopped is told."""
    fork = (
        "child = os.fork()\nif not child:\n    os.kill(os.getpid(), 19)\n"
        "def stuck():\n    ready()\n    os.waitpid(child, 0)"
    )
    parent = ranks.start(1, fork)
    assert wait_until(lambda: look.odd(parent.pid), 20)
    try:
        seen = ranks.look(1)
        assert seen[1]["pid"] == parent.pid
        assert [each["state"] for each in seen[1]["stopped"]] == ["T"]
    finally:
        for child in look.children(parent.pid):
            os.kill(child, signal.SIGKILL)


def test_what_a_ranks_children_compute(ranks: Ranks) -> None:
    """A loader's worker: the rank itself rests."""
    child = "child = os.fork()\nwhile not child: pass\n"
    parent = ranks.start(2, child + DOES["sleeps"])
    try:
        assert wait_until(lambda: (seen := ranks.look(2)[2])["cpu"] - seen["own_cpu"] > 0.02, 20)
        assert look.children(parent.pid)
    finally:
        for each in look.children(parent.pid):
            os.kill(each, signal.SIGKILL)


def test_what_a_ranks_children_computed_that_have_ended(ranks: Ranks) -> None:
    """A compiler: one process after the other, of which none lives from one look to the next."""
    runs = (
        "import subprocess\ndef stuck():\n    ready()\n"
        "    while True: subprocess.run([sys.executable, '-S', '-c', 'sum(range(2000000))'])"
    )
    ranks.start(2, runs)
    assert wait_until(lambda: (seen := ranks.look(2)[2])["cpu"] - seen["own_cpu"] > 0.05, 30)


def test_who_wants_a_processor(ranks: Ranks) -> None:
    """Whether or not the machine has one for it."""
    loops, sleeps = ranks.start(0, DOES["loops"]), ranks.start(1, DOES["sleeps"])
    os.setpriority(os.PRIO_PROCESS, loops.pid, 19)
    assert wait_until(lambda: ranks.look(0)[0]["wants"] > 0.5, 20)
    assert wait_until(lambda: ranks.look(1)[1]["wants"] < 0.5, 20)
    assert sleeps.poll() is None


def test_what_a_rank_sent_without_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Linux 6 wrote it: data that were sent again, a probe of a window that is closed, a connection of
    another process, and one through IPv6."""
    table = (
        b"  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
        b"   0: 0B004D0A:86CE 0C004D0A:A1A3 01 000004B8:00000000 01:000000CC 00000004     0        0 11 2 0\n"
        b"   1: 0B004D0A:86CF 0D004D0A:A1A3 01 000004B8:00000000 04:000000CC 00000004     0        0 12 2 0\n"
        b"   2: 0B004D0A:86D0 0E004D0A:A1A3 01 000004B8:00000000 01:000000CC 00000004     0        0 13 2 0\n"
    )
    wide = (
        b"head\n   0: 0000000000000000FFFF00000B004D0A:B2 000000000000000000000000010000FE:1F 02 "
        b"00000001:00000000 01:00000318 00000003     0        0 14 1 0\n"
    )
    monkeypatch.setattr(look, "sockets_of", lambda pid: {11, 12, 14})
    monkeypatch.setattr(look, "read", lambda path: {"tcp": table, "tcp6": wide}[path.rpartition("/")[2]])
    assert look.connections([7]) == [
        ["10.77.0.11", "10.77.0.12", 4],
        ["10.77.0.11", "10.77.0.13", 0],
        ["10.77.0.11", "::254.0.0.1", 3],
    ]


def test_whom_a_host_reaches() -> None:
    assert look.reach(["127.0.0.1"]) == {"127.0.0.1": True}
    assert look.reach([]) == {}


@pytest.mark.parametrize(("device", "found"), [("7:0", "1 2 3 4 5 6 7 8"), ("0:42", "11 22")])
def test_whether_the_disk_that_a_rank_waits_for_does_something(
    device: str, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk, and a server by NFS; of a call that names no file nobody knows."""
    files = {
        "/proc/9/task/11/syscall": b"74 0x5 0x1 0x0 0x0 0x0 0x0 0x7f 0x7f",
        "/proc/9/fdinfo/5": b"pos:\t0\nflags:\t0100001\nmnt_id:\t26\n",
        "/proc/9/mountinfo": f"25 1 8:1 / / rw\n26 1 {device} / /data rw\n".encode(),
        "/sys/dev/block/7:0/stat": b"  1  2  3  4  5  6  7  8  9  10",
        "/proc/9/mountstats": b"device a:/b mounted on /data with fstype nfs\n\tbytes:\t11 22\n\tx:\n",
    }
    monkeypatch.setattr(look, "read", files.get)
    monkeypatch.setattr(look, "tasks", lambda pid: [10, 11])
    monkeypatch.setattr(look, "stat", lambda pid, task: {"state": "D" if task == 11 else "S"})
    assert {task: done.strip() for task, done in look.waited_for([9]).items()} == {"11": found}
    files["/proc/9/task/11/syscall"] = b"running"
    assert look.waited_for([9]) == {}


def test_what_a_rank_began_meanwhile(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked at the begin and at the end of a look."""
    answers = iter((FLIGHT, FLIGHT.replace(b'_id":9', b'_id":10')))
    monkeypatch.setattr(look.Rank, "ask", lambda each: each.flights.append(look.flight(next(answers))))
    monkeypatch.setattr(look.Rank, "sample", lambda *_: None)
    monkeypatch.setattr(look, "processes", lambda *_: {0: os.getpid()})
    monkeypatch.setattr(look, "EACH", 0.0)
    (told,) = look.look(str(place), TOKEN, [0], sys.executable)["ranks"]
    assert [told[when][0]["last"] for when in ("before", "after")] == [9, 10]


def test_no_other_job_is_looked_at(ranks: Ranks) -> None:
    ranks.start(0, DOES["sleeps"], MUSTER_TOKEN="another")
    assert ranks.look(0) == {}


def test_the_signal_goes_to_nobody_who_does_not_know_it(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program without Muster's file would be ended by it."""
    monkeypatch.setattr(look.shutil, "which", lambda *_, **__: None)
    plain = ranks.start(0, DOES["sleeps"], PYTHONPATH="")
    seen = ranks.look(0)
    assert not any(seen[0]["mains"]) and seen[0]["unread"]
    assert plain.poll() is None


def test_the_sites_own_file_still_runs(place: Path, ranks: Ranks) -> None:
    """The interpreter reads one sitecustomize: Muster's, which then runs the next."""
    (place / "site").mkdir()
    (place / "site" / "sitecustomize.py").write_text("import os\nos.environ['SITE'] = 'yes'\n")
    path = os.pathsep.join([str(place / "code.zip"), str(place / "site")])
    says = "open(sys.argv[0] + '.site', 'w').write(os.environ.get('SITE', 'no'))\n" + DOES["sleeps"]
    ranks.start(0, says, PYTHONPATH=path)
    assert (place / "program0.py.site").read_text() == "yes"


def test_what_faulthandler_wrote() -> None:
    text = (
        "Thread 0x00007f (most recent call first):\n"
        '  File "/usr/lib/python3.11/threading.py", line 324 in wait\n\n'
        "Current thread 0x00007e (most recent call first):\n"
        '  File "/home/u/train.py", line 12 in step\n  File "/home/u/train.py", line 30 in <module>\n'
    )
    main, other = look.dumped(text)
    assert main["frames"] == [["step", "/home/u/train.py", 12], ["<module>", "/home/u/train.py", 30]]
    assert other["frames"] == [["wait", "/usr/lib/python3.11/threading.py", 324]]


def test_a_burst_is_no_flow() -> None:
    """A rank answers the agent with a megabyte while it is looked at: that is no progress of its own."""
    assert look.flow([0, 10**6, 10**6, 10**6, 10**6 + 5]) < 100
    assert look.flow([0, 10**6, 2 * 10**6, 3 * 10**6, 3 * 10**6]) >= 4 * 10**6
    assert look.flow([7]) == 0 == look.flow([])


@pytest.mark.parametrize(("kind", "counts"), [("rchar", 1), ("read_bytes", 1), ("syscr", 0)])
def test_what_is_read_through_a_mapped_file_counts(
    kind: str, counts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel (proc(5)) counts it among what comes from the disk alone."""
    names = ("rchar", "wchar", "syscr", "syscw", "read_bytes", "write_bytes", "cancelled_write_bytes")
    text = "".join(f"{name}: {70_000 if name == kind else 0}\n" for name in names)
    monkeypatch.setattr(look, "read", lambda path: text.encode())
    assert look.io(1) == 70_000 * counts


# As PyTorch 2.13 wrote it on a CPU: the fields that are read of two of its entries.
FLIGHT = (
    b'{"comm_lib_version":"","entries":[{"collective_seq_id":8,"input_dtypes":["Byte"],"input_sizes":[[10]],'
    b'"is_p2p":false,"process_group":["0","default_pg"],"profiling_name":"gloo:broadcast","retired":true,'
    b'"state":"scheduled"},{"collective_seq_id":9,"input_sizes":[[4,3]],"is_p2p":false,'
    b'"process_group":["0","default_pg"],"profiling_name":"gloo:all_reduce","retired":false,'
    b'"state":"scheduled"}],"version":"2.10"}'
)


def test_a_program_that_writes_over_its_environment(ranks: Ranks) -> None:
    """As setproctitle does: the process is found by the file that it has open."""
    wiped = ranks.start(
        0,
        "import ctypes\n"
        "begin, end = (int(each) for each in open('/proc/self/stat').read().split()[49:51])\n"
        "ctypes.memset(begin, 0, end - begin)\n" + DOES["sleeps"],
    )
    assert b"RANK" not in Path(f"/proc/{wiped.pid}/environ").read_bytes()
    assert look.processes(str(ranks.place), TOKEN, [0, 1]) == {0: wiped.pid}


def test_both_recorders_are_heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch has one for NCCL, and one for the others; each answers for itself alone."""
    base = str(tmp_path / "rank0")
    nccl = FLIGHT.replace(b"gloo:", b"nccl:").replace(b'"collective_seq_id":9', b'"collective_seq_id":12')
    c10d = SimpleNamespace(_dump_fr_trace_json=lambda: FLIGHT, _dump_nccl_trace_json=lambda: nccl.decode())
    monkeypatch.setitem(sys.modules, "torch._C", SimpleNamespace(_distributed_c10d=c10d))
    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", c10d)
    threading.Thread(target=inside._answer, args=(base,), daemon=True).start()
    rank = look.Rank(0, os.getpid(), str(tmp_path))
    assert wait_until(lambda: rank.ask() or bool(rank.flights[-1]), 20)
    assert {each["group"]: each["last"] for each in rank.flights[-1] or ()} == {"gloo 0": 9, "nccl 0": 12}


@pytest.mark.parametrize(("kind", "forms"), [("NO", False), ("MULTI_GPU", True), (None, True)])
def test_a_group_that_accelerate_does_not_use_is_none(
    kind: str | None, forms: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[str] = []
    monkeypatch.setattr(inside, "serve", served.append)
    join = inside._wrapped(lambda: "joined", str(tmp_path / "rank0"))

    class State:
        distributed_type = kind

        def form(self) -> str:
            return str(join())

    assert State().form() == "joined"
    assert bool(served) is forms


def test_a_flight_recorders_answer() -> None:
    (group,) = look.flight(FLIGHT) or ()
    assert (group["group"], group["last"]) == ("gloo 0", 9)
    assert [(call["number"], call["name"], call["pending"]) for call in group["calls"]] == [
        (9, "gloo:all_reduce", True)
    ]
    several = FLIGHT + b'\n{"entries": [], "groups": ["0", "7"]}\n'
    known = {each["group"]: each["last"] for each in look.flight(several) or ()}
    assert known == {"gloo 0": 9, "* 7": 0}
    assert look.flight(None) is None and look.flight(b"{") is None and look.flight(b'{"entries": 3}') is None
