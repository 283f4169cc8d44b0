"""`muster train` on some of the hosts given: the first so many, or as many as the plan finds fastest."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.agent.host import processor
from muster.core.hardware.links import LinkFigures
from muster.core.recipes import load_recipe
from muster.inputs.read import read_inputs
from muster.planner.document import Plan
from muster.planner.machines import save_calibration
from muster.planner.plan import ask, hosts_first
from muster.planner.time.steptime import Calibration
from muster.runs.resume import resume
from muster.runs.train import train
from muster.store import events
from muster.store.runfolder import RunFolder
from tests.support import needs_torch

pytestmark = pytest.mark.real
SETTINGS = ["train.max_steps=40", "measure.warmup=5", "launch.threads=1", "evaluate.after=false"]


@pytest.fixture(autouse=True)
def _nothing_learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_torch()
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def placed(run: RunFolder) -> list[str]:
    return [each["host"] for each in run.read_json(run.job)["placements"]]


def test_the_first_host_alone(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    result = train(read_inputs("digits", "local:2x1", [*SETTINGS, "launch.hosts=1"]), run)
    assert result.status == "succeeded", result.failure
    assert placed(run) == ["local0"]
    assert sorted(log.name for log in run.logs.iterdir()) == ["local0.log", "local0.rank0.log"]
    plan = Plan.model_validate(run.read_json(run.plan))
    assert (plan.hosts, plan.idle) == (1, ["local1"])
    told = next(each for each in plan.decisions if each["field"] == "launch.hosts")
    assert told["why"] == "as the recipe says; local1 stays idle"


def test_the_plan_chooses_and_a_resumed_run_keeps_its_choice(tmp_path: Path) -> None:
    """A link of 1 MB/s makes one of two hosts the faster job; what is learned before the run goes on changes
    nothing."""
    cpu = " ".join(filter(None, ("cpu", processor())))
    slow = Calibration(efficiency={f"{cpu} fp32": 0.1}, links={"loopback gloo": LinkFigures(1e6)})
    save_calibration(slow)
    run = RunFolder(tmp_path / "run")

    def stop_at_20(event: events.Event) -> None:
        if isinstance(event, events.Saved) and event.step == 20:
            run.stop_request.touch()

    settings = [*SETTINGS, "train.max_steps=200", "checkpoint.every=20", "launch.hosts=auto"]
    stopped = train(read_inputs("digits", "local:2x1", settings), run, watch=stop_at_20)
    assert stopped.status != "succeeded"
    assert placed(run) == ["local0"]
    plan = Plan.model_validate(run.read_json(run.plan))
    assert (plan.hosts, plan.idle) == (1, ["local1"])
    rows = {each.changes["launch.hosts"]: each for each in plan.candidates}
    assert rows["1"].chosen
    assert rows["2"].why.endswith("slower")
    assert load_recipe(str(run.recipe)).launch.hosts == 1

    save_calibration(Calibration(efficiency=slow.efficiency, links={"loopback gloo": LinkFigures(1e12, 0.0)}))
    again = resume(run)
    assert again.status == "succeeded", again.failure
    assert placed(run) == ["local0"]
    assert run.read_json(run.job)["resume_step"] >= 20


def test_where_no_speed_is_known_all_hosts_are_taken(tmp_path: Path) -> None:
    given = read_inputs("digits", "local:2x1", ["launch.hosts=auto"])
    inputs, chosen = hosts_first(given, ask)
    assert inputs.inventory.names == ("local0", "local1")
    assert inputs.recipe.launch.hosts == 2
    assert chosen is not None
    assert chosen.idle == ()
    assert chosen.why == "all of them: their speed is unknown"
