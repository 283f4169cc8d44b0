"""A fleet that became slower as a whole: all its hosts are alike, and only a baseline tells."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from muster.cli.app import app
from muster.judging.document import Judged
from muster.judging.logs import judge
from tests.unit.logs import chat_log
from tests.unit.test_judge import FLEET, noise, write


def fleet(folder: Path, factor: float) -> Path:
    for number, host in enumerate(FLEET):
        write(folder / f"{number}.log", chat_log([host], 0.2 * noise(number) * factor))
    return folder


@pytest.fixture
def baseline(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.json"
    path.write_text(json.dumps(judge(fleet(tmp_path / "before", 1.0)).model_dump(mode="json")))
    return path


def test_the_first_line_says_it_and_the_exit_code(tmp_path: Path, baseline: Path) -> None:
    logs = fleet(tmp_path / "now", 1.2)
    found = judge(logs, baseline=baseline)
    assert found.summary["fit"] == 16 and found.accused
    (drifted,) = found.drifted
    assert drifted.slower == pytest.approx(0.2, abs=0.005) and 0 < drifted.within < 0.005
    assert drifted.now.samples_per_second == pytest.approx(800, rel=0.01)
    assert drifted.baseline.samples_per_second == pytest.approx(960, rel=0.01) and drifted.baseline.stored
    told = CliRunner().invoke(app, ["judge", str(logs), "--baseline", str(baseline)], standalone_mode=False)
    assert told.return_value == 1
    first = told.output.splitlines()[0]
    assert all(words in first for words in ("fleet", "20.0%", "slower", "baseline"))


@pytest.mark.parametrize(
    ("factor", "slow", "differs"), [(1.005, 0.01, False), (1.03, 0.05, False), (0.8, 0.01, True)]
)
def test_what_does_not_count(
    tmp_path: Path, baseline: Path, factor: float, slow: float, differs: bool
) -> None:
    """Less than the smallest slowdown; and a fleet that is faster is a note."""
    logs = fleet(tmp_path / "now", factor)
    found = judge(logs, baseline=baseline, slow=slow)
    assert not found.accused and [each.slower < 0 for each in found.drifted] == [True] * differs
    words = ["judge", str(logs), "--baseline", str(baseline), "--slow", str(slow)]
    told = CliRunner().invoke(app, words, standalone_mode=False)
    assert told.return_value == 0 and ("faster than the baseline" in told.output) is differs


def test_the_document_can_be_read_again(tmp_path: Path, baseline: Path) -> None:
    found = judge(fleet(tmp_path / "now", 1.2), baseline=baseline)
    assert Judged.model_validate_json(found.model_dump_json()) == found
