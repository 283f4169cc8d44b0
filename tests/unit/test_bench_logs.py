"""What the judge hears of a bench's jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from muster.benches.logs import logs_of
from muster.benches.schedule import Task
from muster.core.fabric import Matmul, Sweep, spread
from muster.core.recipes import load_recipe
from muster.core.result import Result
from muster.judging.joblogs import observation_of, work_of
from tests.unit.benches import fabric_result, made, recorded


def swept(hosts: Sequence[str], seconds: Mapping[int, float]) -> Result:
    """A fabric result whose all-reduces of these sizes took so long."""
    found = fabric_result(list(hosts), {})
    assert found.fabric is not None
    sweeps = [
        Sweep(operation="all-reduce", method="native", bytes=size, time=spread([took] * 5), iterations=1,
              algbw=size / took, busbw=size / took, busbw_best=size / took)
        for size, took in seconds.items()
    ]  # fmt: skip
    return found.model_copy(update={"fabric": found.fabric.model_copy(update={"sweeps": sweeps})})


SIZES = (1 << 10, 1 << 14, 1 << 16, 1 << 18, 1 << 20)


def product(precision: str, **more: Any) -> Matmul:
    fields: dict[str, Any] = {
        "host": "", "rank": 0, "device": "cpu", "precision": precision, "n": 1000, "threads": 1, "best": 1e12,
        "sustained": 1e12, "products": 9, "seconds": 1.0, "right": True, "peak": None,
    }  # fmt: skip
    return Matmul(**{**fields, **more})


def test_the_judge_hears_when_a_job_ran_and_what_was_an_exchange() -> None:
    tasks = [Task("f", "fabric", ("a", "b"), 60.0), Task("d", "digits", ("a", "b"), 60.0)]
    results = {"f": fabric_result(["a", "b"], {}), "d": made(["a", "b"])}
    records = {task.id: recorded(task, results[task.id]) for task in tasks}
    told = logs_of(records, {each: load_recipe(each) for each in ("fabric", "digits")})
    seen = {job: [observation_of(log, work_of(log)) for log in logs] for job, logs in told.items()}
    assert all(each and (each.began, each.ended) == (100.0, 112.0) for all_ in seen.values() for each in all_)
    assert [each.exchanges for each in seen["f"] if each] == [True, False, False]
    assert [each.exchanges for each in seen["d"] if each] == [False]
