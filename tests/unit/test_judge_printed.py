"""What is printed of a bench, and what is normal in tokens. How a judgement is printed: tests/golden."""

from __future__ import annotations

import io

from rich.console import Console

from muster.benches.fold import fold_bench
from muster.cli.views.benches import print_bench
from tests.unit.benches import ended, made, suite_of

HOSTS = [f"node{number:02d}" for number in range(1, 65)]


def test_a_benchs_table_of_jobs_cuts_no_figure_in_a_narrow_terminal() -> None:
    hosts = "cluster-node[1-9]:1"
    bench = fold_bench(ended(suite_of({"groups": [1, 2]}), hosts, lambda task: made(task.hosts, 123.4)))
    file = io.StringIO()
    print_bench(bench, every=True, console=Console(file=file, width=80, force_terminal=True, no_color=True))
    assert file.getvalue().count("500.0 MB") == len(bench.jobs) and "…" not in file.getvalue()
