"""What the judge hears of a bench's jobs."""

from __future__ import annotations

from muster.core.result import Result
from muster.planner.rota import Task
from muster.stages.bench_fold import fold_bench
from tests.unit.benches import ended, fabric_result, recorded, suite_of


def test_hosts_whose_fabric_jobs_time_out_are_failing() -> None:
    """Good jobs say how large their all-reduce was, failed ones do not: they are jobs of one entry all the
    same, and two hosts of sixteen are not half of it."""
    suite = suite_of({"recipe": "fabric", "groups": [1, 2]})

    def result(task: Task) -> Result:
        return fabric_result(list(task.hosts), {})

    bench = ended(suite, "local:16x1", result)
    records = {
        task.id: recorded(task, None, outcome="timeout", reason="timeout: not over after 600 s")
        if {"local3", "local9"} & set(task.hosts)
        else bench.records[task.id]
        for task in bench.tasks
    }
    found = fold_bench(ended(suite, "local:16x1", result, records=records))
    assert {each.host for each in found.hosts if each.verdict == "failing"} == {"local3", "local9"}
    assert not found.notes
    every = {
        task.id: recorded(task, None, outcome="timeout", reason=f"rank {n}: timeout: not over")
        for n, task in enumerate(bench.tasks)
    }
    found = fold_bench(ended(suite, "local:16x1", result, records=every))
    assert {(each.verdict, each.reason) for each in found.hosts} == {
        ("unknown", "its jobs ended like most jobs of the same work, so they do not show how the host is")
    }
    assert found.notes == ["24 jobs of fabric fail the same way (timeout): no evidence against their hosts"]
