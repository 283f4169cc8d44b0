"""What planted bugs in bench and judge changed, and no other test saw. Figures are computed by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from muster.benches.fold import fold_bench
from muster.benches.logs import logs_of
from muster.benches.schedule import Task
from muster.cli.views.verdicts import means_of
from muster.core.recipes import load_recipe
from muster.core.result import Result
from muster.core.state import State
from muster.judging import Baseline, Class, Settings
from muster.judging.document import Gate, JobEntry, Judged, Verdict
from muster.judging.joblogs import judged, work_of
from muster.judging.logs import judge
from muster.readers.base import JobLog, MeasuredWindows
from tests.unit.benches import ended, made, recorded, suite_of
from tests.unit.logs import chat_log
from tests.unit.test_bench_doubts import BUSY, curve, on, windows
from tests.unit.test_bench_logs import SIZES, product, swept
from tests.unit.test_judge import FLEET, write
from tests.unit.test_judge_atleast import below, fleet


def test_a_host_that_misses_it_alone_is_to_blame_for_its_groups(tmp_path: Path) -> None:
    """Its partner ran in no other job, and is not below."""
    logs = fleet(tmp_path, {FLEET[0]: 1.5}, ((0, 1),), alone=False)
    write(logs / "alone.log", chat_log([FLEET[0]], 0.3))
    assert below(judge(logs, at_least="700samples/s/host")) == {FLEET[0]}


def test_a_switch_that_is_slow_does_not_pass() -> None:
    """Also where every host behind it is fit."""
    fit = Verdict(hosts=["a"], condition="fit", confidence=1.0, reason="")
    slow = Verdict(hosts=["a"], switch="leaf0", condition="slow", confidence=1.0, reason="")
    fields = {"source": "x", "slow": 0.01, "links": [], "peers": [], "jobs": []}
    assert Judged.model_validate({**fields, "hosts": [fit]}).gate is Gate.FIT
    assert Judged.model_validate({**fields, "hosts": [fit], "switches": [slow]}).gate is Gate.BAD


def test_sizes_that_only_disturbed_jobs_reached_are_not_those_compared() -> None:
    """Four of six pairs were disturbed, and reached more: the others are compared at what they reached."""

    def result(task: Task) -> Result:
        busy = not {"local0", "local2"} & set(task.hosts)
        found = swept(task.hosts, {size: 1e-3 + size * 1e-8 for size in SIZES[: 5 if busy else 3]})
        return on(found, **BUSY) if busy else found

    suite = suite_of({"recipe": "fabric", "groups": [2], "repeats": 1})
    found = fold_bench(ended(suite, "local:12x1", result))
    heard = [job for job in found.jobs if not job.not_measured]
    assert heard and len(heard) < len(found.jobs) / 2
    assert all(f"{SIZES[2]:,} bytes" in job.work and not job.notes for job in heard)


def test_a_disturbed_job_is_not_in_the_rate_of_its_size() -> None:
    """Of three jobs on two hosts, one was disturbed: the rate is that of the two others, 190 of 200."""

    def result(task: Task) -> Result:
        two = len(task.hosts) == 2
        disturbed = two and task.repeat == 1
        found = windows(made(task.hosts, (191.0 if disturbed else 190.0) if two else 100.0), 0.01)
        return on(found, stolen=0.2) if disturbed else found

    found, _ = curve(result)
    assert found.points[1].samples_per_second == pytest.approx(190.0)
    assert found.points[1].efficiency == pytest.approx(0.95) and not found.points[1].not_measured


def test_a_hosts_products_are_those_of_its_slowest_device() -> None:
    """2 x 1000^3 operations at 1e12 and at 5e11 a second: 4 ms."""
    task = Task("j", "fabric", ("a",), 60.0)
    found = swept(["a"], {})
    assert found.fabric is not None
    products = [
        product("fp32", host="a", rank=rank, sustained=speed) for rank, speed in enumerate((1e12, 5e11))
    ]
    result = found.model_copy(update={"fabric": found.fabric.model_copy(update={"matmul": products})})
    (logs,) = logs_of({"j": recorded(task, result)}, {"fabric": load_recipe("fabric")}).values()
    assert [log.step_seconds for log in logs if log.measured] == [pytest.approx(0.004)]


def test_a_group_that_misses_with_a_host_that_is_bad_puts_nobody_else_in_doubt() -> None:
    """local3 is at half speed, and its pair misses the threshold. Its partner is fit, alone and in threes."""

    def rate(task: Task) -> Result:
        slow = 0.5 if "local3" in task.hosts else 1.0
        return made(task.hosts, 100.0 * len(task.hosts) * slow * (1 + 0.001 * (sum(map(ord, task.id)) % 5)))

    bound = {"figure": "samples_per_second", "at_least": 150.0}
    alone = {"name": "alone", "groups": [1], "repeats": 2}
    pairs = {"name": "pairs", "groups": [2], "repeats": 2, "thresholds": [bound]}
    threes = {"name": "threes", "groups": [3], "repeats": 2}
    found = fold_bench(ended(suite_of(alone, pairs, threes), "local:12x1", rate))
    assert any(job.misses for job in found.jobs)
    assert {each.host for each in found.hosts if each.verdict not in ("fit", "differs")} == {"local3"}


def test_fleets_that_drifted_most_come_first() -> None:
    """Two works, 5 % and 20 % slower than before: the larger one is the first line."""
    logs = [*alike(1.05), *alike(1.2, "b")]
    stored = {Class(work_of(log), 1): Baseline(1.0, 0.002, 64, stored=True) for log in logs}
    assert [round(each.slower, 2) for each in judged("x", logs, Settings(), stored).drifted] == [0.2, 0.05]


def alike(seconds: float, work: str = "a") -> list[JobLog]:
    """Eight hosts alone, at 1 sample in so many seconds, give or take 0.1 %."""
    return [
        JobLog(job=f"{work}{n}", outcome=State.SUCCEEDED, hosts=(f"n{n}",), workload=work, settings=work,
               batch=1.0, measured=MeasuredWindows(1, 0, 1.0, seconds * (1 + n / 5000)))
        for n in range(8)
    ]  # fmt: skip


@pytest.mark.parametrize(("deviation", "told"), [(0.002, True), (0.05, False)])
def test_a_drift_within_the_error_of_its_baseline_is_none(deviation: float, told: bool) -> None:
    """3 % slower; where jobs of the baseline differ by 5 %, that is within three errors (6.6 %)."""
    logs = alike(1.03)
    stored = {Class(work_of(logs[0]), 1): Baseline(1.0, deviation, 8, stored=True)}
    assert bool(judged("x", logs, Settings(), stored).drifted) is told


def test_a_job_on_unknown_hosts_is_no_evidence() -> None:
    logs = alike(1.0)
    logs[3] = replace(logs[3], unplaced="the job ran on 2 hosts, and 1 host of it is named")
    found = judged("x", logs, Settings(), {})
    assert [job.judged for job in found.jobs] == [n != 3 for n in range(8)]
    assert {each.hosts[0]: each.condition for each in found.hosts}["n3"] == "unknown"
    assert found.peers[0].jobs == 7 and found.gate is Gate.OPEN


def test_what_was_trained_is_said_only_of_logs_that_do_not_say_it(tmp_path: Path) -> None:
    for number, name in enumerate(FLEET[:4]):
        write(tmp_path / f"{number}.log", chat_log([name]))
    (work,) = {job.work for job in judge(tmp_path).jobs}
    assert {job.work for job in judge(tmp_path, workload="gpt2").jobs} == {work}


def test_means_are_by_host_and_by_the_number_of_hosts() -> None:
    """Alone by 1 and 3 %, in pairs by 8 and 9 %; in another work, in which nothing is slow, by nothing."""
    told = [
        (("a",), 0.01, "heavy"), (("a",), 0.03, "heavy"), (("a",), 0.0, "light"), (("a", "b"), 0.08, "heavy"),
        (("a", "b"), 0.09, "heavy"), (("a", "b"), 0.0, "light"), (("b",), None, "heavy"),
    ]  # fmt: skip
    jobs = [
        JobEntry(job=str(n), outcome=State.SUCCEEDED, hosts=list(hosts), slower=slower, work=work)
        for n, (hosts, slower, work) in enumerate(told)
    ]
    assert means_of(jobs) == {("a", 1): pytest.approx(0.02), ("a", 2): 0.08, ("b", 2): 0.08}
