"""Why a job did not succeed: the first cause, not what came of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from muster.core.job import Placement
from muster.core.launch import Launch
from muster.core.result import Failure
from muster.fleet.cause import judge_command, judge_outcome, with_way_on
from muster.fleet.launchers import local
from muster.fleet.supervisor import Listener, Outcome, Supervisor
from muster.store import events

STOPPED = (None, "stopped")


def test_a_host_that_does_not_survive_being_stopped_is_not_the_one_that_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """node1's ranks fail; node0 is told to stop and its connection breaks before it has said that it did."""
    places = (Placement("node0", "node0", 1, 0), Placement("node1", "node1", 1, 1))
    with Supervisor(places, local, Launch(), "job") as held:
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


@pytest.mark.parametrize(("culprit", "what"), [((1, 99), "rank 1"), (None, "a rank")])
def test_a_host_whose_ranks_a_signal_ended(culprit: tuple[int, int] | None, what: str) -> None:
    """None: its agent does not say which was the first."""
    culprits = {"node1": culprit} if culprit else {}
    outcome = Outcome({"node0": STOPPED, "node1": (-11, None)}, first_failed="node1", culprits=culprits)
    status, failure = judge_outcome(outcome, (), {}, 2, TWO)
    assert failure is not None and (status, failure.host) == ("failed", "node1")
    assert what in failure.what


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


def test_what_an_agent_could_not_do() -> None:
    full = Failure(what="the disk is full", host="node0", hint="make room", id="disk_full")
    outcome = Outcome(exits={"node0": (None, "error")}, problems={"node0": full})
    assert judge_outcome(outcome, [], {}, 1) == ("failed", full)


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


HOOKED = [
    "[rank0]: Traceback (most recent call last):",
    '[rank0]:   File "train.py", line 7, in <module>',
    '[rank0]:     if step == 20: raise ValueError("label 17 out of range in sample 20")',
    "[rank0]: ValueError: label 17 out of range in sample 20",
]
ACCOUNT = ["  rank      : 0 (local_rank: 0)", "  exitcode  : 1 (pid: 29784)"]


def of_one_host(says: dict[int | None, list[str]]) -> Failure:
    """What ended the ranks of node0, by what each has printed."""
    place = Placement("node0", "10.0.0.1", len(says) - 1, 0)
    outcome = Outcome({"node0": (1, None)}, first_failed="node0")
    failure = judge_command(outcome, lambda host, rank: [says[rank]], [place])[1]
    assert failure is not None
    return failure


def test_steps_that_overtake_an_exception() -> None:
    """stdout and stderr were read by turns (torch 2.13): torch's own hook prints what ended a process. What a
    program prints of an exception that it caught did not."""
    steps = [f"step {step} loss {1 / step:.4f}" for step in range(1, 21)]
    found = of_one_host({0: [*steps[:17], *HOOKED, *steps[17:]], None: ACCOUNT})
    assert (found.where, found.what) == ("rank 0", "ValueError: label 17 out of range in sample 20")
    caught = [line.removeprefix("[rank0]: ") for line in HOOKED]
    found = of_one_host({0: [*steps[:17], *caught, *steps[17:]], None: ACCOUNT})
    assert found.what == "rank 0 ended with exit code 1; its last line: step 20 loss 0.0500"
    anew = [*steps[:17], *HOOKED, *steps]  # torchrun began it anew, and then it ended without a word
    assert "exit code 1" in of_one_host({0: anew, None: ACCOUNT}).what


LOST = [
    "[rank0]: Traceback (most recent call last):",
    '[rank0]:   File "train.py", line 6, in <module>',
    "[rank0]: RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:56970. "
    "This is typically caused by a remote worker crashing.",
    "",
]


@pytest.mark.parametrize("name", ["RuntimeError", "lib.errors.Aborted"])
@pytest.mark.parametrize(
    "link",
    [
        "The above exception was the direct cause of the following exception:",
        "During handling of the above exception, another exception occurred:",
    ],
)
def test_what_is_raised_because_another_rank_is_lost(link: str, name: str) -> None:
    """However often it is raised anew; what follows from an exception of its own is its own."""
    again = [f"[rank0]: {link}", "", *HOOKED[:2], f"[rank0]: {name}: training failed on this rank", ""]
    own = [line.replace("rank0", "rank1") for line in HOOKED]
    found = of_one_host({0: [*LOST, *again, *again], 1: own, None: ["  exitcode  : 1 (pid: 29784)"]})
    assert (found.where, found.what) == ("rank 1", "ValueError: label 17 out of range in sample 20")
    found = of_one_host({0: [*HOOKED, "", *again], 1: LOST, None: ACCOUNT})
    assert found.where == "rank 0" and ("label 17" in found.what or "training failed" in found.what)


def test_of_two_that_raised_torchrun_names_the_first() -> None:
    account = ["Root Cause (first observed failure):", "  rank      : 1 (local_rank: 1)",
               "  exitcode  : 1 (pid: 29785)"]  # fmt: skip
    own = [line.replace("rank0", "rank1").replace("17", "18") for line in HOOKED]
    assert of_one_host({0: HOOKED, 1: own, None: account}).where == "rank 1"
    assert of_one_host({0: HOOKED, 1: own, None: [""]}).where == "rank 0"


def test_a_chain_that_is_printed_twice() -> None:
    """By the program's logger, and by Python's end; without torch's mark."""
    chain = [line.removeprefix("[rank0]: ") for line in LOST]
    link = "The above exception was the direct cause of the following exception:"
    chain += [link, "", *(line.removeprefix("[rank0]: ") for line in HOOKED[:2])]
    chain.append("RuntimeError: training failed on this rank")
    own = [line.replace("rank0", "rank1") for line in HOOKED]
    found = of_one_host({0: [*chain, *chain], 1: own, None: ["  exitcode  : 1 (pid: 29784)"]})
    assert found.where == "rank 1"
