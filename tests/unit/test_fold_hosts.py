"""Unequal shares and slow hosts in a result, and in its report."""

from __future__ import annotations

import pytest

from muster.core.batch import Batch
from muster.core.inventory import Host
from muster.core.job import Decision, Job, place
from muster.core.recipe import recipe_from
from muster.core.result import Result
from muster.core.state import State
from muster.reports import tables
from muster.results.fold import fold, make_result
from muster.store import events
from tests.unit.test_report import a_run


def two_ranks_each(*decisions: Decision) -> Job:
    return Job(
        id="one",
        launcher="ssh",
        placements=place([(Host("a"), 2), (Host("b"), 2)]),
        batch=Batch(8, 1, 32),
        precision="fp32",
        device="cpu",
        recipe=recipe_from({"batch": {"split": "measured"}}).as_dict(),
        decisions=decisions,
    )


def result(*said: events.Event, job: Job | None = None) -> Result:
    return make_result(fold(said), job or two_ranks_each(), status=State.SUCCEEDED, failure=None, ended=9.0)


def split(attempt: int = 1, **changes: object) -> events.Split:
    content = {"shares": [11, 11, 5, 5], "speeds": [200.0, 200.0, 100.0, 90.0], "seconds": 3.0, **changes}
    return events.Split(time=1.0, attempt=attempt, rank=0, **content)  # type: ignore[arg-type]


def test_the_reports_host_table_has_them_where_there_are_any() -> None:
    with_shares, without = result(split()), result()
    table = tables.host_table(a_run(result=with_shares))
    columns = dict(zip(table.columns, zip(*table.rows, strict=True), strict=True))
    assert columns["Share of a micro-step"] == ("22", "10")
    assert [value.split()[0] for value in columns["Speed, alone"]] == ["400.0", "190.0"]
    assert "Share of a micro-step" not in tables.host_table(a_run(result=without)).columns


def test_samples_of_hours_take_no_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neighbours are joined where there are too many: sums, means and peaks stay as they were."""

    def sample(n: int) -> events.Hardware:
        gpu = {"percent": float(n % 7), "slowed": 8 if n % 3 == 0 else 0, "strangers": int(n == 50)}
        return events.Hardware(
            time=float(n), host="a", cpu_percent=float(n % 10), cpu_busy=1.0, cpu_own=0.5, cpu_stolen=0.25,
            memory_used=1000 + n % 90, gpus=[gpu],
        )  # fmt: skip

    said = [sample(n) for n in range(1001)]
    whole = result(*said).hosts[0]
    monkeypatch.setattr("muster.results.fold.SAMPLES", 60)
    folder = fold(said)
    assert len(folder.hardware["a"]) <= 60
    few = make_result(folder, two_ranks_each(), status=State.SUCCEEDED, failure=None, ended=9.0).hosts[0]
    assert few.cpu_percent_mean == pytest.approx(whole.cpu_percent_mean)
    assert few.gpu_percent_mean == pytest.approx(whole.gpu_percent_mean)
    assert few.slowed == pytest.approx(whole.slowed) and few.strangers == whole.strangers == 1
    assert few.memory_used_peak == whole.memory_used_peak == 1089
    assert few.cpu_use[-1] == whole.cpu_use[-1] == (1000.0, 1000.0, 500.0)
