"""Files of ranks, streams and hosts of one job are one observation."""

from __future__ import annotations

from muster.judging import Settings
from muster.judging.document import Judged
from muster.judging.joblogs import judged
from muster.readers._user import PLACES, Expression, UserFormat
from muster.readers.base import JobLog
from tests.unit.logs import metaseq_log, one, read_log, trainer_log

FLEET = [f"node{number:02d}" for number in range(32)]
STEPS = UserFormat.of((), ["step=iteration", "ms=ms", "batch=batch"])
CRASH = ["Traceback (most recent call last):", "RuntimeError: a tensor of the wrong shape"]


def table(path: str, step: float) -> JobLog:
    rows = ["iteration,ms,batch", *(f"{n},{1000 * step + n % 3:.2f},64" for n in range(1, 60))]
    (job,) = read_log(path, rows, STEPS)
    return job


def noise(number: int) -> float:
    return 1 + ((number * 7919) % 61 - 30) / 10_000


def accused(found: Judged) -> set[str]:
    return {each.hosts[0] for each in found.hosts if each.condition in ("slow", "failing")}


def test_ranks_of_a_slow_job_are_one_job() -> None:
    """16 jobs of two hosts, each of which writes a table per rank: one of them slow is one slow job."""
    logs = [
        table(f"{host}.rank{rank}.csv", noise(number // 2) * (1.05 if number // 2 == 4 else 1))
        for number, host in enumerate(FLEET)
        for rank in (0, 1)
    ]
    found = judged("x", logs, Settings(), {})
    assert not accused(found)
    assert [each.judged for each in found.jobs] == [True, False] * 32
    assert found.jobs[1].notes == ("another log of the same job as node00.rank0.csv, which is used instead",)
    assert found.notes[0].startswith(
        "32 logs belong to other ranks or streams of a job that is already counted"
    )
    again = [*logs, *(table(f"again/{log.job}", log.step_seconds or 0) for log in logs)]
    assert accused(judged("x", again, Settings(), {})) == {"node08", "node09"}  # two jobs, of other folders


def test_one_crash_on_two_ranks_is_one_crash() -> None:
    logs = [
        one(trainer_log(step=2 * noise(n)).replace("\r", "\n").split("\n"), f"{host}.rank0.log")
        for n, host in enumerate(FLEET)
        if host != "node05"
    ]
    for rank in (0, 1):
        logs.append(one(CRASH, f"node05.rank{rank}.log"))
        logs.append(one(CRASH, f"node06/attempt_0/{rank}/stderr.log"))
    found = judged("x", logs, Settings(), {})
    assert not accused(found)
    assert sum(job.judged and job.outcome == "failed" for job in found.jobs) == 2
    retried = [one(CRASH, f"node05/attempt_{attempt}/0/stderr.log") for attempt in (0, 1, 2)]
    assert accused(judged("x", [*logs, *retried], Settings(), {})) == {"node05"}  # each attempt is a job


def test_the_slowest_rank_speaks_or_the_one_that_says_most() -> None:
    quick, slow = table("node-a1.rank0.csv", 1.0), table("node-a1.rank1.csv", 1.2)
    found = judged("x", [quick, slow], Settings(), {})
    assert [each.judged for each in found.jobs] == [False, True]
    symptom = ["Traceback (most recent call last):", "[Rank 1] Watchdog caught collective operation timeout"]
    full = ["OSError: [Errno 28] No space left on device"]
    stopped = metaseq_log(ends=False)
    lines = {
        "node-b1.rank0.log": symptom,
        "node-b1.rank1.log": CRASH,
        "node-b1.rank2.log": full,
        "node-b1.rank3.log": stopped,
    }
    for left, speaks in ((4, "node-b1.rank2.log"), (2, "node-b1.rank1.log"), (1, "node-b1.rank0.log")):
        logs = [one(text, path) for path, text in list(lines.items())[:left]]
        found = judged("x", [*logs, one(stopped, "node-b1.rank3.log")][: max(2, left)], Settings(), {})
        assert [each.job for each in found.jobs if each.judged] == [speaks]
    good = one(metaseq_log(), "node-b1.rank4.log")
    found = judged("x", [one(CRASH, "node-b1.rank0.log"), good], Settings(), {})
    assert [each.job for each in found.jobs if each.judged] == ["node-b1.rank4.log"]


def test_streams_are_of_one_job() -> None:
    good = metaseq_log()
    later = [line.replace("2022-05-01", "2022-05-02") for line in good]
    logs = [one(good, "node01/stdout"), one(CRASH, "node01/stderr"), one(later, "run2/node01/stdout")]
    found = judged("x", logs, Settings(), {})
    assert [each.judged for each in found.jobs] == [True, False, True]


def test_ranks_that_go_on_from_host_to_host_are_of_one_job() -> None:
    """Not so where every host counts its own: they can be any number of jobs."""
    logs = [table(f"run/node0{rank // 2}.rank{rank}.csv", 1.0) for rank in range(4)]
    found = judged("x", logs, Settings(), {})
    assert {tuple(each.hosts) for each in found.jobs} == {("node00", "node01")}
    assert sum(each.judged for each in found.jobs) == 1
    local = [table(f"run/node0{host}.rank{rank}.csv", 1.0) for host in (0, 1) for rank in (0, 1)]
    found = judged("x", local, Settings(), {})
    assert {tuple(each.hosts) for each in found.jobs} == {("node00",), ("node01",)}
    assert sum(each.judged for each in found.jobs) == 2


def test_logs_of_every_host_that_name_all_hosts_are_of_one_job() -> None:
    every = ["SLURM_JOB_NODELIST=node[01-02]", *metaseq_log()]
    logs = [one(every, f"slurm-7-{host}.out") for host in ("node01", "node02")]
    later = [line.replace("2022-05-01", "2022-05-02") for line in every]
    found = judged("x", [*logs, one(later, "slurm-8-node01.out")], Settings(), {})
    assert [each.judged for each in found.jobs] == [True, False, True]


def test_a_folder_that_names_the_hosts_of_its_job() -> None:
    """As docs/judge.md advises."""
    pattern = Expression.of(r"(?P<host>node\[[^/]*\])", PLACES, "--host-pattern")
    logs = [
        job
        for host in ("node01", "node02")
        for job in read_log(f"node[01-02]/{host}.log", metaseq_log(), named=pattern)
    ]
    found = judged("x", logs, Settings(), {})
    assert [each.hosts for each in found.jobs] == [("node01", "node02")] * 2
    assert [each.judged for each in found.jobs] == [True, False]
