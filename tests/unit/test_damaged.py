"""A run with a file that was cut short: it is listed, and said to be damaged, and no other run is touched."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from muster.cli.app import app, main
from muster.core.errors import RunFolderError, UsageError
from muster.core.result import Memory, Result, Seconds
from muster.core.state import State
from muster.runs.listing import show
from muster.runs.resume import resume
from muster.store.queries import runs_table
from muster.store.runfolder import RunFolder

RESULT = Result(
    id="x", status=State.SUCCEEDED, attempt=1, workload="text2sql", model="t5-small",
    engine="ddp", precision="fp32",
    world_size=1,
    global_batch=8, started=1.0, ended=2.0, seconds=Seconds(total=1.0), steps=5, samples=40,
    memory=Memory(), hosts=[],
).model_dump_json(indent=2)  # fmt: skip


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("good", "bad", "empty", "odd", "cut"):
        (folder := tmp_path / "runs" / name).mkdir(parents=True)
        (folder / "job.json").write_text(json.dumps({"recipe": {"workload": "text2sql"}}))
        (folder / "result.json").write_text(RESULT)
    (tmp_path / "runs/bad/result.json").write_text(RESULT[:200])
    (tmp_path / "runs/empty/result.json").write_text("")
    (tmp_path / "runs/odd/result.json").write_text('{"id": "odd", "hosts": 5, "seconds": "none"}')
    (tmp_path / "runs/cut/result.json").unlink()
    (tmp_path / "runs/cut/job.json").write_text('{"recipe": {')
    return tmp_path / "runs"


def test_they_are_listed_as_damaged(root: Path) -> None:
    states = {row["id"]: row["status"] for row in runs_table(root)}
    assert states == {"good": "succeeded", **dict.fromkeys(("bad", "empty", "odd", "cut"), "damaged")}
    assert "result.json" in next(row["failure"] for row in runs_table(root) if row["id"] == "bad")
    assert [row["id"] for row in runs_table(root, "steps = 5")] == ["good"]
    with pytest.raises(UsageError, match="is not a condition"):
        runs_table(root, "blah")
    found = CliRunner().invoke(app, ["ls", "--runs", str(root)])
    assert found.exit_code == 0 and "damaged" in found.output


@pytest.mark.parametrize("name", ["bad", "empty", "odd", "cut"])
def test_verbs_say_so(root: Path, name: str) -> None:
    shown = show(RunFolder(root / name))
    assert shown.state == "damaged" and shown.damage is not None and ".json" in shown.damage
    for verb in ("show", "report"):
        found = CliRunner().invoke(app, [verb, str(root / name)])
        assert "damaged" in found.output + str(found.exception) or "cannot be read" in str(found.exception)
    with pytest.raises(RunFolderError):
        resume(RunFolder(root / name))


def test_judge_says_so(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "bad/job.json").unlink()  # of a folder with nothing else in it, this is the error
    with pytest.raises(SystemExit):
        main(["judge", str(root / "bad")])
    assert "result.json is damaged" in capsys.readouterr().err
