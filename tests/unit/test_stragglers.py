"""Who holds a run up: on made-up moments with noise, and on what a cluster told."""

from __future__ import annotations

import io
import itertools
import math
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from muster.agent import sampler as agents_pace
from muster.agent.proc import sockets_of, threads
from muster.agent.sampler import PaceSampler as Sampled
from muster.agent.sampler import connections
from muster.cli.views.progress import ProgressView
from muster.core.batch import Batch
from muster.core.inventory import Host
from muster.core.job import Job, place
from muster.core.result import Pace, Straggler
from muster.results import stragglers
from muster.results.fold import fold
from muster.results.stragglers import (
    FEWEST,
    KEPT,
    WINDOWS,
    Excess,
    Shares,
    Stragglers,
    excesses,
    lasting,
    link_speeds,
    slow_hosts,
    slow_link,
)
from muster.runs.recorder import Recorder
from muster.store import events
from muster.store.runfolder import RunFolder

HOSTS = ("a", "b", "c")
Noise = Callable[[random.Random], float]
NOISES: dict[str, Noise] = {
    "normal": lambda rng: rng.gauss(0, 0.02),
    "one-sided": lambda rng: rng.expovariate(1 / 0.02),
    "hiccups": lambda rng: rng.gauss(0, 0.005) + (0.5 if rng.random() < 0.08 else 0.0),
}


def moments(rng: random.Random, noise: Noise, own: dict[str, float], count: int) -> list[Shares]:
    """Shares of a step by each host itself."""
    return [{host: share * (1 + noise(rng)) for host, share in own.items()} for _ in range(count)]


@pytest.mark.parametrize("noise", sorted(NOISES))
@pytest.mark.parametrize("count", [2, 3, 8, 64])
def test_the_slow_host_is_named_and_no_healthy_one(noise: str, count: int) -> None:
    rng = random.Random(f"{noise} {count}")
    named, false, wrong = 0, 0, 0
    for _ in range(40):
        healthy = {f"h{n}": 0.5 for n in range(count)}
        false += bool(slow_hosts(moments(rng, NOISES[noise], healthy, 12)))
        found = slow_hosts(moments(rng, NOISES[noise], {**healthy, "h1": 0.65}, 12))
        named += [each.host for each in found] == ["h1"]
        wrong += any(each.host != "h1" for each in found)
    assert (false, wrong) == (0, 0)
    assert named >= 38


def test_a_very_slow_host_hides_nobody_and_two_are_both_named() -> None:
    rng = random.Random(2)
    own = {"a": 0.01, "b": 0.012, "c": 0.011, "d": 0.98}
    assert [e.host for e in slow_hosts(moments(rng, NOISES["normal"], own, FEWEST))] == ["d"]
    own = {f"h{n}": 0.4 for n in range(12)} | {"h3": 0.6, "h7": 0.7}
    assert [e.host for e in slow_hosts(moments(rng, NOISES["normal"], own, 12))] == ["h7", "h3"]


def test_hosts_that_differ_for_good_are_no_stragglers() -> None:
    """A fleet whose hosts differ by 2 % of a step, as they always do there."""
    rng = random.Random(4)
    own = {f"h{n}": 0.5 + rng.gauss(0, 0.02) for n in range(32)}
    assert not slow_hosts(moments(rng, NOISES["normal"], own, 24))


@pytest.mark.parametrize("count", [2, 4, 8])
def test_what_disturbs_hosts_for_a_while_accuses_nobody(count: int) -> None:
    """Each moment is like the one before it: looked at again after each, twelve runs of 60 moments."""
    rng = random.Random(count)
    false = 0
    for _ in range(12):
        state = dict.fromkeys((f"h{n}" for n in range(count)), 0.0)
        seen: list[Shares] = []
        for _ in range(60):
            state = {host: 0.6 * before + rng.gauss(0, 0.04) for host, before in state.items()}
            seen = [*seen[-KEPT + 1 :], {host: 0.7 * (1 + now) for host, now in state.items()}]
            if slow_hosts(seen):
                false += 1
                break
    assert false <= (1 if count == 2 else 0)


def test_errors_are_larger_of_few_moments_and_of_such_that_are_alike() -> None:
    rng = random.Random(1)
    free = [[rng.gauss(0, 1) for _ in range(KEPT)] for _ in range(8)]
    slowly = [[math.sin(n / 5 + host) for n in range(KEPT)] for host in range(8)]
    few = [each[:FEWEST] for each in free]
    assert 1 < lasting(free) < 1.7 and lasting(few) > 2.5 and lasting(slowly) > 3


def test_a_host_that_tells_little_is_not_judged_by_that() -> None:
    """Of twenty hosts one told of one moment only, which was a bad one."""
    some = [{f"h{n}": 0.5 + 0.001 * n for n in range(19)} for _ in range(12)]
    some[5]["late"] = 0.9
    assert "late" not in {each.host for each in excesses(some)}


# --- events ------------------------------------------------------------------------------------------------


def a_run(device: str = "cpu", hosts: int = 3) -> Job:
    """Hosts with a rank each, sampled every second."""
    places = place([(Host(name), 1) for name in HOSTS[:hosts]])
    recipe = {"measure": {"hardware_seconds": 1}}
    return Job("r", "ssh", places, Batch(1, 1, hosts), "fp32", device, recipe)


def window(step: int, rank: int, waiting: float, **more: Any) -> events.Window:
    told = {"forward": 0.3 * (1 - waiting), "backward": 0.7 * (1 - waiting), "waiting": waiting}
    return events.Window.model_validate(
        {
            "time": step, "rank": rank, "host": HOSTS[rank % 3], "step": step, "steps": 10, "seconds": 1.0,
            "samples": 1, "tokens": 1, "padded_tokens": 1, "step_seconds": [0.1] * 10, "parts": told, **more,
        }
    )  # fmt: skip


def sample(at: int, rank: int, own: float, links: Sequence[tuple[str, float]] = ()) -> events.Hardware:
    """A second in which the rank ran for so long; and to each host, seconds that 10 MB were on their way."""
    return events.Hardware(
        time=at, heard=at + 0.1 * rank, host=HOSTS[rank], seconds=1.0, own={rank: own},
        links=[
            events.Link(at=f"10.0.0.{rank}", to=f"10.0.0.{HOSTS.index(to)}", bytes=10_000_000, busy=busy)
            for to, busy in links
        ],
    )  # fmt: skip


def told(watch: Stragglers, stream: Sequence[events.Event]) -> list[Pace]:
    return [found for event in stream if (found := watch.add(event)) is not None]


def test_one_that_is_missed_now_and_then_is_not_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does a link of it become slow in such a moment: who has no time acknowledges late."""
    watch = Stragglers(a_run())
    slow = Straggler(host="b", kind="computation", cost=0.1, slower=0.2, within=0.01)
    watch.link = slow.model_copy(update={"kind": "link", "to": "c"})
    found = [Excess("b", 0.1, 0.01, 1.0, 0.2)]
    number = itertools.count()
    monkeypatch.setattr(stragglers, "slow_hosts", lambda moments: found if next(number) % 6 < 2 else [])
    watch.waits = True
    watch.own[WINDOWS].shares = {n: {"a": [0.1], "b": [0.2], "c": [0.1]} for n in range(FEWEST)}
    (only,) = [pace for _ in range(40) if (pace := watch._changed()) is not None]
    assert [(each.kind, each.last_step) for each in only.stragglers] == [("computation", None)]


def test_it_is_written_down_and_shown(tmp_path: Path) -> None:
    run, text = RunFolder(tmp_path / "run"), io.StringIO()
    run.create()
    progress = ProgressView(Console(file=text, width=200))
    with Recorder(run, 1, progress, stragglers=Stragglers(a_run())) as recorder:
        for n in range(1, 40):
            for rank in range(3):
                recorder.record(window(10 * n, rank, 0.05 if rank == 1 and n < 12 else 0.3))
        recorder.last_progress()
    kept = [event.found for event in events.read_events(run.events) if isinstance(event, events.Paced)]
    assert [each.last_step is None for pace in kept for each in pace.stragglers] == [True, False, False]
    shown = " ".join(text.getvalue().split())
    assert shown.count("step 60: b makes every step 33 % longer: its own computation") == 1
    assert shown.count("no host holds the others up any more") == 1
    attempt = events.JobState(time=0, attempt=2, state="begin")
    assert fold(events.read_events(run.events)).pace == kept[-1]
    assert fold([*events.read_events(run.events), attempt]).pace is None, "another attempt, other hosts"


def test_what_a_host_makes_up_stops_nobody() -> None:
    """Windows of ranks that are another's or nobody's, and times that are none."""
    watch = Stragglers(a_run())
    assert not told(
        watch,
        [
            *(window(10, 0, 0.3).model_copy(update={"rank": rank}) for rank in (1, 2, 7, None)),
            *(
                window(step, rank, 0.3, seconds=math.nan if rank == 1 else math.inf)
                for step in (10, 20)
                for rank in range(3)
            ),
            *(window(30, rank, math.nan) for rank in range(3)),
        ],
    )
    assert watch.pace() is None
    good = {"at": "10.0.0.1", "to": "10.0.0.2", "bytes": 5, "busy": 0.1}
    for more in ({"seconds": -1.0}, {"own": {0: math.nan}}, {"own": {0: math.inf}},
                 {"links": [{**good, "bytes": 10**400}]}, {"links": [{**good, "busy": math.inf}]},
                 {"links": [good] * 100}):  # fmt: skip
        with pytest.raises(ValueError):
            events.Hardware.model_validate({"time": 0, **more})


RING = {"a": "b", "b": "c", "c": "a"}


def links_of(count: int, slow: Callable[[int, int], float], scale: Callable[[int, int], float]) -> list[Any]:
    """All to all: a second each for so many bytes, times what is slow."""
    rng = random.Random(3)
    return [
        {
            (f"h{a}", f"h{b}"): (1e-8 * slow(a, b) * (1 + rng.gauss(0, 0.02)), 0.2 * scale(a, b))
            for a, b in itertools.permutations(range(count), 2)
        }
        for _ in range(12)
    ]


def test_links_that_carry_another_load_are_not_compared() -> None:
    """All send to the first host as well: what goes there waits for what else goes there."""
    hub = lambda a, b: 0 in (a, b)  # noqa: E731
    alike = links_of(4, lambda a, b: 1.5 if hub(a, b) else 1.0, lambda a, b: 1.5 if hub(a, b) else 1.0)
    found = slow_link(link_speeds(alike))
    assert found is not None and (found.host, found.to) == ("h0", None)
    more = links_of(4, lambda a, b: 1.5 if hub(a, b) else 1.0, lambda a, b: 4.0 if hub(a, b) else 1.0)
    assert slow_link(link_speeds(more)) is None
    two_speeds = links_of(8, lambda a, b: 2.0 if max(a, b) > 3 else 1.0, lambda a, b: 1.0)
    assert slow_link(link_speeds(two_speeds)) is None, "half of a switch is nobody's fault"


# --- the agent's part --------------------------------------------------------------------------------------


def test_a_rank_that_computes_and_one_that_sleeps() -> None:
    program = "import time\nprint('ready', flush=True)\nwhile True: {}"
    both = [
        subprocess.Popen(
            [sys.executable, "-c", program.format(what)],
            env={**os.environ, "RANK": str(rank)},
            stdout=subprocess.PIPE,
        )
        for rank, what in enumerate(("pass", "time.sleep(1)"))
    ]
    try:
        for each in both:
            assert each.stdout and each.stdout.readline() == b"ready\n"
        sampler, pids = Sampled([0, 1]), [each.pid for each in both]
        sampler.sample(pids)
        if not threads(pids[0]):
            pytest.skip("this kernel does not count how long threads ran")
        time.sleep(0.3)
        told = sampler.sample(pids)
    finally:
        for each in both:
            each.kill()
            each.communicate()
    assert told["own"][0] > 5 * told["own"][1]
    assert told["links"] == []


def test_waiting_for_a_core_is_work_that_is_to_be_done() -> None:
    """As of a host of which others take the cores, or whose quota is small."""
    mine = Path(f"/proc/self/task/{os.getpid()}/schedstat")
    if not mine.exists():
        pytest.skip("this kernel does not count how long threads ran")
    before, told_of = sum(map(int, mine.read_text().split()[:2])), threads(os.getpid())[os.getpid()]
    assert before <= told_of <= sum(map(int, mine.read_text().split()[:2]))


def test_units_and_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slowest thread of a rank counts; of links what came since the sample before, to other hosts."""
    spent = [{7: 1_000_000_000, 8: 0}, {7: 1_500_000_000, 8: 250_000_000, 9: 900_000_000}]
    mine, other, same = ("10.0.0.1", "10.0.0.2"), ("10.0.0.1", "10.0.0.3"), ("10.0.0.1", "10.0.0.1")
    open_ones = [
        {1: (mine, 1000, 500_000), 2: (mine, 10, 10), 3: (same, 5, 5), 4: (other, 5, 5)},
        {1: (mine, 4000, 750_000), 2: (mine, 1010, 250_010), 3: (same, 9, 9), 4: (other, 5, 5)},
    ]
    monkeypatch.setattr(agents_pace, "about", lambda pid: (2, 1, "python"))
    number = iter((0, 1))
    monkeypatch.setattr(agents_pace, "threads", lambda pid: spent[at])
    monkeypatch.setattr(agents_pace, "sockets_of", lambda pid: {1, 2, 3, 4})
    monkeypatch.setattr(agents_pace, "connections", lambda: open_ones[at])
    sampler, at = Sampled([2]), next(number)
    assert sampler.sample([50])["own"] == {}
    at = next(number)
    assert sampler.sample([50]) == {
        "own": {2: 0.5},
        "links": [{"at": "10.0.0.1", "to": "10.0.0.2", "bytes": 4000, "busy": 0.5}],
    }


def test_an_answer_of_the_kernel_about_a_connection() -> None:
    """IPv4 within IPv6; what the receiver had no room for is not the link's."""
    four = [socket.inet_pton(socket.AF_INET6, f"::ffff:10.0.0.{n}") for n in (1, 2)]
    info = bytes(120) + struct.pack("=Q", 7000) + bytes(40) + struct.pack("=QQ", 900, 300)
    told = struct.pack("=BBBB", socket.AF_INET6, 1, 0, 0) + bytes(4) + four[0] + four[1]
    told = told.ljust(68, b"\0") + struct.pack("=I", 42) + struct.pack("=HH", 4 + len(info), 2) + info
    found: dict[int, Any] = {}
    assert agents_pace.read(struct.pack("=IHHII", 16 + len(told), 20, 2, 1, 0) + told, found)
    assert found == {42: (("10.0.0.1", "10.0.0.2"), 7000, 600)}


def test_a_loaders_worker_is_not_the_rank_and_what_a_shell_starts_is(tmp_path: Path) -> None:
    """Both have the rank in their environment."""
    asleep = "time.sleep(600)"
    worker = f"import os, time; os.fork(); os.write(1, b'%d\\n' % os.getpid()); {asleep}"  # one write each
    line = f'"{sys.executable}" -c "{worker}"; true'  # a shell starts it, and waits
    shell = subprocess.Popen(["bash", "-c", line], env={**os.environ, "RANK": "3"}, stdout=subprocess.PIPE)
    assert shell.stdout
    child = int(shell.stdout.readline())
    grandchild = int(shell.stdout.readline())
    try:
        sampler, pids = Sampled([3]), [shell.pid, child, grandchild]
        sampler.sample(pids)
        assert {pid for pid, _ in sampler.threads} == {shell.pid, min(child, grandchild)}
    finally:
        for pid in (child, grandchild):
            os.kill(pid, signal.SIGKILL)
        shell.communicate()


def test_a_process_that_becomes_a_rank_after_it_was_seen() -> None:
    """As a launcher's child that was looked at before its exec."""
    line = f'read; RANK=3 exec "{sys.executable}" -c "print(1, flush=True); input()"'
    pipe = subprocess.PIPE
    with subprocess.Popen(["bash", "-c", line], stdin=pipe, stdout=pipe) as process:
        assert process.stdin and process.stdout
        sampler = Sampled([3])
        sampler.sample([process.pid])
        assert not sampler.threads
        process.stdin.write(b"go\n")
        process.stdin.flush()
        process.stdout.readline()
        sampler.sample([process.pid])
        seen = {pid for pid, _ in sampler.threads}
        process.kill()
    assert seen == ({process.pid} if threads(os.getpid()) else set())


def test_the_kernels_counts_of_a_connection() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as there,
        server.accept()[0] as here,
    ):
        thread = threading.Thread(target=here.sendall, args=(bytes(1 << 20),))
        thread.start()
        got = 0
        while got < 1 << 20:
            got += len(there.recv(1 << 16))
        thread.join()
        found = connections()
        mine = sockets_of(os.getpid())
        told = [each for inode, each in found.items() if inode in mine]
    if not found:
        pytest.skip("this kernel does not tell connections")
    sent = [acked for (_, _), acked, _ in told]
    assert max(sent) == pytest.approx(1 << 20, abs=2) and len(told) == 2
    assert all(ends == ("127.0.0.1", "127.0.0.1") and busy >= 0 for ends, _, busy in told)
