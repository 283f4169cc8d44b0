"""Ways to end that many jobs share: whose they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from muster.core.state import LogEnd, State
from muster.judging import Settings
from muster.judging.document import Judged
from muster.judging.joblogs import AS_MOST, judged
from muster.readers.base import JobLog, MeasuredWindows
from tests.unit.logs import at, chat_log, one

FLEET = [f"node-{number:03d}" for number in range(1, 17)]
BROKEN = "RuntimeError: CUDA error: uncorrectable ECC error encountered"


def ran(host: str, number: int = 0, *, ends: str = "") -> JobLog:
    """A job of one host: a good one, or one that ends with this line."""
    noise = 1 + ((FLEET.index(host) * 7919 + 31 * number) % 61 - 30) / 10_000
    lines = chat_log([host], 0.2 * noise, ends=not ends, windows=4 if ends else 10)
    return one(
        [*lines, *(["Traceback (most recent call last):", ends] if ends else [])], f"{number}/{host}.log"
    )


def short(path: str, hosts: Sequence[str], seconds: float | None, reason: str = "", **fields: str) -> JobLog:
    """What a bench would tell of a job."""
    if seconds is None:
        outcome: LogEnd = State.TIMEOUT
        return JobLog(job=path, outcome=outcome, reason=reason, hosts=tuple(hosts), **fields)  # type: ignore[arg-type]
    measured = MeasuredWindows(100, 0, 100.0, 100 * seconds, windows=10)
    return JobLog(
        job=path, outcome=State.SUCCEEDED, hosts=tuple(hosts), batch=1.0, measured=measured, **fields
    )  # type: ignore[arg-type]


def conditions(found: Judged) -> dict[str, str]:
    return {each.hosts[0]: each.condition for each in found.hosts}


def failing(found: Judged) -> set[str]:
    return {host for host, condition in conditions(found).items() if condition == "failing"}


@pytest.mark.parametrize(
    ("line", "failure"),
    [
        ("OSError: [Errno 28] No space left on device: '/shared/checkpoints'", "disk_full"),
        ("ModuleNotFoundError: No module named 'datasets'", "remote_module_missing"),
        ("OSError: [Errno 24] Too many open files", "nofile"),
        ("RuntimeError: No CUDA GPUs are available", "no_gpu"),
        ("RuntimeError: CUDA error: unspecified launch failure", "gpu_hardware"),
    ],
)
def test_one_cause_of_all_hosts_is_held_against_none(line: str, failure: str) -> None:
    """Also where each host speaks of itself."""
    found = judged("x", [ran(host, n, ends=line) for host in FLEET for n in (0, 1)], Settings(), {})
    assert set(conditions(found).values()) == {"unknown"} and not found.accused
    assert {each.reason for each in found.hosts} == {AS_MOST}
    assert len(found.notes) == 1 and "32 jobs" in found.notes[0] and failure in found.notes[0]


@pytest.mark.parametrize("line", ["OSError: [Errno 28] No space left on device", "RuntimeError: boo", BROKEN])
def test_one_host_in_many_jobs_is_to_blame(line: str) -> None:
    """More than half of all jobs end so, and all of them are its own."""
    logs = [ran(host) for host in FLEET] + [ran(FLEET[2], n, ends=line) for n in range(1, 25)]
    assert failing(judged("x", logs, Settings(), {})) == {FLEET[2]}


def test_what_is_a_fact_about_a_host_is_never_shared() -> None:
    """A rack that nobody gets through to: ten hosts of sixteen."""
    lost = [
        one([f"ssh: connect to host {host} port 22: No route to host"], f"{n}/{host}.log")
        for host in FLEET[:10]
        for n in (0, 1)
    ]
    found = judged("x", [*lost, *(ran(host) for host in FLEET[10:])], Settings(), {})
    assert failing(found) == set(FLEET[:10]) and not found.notes
    broken = judged("x", [ran(host, ends=BROKEN) for host in FLEET], Settings(), {})
    assert failing(broken) == set(FLEET)


def test_one_log_that_names_an_error_of_hardware_is_enough() -> None:
    others = [ran(host) for host in FLEET if host != FLEET[4]]
    found = judged("x", [*others, ran(FLEET[4], ends=BROKEN)], Settings(), {})
    assert failing(found) == {FLEET[4]} and found.accused
    for line in (
        "RuntimeError: CUDA error: unspecified launch failure",  # programs do that as well
        "[1.0] NVRM: Xid (PCI:0000:3b:00): 31, pid=7, Ch 0000000a, MMU Fault",
        "RuntimeError: boo",
    ):
        assert not failing(judged("x", [*others, ran(FLEET[4], ends=line)], Settings(), {}))
    xid = "[1.0] NVRM: Xid (PCI:0000:3b:00): 79, pid=7, GPU has fallen off the bus."
    assert failing(judged("x", [*others, ran(FLEET[4], ends=xid)], Settings(), {})) == {FLEET[4]}


def test_a_log_that_ended_too_early_to_say_of_what_counts_among_all() -> None:
    """4 of 20 hosts miss a library, before a word of what was to be trained: that is not half of the work."""
    lost = [
        "Traceback (most recent call last):",
        "ImportError: libcudart.so.12: cannot open shared object file",
    ]
    logs = [one(lost, f"{n}/{host}.log") for host in FLEET[:4] for n in (0, 1)]
    found = judged("x", [*logs, *(ran(host, n) for host in FLEET[4:] for n in (0, 1))], Settings(), {})
    assert failing(found) == set(FLEET[:4]) and not found.notes
    most = [one(lost, f"{n}/{host}.log") for host in FLEET[:10] for n in (0, 1)]
    found = judged("x", [*most, *(ran(host) for host in FLEET[10:])], Settings(), {})
    assert not failing(found) and found.hosts[0].reason == AS_MOST
    assert found.notes == [
        "20 jobs of one workload fail the same way (shared_library): no evidence against their hosts"
    ]


def test_jobs_of_one_family_are_counted_together() -> None:
    """What a good job adds to its workload does not make the others all that there are."""
    logs = []
    for size in (1, 2):
        for first in range(0, 16, size):
            group = FLEET[first : first + size]
            name = f"{size}-{first}"
            if {FLEET[3], FLEET[9]} & set(group):
                logs.append(short(name, group, None, "timeout: not over", workload="fabric", entry="fabric"))
            else:
                seconds = size * (1 + first / 5000)
                logs.append(short(name, group, seconds, workload="fabric, 1 MB", entry="fabric"))
    found = judged("x", logs, Settings(slow=0.02), {})
    assert failing(found) == {FLEET[3], FLEET[9]} and not found.notes


def test_what_all_jobs_on_as_many_hosts_share() -> None:
    """Every pair times out while every host alone is well: nothing that one of them is to blame for."""
    alone = [short(f"a{host}", [host], 1 + number / 9000, entry="f") for number, host in enumerate(FLEET)]
    pairs = [
        short(f"{wave}{n}", (FLEET[n], FLEET[(n + 1) % 16]), None, "timeout: not over", entry="f")
        for wave in (0, 1)
        for n in range(wave, 16, 2)
    ]
    found = judged("x", [*alone, *pairs], Settings(), {})
    assert set(conditions(found).values()) == {"fit"} and not found.links
    assert "16 jobs of f" in found.notes[0]


def test_who_says_it_is_not_what_is_said() -> None:
    """Different errors of rank 3 are different ways to end; one error of different ranks is one."""
    words = ["TypeError", "KeyError", "IndexError", "OSError"]
    apart = [
        short(str(n), [host], None, f"rank 3: {words[n % 4]}: x", entry="f") for n, host in enumerate(FLEET)
    ]
    assert not judged("x", apart, Settings(), {}).notes
    alike = [
        short(str(n), [host], None, f"{host}: rank {n}: KeyError: {n}", entry="f")
        for n, host in enumerate(FLEET)
    ]
    assert "(KeyError)" in judged("x", alike, Settings(), {}).notes[0]


def test_a_host_of_which_no_log_tells_anything() -> None:
    silent = JobLog(job="x.log", outcome=State.SUCCEEDED, format="Transformers", hosts=("quiet",))
    found = judged("x", [silent, *(ran(host) for host in FLEET)], Settings(), {})
    assert conditions(found)["quiet"] == "unknown"
    assert found.hosts[-1].reason == "the logs of its jobs have neither step times nor a failure"


def limited(host: str, step: float, *, quiet: int = 20) -> JobLog:
    """A job that Slurm ended after so many seconds without a step."""
    lines = chat_log([host], step, ends=False, windows=30)
    over = at(10 + 310 * step + quiet).replace(" ", "T").partition(",")[0]
    return one(
        [*lines, f"slurmstepd: error: *** JOB 77 ON {host} CANCELLED AT {over} DUE TO TIME LIMIT ***"],
        f"{step}/{host}.log",
    )


def test_jobs_that_time_ended_tell_their_pace() -> None:
    """All of them; or one host's alone, which hung in vain if nothing came of it for long."""
    noise = {host: 1 + ((n * 7919) % 61 - 30) / 10_000 for n, host in enumerate(FLEET)}
    slow = {FLEET[6]: 1.25}
    logs = [
        limited(host, 0.2 * noise[host] * slow.get(host, 1) * more) for host in FLEET for more in (1, 1.001)
    ]
    assert {log.outcome for log in logs} == {"timeout"} and all(log.quiet for log in logs)
    found = judged("x", logs, Settings(), {})
    assert {host for host, each in conditions(found).items() if each != "fit"} == {FLEET[6]}
    assert conditions(found)[FLEET[6]] == "slow"
    others = [ran(host, n) for host in FLEET[1:] for n in (0, 1)]
    well = judged("x", [*others, limited(FLEET[0], 0.2), limited(FLEET[0], 0.2001)], Settings(), {})
    assert set(conditions(well).values()) == {"fit"}
    term = "[{at}] [INFO] [launch.py:328:sigkill_handler] Main process received SIGTERM, exiting"
    ended = [
        one([*chat_log([FLEET[0]], 0.2 + n / 9000, ends=False), term.format(at=at(40))], f"t{n}.log")
        for n in (0, 1)
    ]
    assert set(conditions(judged("x", [*others, *ended], Settings(), {})).values()) == {"fit"}
    hung = [limited(FLEET[0], 0.2, quiet=3000), limited(FLEET[0], 0.2001, quiet=3000)]
    assert failing(judged("x", [*others, *hung], Settings(), {})) == {FLEET[0]}


def test_logs_that_just_stop_like_all_others_tell_their_pace() -> None:
    logs = [
        one(chat_log([host], 0.2 * (1.25 if host == FLEET[3] else 1 + n / 9000), ends=False), f"{n}.log")
        for n, host in enumerate(FLEET)
    ]
    logs += [replace(log, job=f"again-{log.job}", digest=0, started=None) for log in logs]
    found = judged("x", logs, Settings(), {})
    assert conditions(found)[FLEET[3]] == "slow"
    assert {each for host, each in conditions(found).items() if host != FLEET[3]} == {"fit"}
