"""The fabric workload's figures from its events: matrices, who is slowest, files, page, and who is blamed."""

from __future__ import annotations

import csv
import io
import math
from typing import Any

import pytest

from muster.core.batch import Batch
from muster.core.errors import RecipeError, UsageError
from muster.core.fabric import FabricRun
from muster.core.hardware.links import LinkFigures, SharedLink
from muster.core.inventory import Host, parse_hosts
from muster.core.job import Job, place
from muster.core.recipe import recipe_from
from muster.core.recipes import load_recipe
from muster.core.result import Failure, Result
from muster.core.state import RunEnd, State
from muster.inputs.read import check_idle
from muster.planner.time.collective import CALL
from muster.planner.time.learning import link_figures
from muster.reports import fabric as page
from muster.reports.fabric import files, heat_map
from muster.reports.rundata import RunData
from muster.results.figures import figures as listed_figures
from muster.results.fold import EventFold, fold, make_result
from muster.store import events
from muster.workloads.fabric.fold import RankEvents, fabric_run
from tests.support import on_hosts
from tests.unit.test_report import HOSTILE, check

MIB = 1 << 20
Told = tuple[int, str, dict[str, Any]]  # rank, kind, content


def job(names: list[str], slots: int = 1) -> Job:
    recipe = recipe_from({"workload": "fabric"})
    places = place([(Host(name), slots) for name in names])
    world = len(names) * slots
    return Job("r1", "local", places, Batch(1, 1, world), "fp32", "cpu", recipe.as_dict())


def pair(source: int, target: int, seconds: float, latency: float = 1e-4) -> Told:
    told = {"source": source, "target": target, "bytes": MIB, "seconds": [seconds], "latencies": [latency]}
    return source, "pair", told


def everyone(count: int, slow: int | None = None) -> list[Told]:
    """All directions at 1 MiB per ms; those of `slow` at a tenth."""
    return [
        pair(a, b, 0.01 if slow in (a, b) else 0.001) for a in range(count) for b in range(count) if a != b
    ]


def heard(made: Job, told: list[Told]) -> EventFold:
    """The events of a run, as its event file has them."""
    hosts = {rank: each.host for each in made.placements for rank in each.ranks}
    measured = [
        events.Measured(time=index + 1, rank=rank, host=hosts[rank], what=kind, content=content)
        for index, (rank, kind, content) in enumerate(told)
    ]
    return fold([events.JobState(time=0, state="begin"), *measured])


def figures(names: list[str], told: list[Told], slots: int = 1) -> FabricRun:
    made = job(names, slots)
    return fabric_run(RankEvents(made.placements, "cpu", heard(made, told).measured))


def sweep(operation: str, size: int, *seconds: float) -> Told:
    told = {"operation": operation, "method": "native", "bytes": size, "iterations": 1}
    return 0, "sweep", {**told, "seconds": list(seconds)}


def matmul(rank: int, rate: float, *, right: bool = True) -> Told:
    told = {"precision": "fp32", "n": 64, "threads": 1, "best": 1.1 * rate, "sustained": rate}
    return rank, "matmul", {**told, "products": 4, "seconds": 1.0, "right": right}


SPLIT: dict[str, Any] = {
    "n": 300, "rows": 100, "repeats": 5, "total": 0.004, "compute": 0.001, "communication": 0.003,
    "compute_by_rank": [0.001, 0.0009, 0.0008], "method": "native",
}  # fmt: skip
LATENCY: dict[str, Any] = {"operation": "all-reduce", "bytes": 8, "median": 2e-5, "best": 1e-5, "count": 100}


def whole(names: list[str]) -> list[Told]:
    """A healthy run of one rank per host."""
    told: list[Told] = [(rank, "ready", {"device": "EPYC", "torch": "2.13"}) for rank in range(len(names))]
    for name in ("matmul", "points"):
        told += [(0, "begin", {"question": name}), (0, "end", {"question": name})]
    told += [matmul(rank, 1e9) for rank in range(len(names))]
    told += [
        sweep(each, size, 0.001, 0.002) for each in ("all-reduce", "all-gather") for size in (1024, 4096)
    ]
    return [*told, (0, "latency", LATENCY), *everyone(len(names)), (0, "product", SPLIT)]


# Figures.


def test_what_a_plan_learns_of_the_link() -> None:
    """By hand: of three ranks' largest all-reduce, 4/3 of its bytes in its time; latency in four steps."""
    names = ["a", "b", "c"]
    beside = {"bytes": 4096, "computing": 0.9, "exchanging": 0.8, "meeting": 0.002, "apart": 0.02}
    told = [each for each in whole(names) if each[1] != "latency"]
    told += [sweep("all-gather", 4104, 0.004), (0, "beside", beside), sweep("all-reduce", 8192, 0.003)]
    told += [sweep("all-gather", 2048, 0.0001), (0, "latency", {**LATENCY, "mean": CALL["gloo"] + 4e-5})]
    found = link_figures(figures(names, told), 3)
    assert found.bandwidth == pytest.approx(8192 / 0.003 * 4 / 3)
    assert found.latency == pytest.approx(1e-5)
    alike = 4096 / 0.0015 * 4 / 3  # the largest that an all-gather was measured with, to some bytes
    assert found.beside.gather == pytest.approx(4104 / 0.004 * 2 / 3 / alike)
    assert (found.beside.computing, found.beside.exchanging, found.beside.meeting) == (0.9, 0.8, 0.002)
    assert found.beside.pair_gather is None
    largest = sweep("all-reduce", 8192, 0.003)
    small = [largest, sweep("all-reduce", 1024, 0.001), sweep("all-gather", 1024, 0.001)]
    assert link_figures(figures(names, small), 3).beside.gather is None  # too small to show it
    median = figures(names, [(0, "latency", {**LATENCY, "median": CALL["gloo"] + 8e-5}), largest])
    assert link_figures(median, 3).latency == pytest.approx(2e-5)  # of a run that kept no mean
    with pytest.raises(UsageError, match="no all-reduce was measured"):
        link_figures(figures(names, [matmul(0, 1e9)]), 3)
    two = figures(["a", "b"], [largest, sweep("all-gather", 8192, 0.002)])
    shares = [link_figures(two.model_copy(update={"backend": name}), 2).beside for name in ("gloo", "nccl")]
    # 4096 / 0.002 over 8192 / 0.003
    assert [each.pair_gather for each in shares] == pytest.approx([0.75, 0.75])
    assert (shares[0].gather, shares[1].gather) == (None, pytest.approx(0.75))


def test_what_only_an_earlier_run_found_stays() -> None:
    two = LinkFigures(1e9, 1e-5, SharedLink(None, 0.9, 0.8, 0.002, pair_gather=0.7))
    more = LinkFigures(2e9, None, SharedLink(0.95, 0.6, 0.5, 0.003))
    assert more.after(two) == LinkFigures(2e9, 1e-5, SharedLink(0.95, 0.6, 0.5, 0.003, pair_gather=0.7))
    assert two.after(more) == LinkFigures(1e9, 1e-5, SharedLink(0.95, 0.9, 0.8, 0.002, pair_gather=0.7))
    assert two.after(LinkFigures()) == two
    for wrong in ({"pair_gather": 0.0}, {"gather": math.nan}, {"meeting": -1.0}, {"computing": math.nan}):
        with pytest.raises(ValueError, match="no shares and seconds"):
            SharedLink(**wrong)


def test_the_matrix_and_who_is_slowest() -> None:
    """Every direction in its place; the slow host is named, and not those that talk with it."""
    run = figures(["a", "b", "c", "d"], everyone(4, slow=2))
    assert run.pairs is not None and run.pairs.names == ["a", "b", "c", "d"]
    for i, row in enumerate(run.pairs.bandwidth):
        for j, rate in enumerate(row):
            expected = None if i == j else MIB / (0.01 if 2 in (i, j) else 0.001)
            assert rate is None if expected is None else rate == pytest.approx(expected)
    link, host = run.slowest
    assert (link.what, link.ratio) == ("pair", pytest.approx(0.1 / 0.55)) and "c" in (link.host, link.other)
    assert (host.what, host.name, host.ratio) == ("links", "c", pytest.approx(0.1))


def test_a_link_that_is_slow_one_way() -> None:
    """Neither of two hosts is slower than the other; ranks of one host stand for themselves."""
    told = [pair(a, b, 0.02 if (a, b) == (0, 1) else 0.001) for a in range(3) for b in range(3) if a != b]
    link, host = figures(["a", "b", "c"], told).slowest
    assert (link.host, link.other, link.ratio) == ("a", "b", pytest.approx(0.05))
    assert host.ratio == 1  # every host still has a good link
    assert [each.what for each in figures(["a", "b"], everyone(2)).slowest] == ["pair"]
    alone = figures(["a"], everyone(3), slots=3)
    assert alone.pairs is not None and alone.pairs.names == ["rank 0", "rank 1", "rank 2"]


def test_a_sample_of_pairs_leaves_cells_empty() -> None:
    ring = [pair(a, b, 0.001) for a, b in ((0, 1), (1, 0), (1, 2), (2, 1))]
    run = figures(["a", "b", "c"], ring)
    assert run.pairs is not None and run.pairs.bandwidth[0][2] is None
    cells = list(csv.reader(io.StringIO(files(run)["bandwidth.csv"])))
    assert cells[1] == ["a", "", str(MIB / 0.001), ""]


def test_two_passes_are_one_pair() -> None:
    run = figures(["a", "b"], [pair(0, 1, 0.001), pair(0, 1, 0.003, 5e-5), pair(0, 1, 0.002)])
    assert run.pairs is not None
    assert run.pairs.bandwidth[0][1] == pytest.approx(MIB / 0.002)
    assert run.pairs.bandwidth_best[0][1] == pytest.approx(MIB / 0.001)
    assert run.pairs.latency == [[None, 5e-5], [5e-5, None]]


def test_which_rank_is_heard_first_is_chance() -> None:
    names = ["a", "b", "c"]
    told = whole(names)
    last_first = [each for rank in (2, 0, 1) for each in told if each[0] == rank]
    assert figures(names, told) == figures(names, last_first)
    assert {each[0] for each in told} == {0, 1, 2}


def test_the_slowest_device() -> None:
    run = figures(["a", "b", "c"], [matmul(0, 1e9), matmul(1, 4e8), matmul(2, 1.1e9)])
    assert [(each.what, each.name, each.precision) for each in run.slowest] == [("matmul", "b", "fp32")]
    assert run.slowest[0].ratio == pytest.approx(0.4)


def test_events_of_another_shape_are_noted() -> None:
    made = job(["a", "b"])
    told: list[Told] = [(0, "sweep", {"operation": "all-reduce"}), (0, "product", {"n": 3, "total": 0.0})]
    read = RankEvents(made.placements, "cpu", heard(made, told).measured)
    run = fabric_run(read)
    assert (run.sweeps, run.products) == ([], []) and len(read.notes) == 2


@pytest.mark.parametrize("kind", ["values", "pair", "curtailed", "begin", "end", "missing"])
def test_events_that_lack_a_part_are_noted(kind: str) -> None:
    made = job(["a", "b"])
    read = RankEvents(made.placements, "cpu", heard(made, [(0, kind, {})]).measured)
    run = fabric_run(read)
    assert (run.values, run.pairs, run.seconds, read.accused(), read.curtailed()) == ([], None, {}, {}, [])
    assert len(read.notes) == 1 and "a:" in read.notes[0]


def test_a_second_attempt_begins_anew() -> None:
    made = job(["a", "b"])
    folder = heard(made, everyone(2))
    folder.add(events.JobState(time=99, attempt=2, state="begin"))
    assert folder.measured == []


# Files and rows.


def test_the_files() -> None:
    found = files(figures(["a", "b,b", 'c"'], whole(["a", "b,b", 'c"'])))
    assert set(found) == {"sweep.csv", "bandwidth.csv", "latency.csv", "matmul.csv", "product.csv"}
    rows = {name: list(csv.reader(io.StringIO(text))) for name, text in found.items()}
    assert rows["bandwidth.csv"][0] == ["bytes/s from row to column", "a", "b,b", 'c"']
    assert rows["sweep.csv"][1][:4] == ["all-reduce", "1024", "0.0015", "0.001"]
    assert len(rows["matmul.csv"]) == 4 and rows["matmul.csv"][1][-1] == ""  # no stated peak of a CPU
    assert [row[2] for row in rows["product.csv"][1:]] == ["0.001", "0.0009", "0.0008"]
    assert files(figures(["a", "b"], [])) == {}


# The page.


def a_run(names: list[str], told: list[Told], failure: Failure | None = None) -> tuple[Result, EventFold]:
    made = job(names)
    folder = heard(made, told)
    status: RunEnd = State.FAILED if failure else State.SUCCEEDED
    return make_result(folder, made, status=status, failure=failure, ended=60.0), folder


@pytest.mark.parametrize("names", [["a", "b", "c"], [HOSTILE, "b", "c"]], ids=["names", "hostile names"])
@pytest.mark.parametrize("measured", [False, True], ids=["nothing yet", "whole"])
@pytest.mark.parametrize("state", [State.SUCCEEDED, State.RUNNING, State.STOPPED, State.FAILED])
def test_a_page(state: State, measured: bool, names: list[str]) -> None:
    result, folder = a_run(names, whole(names) if measured else [])
    assert result.fabric is not None and result.model is None
    result = result.model_copy(update={"failure": Failure(what="it broke")} if state == "failed" else {})
    shown = check(RunData("r1", state, result, folder))
    assert "Pairs, point to point" in shown.words and "Learning" not in shown.words
    assert ("No pair was measured." in shown.words) != measured and "no finished" not in shown.words
    if measured and names[0] == "a":
        assert ("td", "title", "a to b: 8.39 Gbit/s, 100 µs") in shown.attributes
    ranks = next(each for each in listed_figures(result) if each.name == "Ranks")
    assert ranks.words == "3 (3 hosts, gloo on cpu)"


def test_a_heat_map_of_every_size() -> None:
    """One cell per direction; the slow host's stand out; a large one is cut, and keeps the slow ones."""
    for count in (2, 13, 60):
        run = figures([f"n{i}" for i in range(count)], everyone(count, slow=1 if count > 2 else None))
        assert run.pairs is not None
        styles = [style for _, cells in heat_map(run.pairs).rows for style, _, _ in cells]
        assert len([each for each in styles if each]) == count * (count - 1)
        assert styles.count("slow") == (2 * (count - 1) if count > 2 else 0)
    count = page.MOST_HOSTS + 30
    run = figures([f"n{i}" for i in range(count)], everyone(count, slow=count - 1))
    drawn = page.section(run).map
    assert drawn is not None and page.MOST_HOSTS // 2 <= len(drawn.rows) <= page.MOST_HOSTS
    styles = [style for _, cells in drawn.rows for style, _, _ in cells]
    assert styles.count("slow") == 2 * (len(drawn.rows) - 1)
    assert f"of {count} are shown" in drawn.note


# Whose fault it is.


def missing(rank: int, *gone: int) -> Told:
    return rank, "missing", {"question": "broadcast", "ranks": list(gone)}


GONE = [missing(0, 1), missing(2, 1)]
KILLED = Failure(what="rank 1 was ended by SIGKILL", host="b")  # says more than the others do
BAD = {"dtype": "int64", "elements": 3, "index": 1, "got": 5.0, "expected": 4.0, "wrong_elements": 1}
VALUES = {"operation": "all-gather", "method": "native", "elements": 3, "wrong": 1}
FROM_B = VALUES | {"shown": [{**BAD, "source": 1}]}  # both of the others got it from b


@pytest.mark.parametrize(
    ("told", "failure", "where", "words"),
    [
        (GONE, Failure(what="broadcast: timed out", host="c"), "rank 1", ""),
        (GONE, KILLED, None, KILLED.what),
        ([(0, "values", FROM_B), (2, "values", FROM_B)], None, None, "got 5.0 instead of 4.0"),
        ([matmul(0, 1e9), matmul(1, 1e9, right=False)], None, None, ""),
    ],
    ids=["who did not answer", "one that was killed", "wrong values", "a wrong product"],
)
def test_the_host_to_blame(told: list[Told], failure: Failure | None, where: str | None, words: str) -> None:
    found = a_run(["a", "b", "c"], told, failure)[0]
    assert found.status == "failed" and found.failure is not None
    assert found.failure.host == "b" and words in found.failure.what
    assert where is None or found.failure.where == where


# The recipe.


def test_the_shipped_recipe() -> None:
    recipe = load_recipe("fabric", ["fabric.largest=64MiB", "launch.timeout=60", "env.NCCL_DEBUG=INFO"])
    assert recipe.fabric.largest == 64 * MIB  # type: ignore[attr-defined]
    check_idle(recipe_from(recipe.as_dict()))  # as a frozen recipe has it: every field


@pytest.mark.parametrize(
    "override",
    [
        "engine.zero=1", "batch.global=32", "model.config.d_model=3", "precision=bf16", "measure.window=3",
        "train.max_steps=3", "data.path=x", "fabric.largest=0", "fabric.largest=3", "fabric.largest=many",
        "fabric.largest=-64MiB",
    ],
)  # fmt: skip
def test_fields_that_mean_nothing_are_refused(override: str) -> None:
    with pytest.raises(RecipeError) as caught:
        check_idle(load_recipe("fabric", [override]))
    assert override.partition("=")[0] in str(caught.value)
    assert caught.value.hint or override.startswith("fabric")


def test_nothing_is_decided_about_a_batch() -> None:
    inventory = parse_hosts("a:2,b:2")
    facts = {host.label: {"gpus": [], "cores": 4} for host in inventory.hosts}
    decided = on_hosts(load_recipe("fabric"), inventory, facts)
    assert {each.field for each in decided.job.decisions} == {"launch.device"}
    assert decided.slots == (2, 2) and decided.threads == (2, 2)
