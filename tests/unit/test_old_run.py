"""A run that an earlier version left, of before rooms were features: it shows, counts and reports."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from muster.cli.app import app
from muster.results.fold import fold
from muster.store import events
from muster.store.runfolder import RunFolder

OLD = Path(__file__).resolve().parents[1] / "golden" / "old_run"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return Path(shutil.copytree(OLD, tmp_path / "runs" / "old"))


def test_its_events_fold_as_they_did(old: Path) -> None:
    run = RunFolder(old)
    result = run.read_result()
    folder = fold(events.read_events(run.events))
    assert result is not None and (result.status, result.steps) == ("succeeded", 12)
    assert max(folder.windows) == result.steps
    assert folder.logs[12].loss == pytest.approx(result.loss_final)
    assert set(folder.facts) == {each.host for each in result.hosts} == {"local0", "local1"}


@pytest.mark.parametrize("verb", [["show"], ["report"], ["show", "--csv"]])
def test_verbs_read_it(verb: list[str], old: Path) -> None:
    done = CliRunner().invoke(app, [verb[0], "old", *verb[1:], "--runs", str(old.parent)])
    assert done.exit_code == 0, done.output


def test_it_is_listed(old: Path) -> None:
    done = CliRunner().invoke(app, ["ls", "--runs", str(old.parent), "--json"])
    (row,) = json.loads(done.output)
    assert (row["id"], row["status"], row["steps"]) == ("old", "succeeded", 12)
