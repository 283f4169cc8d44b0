"""Peaks that a fabric run measured count in a training after it, and in whatever reads that run later."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest

from muster.core.job import read_job
from muster.core.recipes import load_recipe
from muster.core.state import State
from muster.inputs.peaks import read_peaks
from muster.inputs.read import read_inputs
from muster.results.fold import fold, make_result
from muster.runs.train import train
from muster.store import events
from muster.store.runfolder import RunFolder
from tests.support import needs_torch

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

HERE = ["launch.threads=1", "launch.device=cpu", "measure.hardware_seconds=1"]


def test_a_training_counts_against_what_was_measured(tmp_path: Path) -> None:
    needs_torch()
    before = RunFolder(tmp_path / "fabric")
    small = ["fabric.seconds=2", "fabric.largest=4KiB"]
    figures = train(read_inputs("fabric", "local:2", [*small, *HERE]), before).fabric
    assert figures is not None
    rates = [each.sustained for each in figures.matmul if each.precision == "fp32"]
    assert len(rates) == 2
    run = RunFolder(tmp_path / "run")
    settings = [f"measure.peaks={before.result}", "train.max_steps=6", "measure.window=2", "train.warmup=0"]
    result = train(read_inputs("digits", "local:2", [*settings, "evaluate.limit=10", *HERE]), run)
    assert result.status == "succeeded", result.failure
    found = result.flops
    assert found is not None and found.peak is not None
    assert found.peak == pytest.approx(fmean(rates))
    assert (found.peak_source or "").startswith("measured by muster train fabric on 20")
    assert found.mfu == pytest.approx(found.model_per_second / found.peak)
    # What it counted against is the run's own: the document may go, and a later fold says the same.
    before.result.unlink()
    assert load_recipe(str(run.recipe)).measure.peaks == str(run.peaks)
    job = read_job(run.read_json(run.job))
    assert job is not None and job.peaks == read_peaks(str(run.peaks))
    again = make_result(
        fold(events.read_events(run.events)), job, status=State.STOPPED, failure=None, ended=0
    )
    assert again.flops == found
