"""What is printed of a bench, and what is normal in tokens. How a judgement is printed: tests/golden."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from muster.benches.fold import fold_bench
from muster.benches.schedule import Task
from muster.cli.views.benches import print_bench
from muster.cli.views.verdicts import print_answer
from muster.core.result import Failure, Result
from muster.core.state import State
from muster.judging import Settings
from muster.judging.document import (
    BAD,
    Gate,
)
from muster.judging.joblogs import judged
from muster.readers.base import JobLog, MeasuredWindows
from tests.unit.benches import ended, made, suite_of

HOSTS = [f"node{number:02d}" for number in range(1, 65)]


def test_a_bench_whose_jobs_failed_is_not_fit() -> None:
    """Its gate is shut, so its first line does not say that all is well."""

    def result(task: Task) -> Result:
        oom = Failure(what="CUDA out of memory")
        return made(task.hosts, status=State.FAILED, failure=oom) if task.repeat == 2 else made(task.hosts)

    bench = fold_bench(ended(suite_of({"groups": [1], "repeats": 3}), "local:8x1", result))
    assert bench.gate is Gate.BAD and not any(each.verdict in BAD for each in bench.hosts)
    file = io.StringIO()
    print_answer(Console(file=file, soft_wrap=True), bench)
    assert "8 jobs failed" in file.getvalue()


def test_a_benchs_table_of_jobs_cuts_no_figure_in_a_narrow_terminal() -> None:
    hosts = "cluster-node[1-9]:1"
    bench = fold_bench(ended(suite_of({"groups": [1, 2]}), hosts, lambda task: made(task.hosts, 123.4)))
    file = io.StringIO()
    print_bench(bench, every=True, console=Console(file=file, width=80, force_terminal=True, no_color=True))
    assert file.getvalue().count("500.0 MB") == len(bench.jobs) and "…" not in file.getvalue()


def test_what_is_normal_is_told_in_tokens_where_steps_are_counted_so() -> None:
    logs = [
        JobLog(
            job=name, outcome=State.SUCCEEDED, hosts=(name,), workload="gpt2", settings="a", unit="tokens",
            measured=MeasuredWindows(10, 0, 1e6 * (1 + 0.001 * number), 20.0, windows=5, unit="tokens"),
        )
        for number, name in enumerate(HOSTS[:6])
    ]  # fmt: skip
    (peers,) = judged("x", logs, Settings(), {}).peers
    assert peers.samples_per_second is None and peers.tokens_per_second == pytest.approx(5e4, rel=0.01)
