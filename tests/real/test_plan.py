"""A plan beside its run: what was planned stands in the result, and a run teaches the plans to come."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from muster.agent.host import processor
from muster.cli import main
from muster.core.recipes import load_recipe
from muster.inputs.read import read_inputs, read_recipe
from muster.planner.calibrate import calibrate, measured_of
from muster.planner.document import Plan
from muster.planner.machines import UserFigures
from muster.planner.plan import plan_hosts, plan_on
from muster.runs.train import train
from muster.store.runfolder import RunFolder

pytestmark = [pytest.mark.real]
anew = pytest.mark.real_start  # a fork has the memory of more imports
OVERRIDES = [
    "train.max_steps=60", "train.gradient_checkpointing=auto", "launch.threads=1", "measure.warmup=20",
    "engine.name=deepspeed", "engine.zero=auto",
    "checkpoint.every=30",
]  # fmt: skip


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    run = RunFolder(tmp_path_factory.mktemp("plan") / "run")
    assert train(read_inputs("digits", "local:1", OVERRIDES), run).status == "succeeded"
    return run


@anew
def test_the_plan_of_a_run_is_kept_and_stands_in_its_result(done: RunFolder) -> None:
    plan = Plan.model_validate(done.read_json(done.plan))
    result = done.read_result()
    assert result is not None
    assert plan.memory is not None
    assert plan.memory.basis == "not counted"  # of so small a model that is no decoder: nothing is traced
    assert plan.time is None  # nobody had measured this CPU
    assert result.planned is None


@anew
def test_what_was_chosen_is_frozen_for_a_resumed_run(done: RunFolder) -> None:
    plan = Plan.model_validate(done.read_json(done.plan))
    chosen = next(each for each in plan.candidates if each.chosen)
    frozen = load_recipe(str(done.recipe))
    assert frozen.engine.zero == int(chosen.changes["engine.zero"])
    assert frozen.train.gradient_checkpointing is (chosen.changes["train.gradient_checkpointing"] == "true")


@anew
def test_a_run_teaches_what_its_machine_can_do(
    done: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    _, _, errors = calibrate([done])
    assert list(errors.values()) == pytest.approx([0.0], abs=0.01)
    planned = plan_hosts(read_inputs("digits", "local:1", OVERRIDES), UserFigures()).plan
    assert planned.time is not None
    assert planned.time.calibrated
    assert planned.time.step == pytest.approx(measured_of(done).seconds, rel=0.05)
    assert planned.memory is not None
    assert planned.memory.basis == "traced"
    result = done.read_result()
    assert result is not None
    assert planned.memory.device_bytes == pytest.approx(result.memory.resident_peak or 0, rel=0.5)


@anew
def test_calibrating_on_the_command_line(
    done: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    with pytest.raises(SystemExit) as ended:
        main(["plan", "--calibrate", str(done.path), "--json"])
    assert ended.value.code == 0
    found = json.loads(capsys.readouterr().out)
    [(name, share)] = found["efficiency"].items()
    assert name == f"{' '.join(filter(None, ('cpu', processor())))} fp32"
    assert share > 0
    assert Path(found["file"]).is_file()


def test_a_run_with_dynamic_padding_teaches_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its operations are near those of its mean lengths, and a third of those of its longest samples."""
    run = RunFolder(tmp_path / "run")
    settings = ["train.max_steps=16", "engine.name=ddp", "engine.zero=0", "evaluate.after=false"]
    assert (
        train(read_inputs("demo", "local:1", [*settings, "measure.warmup=4", "measure.window=4"]), run).status
        == "succeeded"
    )
    found, planned = (
        measured_of(run),
        plan_on(read_recipe("demo", settings), "cpu{tflops=0.1}", UserFigures()).plan,
    )
    assert planned.time is not None
    [said] = [each for each in planned.time.assumed if "dynamic padding" in each]
    assert said == "steps are for the longest samples; with dynamic padding they are shorter"
    assert found.case.work.flops / 0.6e11 < 0.5 * planned.time.compute  # 60 % of the nominal peak
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert 0.05 < max(calibrate([run])[0].efficiency.values()) < 2
