"""docs/own-workload.md: a workload from outside, one folder, does what Muster's own do, with real ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

import muster
from muster.store.runfolder import RunFolder
from tests.pages import ROOT, install
from tests.support import losses, needs_torch
from tests.unit.benches import write_suite

pytestmark = pytest.mark.real

SHORT = ["measure.window=4", "measure.warmup=4", "measure.hardware_seconds=1", "launch.threads=1"]
SUITE = {
    "warm_up": False, "groups": [1], "timeout": 200,
    "jobs": [{"name": "letters", "recipe": "letters.yaml", "cover": "first", "set": {
        "train": {"max_steps": 12}, "evaluate": {"after": False}, "checkpoint": {"model": False},
    }}],
}  # fmt: skip


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    needs_torch()
    install(ROOT / "docs" / "own-workload.md", tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_workload_of_ones_own(here: Path) -> None:
    plan = muster.plan("letters.yaml", "local:2", overrides=SHORT)
    assert plan.memory is not None and plan.batch["global"] == 16
    (here / "short.txt").write_text("one\n")
    with pytest.raises(muster.MusterError, match="fewer than two lines"):
        muster.train("letters.yaml", "local:2", overrides=["data.path=short.txt"])
    result = muster.train("letters.yaml", "local:2", overrides=SHORT, output="run")
    assert result.status == "succeeded", result.failure
    assert (result.workload, result.world_size, result.steps) == ("letters", 2, 4 * 16)
    told = losses(RunFolder(here / "run"))
    assert told[-1] < told[0] / 2
    quality = result.quality
    assert quality is not None and (quality.questions, quality.metric) == (13, "exact match")
    asked = muster.ask("run", ["abcdefgh"])
    assert [len(row["predicted"]) for row in asked.rows] == [8]
    assert muster.ask("run", evaluate=True).exact_match == quality.exact_match
    assert "letters" in muster.report("run").read_text()
    suite = write_suite(here, SUITE)
    found = muster.bench(str(suite), "local:2x1", overrides=SHORT, output="bench")
    assert [(job.entry, job.outcome) for job in found.jobs] == [("letters", "succeeded")]
    assert all(job.figures["samples_per_second"] > 0 for job in found.jobs)
