"""Measured peaks: what a check or a fabric run found goes before the maker's figure; bad files."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from muster.checks.inspection import Inspection
from muster.core.errors import RecipeError
from muster.core.hardware.peaks import MeasuredPeaks, PeakFigure, peaks_in
from muster.core.inventory import Host
from muster.core.job import Job, place, read_job
from muster.core.recipe import recipe_from
from muster.core.result import Flops
from muster.core.state import State
from muster.inputs.peaks import peaks_of, read_peaks
from muster.inputs.read import read_inputs
from muster.results.fold import fold, make_result
from tests.unit.test_flops import H200, job, started, window

ENDED = 1_790_000_000.0  # 21 September 2026
SOURCE = "measured by muster check on 2026-09-21"


def matmul(host: str, sustained: float, **changes: Any) -> dict[str, Any]:
    return {
        "host": host, "rank": 0, "device": "NVIDIA H200", "precision": "bf16", "n": 8192, "threads": None,
        "best": 1.1 * sustained, "sustained": sustained, "products": 9, "seconds": 1.0, "right": True,
        "peak": H200, "peak_source": "a data sheet", **changes,
    }  # fmt: skip


def checked(*matmuls: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """What `muster check --json` prints, as far as it matters here."""
    summary = {"fit": 1, "warning": 0, "unfit": 0, "unreachable": 0}
    found = Inspection(
        source="a,b", ended=ENDED, world_size=2, summary=summary, hosts=[], troubles=[],
        group={"matmul": list(matmuls)},
    )  # fmt: skip
    return {**found.model_dump(mode="json"), **changes}


def flops(peaks: MeasuredPeaks, of: Job | None = None, arithmetic: str | None = None, **device: str) -> Flops:
    """Of a rank on a and one on b, each with 200 TFLOP/s."""
    stream = [
        *(started(rank, device.get(host, "NVIDIA H200"), arithmetic) for rank, host in enumerate("ab")),
        *(window(10, rank) for rank in (0, 1)),
    ]
    told = replace(of or job(), peaks=peaks)
    again = read_job(json.loads(json.dumps(told.as_dict())))  # as a report of later reads it
    assert again is not None and again.peaks == peaks
    found = make_result(fold(stream), again, status=State.SUCCEEDED, failure=None, ended=9.0).flops
    assert found is not None
    return found


# --- what counts as the peak -----------------------------------------------------------------------------


def test_a_measured_peak_goes_before_the_stated_one() -> None:
    """The mean of a host's devices; a device that computes wrongly has no figure."""
    document = checked(
        matmul("a", 700e12), matmul("a", 720e12, rank=1), matmul("b", 650e12, rank=2),
        matmul("b", 5e12, rank=3, right=False), matmul("a", 60e12, precision="fp32"),
    )  # fmt: skip
    got = flops(peaks_in(document))
    assert got.peak == pytest.approx((710e12 + 650e12) / 2)
    assert got.mfu == pytest.approx(200e12 / 680e12)
    assert got.peak_source == SOURCE


def test_a_host_that_was_not_measured_has_the_stated_peak_and_says_so() -> None:
    got = flops(peaks_in(checked(matmul("a", 700e12))))
    assert got.peak == pytest.approx((700e12 + H200) / 2)
    assert got.peak_source is not None
    assert got.peak_source.endswith(f"; {SOURCE}; not measured on b")
    assert "H200" in got.peak_source


@pytest.mark.parametrize(
    ("arithmetic", "peak"), [("tf32", 380e12), ("fp32", 50e12)], ids=["tf32", "fp32 has its own"]
)
def test_the_figure_is_of_the_runs_arithmetic(arithmetic: str, peak: float) -> None:
    of = [("bf16", 700e12), ("tf32", 380e12), ("fp32", 50e12)]
    document = checked(*(matmul(host, rate, precision=name) for host in "ab" for name, rate in of))
    assert flops(peaks_in(document), job("fp32"), arithmetic).peak == peak


def test_a_figure_of_another_device_does_not_count() -> None:
    got = flops(peaks_in(checked(matmul("a", 700e12), matmul("b", 700e12))), b="NVIDIA A100-SXM4-80GB")
    assert got.peak == pytest.approx((700e12 + 312e12) / 2)
    assert got.peak_source is not None and got.peak_source.endswith("not measured on b")


def test_cpus_have_a_measured_peak_alone() -> None:
    """A rank calls every processor "cpu"; the one without a figure leaves the share unknown."""
    two = [
        matmul(host, rate, device="AMD EPYC", precision="fp32", threads=4)
        for host, rate in (("a", 1e11), ("b", 3e11))
    ]
    got = flops(peaks_in(checked(*two)), job("fp32"), a="cpu", b="cpu")
    assert (got.peak, got.peak_source, got.mfu) == (2e11, SOURCE, 1000.0)
    alone = flops(peaks_in(checked(two[0])), job("fp32"), a="cpu", b="cpu")
    assert (alone.peak, alone.mfu) == (None, None)


def test_a_peak_by_hand_goes_before_a_measured_one() -> None:
    got = flops(peaks_in(checked(matmul("a", 700e12), matmul("b", 700e12))), job(peak_tflops={"b": 500.0}))
    assert got.peak == pytest.approx(600e12)
    assert got.peak_source == f"measure.peak_tflops; {SOURCE}"


def test_a_fabric_run_counts_as_well() -> None:
    document = {"status": "succeeded", "ended": ENDED, "fabric": {"matmul": [matmul("a", 700e12)]}}
    found = peaks_in(document)
    assert found.source == "measured by muster train fabric on 2026-09-21"
    assert found.figures == (PeakFigure("a", "NVIDIA H200", "bf16", 700e12),)


@pytest.mark.parametrize("ended", [None, "soon", 1e300], ids=str)
def test_a_document_without_a_usable_date_has_none(ended: Any) -> None:
    assert peaks_in(checked(matmul("a", 1e12), ended=ended)).source == "measured by muster check"


def test_what_a_run_froze_is_read_back() -> None:
    found = peaks_in(checked(matmul("a", 700e12), matmul("b", 1e11, threads=4)))
    assert peaks_in(json.loads(json.dumps(asdict(found)))) == found


# --- whether it is of this run's hosts -------------------------------------------------------------------


PLACES = place([(Host("a"), 1), (Host("b"), 1)])
FACTS = {host: {"gpus": [{"name": "NVIDIA H200"}]} for host in "ab"}


def ask(
    folder: Path, document: Any, facts: Any = FACTS, device: str = "cuda", threads: tuple[int, int] = (8, 8)
) -> Any:
    file = folder / "peaks.json"
    file.write_text(json.dumps(document))
    return peaks_of(str(file), PLACES, facts, threads if device == "cpu" else None)


def test_the_figures_of_a_jobs_hosts_are_kept(tmp_path: Path) -> None:
    document = checked(matmul("a", 7e14), matmul("b", 6e14), matmul("c", 5e14))
    peaks, decisions = ask(tmp_path, document)
    assert [each.host for each in peaks.figures] == ["a", "b"]
    assert decisions == ()


def test_a_host_without_figures_is_named_before_the_start(tmp_path: Path) -> None:
    peaks, (decision,) = ask(tmp_path, checked(matmul("a", 7e14)))
    assert peaks.hosts == ("a",)
    assert (decision.field, decision.value) == ("peak of b", "as its maker states it")
    assert "peaks.json has no figure for it" in decision.why


def test_a_part_of_a_gpu_has_a_longer_name(tmp_path: Path) -> None:
    part = "NVIDIA H200 MIG 1g.18gb"
    peaks, _ = ask(tmp_path, checked(matmul("a", 9e13, device=part)))
    assert peaks.figures[0].device == part


def test_each_hosts_figure_is_for_its_own_number_of_threads(tmp_path: Path) -> None:
    """Hosts with other numbers of cores, or of ranks, give a rank other numbers of threads."""
    document = checked(*(matmul(host, 1e12, device="EPYC", threads=n) for host, n in (("a", 8), ("b", 4))))
    peaks, decisions = ask(tmp_path, document, device="cpu", threads=(8, 4))
    assert [(each.host, each.threads) for each in peaks.figures] == [("a", 8), ("b", 4)]
    assert decisions == ()
    with pytest.raises(RecipeError, match=r"^b: .*no figure for 8 CPU threads a rank, but for 4 CPU"):
        ask(tmp_path, document, device="cpu", threads=(8, 8))


@pytest.mark.parametrize(
    ("facts", "device", "figure", "text"),
    [
        (
            {**FACTS, "a": {"gpus": [{"name": "NVIDIA L4"}]}}, "cuda", {},
            "a: measure.peaks: {file} has no figure for NVIDIA L4, but for NVIDIA H200",
        ),
        (
            FACTS, "cpu", {},
            "a: measure.peaks: {file} has no figure for 8 CPU threads a rank, but for NVIDIA H200",
        ),
        (
            FACTS, "cpu", {"device": "AMD EPYC", "threads": 4},
            "a: measure.peaks: {file} has no figure for 8 CPU threads a rank, but for 4 CPU threads",
        ),
        (
            FACTS, "cuda", {"host": "far07"},
            "measure.peaks: {file} has figures of far07, and of no host of this run",
        ),
    ],
    ids=["another GPU", "no CPU", "other threads", "other hosts"],
)  # fmt: skip
def test_figures_of_other_devices(tmp_path: Path, facts: Any, device: str, figure: Any, text: str) -> None:
    with pytest.raises(RecipeError) as caught:
        ask(tmp_path, checked({**matmul("a", 7e14), **figure}), facts, device)
    assert str(caught.value) == text.format(file=tmp_path / "peaks.json")
    assert caught.value.hint


def test_without_a_file_there_is_nothing_to_read() -> None:
    assert peaks_of(None, PLACES, FACTS, None) == (None, ())


# --- bad files -------------------------------------------------------------------------------------------


BAD = {
    "no JSON": ("fit: 3 hosts", "is invalid JSON"),
    "empty, as the shell leaves it": ("", "is invalid JSON"),
    "deep": ("[" * 100_000, "is invalid JSON"),
    "a list": ("[1]", "is not a JSON object"),
    "another document": ('{"hosts": []}', "is neither what `muster check HOSTS --json` prints nor"),
    "no group": (json.dumps(checked(group=None)), "has no measured matrix product"),
    "no products": (json.dumps(checked()), "has no measured matrix product"),
    "a group of another kind": (json.dumps(checked(group={"a": 1})), "has matrix products that this version"),
    "no figure": (json.dumps(checked({"host": "a"})), "has matrix products that this version"),
    "no speed": (json.dumps(checked(matmul("a", 0.0))), "has no measured matrix product"),
    "frozen badly": ('{"source": "x", "figures": [{"host": 1}]}', "has figures that this version"),
    "a training's result": ('{"status": "succeeded", "fabric": null}', "has no measured matrix product"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_file_without_figures_is_bad_input(case: str, tmp_path: Path) -> None:
    content, text = BAD[case]
    file = tmp_path / "peaks.json"
    file.write_text(content)
    with pytest.raises(RecipeError) as caught:
        read_peaks(str(file))
    assert str(caught.value).startswith(f"measure.peaks: {file} {text}")
    assert "\n" not in str(caught.value)
    assert "muster check HOSTS --json" in (caught.value.hint or "")


def test_it_is_said_before_any_host_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RecipeError, match=f"measure.peaks: no such file: {tmp_path}/none.json"):
        read_inputs("digits", "local:1", [f"measure.peaks={tmp_path}/none.json"])
    with pytest.raises(RecipeError, match=f"measure.peaks: {tmp_path} cannot be read: Is a directory"):
        read_inputs("digits", "local:1", [f"measure.peaks={tmp_path}"])
    (tmp_path / "peaks.json").write_text(json.dumps(checked(matmul("a", 7e14))))
    monkeypatch.chdir(tmp_path)
    recipe = read_inputs("digits", "local:1", ["measure.peaks=peaks.json"]).recipe
    assert recipe.measure.peaks == str(tmp_path / "peaks.json")
    assert recipe_from(recipe.as_dict()).measure.peaks == recipe.measure.peaks
