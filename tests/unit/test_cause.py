"""Why a job did not succeed: the first cause, not what came of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from muster.core.job import Placement
from muster.core.launch import Launch
from muster.core.result import Failure
from muster.failures.table import find
from muster.fleet.cause import judge_command, judge_outcome, with_way_on
from muster.fleet.launchers import local
from muster.fleet.messages import Kernel
from muster.fleet.shell import Shell
from muster.fleet.supervisor import Listener, Outcome, Supervisor
from muster.store import events

CLEAN = (0, None)
STOPPED = (None, "stopped")


def failed(rank: int, what: str, time: float, **more: Any) -> events.Failed:
    known = find(what, "log", "error")
    told = {"id": known.failure.id if known else None, **more}
    return events.Failed(time=time, rank=rank, host=f"node{rank}", what=what, **told)


def judge(
    *, exits: dict[str, Any], done: tuple[int, ...] = (), failures: tuple[events.Failed, ...] = (),
    places: tuple[Placement, ...] | None = None,
    rank_logs: dict[str, str] | None = None, **outcome: Any,
) -> tuple[str, Failure | None]:  # fmt: skip
    return judge_outcome(
        Outcome(exits=exits, **outcome),
        failures,
        {rank: events.Done(time=1, rank=rank, step=1) for rank in done},
        2,
        places or (),
        (lambda host, rank: (rank_logs or {}).get(host, "")),
    )


def cause(**given: Any) -> Failure:
    status, failure = judge(**given)
    assert status == "failed"
    assert failure is not None
    return failure


def test_success() -> None:
    assert judge(exits={"node0": CLEAN, "node1": CLEAN}, done=(0, 1)) == ("succeeded", None)


def test_a_host_that_does_not_survive_being_stopped_is_not_the_one_that_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """node1's ranks fail; node0 is told to stop and its connection breaks before it has said that it did."""
    places = (Placement("node0", "node0", 1, 0), Placement("node1", "node1", 1, 1))
    with Supervisor(places, local, Launch(), "job", Shell()) as held:
        first, second = held.links
        gone = SimpleNamespace(output=None, errors=None, gone=lambda: True, hang_up=lambda: None)
        gone.end = gone.hang_up

        def turn(handle: Any) -> None:
            if second.ended:
                first.give_up("the connection broke")
                return
            second.attach(gone)
            second.output_closed = True
            handle(second, {"m": "exit", "code": 1, "why": None})

        monkeypatch.setattr(held.fleet, "turn", turn)
        silent = Listener(lambda *_: None, lambda *_: None, lambda *_: None)
        outcome = held.run({place.host: {} for place in places}, silent)
    assert b'"op": "stop"' in first.outgoing
    status, failure = judge_outcome(outcome, (), {}, 2, places)
    assert status == "failed" and failure is not None and failure.host == "node1"


def test_an_agent_that_was_ended_from_outside() -> None:
    """As scancel does it: what its ranks printed is no cause."""
    outcome = Outcome({"node0": STOPPED, "node1": (None, "signal 15")}, first_failed="node1")
    printed = [["ValueError: one of a check that is caught"]]
    status, failure = judge_command(outcome, lambda host, rank: printed, TWO)
    assert failure is not None and failure.hint is not None and "scancel" in failure.hint
    assert (status, failure.what) == ("failed", "the agent of that host was ended by signal 15")


def test_torchrun_tells_of_a_killed_rank_after_its_host_was_stopped() -> None:
    """node0's rank missed the killed one, and its torchrun was quicker: lines of torch 2.13."""
    account = [
        "  time      : 2026-11-25_22:17:44",
        "  host      : localhost",
        "  rank      : {rank} (local_rank: 0)",
    ]
    missed = ["RuntimeError: [third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:7575: "
              "Connection reset by peer"]  # fmt: skip
    says = {
        ("node0", 0): missed,
        ("node0", None): [*(line.format(rank=0) for line in account), "  exitcode  : 1 (pid: 29784)"],
        ("node1", 1): ["ready"],
        ("node1", None): [
            *(line.format(rank=1) for line in account),
            "  exitcode  : -9 (pid: 29785)  (SIGKILL)",
        ],
    }

    def judged(
        second: tuple[int | None, str | None], words: dict[tuple[str, int | None], list[str]]
    ) -> Failure:
        outcome = Outcome({"node0": (1, None), "node1": second}, first_failed="node0")
        failure = judge_command(outcome, lambda host, rank: [words[host, rank]], TWO)[1]
        assert failure is not None
        return failure

    for second in (STOPPED, (1, None)):
        found = judged(second, says)
        assert (found.host, found.where) == ("node1", "rank 1") and "SIGKILL" in found.what
    # A host that tells of no rank, and a reason that another one gives, stay what they are.
    assert judged(STOPPED, {**says, ("node1", None): ["Killed"]}).host == "node0"
    reason = judged(
        STOPPED, {**says, ("node0", 0): ["Traceback (most recent call last):", "ValueError: of node0"]}
    )
    assert reason.host == "node0" and "ValueError" in reason.what


def test_an_exception_outweighs_the_signal_that_follows_from_it() -> None:
    """node0's rank misses the one that raised, and gloo aborts it; its torchrun was quicker (torch 2.13)."""
    says = {
        ("node0", 0): ["terminate called after throwing an instance of 'gloo::IoException'"],
        ("node0", None): ["  rank      : 0 (local_rank: 0)", "  exitcode  : -6 (pid: 29784)  (SIGABRT)"],
        ("node1", 1): ["Traceback (most recent call last):", '  File "ngpt.py", line 24, in <module>',
                       "ValueError: bad batch in shard 7"],
        ("node1", None): [""],
    }  # fmt: skip
    for second in (STOPPED, (1, None)):
        outcome = Outcome({"node0": (1, None), "node1": second}, first_failed="node0")
        failure = judge_command(outcome, lambda host, rank: [says[host, rank]], TWO)[1]
        assert failure is not None and (failure.host, failure.where) == ("node1", "rank 1")
        assert "bad batch in shard 7" in failure.what
    # What a rank says when others are gone, or when it is stopped, is no cause.
    gone = "RuntimeError: [gloo/transport/tcp/pair.cc:537] Connection closed by peer [127.0.0.1]:7575"
    outcome = Outcome({"node0": (1, None), "node1": STOPPED}, first_failed="node0")
    missed = {**says, ("node1", 1): ["Traceback (most recent call last):", gone]}
    failure = judge_command(outcome, lambda host, rank: [missed[host, rank]], TWO)[1]
    assert failure is not None and failure.host == "node0"


@pytest.mark.parametrize(("done", "what"), [((0,), "rank 1 left"), ((), "rank 0, 1 left")])
def test_a_rank_that_did_not_say_done_did_not_succeed(done: tuple[int, ...], what: str) -> None:
    failure = cause(exits={"node0": CLEAN, "node1": CLEAN}, done=done)
    assert failure.what == f"{what} without saying that it was done"


@pytest.mark.parametrize(
    ("words", "status"),
    [("stopped by Ctrl-C", "stopped"), ("stopped by `muster stop`", "stopped"), ("timeout: 5 s", "timeout")],
)
def test_a_stop_is_no_failure_of_a_rank(words: str, status: str) -> None:
    got = judge(
        exits={"node0": STOPPED, "node1": STOPPED},
        stopped=words,
        failures=(failed(0, "connection closed by peer", 5.0),),
        culprits={"node0": (0, 470)},
    )
    assert got == (status, Failure(what=words))


def test_bad_input_that_a_rank_found_explains_all_that_followed() -> None:
    failure = cause(
        exits={"node0": (-9, None), "node1": STOPPED},
        failures=(
            failed(1, "connection closed by peer", 1.0),
            failed(0, "is not JSON", 2.0, usage=True, where="/d:3", hint="one a line"),
        ),
        culprits={"node0": (0, 470)},
    )
    assert failure == Failure(what="is not JSON", where="/d:3", host="node0", hint="one a line", usage=True)


def test_a_rank_that_was_killed_and_not_those_that_missed_it() -> None:
    failure = cause(
        exits={"node0": (1, None), "node1": (-9, None)},
        failures=(failed(0, "connection closed by peer", 1.0),),
        culprits={"node0": (0, 470), "node1": (1, 471)},
        first_failed="node1",
    )
    assert (failure.what, failure.where, failure.host) == ("rank 1 was killed by SIGKILL", "rank 1", "node1")
    assert "not known" in (failure.hint or "")  # nothing was said of that host's kernel


OOM = "rank 1 was killed by the kernel's out-of-memory killer"
NOT_OOM = "rank 1 was killed by SIGKILL, not by the kernel's out-of-memory killer"
UNKNOWN = "rank 1 was killed by SIGKILL"


@pytest.mark.parametrize(
    ("kernel", "what"),
    [
        ({"group": 1}, OOM),
        ({"log": ["Memory cgroup out of memory: Killed process 471 (pt_main)"], "machine": 1}, OOM),
        ({"group": 0}, NOT_OOM),
        ({"machine": 0}, NOT_OOM),
        ({"log": []}, NOT_OOM),
        ({"group": 0, "machine": 3, "log": ["Out of memory: Killed process 4711 (other)"]}, NOT_OOM),
        ({"machine": 3}, UNKNOWN),  # somebody's, and perhaps not this one
        ({"machine": 1, "log": ["Out of memory: Killed process 4711 (other)"]}, UNKNOWN),
        ({}, UNKNOWN),
    ],
)
def test_who_sent_a_sigkill_is_read_and_not_guessed(kernel: dict[str, Any], what: str) -> None:
    given = {"exits": {"node1": (-9, None)}, "culprits": {"node1": (1, 471)}}
    failure = cause(**given, kernel={"node1": Kernel(**kernel)})
    assert (failure.what, failure.host) == (what, "node1")
    assert ("not known" in (failure.hint or "")) == (what == UNKNOWN)
    assert failure.id == ("host_oom_killed" if what == OOM else None)


@pytest.mark.parametrize(
    ("code", "name"), [(-11, "SIGSEGV"), (-6, "SIGABRT"), (-64, "SIGRTMAX"), (-99, "signal 99")]
)
def test_other_signals(code: int, name: str) -> None:
    failure = cause(exits={"node0": (code, None)}, culprits={"node0": (0, 470)})
    assert failure.what == f"rank 0 was ended by {name}"
    assert "memory killer" not in (failure.hint or "")


def test_a_bus_error_points_to_shared_memory() -> None:
    failure = cause(exits={"node0": (-7, None)}, culprits={"node0": (0, 470)})
    assert (failure.what, failure.id) == ("rank 0 was ended by SIGBUS", "bus_error")
    assert failure.hint is not None and "{host}" not in failure.hint and "on node0;" in failure.hint
    assert cause(exits={"node0": (-1, "rank")}, culprits={"node0": (0, 7)}).id == "hangup"
    assert "/dev/shm" in (failure.hint or "")


def test_the_root_cause_and_not_what_it_brought_down() -> None:
    failure = cause(
        exits={"node0": (1, None)},
        failures=(failed(1, "ZeroDivisionError: x", 1.0),),
        culprits={"node0": (1, 471)},
    )
    assert (failure.what, failure.where) == ("ZeroDivisionError: x", "rank 1")


def test_ranks_that_were_only_ended_because_another_host_failed() -> None:
    failure = cause(
        exits={"node0": (-15, None), "node1": (1, None)},
        failures=(failed(1, "ZeroDivisionError: x", 1.0),),
        culprits={"node0": (0, 470), "node1": (1, 471)},
        first_failed="node1",
    )
    assert (failure.what, failure.host) == ("ZeroDivisionError: x", "node1")


def test_sigterm_is_the_cause_where_there_is_no_other() -> None:
    failure = cause(exits={"node0": (-15, None), "node1": STOPPED}, culprits={"node0": (0, 470)})
    assert failure.what == "rank 0 was ended by SIGTERM"


def test_a_lost_host_and_not_the_ranks_that_missed_it() -> None:
    failure = cause(
        exits={"node0": (1, None)},
        lost={"node1": "silent for 15 s"},
        failures=(failed(0, "connection closed by peer", 1.0),),
    )
    assert (failure.what, failure.host) == ("the host was lost: silent for 15 s", "node1")
    assert failure.id == "ssh_unreachable"
    words = "root@node1: Permission denied (publickey)."
    assert cause(exits={"node0": STOPPED}, lost={"node1": words}).id == "ssh_permission_denied"


def test_the_agents_deadline() -> None:
    status, failure = judge(exits={"node0": (None, "deadline"), "node1": STOPPED})
    assert (status, failure) == ("timeout", Failure(what="launch.timeout was reached", host="node0"))


def test_the_report_that_came_first_is_the_cause() -> None:
    """The order of arrival, whatever the hosts' clocks say."""
    reports = (failed(0, "first", 9.0, hint="h"), failed(1, "second", 1.0))
    failure = cause(exits={"node0": (1, None), "node1": (1, None)}, failures=reports)
    assert (failure.what, failure.host, failure.where, failure.hint) == ("first", "node0", "rank 0", "h")


@pytest.mark.parametrize(
    "echo",
    [
        "RuntimeError: [gloo] Connection closed by peer [10.0.0.1]:33212",
        "DistBackendError: NCCL error: ncclRemoteError: A call failed possibly due to a network error",
    ],
)
def test_a_peer_that_is_gone_is_an_echo(echo: str) -> None:
    """What only says that another rank went away is not why it went away, even where it arrives first."""
    reports = (failed(1, echo, 1.0), failed(0, "JobError: out of memory", 2.0))
    failure = cause(exits={"node0": (1, None), "node1": (1, None)}, failures=reports)
    assert failure.what == "JobError: out of memory"


def test_what_an_agent_could_not_do() -> None:
    full = Failure(what="the disk is full", host="node0", hint="make room", id="disk_full")
    outcome = Outcome(exits={"node0": (None, "error")}, problems={"node0": full})
    assert judge_outcome(outcome, [], {}, 1) == ("failed", full)


@pytest.mark.parametrize(
    ("left", "what"), [((1, None), "a rank ended with exit code 1"), ((None, "parent gone"), "parent gone")]
)
def test_a_host_that_failed_without_a_word_and_not_the_one_that_was_stopped(
    left: tuple[int | None, str | None], what: str
) -> None:
    failure = cause(exits={"node0": STOPPED, "node1": left}, first_failed="node1")
    assert (failure.what, failure.host) == (what, "node1")
    assert "log" in (failure.hint or "")


def test_the_way_on_from_a_checkpoint() -> None:
    """Where there is one to go on from; bad input has to be mended first."""
    saved = [events.Saved(time=1.0, step=step, path="p", bytes=1, seconds=1) for step in (20, 40)]
    model = events.Saved(time=1.0, step=None, path="p", bytes=1, seconds=1)
    stopped = Failure(what="stopped by Ctrl-C")
    assert with_way_on(stopped, "mine", [], None) == with_way_on(stopped, "mine", [model], None) == stopped
    told = with_way_on(stopped, "mine", [*saved, model], None).hint or ""
    assert told.startswith("`muster resume mine`") and "step 40" in told
    lost = with_way_on(Failure(what="lost", host="node3", hint="h"), "mine", saved, "node3").hint or ""
    assert lost.startswith("h; ") and "--without node3" in lost
    bad = Failure(what="is not JSON", usage=True)
    assert with_way_on(bad, "mine", [], None) == bad
    assert "mended, `muster resume mine`" in (with_way_on(bad, "mine", saved, None).hint or "")


TWO = (Placement("node0", "10.0.0.1", 1, 0), Placement("node1", "10.0.0.2", 1, 1))
THREE = (*TWO, Placement("node2", "10.0.0.3", 1, 2))
GONE = "RuntimeError: [gloo] Timed out waiting 120000ms for recv operation to complete"


def test_a_rank_that_complains_of_another_is_a_witness() -> None:
    """node1 was frozen: its agent lives, and its ranks say nothing."""
    failure = cause(
        exits={"node0": (1, None), "node1": STOPPED}, failures=(failed(0, GONE, 1.0),), places=TWO,
        culprits={"node0": (0, 470)}, first_failed="node0",
    )  # fmt: skip
    assert (failure.host, failure.where) == ("node1", "rank 1")
    assert failure.what == f"rank 1 stopped answering; rank 0 on node0 says: {GONE}"
    assert failure.id == "peer_collapse"


def test_of_many_silent_hosts_none_is_accused() -> None:
    given: dict[str, Any] = {
        "exits": {"node0": (1, None), "node1": STOPPED, "node2": STOPPED}, "places": THREE,
        "culprits": {"node0": (0, 470)}, "first_failed": "node0",
    }  # fmt: skip
    failure = cause(failures=(failed(0, GONE, 1.0),), **given)
    assert (
        failure.host is None and "node1, node2" in (failure.hint or "") and "rank 0 on node0" in failure.what
    )
    named = failed(0, "RuntimeError: Connection closed by peer [10.0.0.3]:33212", 1.0)
    assert cause(failures=(named,), **given).host == "node2"
    both = (failed(0, GONE, 1.0), failed(2, GONE, 2.0))
    assert cause(failures=both, **given).host == "node1"
    assert cause(failures=(failed(0, GONE, 1.0),), done=(1,), **given).host == "node2"
    many = (*TWO, Placement("node10", "10.0.0.20", 1, 2))
    for name in ("10.0.0.20", "node10"):
        told = failed(0, f"RuntimeError: Connection closed by peer [{name}]:33212", 1.0)
        assert cause(failures=(told,), **{**given, "places": many}).host == "node10"


def test_nccls_watchdog_ends_the_rank_that_waited() -> None:
    said = "[rank0]:[E1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5)"
    failure = cause(
        exits={"node0": (-6, None), "node1": STOPPED}, places=TWO, culprits={"node0": (0, 470)},
        rank_logs={"node0": f"x\n{said}\ny"}, first_failed="node0",
    )  # fmt: skip
    assert failure.host == "node1" and said in failure.what
    assert failure.id == "nccl_watchdog_timeout"


def test_one_that_left_without_a_word_and_not_its_witness() -> None:
    failure = cause(
        exits={"node0": (1, None), "node1": (3, None)}, failures=(failed(0, GONE, 1.0),), places=TWO,
        first_failed="node0", culprits={"node1": (4, 471)},
    )  # fmt: skip
    assert (failure.what, failure.host) == ("rank 4 ended with exit code 3", "node1")


def test_what_is_said_counts_and_not_the_way_to_it() -> None:
    """Bad input is what it says that it is, and a traceback may hold a peer's end that was not the cause."""
    given: dict[str, Any] = {"exits": {"node0": (1, None), "node1": STOPPED}, "places": TWO}
    told = failed(0, "KeyError: 'x'", 1.0, traceback="while handling: Connection reset by peer")
    assert cause(failures=(told,), **given).host == "node0"
    bad = failed(0, "the tracker cannot be used: connection refused", 1.0, usage=True)
    assert cause(failures=(bad,), **given).usage
