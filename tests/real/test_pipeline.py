"""A pipeline whose controller is killed in its second step goes on there, and ends as one that was not."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from muster.runs.ask import ask
from muster.runs.pipeline import resume_pipeline
from muster.store import events
from muster.store.runfolder import PipelineFolder, RunFolder
from tests.jobs import Job
from tests.support import TINY, needs_torch, said, wait_until

pytestmark = [pytest.mark.real, pytest.mark.timeout(280)]

FILE = """
pipeline:
  - {{name: more, recipe: demo, after: begin, set: {more}}}
  - {{name: begin, recipe: demo, set: {begin}}}
"""
MORE = {"train.max_steps": 400, "train.warmup": 4, "checkpoint.every": 20, "measure.window": 5}
PLAIN = ["engine.name=ddp", "engine.zero=0"]
# The model of the second step is the first one's, so that its shape is the first one's to say.
SHAPE = [f"begin.{each}" if each.startswith("model.") else each for each in TINY]


def saved(run: RunFolder) -> list[int]:
    """The steps of its checkpoints."""
    return [each.step for each in said(run, events.Saved) if each.step]


def test_killed_in_its_second_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_torch()
    file = tmp_path / "two.yaml"
    file.write_text(FILE.format(more=MORE, begin={"train.max_steps": 6, "train.warmup": 1}))
    monkeypatch.setattr("tests.jobs.TINY", [])
    with Job(tmp_path / "two", "local:1", *SHAPE, *PLAIN, recipe=str(file)) as job:
        folder = PipelineFolder(job.run.path)
        begin, more = folder.step("begin"), folder.step("more")
        reached = wait_until(lambda: saved(more) or job.process.poll() is not None, 120)
        assert reached and job.process.poll() is None, job.said()
        assert (folder.state(), begin.state(), more.state()) == ("running", "succeeded", "running")
        first = begin.result.read_bytes()
        job.process.send_signal(signal.SIGKILL)
        job.process.wait(10)
        assert job.gone_within()  # while they die its ranks may save once more, and remove what resume chose
    assert not folder.result.exists() and not more.model.exists()
    assert (folder.state(), more.state()) == ("interrupted", "interrupted")
    assert folder.trained == begin

    result = resume_pipeline(folder)
    assert result.status == "succeeded", result.failure
    one, two = (each.result for each in result.pipeline)
    assert one is not None and two is not None
    assert (one.attempt, two.attempt, one.steps, two.steps) == (1, 2, 6, 400)
    assert begin.result.read_bytes() == first
    assert more.read_json(more.job)["resume_step"] in range(20, 400, 20)
    assert two.model == str(begin.model) and two.parameters == one.parameters
    assert one.loss_final is not None and two.loss_final is not None and two.loss_final < one.loss_final
    assert ask(folder.trained, ["How many?"]).rows
    page = folder.report.read_text()
    assert 'href="begin/report.html"' in page and begin.report.exists() and more.report.exists()
