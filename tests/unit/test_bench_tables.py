"""Of a bench's document: curves over the number of hosts, entries beside each other, the table of jobs."""

from __future__ import annotations

import csv
import io
import os

import pytest
from rich.console import Console

from muster.benches.document import Bench
from muster.benches.inputs import read_bench
from muster.benches.judge import table_of
from muster.benches.suite import load_suite
from muster.cli.views.benches import print_bench
from muster.judging.document import Judged
from tests.unit.benches import ended, made, suite_of
from tests.unit.test_bench_fold import PER_SLOT, fleet


def test_sizes_of_pretend_hosts_have_the_same_threads() -> None:
    """Else one rank alone gets all cores, and is not what two hosts are compared with."""
    cores = len(os.sched_getaffinity(0))
    for hosts, slots in (("local:2x1", 2), ("local:3x4", 12)):
        inputs = read_bench("scaling", hosts, recipe="digits")
        assert {each.launch.threads for each in inputs.recipes.values()} == {max(1, cores // slots)}
    given = read_bench("scaling", "local:2x1", ["launch.threads=3"], recipe="digits")
    assert {each.launch.threads for each in given.recipes.values()} == {3}
    far = read_bench("scaling", "node[1-2]:8", recipe="digits")
    assert {each.launch.threads for each in far.recipes.values()} == {None}


def test_the_table() -> None:
    """S1's columns first, then what is known besides; unknown is empty."""
    found = ended(suite_of({"groups": [1, 2]}, thresholds=[PER_SLOT]), "local:3x1", fleet)
    rows = list(csv.DictReader(io.StringIO(table_of(found))))
    assert len(rows) == 6
    assert rows[3]["Hostnames"] == "local0,local1"
    assert float(rows[3]["Throughput (samples/sec)"]) == pytest.approx(200, rel=0.01)
    assert (rows[0]["Status"], rows[0]["recipe"], rows[0]["group"], rows[0]["reason"]) == (
        "succeeded",
        "digits",
        "1",
        "",
    )
    assert rows[0]["memory"] == "500000000" and float(rows[0]["seconds"]) == 12.0
    assert "-1" not in {value for row in rows for value in row.values()}


def test_documents_of_judged_and_bench_share_their_peers() -> None:
    """So `--baseline` takes either."""
    assert Judged.model_fields["peers"].annotation == Bench.model_fields["peers"].annotation


def test_the_published_benchmark_has_published_figures() -> None:
    """H100, per device: within a percent of each other on 1 to 512 of them but for the smallest numbers."""
    for entry in load_suite("s1").jobs:
        assert entry.published
        for each in entry.published:
            rates = {count: rate / count for count, rate in each.samples_per_second.items() if count >= 8}
            assert max(rates.values()) / min(rates.values()) < 1.03


def test_a_benchs_table_of_jobs_cuts_no_figure_in_a_narrow_terminal() -> None:
    hosts = "cluster-node[1-9]:1"
    bench = ended(suite_of({"groups": [1, 2]}), hosts, lambda task: made(task.hosts, 123.4))
    file = io.StringIO()
    print_bench(bench, every=True, console=Console(file=file, width=80, force_terminal=True, no_color=True))
    assert file.getvalue().count("500.0 MB") == len(bench.jobs) and "…" not in file.getvalue()
