"""The OPT benchmark from its recipe to its result: as shipped, but small enough for two cores."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from muster.core.errors import RunFolderError
from muster.inputs.read import read_inputs
from muster.runs.ask import ask
from muster.runs.train import train
from muster.store import events
from muster.store.runfolder import RunFolder
from tests.support import needs_torch

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

SMALL = [
    "model.name=opt-8m", "model.config.vocab_size=512", "model.config.num_hidden_layers=2",
    "data.sequence=32", "batch.tokens=300", "train.max_steps=4", "measure.window=1",
    "measure.hardware_seconds=1", "measure.peak_tflops=0.05",
]  # fmt: skip


def test_the_benchmark_as_one_command(tmp_path: Path) -> None:
    needs_torch()
    run = RunFolder(tmp_path / "run")
    result = train(read_inputs("opt-benchmark", "local:2", SMALL), run)
    assert result.status == "succeeded", result.failure
    assert (result.steps, result.global_batch, result.samples) == (4, 8, 32)  # 256 of 300 tokens: 2 x 4 rows
    assert result.model_path is None and not run.model.exists()
    speed = result.throughput
    assert speed is not None
    assert speed.tokens_per_second == pytest.approx(32 * speed.samples_per_second)
    assert speed.samples_per_second > 0 and speed.measured_steps == 3  # of 4, but for a third
    assert result.engine == "deepspeed ZeRO-2"
    share = result.flops
    assert share is not None and share.mfu is not None and share.hfu is not None
    assert (share.peak, share.peak_source) == (0.05e12, "measure.peak_tflops")
    assert share.mfu == pytest.approx(share.model_per_second / 0.05e12)
    assert 1 < share.hfu / share.mfu < 4 / 3  # gradient checkpointing is on, and no output layer is repeated
    assert result.memory.resident_peak is not None and result.memory.resident_peak > 2**20
    assert result.memory.allocator_peak is None  # a CPU has none
    job = json.loads(run.job.read_text())
    assert job["recipe"]["train"]["learning_rate"] == 1e-3  # what ranks get is decided
    assert {"train.learning_rate", "memory of a rank"} <= {each["field"] for each in job["decisions"]}
    logs = [e for e in events.read_events(run.events) if isinstance(e, events.Log) and e.loss is not None]
    assert logs[0].loss == pytest.approx(6.24, abs=0.1)  # of 512 entries, by chance
    assert 0 < max(log.learning_rate or 0 for log in logs) <= 1e-3
    with pytest.raises(RunFolderError, match="kept no model"):
        ask(run, ["def"])
