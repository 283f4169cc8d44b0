"""The fabric workload with real ranks over gloo, the way every job goes: figures, files, faults, a stop."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from muster.cli.app import app
from muster.core.hardware.links import LinkFigures, SharedLink
from muster.core.result import Result
from muster.inputs.read import read_inputs
from muster.planner.calibrate import calibrate
from muster.planner.machines import load_calibration, save_calibration
from muster.planner.time.learning import link_figures
from muster.planner.time.steptime import Calibration
from muster.reports.page import report
from muster.runs.train import ignore, train
from muster.store import events
from muster.store.runfolder import RunFolder
from tests.support import needs_torch, with_ranks

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]

ROOT = Path(__file__).resolve().parents[2]
SMALL = ["fabric.largest=64KiB", "launch.threads=1", "launch.device=cpu", "measure.hardware_seconds=1"]
COLLECTIVES = {"all-reduce", "all-gather", "reduce-scatter", "broadcast"}


def measured(folder: Path, hosts: str, *overrides: str, watch=ignore) -> tuple[RunFolder, Result]:
    needs_torch()
    run = RunFolder(folder)
    result = train(read_inputs("fabric", hosts, [*SMALL, *overrides]), run, watch=watch)
    return run, result


def faulty(
    folder: Path, monkeypatch: pytest.MonkeyPatch, fault: str, *overrides: str
) -> tuple[RunFolder, Result]:
    """The same on three hosts, with ranks of which one has a planted fault."""
    with_ranks(monkeypatch, "tests.real.faulty_fabric")
    environment = [f"env.PYTHONPATH={ROOT}", f"env.FAULT={fault}"]
    return measured(folder, "local:3x1", "fabric.seconds=2", *environment, *overrides)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, Result]:
    """One run on three pretend hosts, of which the tests below look at one thing each."""
    return measured(tmp_path_factory.mktemp("fabric") / "three", "local:3x1", "fabric.seconds=5")


Three = tuple[RunFolder, Result]


def test_the_result(three: Three) -> None:
    """Every measurement is there; of a training there is nothing."""
    _, result = three
    assert (result.status, result.failure, result.workload) == ("succeeded", None, "fabric")
    assert (result.model, result.engine, result.precision, result.global_batch) == (None, None, None, None)
    assert (result.throughput, result.model_path, result.steps, result.samples) == (None, None, 0, 0)
    fabric = result.fabric
    assert fabric is not None and (fabric.backend, fabric.wrong) == ("gloo", [])
    assert {each.operation for each in fabric.values} == {*COLLECTIVES, "point-to-point", "product"}
    assert all(each.ranks == 3 and each.elements and not each.wrong for each in fabric.values)
    assert {each.operation for each in fabric.sweeps} == COLLECTIVES
    for each in fabric.sweeps:
        factor = {"all-reduce": 4 / 3, "broadcast": 1.0}.get(each.operation, 2 / 3)
        assert each.busbw == pytest.approx(each.bytes / each.time.median * factor)
        assert each.bytes <= 64 * 1024
    assert [each.count >= 5 for each in fabric.latencies] == [True]
    assert {(m.host, m.rank) for m in fabric.matmul if m.precision == "fp32" and m.right} == {
        (f"local{rank}", rank) for rank in range(3)
    }
    questions = {*COLLECTIVES, "rendezvous", "matmul", "values", "latency", "points", "product", "beside"}
    assert set(fabric.seconds) == questions and sum(fabric.seconds.values()) <= result.seconds.total


def test_computation_beside_an_exchange(three: Three) -> None:
    """Shares of a speed alone, and a plan's figures of the link from them."""
    fabric = three[1].fabric
    assert fabric is not None
    (beside,) = fabric.beside
    assert 0 < beside.computing <= 1 and 0 < beside.exchanging <= 1 and 0 <= beside.meeting < 1
    figures = link_figures(fabric, 3)
    assert (
        figures.bandwidth
        == max((s for s in fabric.sweeps if s.operation == "all-reduce"), key=lambda s: s.bytes).busbw
    )
    assert figures.beside.computing == beside.computing and figures.latency is not None


def test_a_plan_learns_the_link(three: Three, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`muster plan --calibrate` of a fabric's run: the links' figures, kept for the plans to come."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    learned, _, errors = calibrate([three[0]])
    assert three[1].fabric is not None
    assert learned.links == {"loopback gloo": link_figures(three[1].fabric, 3)}
    assert (errors, load_calibration()) == ({}, learned)
    pair = LinkFigures(
        1e6, beside=SharedLink(gather=0.25, pair_gather=0.5)
    )  # of two ranks, and an earlier one of more
    save_calibration(Calibration(links={"loopback gloo": pair}))
    again = calibrate([three[0]])[0].links["loopback gloo"]
    mine = link_figures(three[1].fabric, 3)
    gathers = (mine.beside.gather or 0.25, 0.5)
    assert (again.bandwidth, again.beside.gather, again.beside.pair_gather) == (mine.bandwidth, *gathers)


def test_the_split_product(three: Three) -> None:
    """Compute and communication stand apart, and every rank's own time beside them."""
    fabric = three[1].fabric
    assert fabric is not None
    (product,) = fabric.products
    assert product.n == 3 * product.rows >= 256
    assert len(product.compute_by_rank) == 3 and min(product.compute_by_rank) > 0
    assert product.communication > 0 and product.total <= 2 * (product.compute + product.communication)
    assert product.flops == pytest.approx(2 * product.n**3 / product.total)


def test_the_pairs_and_their_files(three: Three) -> None:
    """Each direction of each of the three pairs, in the result and as CSV matrices."""
    run, result = three
    assert result.fabric is not None and result.fabric.pairs is not None
    pairs = result.fabric.pairs
    assert pairs.names == ["local0", "local1", "local2"] and pairs.ranks == [0, 1, 2]
    for name, cells in (("bandwidth", pairs.bandwidth), ("latency", pairs.latency)):
        with (run.fabric / f"{name}.csv").open(newline="") as file:
            head, *rows = csv.reader(file)
        assert head[1:] == [row[0] for row in rows] == pairs.names
        for i, row in enumerate(rows):
            assert [float(cell) if cell else None for cell in row[1:]] == cells[i]
            assert [bool(cell) for cell in row[1:]] == [i != j for j in range(3)]
    named = {each.what: each for each in result.fabric.slowest}
    rates = [rate for row in pairs.bandwidth for rate in row if rate is not None]
    assert named["pair"].value == min(rates) and named["links"].host in pairs.names
    with (run.fabric / "sweep.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == len(result.fabric.sweeps)
    assert {path.name for path in run.fabric.iterdir()} == {
        "bandwidth.csv", "latency.csv", "sweep.csv", "matmul.csv", "product.csv",
    }  # fmt: skip


def test_the_run_folder(three: Three) -> None:
    """A result that can be read again, frozen input without a batch, no model and no checkpoint."""
    run, result = three
    assert run.read_result() == result
    assert "batch" not in json.loads(run.plan.read_text())
    assert not run.model.exists() and not run.checkpoints.exists()
    kinds = {event.what for event in events.read_events(run.events) if isinstance(event, events.Measured)}
    assert {"ready", "begin", "end", "met", "sweep", "pair", "matmul", "values", "product"} <= kinds


def test_the_page_and_the_console(three: Three) -> None:
    """The page has the heat map with its six cells; `show` prints the tables, `ask` says that there is no
    model."""
    run, result = three
    assert result.fabric is not None
    html = report(run).read_text(encoding="utf-8")
    heat = html.partition('<table class="heat"')[2].partition("</table>")[0]
    assert heat.count("title=") == 6 and "local2 to local0: " in heat
    assert "Bus bandwidth" in html and "Answers to held-out questions" not in html
    shown = CliRunner().invoke(app, ["show", str(run.path)])
    assert shown.exit_code == 0
    assert "bus bandwidth by message size" in shown.output and "Slowest pair" in shown.output
    assert "65.5 kB" in shown.output or result.notes  # where time was short, a note says so
    as_json = json.loads(CliRunner().invoke(app, ["show", str(run.path), "--json"]).stdout)
    assert as_json["result"]["fabric"]["pairs"]["names"] == ["local0", "local1", "local2"]


def test_one_rank_alone(tmp_path: Path) -> None:
    """What it can do by itself is measured, and the rest is said not to apply."""
    _, result = measured(tmp_path / "run", "local:1", "fabric.seconds=1")
    assert result.status == "succeeded" and result.fabric is not None
    assert result.fabric.matmul and result.fabric.pairs is None and not result.fabric.sweeps
    assert any("only one rank" in note for note in result.notes)


def test_a_wrong_sum_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is measured, and the run is a failure of the host that saw one wrong element."""
    run, result = faulty(tmp_path / "run", monkeypatch, "sum:1", "fabric.matmul=false")
    assert result.status == "failed" and result.failure is not None
    assert result.failure.host == "local1"
    assert "all-reduce of 1023" in result.failure.what and "at element 17" in result.failure.what
    assert result.fabric is not None and result.fabric.sweeps and result.fabric.pairs
    assert (result.fabric.matmul, result.fabric.products) == ([], [])  # as asked
    assert {(each.host, each.index) for each in result.fabric.wrong} == {("local1", 17)}
    assert "wrong values" in report(run).read_text(encoding="utf-8")


@pytest.mark.real_start  # a fork would go on until it is forced to end, and measure more meanwhile
def test_stopped_early(tmp_path: Path) -> None:
    """What was measured until then is in the result, in the files and on the page."""
    folder = RunFolder(tmp_path / "run")

    def stop(event: events.Event) -> None:
        if isinstance(event, events.Measured) and event.what == "sweep":
            folder.stop_request.touch()

    run, result = measured(folder.path, "local:2x1", "fabric.seconds=600", "fabric.matmul=false", watch=stop)
    assert result.status == "stopped"
    assert result.fabric is not None and result.fabric.sweeps and result.fabric.pairs is None
    assert (run.fabric / "sweep.csv").exists()
    assert "The run was stopped after" in report(run).read_text(encoding="utf-8")
